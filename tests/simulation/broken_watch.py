"""The invariants of broken nodes and reboots, read from the API server's and EC2's memory alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import Kind
from tests.simulation.broken import REBOOT, REBOOTED, REPLACED, reboots_of
from tests.simulation.missing import instance_of
from tests.simulation.pools import pools_of
from tests.simulation.pools_watch import PoolsWatch
from tests.simulation.violation import Violation
from tests.simulation.world import World, condition

Json = dict[str, Any]
A_DAY = 2  # reboots of a claim; a run is shorter than a day
SIGNS = {
    ("Ready", "False"),
    ("Ready", "Unknown"),
    *((type_, status) for type_, status, _ in REBOOTED + REPLACED),
}
CHECKS = (names.INSTANCE_IMPAIRED, names.SYSTEM_IMPAIRED)


class BrokenWatch:
    """Looks at repairs in one world: `pools` knows what each process has read."""

    def __init__(self, world: World, pools: PoolsWatch) -> None:
        self._world, self._pools = world, pools

    # ---- every call and write

    def call(self, operation: str, ids: set[str]) -> None:
        """A reboot is on its claim before it is called, with the boot id that the node has now."""
        if operation != REBOOT:
            return
        for claim in self._world.claims():
            if instance_of(claim) not in ids:
                continue
            name, last = claim["metadata"]["name"], _last_reboot(claim)
            if not last.startswith("Requested/"):
                raise Violation("reboot recorded", f"{name} is rebooted, and its record is {last!r}")
            node = self._node(claim)
            boot_id = node.get("status", {}).get("nodeInfo", {}).get("bootID", "") if node else ""
            if node and boot_id and f"/{boot_id}/" not in last and self._pools.seen(node, Node.KIND):
                raise Violation("rebooted once", f"{name} has booted since {last!r}, and is rebooted again")

    def write(self, method: str, path: str, body: bytes) -> None:
        parts = path.split("/")
        plural = NodeClaim.KIND.plural
        if method == "POST" and parts[-1] == plural:
            noted = json.loads(body)["metadata"].get("annotations") or {}
            if noted.get(names.MOVE, "").endswith("/Unhealthy"):
                self._begins(noted.get(names.REPLACES, "").partition("/")[0], "replaced")
        elif method == "PATCH" and len(parts) > 1 and parts[-2] == plural:
            noted = (json.loads(body).get("metadata") or {}).get("annotations") or {}
            self._changes(parts[-1], noted)

    def _changes(self, name: str, noted: Json) -> None:
        claim = self._world.objects(NodeClaim.KIND).get(("", name))
        if claim is None:
            return
        new = (noted.get(names.REBOOTS) or "").rpartition(",")[2]
        if new.startswith("Draining/") and new != _last_reboot(claim):
            self._begins(name, "rebooted")
        ends = claim["metadata"].get("deletionTimestamp") or self._pools.replaced(claim)
        if noted.get(names.TERMINATION_DEADLINE) and not ends:
            self._begins(name, "ended")

    def _begins(self, name: str, how: str) -> None:
        """No repair begins of a node that is kept from it, nor in a pool with too many broken nodes.

        Only what the acting process has read counts.
        """
        claim = self._world.objects(NodeClaim.KIND).get(("", name))
        if claim is None:
            return
        node = self._node(claim)
        for kind, holder in ((NodeClaim.KIND, claim), (Node.KIND, node)):
            if holder and _noted(holder, names.DO_NOT_REPAIR) == "true" and self._pools.seen(holder, kind):
                raise Violation("not repaired", f"{name} is {how}, and its {kind.kind} says do-not-repair")
        pool = pools_of(self._world).get(claim["metadata"].get("labels", {}).get(names.NODEPOOL, ""))
        if pool is None or not self._pools.seen(pool, NodePool.KIND):
            return
        if _noted(pool, names.REPAIR) == "off":
            raise Violation("not repaired", f"{name} is {how}, and its NodePool has no repair")
        members = [*self._members(pool["metadata"]["name"])]
        if not all(self._pools.seen(obj, kind) for pair in members for kind, obj in pair):
            return
        broken = sum(_broken(claim, node) for (_, claim), (_, node) in members)
        most = _most(_noted(pool, names.REPAIR_AT_MOST) or "20%", len(members))
        if broken > most:
            text = f"{broken} of {len(members)} nodes of {pool['metadata']['name']} are broken"
            raise Violation("too many broken", f"{name} is {how}, and {text}: {most} may be")

    def _members(self, pool: str) -> Iterator[tuple[tuple[Kind, Json], tuple[Kind, Json]]]:
        """The claims of a pool that joined and do not end, with their Nodes."""
        for claim in self._world.claims():
            meta = claim["metadata"]
            if meta.get("labels", {}).get(names.NODEPOOL) != pool or meta.get("deletionTimestamp"):
                continue
            node = self._node(claim)
            if node is None or node["metadata"].get("deletionTimestamp"):
                continue
            if condition(claim, names.REGISTERED_CONDITION).get("status") == "True":
                yield (NodeClaim.KIND, claim), (Node.KIND, node)

    def _node(self, claim: Json) -> Json | None:
        return self._world.objects(Node.KIND).get(("", claim.get("status", {}).get("nodeName", "")))

    # ---- every moment

    def check(self) -> None:
        """EC2 reboots an instance once for each decision, and twice a day at most."""
        assert self._world.kubelets is not None
        for id_, machine in self._world.kubelets.machines.items():
            count = reboots_of(id_)
            if count - machine.boots > 1:
                raise Violation(
                    "rebooted once", f"{id_} was rebooted {count} times, and booted {machine.boots}"
                )
            if count > A_DAY:
                raise Violation("rebooted twice", f"{id_} was rebooted {count} times in a day")


def _last_reboot(claim: Json) -> str:
    return _noted(claim, names.REBOOTS).rpartition(",")[2]


def _noted(obj: Json, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))


def _broken(claim: Json, node: Json) -> bool:
    """Whether a node that is in service shows a sign, or its status checks fail."""
    if condition(claim, names.INITIALIZED_CONDITION).get("status") != "True":
        return False
    conditions = node.get("status", {}).get("conditions") or ()
    impaired = any(condition(claim, check).get("status") == "True" for check in CHECKS)
    return impaired or any((c["type"], c["status"]) in SIGNS for c in conditions)


def _most(text: str, nodes: int) -> int:
    return -(-nodes * int(text[:-1]) // 100) if text.endswith("%") else int(text)
