"""Why a node may not be disrupted now. The texts are Karpenter's (pkg/controllers/state/statenode.go)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import since
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import replaced_claims
from broker.controllers.disruption.conditions import backing_off
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.nominations import preempting
from broker.kube.cache import Cache
from broker.placement.affinity import node_affinity
from broker.placement.disruption_pods import NO_SCHEDULE, annotated, blocker, reschedulable
from broker.placement.filters import Filter, prepare
from broker.placement.ports import node_ports
from broker.placement.reading import node_info, pod_info
from broker.placement.resources import node_resources_fit
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.taints import EPHEMERAL, node_unschedulable, taint_toleration

# How long a node may stay without the pods that fit on it, for example those of its predecessor.
PODS_ARRIVE_WITHIN: Final = timedelta(minutes=5)
_PASSING: Final = frozenset({*EPHEMERAL, (names.DISRUPTED_TAINT, NO_SCHEDULE)})
_OF_ROOM: Final[tuple[Filter, ...]] = (node_resources_fit,)
# These read no other node.
_OF_ONE_NODE: Final = (*_OF_ROOM, node_unschedulable, taint_toleration, node_affinity, node_ports)


def ready_to_go(node: ManagedNode, now: datetime) -> bool:
    """Whether the node is initialized, known, and in no other disruption."""
    return (
        node.initialized
        and node.node is not None
        and not node.unreadable
        and not node.claim.deleting
        and not node.node.deleting
        and node.replacement is None
        and since(node.claim, names.INSTANCE_LISTED, "False") is None
        and not backing_off(node.claim, now)
    )


def awaits_pods(claim: NodeClaim, claims: Cache[NodeClaim], now: datetime) -> bool:
    """Whether the claim replaces others, and its node waits for the pods of these."""
    replaced = dict(replaced_claims(claim))
    if not replaced:
        return False
    known = map(claims.get, replaced)  # by now perhaps others of these names
    if any(old is not None and old.uid == replaced[old.name] for old in known):
        return True
    began = since(claim, names.INITIALIZED_CONDITION)
    new = began is None or now - began < PODS_ARRIVE_WITHIN
    return new and claim.status.last_pod_event_time is None and names.REPLACES_EMPTY not in claim.annotations


def obstacle(
    node: ManagedNode,
    budgets: Iterable[PodDisruptionBudget],
    pod: Callable[[str], Pod | None],
    now: datetime,
    *,
    eventual: bool = False,
) -> str:
    """Why the node may not be disrupted; empty if it may.

    `eventual`: the claim's terminationGracePeriod, if it has one, bounds how long pods and reservations
    hold it up.
    `pod` finds a pod by its key.
    """
    if annotated((node.claim, *((node.node,) if node.node is not None else ()))):
        return f'Disruption is blocked through the "{names.DO_NOT_DISRUPT}" annotation'
    if waiting_key := nominated(node, pod, now):
        return nominated_for(waiting_key)
    if eventual and node.claim.spec.termination_grace_period:
        return ""
    if node.holds:
        return f"Node has room that is kept for pods to come (Reservation={', '.join(node.holds)})"
    return blocker(node.pods, budgets, now)


def nominated_for(pod: str) -> str:
    """The message that blocks a node for a pending pod."""
    return f"Node is nominated for a pending pod (Pod={pod})"


def nominated(node: ManagedNode, pod: Callable[[str], Pod | None], now: datetime) -> str:
    """The first pod that the claim was made for and that still waits for a node; empty if there is none.

    A pod for which the node turned out too small does not count, nor later one that a taint or a cordon keeps
    off: it would keep an empty node for ever.
    """
    waiting = (
        (key, waiting_pod)
        for key in pods_of(node.claim)
        if (waiting_pod := pod(key)) is not None and waits(waiting_pod)
    )
    return next((key for key, waiting_pod in waiting if _admits(node, waiting_pod, now)), "")


def usable_soon(
    nodes: Iterable[ManagedNode], caches: ClaimCaches, occupancy: NodeOccupancy
) -> dict[str, str]:
    """The empty nodes that waiting pods fit on now: the key of one such pod by the node's name.

    A scheduler may bind a pod to the node that was made for another. The node of the first is then empty, and
    the other pod takes it. As few nodes are kept as hold the pods. Where their volumes are is not checked.
    Nodes and pods count as they are now: a node may have lost its startup taints since `occupancy` was read.
    """
    present = [node.node for node in nodes if node.node is not None]
    if not present:
        return {}
    pods = caches.pods.list()
    left_out = [node.name for node in caches.nodes.left_out]
    evicting = preempting(pods, occupancy.nodes, caches.claims.list(), left_out)
    placement = occupancy.placement.with_changes(nodes=map(node_info, present))
    empty = [node.name for node in present]
    kept: dict[str, str] = {}
    for pod in pods:
        if not waits(pod) or not reschedulable(pod):
            continue
        info = replace(occupancy.infos.get(pod.key) or pod_info(pod), volumes=())
        filters = prepare(info, placement)
        goes_to = pod.status.nominated_node_name
        state = placement.states.get(goes_to)
        if pod.key not in evicting and (state is None or filters.reasons(state)):
            goes_to = ""  # the node is gone, or another pod took its room
        for name in (*kept, *(name for name in empty if name not in kept)):
            if goes_to in ("", name) and not filters.reasons(placement.states[name]):
                placement = placement.with_pod(info, name)
                kept.setdefault(name, pod.key)
                break
        if len(kept) == len(empty):
            break
    return kept


def newly_consolidatable(node: ManagedNode, now: datetime, within: timedelta = PODS_ARRIVE_WITHIN) -> bool:
    """Whether pods may still come: after that time, something keeps them off that is not known here."""
    at = since(node.claim, names.CONSOLIDATABLE)
    return at is not None and now - at < within


def _admits(node: ManagedNode, pod: Pod, now: datetime) -> bool:
    """Whether the node has room for one more pod, and, once an agent had time to take its taint away, admits
    it. Taints that come and go with the node do not count.
    """
    began = since(node.claim, names.INITIALIZED_CONDITION)
    if not node.initialized or node.node is None:
        return True
    info = node_info(node.node)
    info = replace(info, taints=tuple(t for t in info.taints if (t.key, t.effect) not in _PASSING))
    placement = PlacementSnapshot.of([info], [pod_info(item) for item in node.pods if not item.ended])
    new = began is None or now - began < PODS_ARRIVE_WITHIN
    filters = _OF_ROOM if new else _OF_ONE_NODE
    return not prepare(pod_info(pod), placement, filters).reasons(placement.states[info.name])


def waits(pod: Pod) -> bool:
    """Whether the pod has no node yet, and may get one."""
    return pod.waits and not pod.spec.scheduling_gates
