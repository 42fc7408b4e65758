"""Reservations that take the room of running pods: the pods of each reservation, and its rules.

In the mode Default, a pod is taken if an owner with a label selector matches it; in the mode Cluster, if it
has the label `pod.koordinator.sh/is-pre-allocatable`. A pod that takes from another reservation is left out.
A reservation without a node has no pods: their annotations are those of a process that ended too early.
Source: Koordinator, pkg/scheduler/plugins/reservation/transformer.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from broker.apis import koordinator as koord
from broker.apis.core import Pod
from broker.controllers.scheduler.state import SchedulerState
from broker.placement.holds import Hold
from broker.placement.holds_decide import HoldDecision
from broker.placement.holds_match import HoldRequest, OwnerMatcher
from broker.placement.holds_reading import hold_link, hold_request, owner_matcher
from broker.placement.model import PodInfo
from broker.placement.preallocation import RunningPod, pre_allocate
from broker.placement.reading import takes_room
from broker.text import InvalidText, decode_whole

UNSUPPORTED: Final = (
    "preAllocation needs allocatePolicy: Restricted and allocateOnce: false, since the room is kept after "
    "its pods end; set both, or remove preAllocation"
)
_HIGHEST: Final = 2**31 - 1


def pre_allocated(
    reservation: koord.KoordinatorReservation,
    pod: PodInfo,
    hold: Hold,
    pods: Iterable[Pod],
    state: SchedulerState,
    placed: Collection[str],
) -> tuple[HoldDecision, tuple[Pod, ...]]:
    """The node on which the reservation takes the room of running pods, and these pods.

    `hold`: as it will be there. `placed`: the UIDs of the reservations with a node, also of those that ended.

    Raises ValueError if the reservation cannot take room.
    """
    spec = reservation.spec
    if spec.allocate_policy != "Restricted" or spec.allocate_once:
        raise ValueError(UNSUPPORTED)
    policy = spec.pre_allocation_policy or koord.PreAllocationPolicy()
    matcher = None
    if policy.mode != koord.CLUSTER:
        matcher = owner_matcher(tuple(owner for owner in spec.owners if owner.label_selector is not None))
    objects = {item.uid: item for item in pods if takes_room(item)}
    decision, taken = pre_allocate(
        pod,
        _running(objects.values(), matcher, hold.id, state, placed),
        state.snapshot,
        {
            name: hold.amount[name] - hold.inner.get(name, 0)
            for name in hold.restricted
            if name in hold.amount
        },
        several=policy.enable_multiple,
    )
    return decision, tuple(objects[info.uid] for info in taken)


def _running(
    pods: Iterable[Pod],
    matcher: OwnerMatcher | None,
    uid: str,
    state: SchedulerState,
    placed: Collection[str],
) -> Iterable[RunningPod]:
    taken = {owner for item in state.ledger.states.values() for owner in item.owners}
    for pod in pods:
        link = hold_link(pod)
        bound = link is not None and link.hold == uid
        if pod.uid in taken or (link is not None and not bound and link.hold in placed):
            continue
        try:
            request = hold_request(pod)
        except ValueError:
            continue
        if _may_be_taken(pod, request, matcher):
            info = request.pod
            yield RunningPod(info, _priority(pod) if matcher is None else 0, bound)


def _may_be_taken(pod: Pod, request: HoldRequest, matcher: OwnerMatcher | None) -> bool:
    if matcher is None:
        return pod.labels.get(koord.PREALLOCATABLE) == "true"
    return matcher.matches(request)


def _priority(pod: Pod) -> int:
    text = pod.annotations.get(koord.PREALLOCATABLE_PRIORITY, "")
    try:
        return decode_whole(text or "0", least=-_HIGHEST, most=_HIGHEST)
    except InvalidText:
        return 0
