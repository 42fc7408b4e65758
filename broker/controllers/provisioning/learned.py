"""The room that nodes really have for pods, by NodePool and instance type, where it is less than estimated.

Why: without it, a pod that fits only by the estimate gets one machine after another. Karpenter learns the
memory of a type in the same way (aws/karpenter-provider-aws pkg/providers/instancetype, the discovered
capacity cache). Two causes are known: the node's allocatable is below the estimate, or it runs pods of
DaemonSets and static pods with requests that the DaemonSets do not show.

Invariant: the newest initialized node of a type is believed. A lesson holds only while its causes do: the
estimate of the type, the DaemonSets, and the EC2NodeClass. Without its node it ends after a while, so no pod
waits for ever for a lesson that nothing can correct. Lessons are read from nodes again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.units import add, written
from broker.placement.disruption_pods import owned_by, static
from broker.placement.model import PodInfo
from broker.placement.quantities import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, amounts, pod_requests

# Of other resources, a missing part is a fault of one machine, or its device plugin is still to come.
LEARNED: Final = (CPU, MEMORY, EPHEMERAL_STORAGE, PODS)
# The user data or the image may be corrected where no hash shows it: one machine an hour is the price to see.
WITHOUT_NODE: Final = timedelta(hours=1)


class MachineSort(NamedTuple):
    """Machines with equal room."""

    pool: str
    instance_type: str


Overheads = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLesson:
    """Read from one node. `estimated` and `allocatable`: of the machine. `beside`: the requests of pods of
    DaemonSets and of static pods on it, for the DaemonSets of `daemons`. `node_class`: name and hash of its
    EC2NodeClass. `seen`: when the node was last there.
    """

    node: str
    node_class: tuple[str, str]
    seen: datetime
    created: datetime | None
    estimated: Mapping[str, int]
    allocatable: Mapping[str, int]
    beside: Mapping[str, int]
    daemons: int

    def room(self, estimated: Mapping[str, int], overhead: Overheads, daemons: int) -> dict[str, int]:
        """The room for pods of the learned resources, at most what the estimate gives.

        `estimated`: the type's allocatable now; `overhead`: the requests of the DaemonSets on it.
        """
        # One unit is the rounding of the claim's status.
        same = all(abs(estimated.get(name, 0) - self.estimated.get(name, 0)) <= 1 for name in LEARNED)
        room = {}
        for name in LEARNED:
            allocatable, reserved = estimated.get(name, 0), overhead.get(name, 0)
            if same:
                allocatable = min(allocatable, self.allocatable.get(name, allocatable))
            if daemons == self.daemons:
                reserved = max(reserved, self.beside.get(name, 0))
            room[name] = max(0, allocatable - reserved)
        return room


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRoom:
    """The lessons, and the fingerprint of the DaemonSets that exist now."""

    lessons: Mapping[MachineSort, RoomLesson] = field(default_factory=dict)
    daemons: int = 0

    def room(self, sort: MachineSort, estimated: Mapping[str, int], overhead: Overheads) -> Mapping[str, int]:
        """The learned room of such machines for pods; empty if it is as estimated, or not known."""
        lesson = self.lessons.get(sort)
        if lesson is None:
            return {}
        learned = lesson.room(estimated, overhead, self.daemons)
        expected = {name: max(0, estimated.get(name, 0) - overhead.get(name, 0)) for name in LEARNED}
        return {name: amount for name, amount in learned.items() if amount < expected[name]}


class RoomLearner:
    """Keeps the lesson of each sort of machine, also when its nodes are gone."""

    def __init__(self) -> None:
        self._lessons: Mapping[MachineSort, RoomLesson] = {}
        self._changing = Lock()

    def observe(
        self,
        nodes: Iterable[Node],
        claims: Iterable[NodeClaim],
        pods: Iterable[Pod],
        daemons: int,
        *,
        classes: Mapping[str, str],
        now: datetime,
    ) -> LearnedRoom:
        """Learns from the initialized nodes of NodePools. `daemons`: as of `fingerprint`; `classes`: the
        present hash of each EC2NodeClass that can be read, by name.
        """
        by_id = {claim.instance_id: claim for claim in claims if claim.instance_id}
        newest: dict[MachineSort, tuple[Node, NodeClaim]] = {}
        for node in sorted(nodes, key=lambda node: node.age):
            claim = by_id.get(node.instance_id)
            if claim is None or node.deleting or node.labels.get(names.INITIALIZED) != "true":
                continue
            pool = claim.node_pool
            if pool and claim.status.allocatable and _present(_class_of(claim), classes):
                newest[MachineSort(pool, node.labels.get(names.INSTANCE_TYPE, ""))] = (node, claim)
        beside = _beside(pods, {node.name for node, _ in newest.values()})
        with self._changing:
            lessons = {
                sort: lesson
                for sort, lesson in self._lessons.items()
                if _present(lesson.node_class, classes) and now - lesson.seen < WITHOUT_NODE
            }
            for sort, (node, claim) in newest.items():
                known, created = lessons.get(sort), node.metadata.creation_timestamp
                if known is None or known.created is None or created is None or known.created <= created:
                    lessons[sort] = RoomLesson(
                        node=node.name,
                        node_class=_class_of(claim),
                        seen=now,
                        created=created,
                        estimated=amounts(claim.status.allocatable),
                        allocatable=amounts(node.status.allocatable),
                        beside=beside[node.name],
                        daemons=daemons,
                    )
            self._lessons = lessons
        return LearnedRoom(lessons=lessons, daemons=daemons)


def fingerprint(daemons: Iterable[PodInfo]) -> int:
    """Equal for equal requests of equal DaemonSets, in this process."""
    return hash(frozenset((pod.namespace, pod.name, *sorted(pod.requests.items())) for pod in daemons))


def difference(
    pod: PodInfo, sort: MachineSort, expected: Mapping[str, int], room: Mapping[str, int], node: str
) -> str:
    """Why the pod does not fit such machines, though the estimate has room for it; empty if it fits.

    `room`: the learned room, of the resources that were learned.
    """
    requests = {**pod.requests, PODS: 1}
    if any(requests.get(name, 0) > expected.get(name, 0) for name in LEARNED):
        return ""
    short = [
        f"{written(name, room[name])} {name} for pods instead of {written(name, expected[name])}"
        for name in LEARNED
        if name in room and requests.get(name, 0) > room[name]
    ]
    if not short:
        return ""
    return f"{sort.instance_type} of NodePool {sort.pool} has {', '.join(short)}, as node {node} shows"


def _class_of(claim: NodeClaim) -> tuple[str, str]:
    """The claim's EC2NodeClass and the hash that the class had at its launch."""
    return claim.spec.node_class_ref.name, claim.annotations.get(names.NODECLASS_HASH, "")


def _present(node_class: tuple[str, str], classes: Mapping[str, str]) -> bool:
    """Whether the class still has this hash, as far as is known."""
    name, hash_ = node_class
    return classes.get(name, hash_) == hash_


def _beside(pods: Iterable[Pod], nodes: Set[str]) -> Mapping[str, dict[str, int]]:
    """Sums by node the requests of its pods of DaemonSets and of its static pods."""
    totals: dict[str, dict[str, int]] = {name: {} for name in nodes}
    for pod in pods if nodes else ():
        total = totals.get(pod.spec.node_name)
        if total is None or pod.ended or not (static(pod) or owned_by(pod, "DaemonSet")):
            continue
        add(total, {**pod_requests(pod), PODS: 1})
    return totals
