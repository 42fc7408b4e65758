"""The invariants of pods and NodePools, read from the API server's and EC2's memory alone.

At every moment: no claim is made past a limit that the broker has seen, no pod has two machines, capacity of
an owner is not used by strangers, and no eviction or disruption passes a budget that the broker has seen. At
rest each pod that could be served runs, and the others have an event that says why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from broker.apis import names
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from broker.apis.policy import PodDisruptionBudget
from tests.simulation.claim_facts import created_at, identity, slot_of, until_of
from tests.simulation.cluster_parts import rooms_of
from tests.simulation.missing import conditions_text, instance_of
from tests.simulation.pools import (
    CPUS,
    ON_DEMAND,
    RACK,
    STRANGER,
    App,
    PoolShape,
    app_of,
    pod_cpu,
    pod_gpus,
    pods_of,
    pools_of,
)
from tests.simulation.setting import OWNER
from tests.simulation.violation import Violation
from tests.simulation.world import World, condition

Json = dict[str, Any]
SINCE = 900.0  # seconds in which a disruption that began under another budget has ended
BEGUN = timedelta(seconds=30)  # a launch that a pass decided before is over by then
EXPLAINS = ("FailedScheduling", "Nominated")


class PoolsWatch:
    """Looks at the pods and pools of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._allowed: dict[str, list[tuple[float, int]]] = {}  # by pool, the disruptions that were allowed
        self._disrupted: dict[str, str] = {}  # uid of a claim that the broker ended -> its pool
        # By pool, each limit of CPUs with the place in the history since which it holds.
        self._limited: dict[str, list[tuple[int, float]]] = {}
        self._makers: dict[str, str] = {}  # claim -> the process that made it
        self._occupants: dict[str, set[str]] = {}  # by EC2 reservation, at the last look
        self._seen_at: dict[str, datetime] = {}  # instance -> its first moment

    # ---- every write

    def write(self, method: str, path: str, body: bytes) -> None:
        """No pod is deleted past its budget, but at the end of its node's grace period."""
        parts = path.split("/")
        if method == "POST" and parts[-1] == NodeClaim.KIND.plural:
            self._makes(json.loads(body))
        if method != "DELETE" or "pods" not in parts or not parts[-1].startswith("w-"):
            return
        pod = self._world.objects(Pod.KIND).get((parts[-3], parts[-1]))
        claim = self._claim_on(pod["spec"].get("nodeName", "")) if pod is not None else None
        if claim is None or not claim["spec"].get("terminationGracePeriod"):
            raise Violation("evicted", f"pod {parts[-1]} is deleted, not evicted")

    def _makes(self, new: Json) -> None:
        """A new claim fits the limit that its maker has seen, with any machines for those in flight."""
        world, pool = self._world, new["metadata"].get("labels", {}).get(names.NODEPOOL, "")
        acting = next(p for p in world.running if p.name == world.gate.acting)
        self._makers[new["metadata"]["name"]] = acting.name
        read = min(acting.revisions(NodePool.KIND), default=0)
        noted = self._limited.get(pool, [])
        seen = [limit for at, limit in noted if at <= read]
        if not seen:
            return
        # An answer to a conflict may show more than the watch.
        allowed = max(seen[-1], *(limit for at, limit in noted if at > read), 0.0)
        claims = [c for c in world.claims() if c["metadata"].get("labels", {}).get(names.NODEPOOL) == pool]
        replaced = {c["metadata"].get("annotations", {}).get(names.REPLACES, "") for c in [*claims, new]}
        counted = [c for c in claims if self._counts(c, acting.name) and identity(c) not in replaced]
        cpus = self._most(new) + sum(map(self._most, counted))
        if cpus > allowed:
            text = f"{len(counted)} others may have {cpus} CPUs beside a limit of {allowed:g}"
            raise Violation("limits", f"claim {new['metadata']['name']} of NodePool {pool} and {text}")

    def _counts(self, claim: Json, process: str) -> bool:
        """Whether the process knows the claim, and nothing says that it ends."""
        known = self._makers.get(claim["metadata"]["name"]) == process or self.seen(claim, NodeClaim.KIND)
        ends = condition(claim, names.INSTANCE_TERMINATING).get("status") == "True"
        return known and not ends and not claim["metadata"].get("deletionTimestamp")

    def _most(self, claim: Json) -> int:
        """The CPUs of its instance; before the launch, of the largest type that it may get."""
        if id_ := instance_of(claim):
            return sum(CPUS[i.instance_type] for i in self._world.instances() if i.id == id_)
        required = claim["spec"]["requirements"]
        types = [v for item in required if item["key"] == names.INSTANCE_TYPE for v in item["values"]]
        return max((CPUS[name] for name in types), default=0)

    def _note_limits(self) -> None:
        for name, pool in pools_of(self._world).items():
            limit = float(pool["spec"].get("limits", {}).get("cpu", "inf"))
            kept = self._limited.setdefault(name, [])
            if not kept or kept[-1][1] != limit:
                kept.append((int(pool["metadata"]["resourceVersion"]), limit))

    def disrupts(self, claim: Json) -> None:
        """The broker ends a claim with a ready node: what is on it may go, and so many nodes at once."""
        pool = claim["metadata"]["labels"][names.NODEPOOL]
        if self._shape(pool).static and not self.replaced(claim):
            return  # it has too many nodes: their number has no budget
        drifted = condition(claim, "Drifted").get("status") == "True"
        repaired = names.TERMINATION_DEADLINE in claim["metadata"].get("annotations", {})
        bounded = repaired or (drifted and bool(claim["spec"].get("terminationGracePeriod")))
        name, node = claim["metadata"]["name"], claim.get("status", {}).get("nodeName", "")
        pods = [pod for pod in pods_of(self._world) if pod["spec"].get("nodeName") == node]
        pods = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and self.seen(pod)]
        free = drifted or repaired or self.replaced(claim)
        bought = claim["metadata"]["labels"].get(names.CAPACITY_TYPE) != "reserved"
        kinds = ("reserved", "on-demand", "spot") if bought else ("reserved",)
        if pods and not free and not self._fit_on(kinds, pods, node):
            text = ", ".join(pod["metadata"]["name"] for pod in pods)
            raise Violation("healthy", f"claim {name} is deleted with {text} on its ready node")
        for pod in () if bounded or self.replaced(claim) else pods:
            if any(self.seen(listed, PodDisruptionBudget.KIND) for listed in self.blocked(pod)):
                raise Violation(
                    "budgets", f"{name} is disrupted, and a budget allows no eviction of its pods"
                )
        self._disrupted[claim["metadata"]["uid"]] = pool
        self._within_budget(pool, name)

    def _within_budget(self, pool: str, name: str) -> None:
        # As in Karpenter, a node whose instance ends uses up no budget any more.
        present = {
            c["metadata"]["uid"]
            for c in self._world.claims()
            if condition(c, names.INSTANCE_TERMINATING).get("status") != "True"
        }
        count = sum(p == pool and uid in present for uid, p in self._disrupted.items())
        since = self._world.time.seconds - SINCE
        allowed = max((most for at, most in self._allowed.get(pool, ()) if at >= since), default=0)
        if count > allowed:
            raise Violation(
                "budgets", f"{name} is disrupted as number {count} of {pool}, which allows {allowed}"
            )

    def _note_budgets(self) -> None:
        """Keeps what each pool allows now: the most of it counts, for moves take time."""
        now = self._world.time.seconds
        nodes = Counter(
            c["metadata"].get("labels", {}).get(names.NODEPOOL)
            for c in self._world.claims()
            if instance_of(c)
        )
        for name, pool in pools_of(self._world).items():
            (text,) = [item["nodes"] for item in pool["spec"]["disruption"]["budgets"]]
            total = nodes[name]
            most = -(-total * int(text[:-1]) // 100) if text.endswith("%") else int(text)
            kept = self._allowed.setdefault(name, [])
            if kept and kept[-1][1] == most:
                kept[-1] = (now, most)
            else:
                # It held until now.
                kept[-1:] = [(now, kept[-1][1]), (now, most)] if kept else [(now, most)]
            while len(kept) > 1 and kept[0][0] < now - SINCE:
                kept.pop(0)

    def replaced(self, claim: Json) -> bool:
        meta = claim["metadata"]
        wanted = f"{meta['name']}/{meta['uid']}"
        replaced = (
            c["metadata"].get("annotations", {}).get(key, "")
            for c in self._world.claims()
            for key in (names.REPLACES, names.REPLACES_ALSO)
            if not c["metadata"].get("deletionTimestamp")
        )
        return any(wanted in text.split(",") for text in replaced)

    def _fit_on(self, kinds: Collection[str], pods: list[Json], left: str) -> bool:
        """Whether the pods fit on other nodes of these kinds, beside those that the process saw there."""
        rooms = {
            name: [cpu, gpus]
            for name, (cpu, gpus, labels) in rooms_of(self._world, self.seen)
            if name != left and labels.get(names.CAPACITY_TYPE) in kinds
        }
        for pod in sorted(pods, key=pod_cpu, reverse=True):
            room = next((r for r in rooms.values() if r[0] >= pod_cpu(pod) and r[1] >= pod_gpus(pod)), None)
            if room is None:
                return False
            room[0] -= pod_cpu(pod)
            room[1] -= pod_gpus(pod)
        return True

    def blocked(self, pod: Json) -> list[Json]:
        """The budgets of the pod that allow no eviction."""
        labels, namespace = pod["metadata"]["labels"], pod["metadata"]["namespace"]
        return [
            listed
            for (space, _), listed in self._world.objects(PodDisruptionBudget.KIND).items()
            if space == namespace
            and listed["spec"]["selector"]["matchLabels"].items() <= labels.items()
            and not listed.get("status", {}).get("disruptionsAllowed", 0)
        ]

    def seen(self, obj: Json, kind: Kind = Pod.KIND) -> bool:
        """Whether the process that acts has read the object as it is now: not its answer, but its place."""
        world = self._world
        process = next(p for p in world.running if p.name == world.gate.acting)
        revisions = process.revisions(kind)
        return bool(revisions) and min(revisions) >= int(obj["metadata"]["resourceVersion"])

    def _claim_on(self, node: str) -> Json | None:
        return next((c for c in self._world.claims() if c.get("status", {}).get("nodeName") == node), None)

    # ---- every moment

    def check(self) -> None:
        if not self._world.with_pools:
            return
        claims = self._world.claims()
        self._note_budgets()
        self._note_limits()
        self._limits(claims)
        self._one_machine(claims)
        self._owners(claims)
        self._successors(claims)

    def _successors(self, claims: list[Json]) -> None:
        """Nothing of the broker launches into the slot that a node left for its successor.

        Where others took slots as well, or a launch may have begun before the successor was there, nothing
        can be said: EC2 counts what ran outside before in any slot that becomes free.
        """
        world, alive = self._world, {i.id for i in self._world.instances()}
        for id_ in alive:
            self._seen_at.setdefault(id_, world.time.now())
        held = {instance_of(c): c for c in claims if instance_of(c)}
        for odcr in world.odcrs():
            present = {*odcr.slots.occupants}
            new = present - self._occupants.get(odcr.id, present)
            self._occupants[odcr.id] = present
            owned = world.tags(odcr.id).get(names.TAG_RESERVATION)
            if not new or owned or present & (world.facts.foreign | (alive - held.keys())):
                continue
            running = {identity(c) for id_, c in held.items() if id_ in alive}
            waiting = [c for c in claims if self._holds(c, odcr.id, running)]
            since = min((created_at(c) for c in waiting), default=world.time.now()) + BEGUN
            launched = [held[id_] for id_ in new & held.keys() if self._seen_at.get(id_, since) > since]
            others = [c for c in launched if slot_of(c) != odcr.id]
            if others and odcr.total - odcr.slots.used < len(waiting):
                text = f"{others[0]['metadata']['name']} has a slot of {odcr.id}"
                raise Violation("successors", f"{text} that was kept for {waiting[0]['metadata']['name']}")

    def _holds(self, claim: Json, odcr: str, running: set[str]) -> bool:
        """Whether the claim waits for a slot that is free now, and did so for a while."""
        meta = claim["metadata"]
        if instance_of(claim) or meta.get("deletionTimestamp") or slot_of(claim) != odcr:
            return False
        if meta["annotations"].get(names.REPLACES, "") in running:
            return False
        now, until = self._world.time.now(), until_of(claim)
        over = until is not None and until <= now
        return not over and now - created_at(claim) > BEGUN

    def _limits(self, claims: list[Json]) -> None:
        used: Counter[str] = Counter()
        types = {i.id: i.instance_type for i in self._world.instances()}
        for claim in claims:
            meta = claim["metadata"]
            pool = meta.get("labels", {}).get(names.NODEPOOL)
            if not pool or meta.get("deletionTimestamp") or self.replaced(claim):
                continue  # as in Karpenter, the replacement counts instead
            if kind := types.get(instance_of(claim)):
                used[pool] += CPUS[kind]
        for pool, cpus in used.items():
            limit = self._world.pool_facts.limits.get(pool, float("inf"))
            if cpus > limit:
                raise Violation("limits", f"NodePool {pool} has {cpus} CPUs beside a limit of {limit:g}")

    def _one_machine(self, claims: list[Json]) -> None:
        """No pod without a node has two claims that may become its machine."""
        waiting = {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in pods_of(self._world)
            if not pod["spec"].get("nodeName")
        }
        machines: dict[str, str] = {}
        alive = {i.id for i in self._world.instances()}
        for claim in claims:
            meta = claim["metadata"]
            id_ = instance_of(claim)
            gone = meta.get("deletionTimestamp") or (id_ and id_ not in alive)
            if gone or names.REPLACES in meta.get("annotations", {}):
                continue
            for key in waiting & {*meta.get("annotations", {}).get(names.PODS, "").split(",")}:
                if key in machines and not self._outgrown(claims, machines[key]):
                    raise Violation("one machine a pod", f"{key} has {machines[key]} and {meta['name']}")
                machines[key] = meta["name"]

    def _outgrown(self, claims: list[Json], name: str) -> bool:
        """Whether the first claim's node came and could not take the pod: another has its room by now."""
        claim = next(c for c in claims if c["metadata"]["name"] == name)
        node = self._world.objects(Node.KIND).get(("", claim.get("status", {}).get("nodeName", "")))
        return node is not None

    def _owners(self, claims: list[Json]) -> None:
        """An instance in an owner's reservation is for pods that may draw from it."""
        by_id = {instance_of(c): c for c in claims if instance_of(c)}
        for odcr in self._world.odcrs():
            if self._world.tags(odcr.id).get(names.TAG_RESERVATION) != OWNER:
                continue
            for id_ in odcr.slots.occupants:
                claim = by_id.get(id_)
                if claim is not None and (pods := self._strangers(claim)):
                    raise Violation("owned capacity", f"{id_} in {odcr.id} of {OWNER} is for {pods}")

    def _strangers(self, claim: Json) -> list[str]:
        keys = claim["metadata"].get("annotations", {}).get(names.PODS, "").split(",")
        return [key for key in keys if key.startswith(f"{STRANGER}/")]

    # ---- at rest

    def check_at_rest(self) -> None:
        if not self._world.with_pools:
            return
        if text := self.unserved():
            raise Violation("pods served", text)
        for pod in self._waiting():
            if pools_of(self._world) and not self._explained(pod):
                raise Violation("pods explained", f"{pod['metadata']['name']} waits, and no event says why")
            if RACK in (why := self._why(pod)):
                raise Violation("preferences", f"{pod['metadata']['name']} waits for a preference: {why}")

    def _waiting(self) -> Iterator[Json]:
        for pod in pods_of(self._world):
            if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                yield pod

    def _explained(self, pod: Json) -> bool:
        uid = pod["metadata"]["uid"]
        events = self._world.objects(Event.KIND).values()
        return any(e["involvedObject"].get("uid") == uid and e.get("reason") in EXPLAINS for e in events)

    def unserved(self) -> str:
        """A pod that waits though a pool could launch for it on demand; empty if none."""
        if not self._world.with_pools:
            return ""
        for pod in self._waiting():
            owner = app_of(self._world, pod)
            if owner is None or owner.gpus or not self._gang_complete(owner):
                continue
            for name in [owner.pool] if owner.pool else sorted(pools_of(self._world)):
                if self._could_serve(name, pod) and not self._backs_off(pod):
                    return f"{pod['metadata']['name']} waits beside pool {name}: {self._why(pod)}"
        return ""

    def _gang_complete(self, owner: App) -> bool:
        if not owner.gang:
            return True
        members = [pod for pod in pods_of(self._world) if app_of(self._world, pod) is owner]
        return all(not pod["spec"].get("nodeName") for pod in members) and len(members) == owner.replicas

    def _could_serve(self, name: str, pod: Json) -> bool:
        pool = pools_of(self._world).get(name)
        shape = self._shape(name)
        if pool is None or shape.static or ON_DEMAND not in shape.capacity or not self._within_limit(pool):
            return False
        class_ = pool["spec"]["template"]["spec"]["nodeClassRef"]["name"]
        node_class = self._world.objects(EC2NodeClass.KIND).get(("", class_))
        if node_class is None or node_class["metadata"].get("deletionTimestamp"):
            return False
        largest = 1000 * max(CPUS[name] for name in shape.types)
        return condition(node_class, "Ready").get("status") == "True" and pod_cpu(pod) < largest

    def _within_limit(self, pool: Json) -> bool:
        """Whether the pool may have one more of its largest machines, if all of its claims have one."""
        limit, name = pool["spec"].get("limits", {}).get("cpu"), pool["metadata"]["name"]
        own = [c for c in self._world.claims() if c["metadata"].get("labels", {}).get(names.NODEPOOL) == name]
        largest = max(CPUS[type_] for type_ in self._shape(name).types)
        return limit is None or (len(own) + 1) * largest <= float(limit)

    def _shape(self, pool: str) -> PoolShape:
        return self._world.pool_facts.shapes[pool]

    def _backs_off(self, pod: Json) -> bool:
        """Whether a claim for the pod waits until a shortage is over."""
        return "not tried again before" in self._why(pod)

    def _why(self, pod: Json) -> str:
        """The events of the pod, and the conditions of its claims."""
        uid, claims = pod["metadata"]["uid"], self._world.claims()
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        events = [
            f"{e['reason']}: {e['message'][:400]}"
            for e in self._world.objects(Event.KIND).values()
            if e["involvedObject"].get("uid") == uid
        ]
        of = [c for c in claims if key in c["metadata"].get("annotations", {}).get(names.PODS, "").split(",")]
        return "; ".join([*events, *(f"{c['metadata']['name']}: {conditions_text(c)}" for c in of)])
