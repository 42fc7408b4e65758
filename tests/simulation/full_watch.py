"""The invariants of full reservations, read from the API server's and EC2's memory alone.

At every moment: nodes of a reservation are replaced one at a time, no node twice, no successor takes a slot
of another owner, and a hold is bounded. `full_rest` has those at rest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from tests.simulation.broken_watch import BrokenWatch
from tests.simulation.claim_facts import (
    cause_of,
    ends,
    identity,
    initialized,
    move_of,
    node_of,
    replaces_of,
    slot_of,
    until_of,
)
from tests.simulation.full_rest import SLACK, FullRest
from tests.simulation.missing import instance_of
from tests.simulation.pools import pools_of
from tests.simulation.pools_watch import PoolsWatch
from tests.simulation.violation import Violation
from tests.simulation.world import World, condition, ready

Json = dict[str, Any]
REPLACING = ("Drifted", "Unhealthy")  # causes of moves that a rollout has
HOLD = timedelta(minutes=10)  # as documented


class FullWatch:
    """Looks at the reservations of one world; it does nothing in worlds that are not about them."""

    def __init__(self, world: World, pools: PoolsWatch) -> None:
        self._world, self._pools = world, pools
        self._broken, self._rest = BrokenWatch(world, pools), FullRest(world, pools)
        self._at_once: dict[str, int] = {}  # by pool: the most that it ever allowed
        self._placed: set[str] = set()  # instances at the last look

    @property
    def _on(self) -> bool:
        return self._world.kubelets is not None

    # ---- every call and write

    def call(self, operation: str, ids: set[str]) -> None:
        if self._on:
            self._broken.call(operation, ids)

    def write(self, method: str, path: str, body: bytes) -> None:
        if not self._on:
            return
        self._broken.write(method, path, body)
        plural = NodeClaim.KIND.plural
        if method == "POST" and path.endswith(f"/{plural}"):
            self._succeeds(json.loads(body)["metadata"])
        if method == "DELETE" and f"/{plural}/" in path:
            claim = self._world.objects(NodeClaim.KIND).get(("", path.rpartition("/")[2]))
            if claim is not None and not claim["metadata"].get("deletionTimestamp"):
                self._ends_node(claim)

    def _succeeds(self, meta: Json) -> None:
        """A slot of an owner is kept for a claim of that owner only."""
        noted = meta.get("annotations") or {}
        slot = (noted.get(names.TAKES_SLOT) or "").partition("/")[0]
        owner = self._world.tags(slot).get(names.TAG_RESERVATION, "") if slot else ""
        draws = noted.get(names.DRAWS_FROM) or ""
        if owner and draws not in (owner, owner.partition("/")[2]):
            raise Violation(
                "owned slots", f"{meta['name']} of {draws or 'none'} takes a slot of {owner}: {slot}"
            )

    def _ends_node(self, claim: Json) -> None:
        """A node ends for a rollout only if its successor is held or ready, and no other node is away."""
        meta = claim["metadata"]
        successor = next(
            (c for c in self._world.claims() if replaces_of(c) == identity(claim) and not ends(c)), None
        )
        if successor is None or cause_of(successor) not in REPLACING:
            return
        slot, pool = slot_of(successor), meta.get("labels", {}).get(names.NODEPOOL, "")
        if not slot:
            self._ready_first(claim, successor)
            return
        most = self._at_once.get(pool, 1)
        away = [c for c in self._world.claims() if move_of(c) != move_of(successor) and self._away(c, slot)]
        if len(away) >= most and condition(claim, names.PREEMPTED).get("status") != "True":
            others = ", ".join(c["metadata"]["name"] for c in away)
            text = f"{meta['name']} ends for {successor['metadata']['name']}, while {others} waits"
            raise Violation("one at a time", f"{text} in {slot}; {most} of {pool} may be away")

    def _ready_first(self, claim: Json, successor: Json) -> None:
        node = node_of(self._world, claim)
        known = self._pools.seen(successor, NodeClaim.KIND)
        other = condition(claim, names.PREEMPTED).get("status") == "True" or self._static(claim)
        if node is None or not ready(node) or not known or other or initialized(successor):
            return
        name = claim["metadata"]["name"]
        raise Violation("launched first", f"{name} ends before {successor['metadata']['name']} is ready")

    def _away(self, claim: Json, slot: str) -> bool:
        """Whether a rollout ended the node that this claim takes over from, and its own is not ready."""
        if slot_of(claim) != slot or cause_of(claim) not in REPLACING or ends(claim) or initialized(claim):
            return False
        old = {identity(c) for c in self._world.claims() if not ends(c)}
        return replaces_of(claim) not in old and self._pools.seen(claim, NodeClaim.KIND)

    def _static(self, claim: Json) -> bool:
        pool = claim["metadata"].get("labels", {}).get(names.NODEPOOL, "")
        return pool in self._world.pool_facts.shapes and self._world.pool_facts.shapes[pool].static

    # ---- every moment

    def check(self) -> None:
        if not self._on:
            return
        self._broken.check()
        for name, pool in pools_of(self._world).items():
            text = (pool["metadata"].get("annotations") or {}).get(names.REPLACE_AT_ONCE, "1")
            self._at_once[name] = max(self._at_once.get(name, 1), int(text))
        claims = self._world.claims()
        self._replaced_once(claims)
        self._bounded(claims)
        self._in_turn(claims)

    def _replaced_once(self, claims: list[Json]) -> None:
        """No node has two successors with instances."""
        alive, successors = {i.id for i in self._world.instances()}, defaultdict(list)
        for claim in claims:
            if replaces_of(claim) and not ends(claim) and instance_of(claim) in alive:
                successors[replaces_of(claim)].append(claim["metadata"]["name"])
        for old, new in successors.items():
            if len(new) > 1:
                raise Violation("replaced once", f"{old} is replaced by {' and '.join(sorted(new))}")

    def _bounded(self, claims: list[Json]) -> None:
        latest = self._world.time.now() + HOLD + timedelta(seconds=self._world.facts.ahead)
        for claim in claims:
            until = until_of(claim)
            if until is not None and until > latest:
                raise Violation("bounded hold", f"{claim['metadata']['name']} has a slot until {until}")

    def _in_turn(self, claims: list[Json]) -> None:
        """No successor whose old node still runs gets a slot that is kept for another."""
        running = {i.id: i.capacity_reservation_id or "" for i in self._world.instances()}
        before, self._placed = self._placed, {*running}
        present = {identity(c): c for c in claims}
        now = self._world.time.now()
        for claim in claims:
            id_, slot = instance_of(claim), slot_of(claim)
            if not slot or id_ in before or running.get(id_) != slot:
                continue
            old = present.get(replaces_of(claim))
            if old is None or running.get(instance_of(old)) != slot:
                continue
            kept = (c for c in claims if slot_of(c) == slot and not instance_of(c) and not ends(c))
            left = (c for c in kept if (until := until_of(c)) and until - HOLD + SLACK / 2 < now < until)
            odcr = next(o for o in self._world.odcrs() if o.id == slot)
            if odcr.available < 1 and (other := next(left, None)) is not None:
                text = f"{claim['metadata']['name']} has the slot that {other['metadata']['name']} waits for"
                raise Violation("in turn", f"{text}, and its old node still runs in {slot}")

    def check_at_rest(self) -> None:
        if self._on:
            self._rest.check()
