"""A world that plans, decides, drains and relaunches in rounds, by the broker's own code and without a
server.

`World.round` runs the launch loop and the quota loop once each: claims are planned and launched, quota
and slots are decided. Deleted claims drain for a few rounds, and their owners create them again. Objects
live in a dictionary (`Store`) behind the verbs of a client; EC2 is a count of slots.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Kind, condition
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.inventory import Inventory
from broker.capacity.model import NodeClass, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from broker.controllers.assumed import AssumptionStore
from broker.controllers.claim_caches import BY_INSTANCE, BY_NODE, BY_SIGN, signs
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.snapshot import Ec2Reads
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.placement.claims import in_gangs, planned
from broker.quota.entitled import AdmissionDecision
from broker.quota.joint import JointDecision
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.support.dependencies import dependencies
from tests.unit.capacity.builders import (
    CAPACITY_TYPE,
    GROUP,
    INSTANCE_TYPE,
    inventory,
    node_class,
    odcr,
    type_,
)

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
EACH = 8  # GPUs of an instance
TYPES = {
    instance_type.name: instance_type
    for instance_type in (type_(name, gpus=EACH, price=90.0) for name in ("p4d.24xlarge", "p5.48xlarge"))
}
CLASS = "default"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A CapacityReservation. Counts are of instances, by flavor; a limit that is absent does not limit."""

    name: str
    nominal: Mapping[str, int]
    cohort: str = "ml"
    borrows: bool = True
    borrowing: Mapping[str, int] = field(default_factory=dict)
    lending: Mapping[str, int] = field(default_factory=dict)
    rule: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> Json:
        flavors = []
        for flavor, count in self.nominal.items():
            quota: Json = {"name": GPU, "nominalQuota": str(count * EACH)}
            if self.borrows and flavor in self.borrowing:
                quota["borrowingLimit"] = str(self.borrowing[flavor] * EACH)
            if flavor in self.lending:
                quota["lendingLimit"] = str(self.lending[flavor] * EACH)
            flavors.append({"name": flavor, "resources": [quota]})
        spec: Json = {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}]}
        if self.cohort:
            spec |= {"cohort": self.cohort, "allowBorrowing": self.borrows}
        spec["preemptionRule"] = dict(self.rule)
        meta = {"name": self.name, "namespace": "ns", "uid": f"uid-{self.name}", "resourceVersion": "1"}
        return {"metadata": meta, "spec": spec}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job whose owner always creates its claim again. `fallback`: it may run on demand.

    `non_preemptible`: it may not be disturbed; `round`: the round of its creation.
    """

    name: str
    draws: str
    flavors: Sequence[str]
    priority: int = 0
    fallback: bool = False
    non_preemptible: bool = False
    gang: str = ""
    gang_size: int = 0
    round: int = 0
    drains: int = 1


@dataclass(frozen=True, kw_only=True)
class Dedicated:
    """A DedicatedAICluster of this many instances; from round `grows` on of `then`, if that is set."""

    name: str
    draws: str
    count: int
    priority: int = 0
    round: int = 0
    grows: int = 0
    then: int = 0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """`slots`: by EC2 reservation, its owner (empty: none), flavor and count."""

    reservations: Sequence[Reservation]
    slots: Mapping[str, tuple[str, str, int]]
    jobs: Sequence[Job] = ()
    clusters: Sequence[Dedicated] = ()


@dataclass(frozen=True)
class Drain:
    """An evicted claim or cluster: the job or cluster, the preemptor, the reason and the round.

    `requested`: the request of the preempting cluster at that time.
    """

    victim: str
    preemptor: str
    reason: str
    round: int
    requested: str = ""


class Store(Client):
    """Objects of two kinds by name, and the caches that show them."""

    def __init__(self) -> None:
        super().__init__(InProcessTransport(Cluster()))
        self.objects: dict[str, dict[str, Json]] = {}
        self.caches: dict[str, Cache[Any]] = {}
        self.version = 1
        self.serial = 0

    def serve(self, kind: Kind, cache: Cache[Any]) -> None:
        self.objects[kind.kind], self.caches[kind.kind] = {}, cache

    def put(self, kind: Kind, body: Json) -> Json:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind.kind][body["metadata"]["name"]] = body
        self.caches[kind.kind].apply("MODIFIED", body)
        return body

    def remove(self, kind: Kind, name: str) -> None:
        self.version += 1
        body = self.objects[kind.kind].pop(name)
        self.caches[kind.kind].apply(
            "DELETED", body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        )

    def create(self, kind: Kind, body: Any, **_: Any) -> Json:
        self.serial += 1
        meta = {"uid": f"uid-{self.serial}", "creationTimestamp": self.now} | body["metadata"]
        return self.put(kind, body | {"metadata": meta})

    now = ""

    def list(self, kind: Kind, *, field_selector: str = "", **_: Any) -> tuple[list[Json], str]:
        name = field_selector.removeprefix("metadata.name=")
        known = self.objects.get(kind.kind, {})
        return [body for body in known.values() if name in ("", body["metadata"]["name"])], str(self.version)

    def apply(self, kind: Kind, body: Any, *, subresource: str | None = None, **_: Any) -> Json:
        known = self.objects[kind.kind].get(body["metadata"]["name"])
        if known is None:
            raise NotFound(404, "NotFound", body["metadata"]["name"])
        if subresource:
            return self.put(kind, known | {"status": body["status"]})
        return self.put(kind, known | {"metadata": known["metadata"] | body["metadata"]})

    def patch(self, kind: Kind, name: str, body: Any, **_: Any) -> Json:
        known = self.objects[kind.kind][name]
        return self.put(kind, known | {"metadata": known["metadata"] | body["metadata"]})

    def delete(self, kind: Kind, name: str, **_: Any) -> Json:
        known = self.objects[kind.kind].get(name)
        if known is None:
            raise NotFound(404, "NotFound", name)
        if known["metadata"].get("deletionTimestamp"):
            return known
        if not known.get("status", {}).get("providerID"):
            self.remove(kind, name)
            return {"kind": "Status"}
        known = known | {"kind": kind.kind}
        return self.put(kind, known | {"metadata": known["metadata"] | {"deletionTimestamp": self.now}})


@contextmanager
def patched(world: World) -> Iterator[dict[str, AdmissionDecision]]:
    """The decisions made in the meantime."""
    decisions: dict[str, AdmissionDecision] = {}
    reconcile = world.slots.clusters.reconcile

    def recording(observed: Any, decided: JointDecision | None) -> float | None:
        decisions.update(decided.decisions if decided is not None else {})
        return reconcile(observed, decided)

    world.slots.clusters.reconcile = recording  # type: ignore[method-assign]
    try:
        yield decisions
    finally:
        world.slots.clusters.reconcile = reconcile  # type: ignore[method-assign]


class Reads(ReservationReads):
    """The priority class `p5` has the value 5."""

    def priority(self, name: str) -> int | None:
        return int(name[1:]) if name else None


class World:
    """Run `round` after `round`; `drains` are the drains so far."""

    def __init__(self, setting: Setting, *, settings: Settings | None = None) -> None:
        self.setting = setting
        self.number = 0
        self.drains: list[Drain] = []
        self.after_plan: Callable[[], None] = lambda: None
        self.decisions: Mapping[str, AdmissionDecision] = {}
        self.plan = Plan()
        self.serials: dict[str, int] = {}
        self.drain_rounds_left: dict[str, int] = {}  # rounds that a deleted claim still drains, by name
        self.shortages = Shortages()
        self.clock = FakeClock()
        self.store = Store()
        self.settings = settings or Settings(dedicated_node_class=CLASS)
        self.claims: Cache[NodeClaim] = Cache(NodeClaim, indexes={BY_SIGN: signs})
        self.nodes: Cache[Node] = Cache(Node, indexes={BY_INSTANCE: lambda _: ()})
        self.pods: Cache[Pod] = Cache(Pod, indexes={BY_NODE: lambda _: ()})
        self.reads = Reads(
            self.store,
            clock=self.clock,
            ec2=Ec2Reads(inventory=self.inventory, types=lambda: TYPES, assumed=lambda: self.assumed.slots()),
        )
        self.reads.flavors.missing = True
        self.store.serve(NodeClaim.KIND, self.claims)
        self.store.serve(DedicatedAICluster.KIND, self.reads.clusters.cache)
        bodies = [reservation.body for reservation in setting.reservations]
        self.reads.reservations.cache.replace(bodies, 1)
        self.store.objects[CapacityReservation.KIND.kind] = {
            body["metadata"]["name"]: body for body in bodies
        }
        self.owner = {
            id_: ReservationKey("ns", owner) for id_, (owner, _, _) in setting.slots.items() if owner
        }
        self.total = {id_: count for id_, (_, _, count) in setting.slots.items()}
        self.ownership = Ownership(
            owner=self.owner, flavor={id_: setting.slots[id_][1] for id_ in self.owner}
        )
        self.reads.snapshots.publish(OdcrSnapshot(ownership=self.ownership))
        world = self.inventory()
        self.node_class: NodeClass = node_class(Selection(group_arn=GROUP), world, name=CLASS)
        self.start()
        entitlements = self.slots.entitlements({}, self.slots.snapshot())
        if entitlements.barred:
            raise AssertionError(f"a reservation of this world is not valid: {entitlements.barred}")

    def start(self) -> None:
        """A new process: its only input are the objects."""
        self.assumed = AssumptionStore(self.clock)
        self.slots = PreemptionController(
            dependencies(
                self.store,
                self.clock,
                reads=self.reads,
                caches=claim_caches(self.claims, self.nodes, self.pods),
                inventory=SimpleNamespace(
                    snapshot=self.inventory, assumed=self.assumed, refresh=lambda: None
                ),
                settings=self.settings,
            )
        )

    # -- the state

    def inventory(self) -> Inventory:
        used = Counter(
            claim.labels.get(names.RESERVATION_ID, "")
            for claim in self.claims.list()
            if claim.status.provider_id
        )
        return inventory(
            *(
                odcr(id_, flavor, total=count, free=count - used[id_])
                for id_, (_, flavor, count) in self.setting.slots.items()
            ),
            groups={GROUP: [*self.setting.slots]},
        )

    def free(self) -> dict[str, int]:
        inventory = self.inventory()
        return {id_: inventory.free(id_) for id_ in self.total}

    @property
    def waiting(self) -> list[NodeClaim]:
        return [claim for claim in self.claims.list() if not claim.status.provider_id and not claim.deleting]

    def state(self) -> object:
        """The state that must not change at rest: the slots of all holders, and the terminating ones."""
        return (
            {
                claim.name: (
                    claim.labels.get(names.RESERVATION_ID, claim.status.provider_id[:0]),
                    bool(claim.status.provider_id),
                    claim.deleting,
                )
                for claim in self.claims.list()
            },
            {
                cluster.name: (
                    cluster.status.dac_lifecycle_state,
                    cluster.status.admission and cluster.status.admission.flavors,
                )
                for cluster in self.reads.clusters.cache.list()
            },
        )

    # -- a round

    def round(self) -> Plan:
        self.clock.advance(5)
        self.store.now = self.clock.now().isoformat()
        self._arrive()
        plan = self._launch()
        self.after_plan()
        before = {claim.name: claim for claim in self.claims.list()}
        with patched(self) as decisions:
            self.slots.run()
        self.decisions = decisions
        self._record_drains(before)
        self._drain()
        self._ready()
        self.number += 1
        return plan

    def _arrive(self) -> None:
        existing = {claim.name.rpartition(".")[0] for claim in self.claims.list()}
        for job in self.setting.jobs:
            if job.round <= self.number and job.name not in existing:
                self._create_claim(job)
        known = {cluster.name for cluster in self.reads.clusters.cache.list()}
        for cluster in self.setting.clusters:
            count = cluster.then if cluster.then and self.number >= cluster.grows else cluster.count
            spec = {
                "capacityReservationId": f"ns/{cluster.draws}",
                "resources": {"requests": {GPU: str(count * EACH)}},
                "priorityClassName": f"p{cluster.priority}",
            }
            if cluster.name in known:
                body = self.store.objects[DedicatedAICluster.KIND.kind][cluster.name]
                if body["spec"] != spec:
                    self.store.put(DedicatedAICluster.KIND, body | {"spec": spec})
            elif cluster.round <= self.number:
                self.store.create(
                    DedicatedAICluster.KIND,
                    {"metadata": {"name": cluster.name, "uid": f"{cluster.name}-cluster"}, "spec": spec},
                )

    def _create_claim(self, job: Job) -> None:
        serial = self.serials[job.name] = self.serials.get(job.name, -1) + 1
        annotations = {names.DRAWS_FROM: f"ns/{job.draws}", names.PRIORITY: str(job.priority)}
        if job.non_preemptible:
            annotations[names.DO_NOT_DISRUPT] = "true"
        if job.gang:
            annotations |= {names.GANG: job.gang, names.GANG_SIZE: str(job.gang_size)}
        kinds = ["reserved", "on-demand"] if job.fallback else ["reserved"]
        requirements = ((INSTANCE_TYPE, [*job.flavors]), (CAPACITY_TYPE, kinds))
        self.store.create(
            NodeClaim.KIND,
            {
                "metadata": {"name": f"{job.name}.{serial}", "annotations": annotations},
                "spec": {
                    "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": CLASS},
                    "requirements": [
                        {"key": key, "operator": "In", "values": values} for key, values in requirements
                    ],
                    "resources": {"requests": {GPU: str(EACH)}},
                },
            },
        )

    def _launch(self) -> Plan:
        self.assumed.begin_pass({claim.uid for claim in self.waiting})
        result = Plan()
        for _ in range(4):
            objects = {claim.uid: claim for claim in self.waiting}
            with self.slots.exclusive():
                snapshot = self.slots.snapshot()
                result = plan(
                    [planned(claim) for claim in objects.values()],
                    LaunchSupply(
                        classes={CLASS: self.node_class},
                        types=TYPES,
                        inventory=snapshot.inventory,
                        shortages=self.shortages,
                        now=self.clock.now(),
                        entitlements=self.slots.entitlements(objects, snapshot),
                    ),
                    launched=in_gangs(self.claims.list()),
                )
                self.slots.planned(result)
            if not result.assignments:
                break
            for assignment in result.assignments:
                self._launched(
                    objects[assignment.claim.uid],
                    assignment.option.pool.instance_type,
                    [*assignment.option.odcr_ids],
                )
        self.plan = result
        return result

    def _launched(self, claim: NodeClaim, type_name: str, ids: Sequence[str]) -> None:
        """Launches the claim into the first of these with room, or on demand."""
        free = self.free()
        odcr_id = next((id_ for id_ in ids if free[id_] > 0), "")
        if ids and not odcr_id:
            raise AssertionError(f"{claim.name} is launched into {ids}, which are full")
        body = self.store.objects[NodeClaim.KIND.kind][claim.name]
        labels = {
            INSTANCE_TYPE: type_name,
            CAPACITY_TYPE: "reserved" if odcr_id else "on-demand",
            **({names.RESERVATION_ID: odcr_id} if odcr_id else {}),
        }
        meta = body["metadata"] | {"labels": body["metadata"].get("labels", {}) | labels}
        conditions = [
            item for item in body.get("status", {}).get("conditions", ()) if item["type"] != names.LAUNCHED
        ]
        conditions.append(
            {
                "type": names.LAUNCHED,
                "status": "True",
                "reason": "Launched",
                "lastTransitionTime": self.store.now,
            }
        )
        status = {
            "providerID": f"aws:///a/{claim.uid}",
            "capacity": {GPU: str(EACH)},
            "conditions": conditions,
        }
        self.store.put(NodeClaim.KIND, body | {"metadata": meta, "status": status})

    def _record_drains(self, before: Mapping[str, NodeClaim]) -> None:
        """Records the evictions of this round. A cluster's claims stand for the cluster."""
        for name, claim in before.items():
            now = self.claims.get(name)
            if claim.deleting or names.DEDICATED in claim.labels or (now is not None and not now.deleting):
                continue
            preempted = condition(now.status.conditions, names.PREEMPTED) if now is not None else None
            reason, message = (preempted.reason, preempted.message) if preempted is not None else ("", "")
            self._add_drain(name.rpartition(".")[0], message, reason)
        for cluster in self.reads.clusters.cache.list():
            preempted = condition(cluster.status.conditions, names.PREEMPTED)
            if (
                preempted is not None
                and preempted.status == "True"
                and preempted.last_transition_time == self.clock.now()
            ):
                self._add_drain(f"cluster {cluster.name}", preempted.message, preempted.reason)

    def _add_drain(self, victim: str, message: str, reason: str) -> None:
        words = message.replace(",", " ").split()
        at = next(
            (words.index(marker) for marker in ("NodeClaim", "DedicatedAICluster", "for") if marker in words),
            -1,
        )
        preemptor = words[at + 1] if at >= 0 else "?"
        if preemptor == "NodeClaim":
            preemptor = words[at + 2]
        preemptor = preemptor.partition(".")[0]
        cluster = self.reads.clusters.cache.get(preemptor)
        requested = cluster.spec.resources.requests[GPU] if cluster and cluster.spec.resources else ""
        self.drains.append(Drain(victim, preemptor, reason, self.number, requested))

    def _drain(self) -> None:
        slow = {job.name: job.drains for job in self.setting.jobs}
        for claim in self.claims.list():
            if not claim.deleting:
                continue
            drain_rounds_left = self.drain_rounds_left.setdefault(
                claim.name, slow.get(claim.name.rpartition(".")[0], 1)
            )
            self.drain_rounds_left[claim.name] = drain_rounds_left - 1
            if drain_rounds_left <= 0:
                self.store.remove(NodeClaim.KIND, claim.name)

    def _ready(self) -> None:
        """Instances of the last round are nodes that take pods."""
        for claim in self.claims.list():
            ready = condition(claim.status.conditions, names.READY)
            if claim.status.provider_id and not claim.deleting and (ready is None or ready.status != "True"):
                body = self.store.objects[NodeClaim.KIND.kind][claim.name]
                conditions = [item for item in body["status"]["conditions"] if item["type"] != names.READY]
                conditions.append(
                    {
                        "type": names.READY,
                        "status": "True",
                        "reason": "Ready",
                        "lastTransitionTime": self.store.now,
                    }
                )
                self.store.put(
                    NodeClaim.KIND,
                    body | {"status": body["status"] | {"conditions": conditions, "nodeName": claim.name}},
                )
