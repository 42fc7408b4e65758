"""A part of a joint decision, limited to some of its names: used to find the name that it fails on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from broker.quota.joint import GROWTH, QuotaState, SlotState, WaitingClaim
from broker.quota.slot_model import CLAIM

Parts = tuple[QuotaState | None, SlotState | None, Sequence[WaitingClaim]]


def names(
    quota: QuotaState | None, slot_state: SlotState | None, waiting: Sequence[WaitingClaim] = ()
) -> Sequence[str]:
    """Each name once: cohorts, queues, clusters by their name, claims as `NodeClaim NAME`.

    A queue comes after its cohort, and a cluster or claim after its queue.
    """
    result: list[str] = []
    result += [cohort.name for cohort in quota.cohorts] if quota else []
    result += [cohort.name for cohort in slot_state.cohorts] if slot_state else []
    result += [queue.name for queue in quota.queues] if quota else []
    result += [member.name for member in slot_state.members] if slot_state else []
    clusters = [_cluster(holder.name) for holder in quota.holders] if quota else []
    clusters += [request.name for request in quota.requests] if quota else []
    claims = [
        *(holder.name for holder in (slot_state.holders if slot_state else ())),
        *(request.name for request in (slot_state.nominated if slot_state else ())),
        *(claim.request.name for claim in waiting),
    ]
    return [*dict.fromkeys([*result, *clusters, *(f"{CLAIM}{name}" for name in claims)])]


def only(
    included: Collection[str],
    quota: QuotaState | None,
    slot_state: SlotState | None,
    waiting: Sequence[WaitingClaim] = (),
) -> Parts:
    """The same decision, as if only these names existed."""
    if quota is not None:
        quota = replace(
            quota,
            cohorts=[cohort for cohort in quota.cohorts if cohort.name in included],
            queues=[queue for queue in quota.queues if queue.name in included],
            holders=[
                holder
                for holder in quota.holders
                if _cluster(holder.name) in included and holder.queue in included
            ],
            requests=[request for request in quota.requests if request.name in included],
        )
    if slot_state is not None:
        slot_state = replace(
            slot_state,
            cohorts=[cohort for cohort in slot_state.cohorts if cohort.name in included],
            members=[member for member in slot_state.members if member.name in included],
            owned_slots=[slot_pool for slot_pool in slot_state.owned_slots if slot_pool.owner in included],
            holders=[holder for holder in slot_state.holders if f"{CLAIM}{holder.name}" in included],
            nominated=[request for request in slot_state.nominated if f"{CLAIM}{request.name}" in included],
        )
    return quota, slot_state, [claim for claim in waiting if f"{CLAIM}{claim.request.name}" in included]


def _cluster(name: str) -> str:
    return name.removesuffix(GROWTH)
