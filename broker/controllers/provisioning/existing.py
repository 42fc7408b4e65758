"""Nodes and claims in flight with their pods, as kube-scheduler will see them.

A node that is not initialized has the taints that its claim keeps, and the room that EC2's type gives: as in
karpenter pkg/controllers/state/statenode.go. A claim without a node is the node that it becomes. Its pods
are those for which it was made, until it is initialized: they need no other room. A replacement has those of
the node that it replaces until they have moved. Another node that drains has no room, but its pods count in
the rules of others until they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import condition, is_true
from broker.capacity.successors import AWAITS_REPLACED
from broker.controllers.claim_status import replaced_uids
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.provisioning.learned import LearnedRoom, MachineSort
from broker.controllers.provisioning.pending import incomplete
from broker.controllers.provisioning.usage import LargestMachines
from broker.placement.affinity import node_affinity
from broker.placement.binding import tied
from broker.placement.daemons import DaemonOverhead
from broker.placement.disruption_pods import NO_SCHEDULE, reschedulable
from broker.placement.filters import FILTERS, Filter, prepare
from broker.placement.gangs import GroupSizes
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import PendingPod
from broker.placement.quantities import amounts
from broker.placement.reading import claim_info, determined, moved, node_info
from broker.placement.sequential import place_on_existing
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.storage import Storage
from broker.placement.taints import EPHEMERAL
from broker.placement.together import units_of
from broker.reservations.claims import claims_of_nodes, occupied_odcr

HELD_UP: Final = timedelta(minutes=10)
# Any machine could turn out to be in vain. Karpenter leaves such pods alone, too (--ignore-dra-requests).
ASKS_FOR_DEVICES: Final = (
    "spec.resourceClaims asks for devices, for which no machine is chosen: request them as resources, such "
    "as nvidia.com/gpu"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingNodes:
    """`snapshot`: nodes and claims in flight. `nominated`: the claim of each waiting pod, by key.

    `undetermined`: claims without the labels of their instance; they have the rules of their own pods.
    `served`: the pods for which a claim was made, by key.
    """

    snapshot: PlacementSnapshot
    nominated: Mapping[str, str]
    undetermined: Set[str]
    served: Set[str]


def existing(
    occupancy: NodeOccupancy,
    claims: Sequence[NodeClaim],
    daemons: Sequence[PodInfo],
    storage: Storage,
    learned: LearnedRoom,
    now: datetime,
) -> ExistingNodes:
    """`daemons`: a pod of each DaemonSet."""

    overhead = DaemonOverhead(daemons)

    def future(info: NodeInfo, claim: NodeClaim) -> NodeInfo:
        """The node with its room beside the DaemonSets with pods to come, as far as is known."""
        sort = MachineSort(claim.node_pool, info.labels.get(names.INSTANCE_TYPE, ""))
        reserved = overhead.on(replace(info, undetermined=None))  # as far as the labels are known
        room = {**info.allocatable}
        for name, amount in reserved.items():
            room[name] = room.get(name, 0) - amount
        return replace(info, allocatable={**room, **learned.room(sort, info.allocatable, reserved)})

    claim_of, _ = claims_of_nodes(occupancy.nodes, claims)
    infos: list[NodeInfo] = []
    draining: list[tuple[Node, str]] = []  # with the uid of the claim
    name_of: dict[str, str] = {}  # the node in the snapshot, by claim
    for node in occupancy.nodes:
        claim = claim_of.get(node.name)
        if node.deleting or (claim is not None and claim.deleting):
            draining.append((node, claim.uid if claim is not None else ""))
            continue
        if claim is not None and node.rebooting and occupied_odcr(claim):
            infos.append(_coming_back(node))
        elif claim is None or node.labels.get(names.INITIALIZED) == "true":
            labelled = names.CAPACITY_TYPE in node.labels  # after its claim
            infos.append(node_info(node) if claim is None or labelled else _launched(node, claim))
        else:
            infos.append(future(_joining(node, claim), claim))
        if claim is not None:
            name_of[claim.name] = node.name
    for claim in claims:
        if (
            claim.name not in name_of
            and not claim.deleting
            and not is_true(claim, names.INITIALIZED_CONDITION)
        ):
            info = future(_in_flight(claim), claim)
            infos.append(replace(info, allocatable={}) if _held_up(claim, now) else info)
            name_of[claim.name] = claim.name
    successors = {
        uid: name_of[claim.name] for claim in claims if claim.name in name_of for uid in replaced_uids(claim)
    }
    # Without room, for the rules of the pods that stay on them for now.
    kept = {node.name: node for node, uid in draining if uid not in successors}
    pods = [pod for pod in occupancy.occupied if not (pod.terminating and pod.node_name in kept)]
    staying = {pod.node_name for pod in pods}
    infos += (replace(node_info(kept[name]), allocatable={}) for name in kept if name in staying)
    snapshot = PlacementSnapshot.of(infos, pods, namespaces=occupancy.namespaces, storage=storage)
    for name, pod in _arriving(occupancy.pods, claim_of, successors, storage):
        snapshot = snapshot.with_pod(pod, name)
    return ExistingNodes(
        snapshot=snapshot,
        nominated=_nominated(claims, name_of),
        undetermined={info.name for info in infos if info.undetermined is not None},
        served={key for claim in claims if not claim.deleting for key in pods_of(claim)},
    )


def _coming_back(node: Node) -> NodeInfo:
    """A node in a reservation that is rebooted: its pods wait for it, and none is bought beside its slot."""
    info, passing = node_info(node), {*EPHEMERAL, (names.REBOOTING_TAINT, NO_SCHEDULE)}
    return replace(info, taints=tuple(t for t in info.taints if (t.key, t.effect) not in passing))


def read_in_flight(claim: NodeClaim) -> None:
    """Reads a claim without an initialized node as a joint decision does, so that its guard comes before."""
    if not is_true(claim, names.INITIALIZED_CONDITION):
        _in_flight(claim)
        LargestMachines({}, lambda _: None)(claim)


def _arriving(
    pods: Iterable[Pod], claim_of: Mapping[str, NodeClaim], successors: Mapping[str, str], storage: Storage
) -> Iterator[tuple[str, PodInfo]]:
    """The pods that move to a replacement, each with its node: they need that room while they still run.

    `successors`: the node of each replacement, by the uids of the claims that it replaces.
    """
    for pod in pods if successors else ():
        claim = claim_of.get(pod.spec.node_name)
        if claim is not None and claim.uid in successors and reschedulable(pod):
            zone = claim.labels.get(names.ZONE, "") if tied(pod, storage) else ""
            yield successors[claim.uid], moved(pod, zone)


def _launched(node: Node, claim: NodeClaim) -> NodeInfo:
    """The node with the labels that the claim is certain of, and what the claim allows of the others."""
    info, future = node_info(node), claim_info(claim)
    return replace(info, labels={**future.labels, **info.labels}, undetermined=future.undetermined)


def _joining(node: Node, claim: NodeClaim) -> NodeInfo:
    info = _launched(node, claim)
    startup = {(taint.key, taint.effect) for taint in claim.spec.startup_taints} | EPHEMERAL
    passing = [
        taint
        for taint in info.taints
        if (taint.key, taint.effect) in startup or taint.key.startswith(names.READINESS_TAINTS)
    ]
    future = claim_info(claim)
    kept = tuple(dict.fromkeys((*future.taints, *(t for t in info.taints if t not in passing))))
    room = {**future.allocatable, **{n: a for n, a in info.allocatable.items() if a}}
    return replace(info, taints=kept, allocatable=room)


def _in_flight(claim: NodeClaim) -> NodeInfo:
    """Before the launch, only the requested room is certain."""
    info = claim_info(claim)
    return info if info.allocatable else replace(info, allocatable=amounts(claim.spec.resources.requests))


def _held_up(claim: NodeClaim, now: datetime) -> bool:
    """Whether the claim waits for so long for the node that it replaces that no other pod waits with it.

    A budget may allow the end of that node's pods only once the one that waits runs elsewhere.
    """
    launched = condition(claim.status.conditions, names.LAUNCHED)
    if launched is None or launched.reason != AWAITS_REPLACED or launched.last_transition_time is None:
        return False
    return now - launched.last_transition_time >= HELD_UP


def _nominated(claims: Iterable[NodeClaim], name_of: Mapping[str, str]) -> dict[str, str]:
    return {
        key: name_of[claim.name]
        for claim in claims
        if claim.name in name_of
        and not claim.deleting
        and not (is_true(claim, names.INITIALIZED_CONDITION) and determined(claim))
        for key in pods_of(claim)
    }


# A claim has the rules of its pods, and the labels of its instance later.
BESIDE_LABELS: Final[tuple[Filter, ...]] = tuple(item for item in FILTERS if item is not node_affinity)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAssignment:
    """Pods: `nominated`, the claim or node that was made for each; `taken`, another with room for it;
    `reasons`, why it waits, for those `held` a reason of their own. `unassigned` need a machine. `snapshot`
    has the pods of the first two.
    """

    nominated: Mapping[str, str]
    taken: Mapping[str, str]
    reasons: Mapping[str, str]
    held: Set[str]
    unassigned: Sequence[PendingPod]
    snapshot: PlacementSnapshot


def assign(
    pending: Sequence[PendingPod],
    known: ExistingNodes,
    pods: Sequence[Pod],
    group_size: GroupSizes,
    now: datetime,
    prefer: Callable[[PendingPod], PendingPod] = lambda pod: pod,
) -> PodAssignment:
    """`pods`: all that exist, which gangs are counted from. `group_size`: the minimum of a PodGroup.

    `prefer`: a pod with its preferences as rules. It keeps the claim that was made for it without them, and
    takes another's rather than a second one if a pod took its own, as kube-scheduler will bind it there.
    """
    snapshot = known.snapshot
    nominated: dict[str, str] = {}
    joined = {pod.key: node for pod in pods if (node := pod.status.nominated_node_name)}
    for pod in pending:
        own = known.nominated.get(pod.key)
        node = own or joined.get(pod.key, "")
        # Another pod may have taken the room of the claim that was made for this one.
        filters = BESIDE_LABELS if own in known.undetermined else FILTERS
        if node in snapshot.states and not prepare(pod.info, snapshot, filters).reasons(
            snapshot.states[node]
        ):
            snapshot = snapshot.with_pod(pod.info, node)
            nominated[pod.key] = node
    rest = [pod for pod in pending if pod.key not in nominated]
    short = incomplete(rest, pods, group_size, now)
    reasons = {pod.key: short[pod.gang] for pod in rest if pod.gang in short}
    held = {pod.key for pod in rest if pod.info.devices}
    reasons |= dict.fromkeys(held, ASKS_FOR_DEVICES)
    by_rules = [pod for pod in rest if pod.key not in reasons]
    rest = [prefer(pod) for pod in by_rules]
    # Pods that must be together are placed together, on nodes and machines of one domain.
    together = {pod.key for unit in units_of(rest, snapshot) for pod in unit.pods}
    snapshot, taken = place_on_existing([pod for pod in rest if pod.key not in together], snapshot)
    again = (known.served - together) - taken.keys()
    snapshot, later = place_on_existing([pod for pod in by_rules if pod.key in again], snapshot)
    taken |= later
    return PodAssignment(
        nominated=nominated,
        taken=taken,
        reasons=reasons,
        held=held,
        unassigned=[pod for pod in rest if pod.key not in taken],
        snapshot=snapshot,
    )
