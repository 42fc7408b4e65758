"""The invariants, read from EC2's own memory and the API server's: never from the broker.

`check` holds at every moment, `check_at_rest` once faults have stopped, `empty` once everything was deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from broker.apis import names
from broker.apis.core import ConfigMap, Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.reservations.desired import LATEST_VISIBLE
from providers.names import MANAGED_BY
from tests.simulation.full_watch import FullWatch
from tests.simulation.missing import (
    PAYING,
    conditions_text,
    drain_ends,
    ids_in,
    in_progress,
    instance_of,
    missed,
    purchase_unclear,
)
from tests.simulation.pools import KINDS
from tests.simulation.pools_watch import PoolsWatch
from tests.simulation.rooms_watch import RoomsWatch
from tests.simulation.setting import BORROWER, OWNER
from tests.simulation.violation import Violation
from tests.simulation.world import World, condition, ready

Json = dict[str, Any]
MADE = (
    NodeClaim.KIND,
    DedicatedAICluster.KIND,
    CapacityReservation.KIND,
    EC2NodeClass.KIND,
    KoordinatorReservation.KIND,
    *KINDS,
)


class Watch:
    """Looks at one world for the length of its run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: tuple[int, int] = (-1, -1)
        self._changed_at = float("-inf")  # when the broker last changed an EC2 reservation
        self._calls: set[str] = set()  # tokens of calls that could buy something
        self._homes: dict[str, str] = {}  # claim's uid -> its instance, once it has one
        self._foreign: dict[str, tuple[Any, ...]] = {}
        self._claims: dict[str, Json] = {}  # by uid, as they were at the last look
        self.rooms, self.pools = RoomsWatch(world), PoolsWatch(world)
        self.full = FullWatch(world, self.pools)
        world.gate.watchers.append(self._call)
        world.gate.api_watchers.append(self._write)

    def begin(self) -> None:
        self._foreign = self._read_others()

    # ---- every call that changes EC2

    def _call(self, operation: str, params: Mapping[str, Any]) -> None:
        world = self._world
        named = ids_in(params)
        if foreign := named & world.facts.foreign:
            raise Violation("foreign", f"{world.gate.acting} calls {operation} on {sorted(foreign)}")
        self.full.call(operation, named)
        if operation == "CreateFleet":
            self._launches_by(str(params.get("ClientToken", "")))
        if operation in ("CreateFleet", "CreateCapacityReservation"):
            self._recorded(str(params.get("ClientToken", "")))
        if operation == "TerminateInstances":
            for id_ in sorted(named):
                self._terminates(id_)
        if operation in ("ModifyCapacityReservation", "CancelCapacityReservation"):
            self._changed_at = world.time.seconds
            left = int(params.get("InstanceCount", 0))
            for odcr in world.odcrs():
                if odcr.id in named and odcr.usable and odcr.slots.used > left:
                    message = f"{operation} leaves {left} of {odcr.id}, in which {odcr.slots.used} run"
                    raise Violation("in use", message)

    def _launches_by(self, token: str) -> None:
        """A call is written on its claims before it is made, since its answer may be lost."""
        for claim in self._world.claims():
            if launch := claim["metadata"].get("annotations", {}).get(names.LAUNCH):
                self._world.facts.launches[launch].add(claim["metadata"]["uid"])
        if not self._world.facts.launches[token] and not self._world.facts.broken_by_hand:
            raise Violation("intent first", f"launch {token} is of no claim")

    def _recorded(self, token: str) -> None:
        """Every call that may buy is recorded with its token first, so that it can be repeated.

        A repeated call buys nothing new, and another process may be done with it by then.
        """
        if token in self._calls:
            return
        self._calls.add(token)
        records = self._world.objects(ConfigMap.KIND).values()
        if not any(
            token in key or token in text
            for record in records
            for key, text in record.get("data", {}).items()
        ):
            raise Violation("intent first", f"nothing is recorded of the call {token}")

    def _terminates(self, id_: str) -> None:
        """Only a claim that is deleted loses its ready node: drained, or at the end of its grace period."""
        world = self._world
        claim = next((c for c in world.claims() if instance_of(c) == id_), None)
        if claim is None:
            return
        name = claim["metadata"]["name"]
        nodes = {n["metadata"]["name"]: n for n in world.objects(Node.KIND).values() if _of_node(n) == id_}
        if claim["metadata"].get("deletionTimestamp"):
            pods = [p["metadata"] for p in world.pods() if p["spec"].get("nodeName") in nodes]
            left = [p["name"] for p in pods if not p.get("deletionTimestamp")]
            if left and not self._grace_over(claim):
                raise Violation("drained", f"{id_} of claim {name} is terminated, and {left} run there")
        elif any(map(ready, nodes.values())):
            raise Violation("healthy", f"{id_} of claim {name} is terminated though its node is ready")

    def _grace_over(self, claim: Json) -> bool:
        """Whether a process, whose clock may be ahead, sees the end of the claim's drain."""
        ends = drain_ends(claim)
        ahead = timedelta(seconds=self._world.facts.ahead)
        return ends is not None and self._world.time.now() + ahead >= ends

    # ---- every write to the API server

    def _write(self, method: str, path: str, body: bytes) -> None:
        self.pools.write(method, path, body)
        self.full.write(method, path, body)
        if method == "DELETE" and "/nodeclaims/" in path:
            self._deletes(path.rpartition("/")[2])

    def _deletes(self, name: str) -> None:
        """Of claims with a healthy machine, only a dedicated cluster's and a borrower's may have to go."""
        world = self._world
        claim = world.objects(NodeClaim.KIND).get(("", name))
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            return
        meta, id_ = claim["metadata"], instance_of(claim)
        nodes = [n for n in world.objects(Node.KIND).values() if _of_node(n) == id_]
        has_ready_node = any(ready(n) and not n["metadata"].get("deletionTimestamp") for n in nodes)
        well = has_ready_node and id_ in {i.id for i in world.instances()}
        if not well or names.DEDICATED in meta.get("labels", {}):
            return
        if names.NODEPOOL in meta.get("labels", {}):
            self.pools.disrupts(claim)
            return
        draws = meta.get("annotations", {}).get(names.DRAWS_FROM, "")
        if draws == OWNER:
            raise Violation("in quota", f"{name} draws from {draws} within its quota, and is evicted")
        if draws != BORROWER:
            raise Violation("healthy", f"claim {name} is deleted though its node is ready")

    # ---- every moment

    def check(self) -> None:
        world = self._world
        if world.lab.panics:
            raise Violation("panic", world.lab.panics[0])
        seen = (world.cluster.state.store.revision, len(world.gate.aws_writes))
        if seen == self._seen:
            return
        self._seen = seen
        claims = {c["metadata"]["uid"]: c for c in world.claims()}
        self._one_each()
        self._launched_once()
        self._needed(claims)
        self._ended_first(claims)
        self._launched_alive(claims)
        self._claims = claims
        for acts in (
            [p.name for p in world.running if p.leads],
            [p.name for p in world.running if p.schedules],
        ):
            if len(acts) > 1:
                raise Violation("one leader", f"{' and '.join(acts)} lead")
        self._within_count()
        self._bought()
        for part in (self.rooms, self.pools, self.full):
            part.check()

    def _one_each(self) -> None:
        claims = self._world.claims()
        held = Counter(id_ for c in claims if (id_ := instance_of(c)))
        if twice := [id_ for id_, count in held.items() if count > 1]:
            raise Violation("one claim an instance", f"{twice[0]} is of {held[twice[0]]} claims")
        for claim in claims:
            uid, id_ = claim["metadata"]["uid"], instance_of(claim)
            if id_ and self._homes.setdefault(uid, id_) != id_:
                name = claim["metadata"]["name"]
                raise Violation("one instance a claim", f"{name} had {self._homes[uid]}, and now {id_}")

    def _launched_once(self) -> None:
        world = self._world
        for claim in world.claims():
            if launch := claim["metadata"].get("annotations", {}).get(names.LAUNCH):
                self._world.facts.launches[launch].add(claim["metadata"]["uid"])
        instances: Counter[str] = Counter()
        for instance in world.all_instances():
            if launch := world.tags(instance.id).get(names.TAG_LAUNCH):
                instances[launch] += 1
        for launch, count in instances.items():
            if count > len(self._world.facts.launches[launch]):
                claims = len(self._world.facts.launches[launch])
                raise Violation("bought once", f"launch {launch} of {claims} claims made {count} instances")

    def _needed(self, claims: Mapping[str, Json]) -> None:
        """No claim that stands alone has an instance, and another one that was launched for it as well."""
        world = self._world
        if world.facts.broken_by_hand:
            return
        held = {instance_of(c): c for c in claims.values()}
        for instance in world.instances():
            claim_uids = self._world.facts.launches[world.tags(instance.id).get(names.TAG_LAUNCH, "")]
            if instance.id in held or len(claim_uids) != 1:
                continue
            claim = claims.get(next(iter(claim_uids)))
            if claim is None or names.GANG in claim["metadata"].get("annotations", {}):
                continue
            if (has := instance_of(claim)) and has in {i.id for i in world.instances()}:
                name = claim["metadata"]["name"]
                raise Violation("bought once", f"{instance.id} was launched for {name}, which has {has}")

    def _launched_alive(self, claims: Mapping[str, Json]) -> None:
        """A claim that was deleted before is not launched any more."""
        for uid, claim in claims.items():
            before = self._claims.get(uid, claim)
            launch = claim["metadata"].get("annotations", {}).get(names.LAUNCH)
            if not launch or not before["metadata"].get("deletionTimestamp"):
                continue
            if launch != before["metadata"].get("annotations", {}).get(names.LAUNCH):
                raise Violation("deleted first", f"{claim['metadata']['name']} is deleted, and launched")

    def _ended_first(self, claims: Mapping[str, Json]) -> None:
        """A claim that went had no instance, or one that has ended, or that another claim has."""
        world = self._world
        gone = [c for uid, c in self._claims.items() if uid not in claims and uid not in world.facts.forced]
        if not gone:
            return
        alive, held = {i.id for i in world.instances()}, {instance_of(c) for c in claims.values()}
        for claim in gone:
            id_, meta = instance_of(claim), claim["metadata"]
            if id_ in alive - held and id_ not in world.facts.foreign:
                raise Violation("ends first", f"claim {meta['name']} went, and its {id_} runs")

    def _within_count(self) -> None:
        for odcr in self._world.odcrs():
            shrunk = odcr.id in self._world.facts.shrunk  # by a person, below its running instances
            if odcr.usable and odcr.slots.used > odcr.total and not shrunk:
                raise Violation("within count", f"{odcr.id} holds {odcr.slots.used} of {odcr.total}")

    def _bought(self) -> None:
        world = self._world
        bought: Counter[str] = Counter()
        for odcr in world.odcrs():
            tags = world.tags(odcr.id)
            if MANAGED_BY in tags and odcr.state in PAYING and odcr.id not in world.facts.foreign:
                bought[tags.get(names.TAG_RESERVATION, "")] += odcr.total
        if world.facts.shrunk & {o.id for o in world.odcrs() if MANAGED_BY in world.tags(o.id)}:
            return  # a person resized a purchase of the broker
        settings = world.settings
        if sum(bought.values()) > settings.buy_instances:
            raise Violation(
                "caps", f"{dict(bought)} instances are bought beside a cap of {settings.buy_instances}"
            )
        for name, count in bought.items():
            if count > settings.buy_instances_each:
                raise Violation(
                    "caps", f"{count} are bought for {name} beside a cap of {settings.buy_instances_each}"
                )
            if count > world.facts.requested.get(name, 0):
                requested = world.facts.requested.get(name, 0)
                raise Violation(
                    "bought once", f"{count} are bought for {name}, which requested {requested} at most"
                )

    def _read_others(self) -> dict[str, tuple[Any, ...]]:
        """Resources of others stay unchanged; rivals come and go by themselves."""
        world = self._world
        states: dict[str, tuple[Any, ...]] = {}
        for instance in world.all_instances():
            if instance.id in world.facts.foreign and not world.tags(instance.id).get("rival"):
                states[instance.id] = (instance.state, tuple(sorted(world.tags(instance.id).items())))
        for odcr in world.odcrs():
            if odcr.id in world.facts.foreign:
                states[odcr.id] = (odcr.state, odcr.total, tuple(sorted(world.tags(odcr.id).items())))
        for kind, name in ((NodeClaim.KIND, "karpenters"), (Node.KIND, "theirs")):
            obj = world.objects(kind).get(("", name), {})
            states[name] = (obj.get("metadata", {}).get("resourceVersion"),)
        return states

    # ---- once faults have stopped

    def quiet(self) -> bool:
        """Whether nothing is on its way that only time brings to an end."""
        world = self._world
        claims = world.claims()
        reservations = world.objects(CapacityReservation.KIND).values()
        return (
            not missed(self._world)
            and not self.pools.unserved()
            and not any(map(in_progress, claims))
            and not any(o.usable and o.end_date is not None for o in world.odcrs())
            and not any(
                condition(reservation, "Ready").get("reason") == "CloudReservationPending"
                for reservation in reservations
            )
            and not any(purchase_unclear(world, reservation) for reservation in reservations)
            # So long its own change counts, whatever EC2 shows.
            and world.time.seconds - self._changed_at > LATEST_VISIBLE.total_seconds()
            and {i.id for i in world.instances()} <= {instance_of(c) for c in claims}
        )

    def stuck(self, why: str) -> None:
        """The time is over in which the broker should have come to rest."""
        if missing := missed(self._world) or self.pools.unserved():
            raise Violation("missed", f"an hour after {why}: {missing}")

    def check_at_rest(self) -> None:
        self.check()
        world = self._world
        if self._read_others() != self._foreign:
            raise Violation("foreign", f"{self._foreign} became {self._read_others()}")
        for part in (self.rooms, self.pools, self.full):
            part.check_at_rest()
        claims = [c for c in world.claims() if c["metadata"]["name"] != "karpenters"]
        alive = {i.id for i in world.instances()}
        for claim in claims:
            self._claim_at_rest(claim, alive)
        for name, most in world.facts.clusters.items():
            has = [c for c in claims if c["metadata"].get("labels", {}).get(names.DEDICATED) == name]
            if len(has) > most:
                raise Violation(
                    "at rest", f"{len(has)} claims of cluster {name}, which never had more than {most}"
                )
        held = {instance_of(c) for c in claims}
        if left := sorted(alive - held):
            raise Violation("at rest", f"{left} run and no claim has them")

    def _claim_at_rest(self, claim: Json, alive: set[str]) -> None:
        name, id_ = claim["metadata"]["name"], instance_of(claim)
        if claim["metadata"].get("deletionTimestamp"):
            if not self._held_by_pods(id_):
                raise Violation("at rest", f"{name} is deleted and does not go: {conditions_text(claim)}")
            return
        if id_:
            if id_ not in alive:
                raise Violation("at rest", f"{name} has {id_}, which has ended: {conditions_text(claim)}")
            if condition(claim, names.READY).get("status") != "True":
                raise Violation("at rest", f"{name} has {id_} and is not ready: {conditions_text(claim)}")
            return
        launched = condition(claim, names.LAUNCHED)
        if (
            not launched.get("reason")
            or not launched.get("message")
            or launched["reason"] == "LaunchNotConfirmed"
        ):
            raise Violation("at rest", f"{name} has no instance: {conditions_text(claim)}")

    def _held_by_pods(self, id_: str) -> bool:
        """A drain waits for pods that are not to be disturbed."""
        nodes = {n["metadata"]["name"] for n in self._world.objects(Node.KIND).values() if _of_node(n) == id_}
        return any(p["spec"].get("nodeName") in nodes for p in self._world.pods())

    # ---- once everything was deleted

    def remove_everything(self) -> None:
        world = self._world
        self._seen = (-1, -1)
        if world.with_pools:
            world.pool_facts.apps.clear()
        for pod in world.pods():
            meta = pod["metadata"]
            world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"], grace_period=0)
        for kind in MADE:
            for (namespace, name), obj in world.objects(kind).items():
                if name != "karpenters" and not obj["metadata"].get("deletionTimestamp"):
                    world.client.delete(kind, name, namespace=namespace or None)

    def empty(self) -> None:
        self.check()
        world = self._world
        for kind in MADE:
            for (_, name), obj in world.objects(kind).items():
                if name != "karpenters":
                    kept = obj["metadata"].get("finalizers")
                    raise Violation(
                        "finalizers", f"{kind.kind} {name} is kept by {kept}: {conditions_text(obj)}"
                    )
        if alive := [i.id for i in world.instances()]:
            raise Violation("at rest", f"{alive} run after every claim was deleted")
        if self._read_others() != self._foreign:
            raise Violation("foreign", f"{self._foreign} became {self._read_others()}")


def _of_node(node: Json) -> str:
    return str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2]
