"""A part of a joint decision, limited to some of its names: used to find the name that it fails on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from broker.quota.joint import GROWTH, QuotaState, SlotState, WaitingClaim
from broker.quota.slot_model import CLAIM

Parts = tuple[QuotaState | None, SlotState | None, Sequence[WaitingClaim]]


def names(
    quota: QuotaState | None, places: SlotState | None, waiting: Sequence[WaitingClaim] = ()
) -> Sequence[str]:
    """Each name once: cohorts, queues, clusters by their name, claims as `NodeClaim NAME`.

    A queue comes after its cohort, and a cluster or claim after its queue.
    """
    found: list[str] = []
    found += [each.name for each in quota.cohorts] if quota else []
    found += [each.name for each in places.cohorts] if places else []
    found += [each.name for each in quota.queues] if quota else []
    found += [each.name for each in places.members] if places else []
    clusters = [_cluster(each.name) for each in quota.holders] if quota else []
    clusters += [each.name for each in quota.wants] if quota else []
    claims = [
        *(each.name for each in (places.holders if places else ())),
        *(each.name for each in (places.nominated if places else ())),
        *(each.want.name for each in waiting),
    ]
    return [*dict.fromkeys([*found, *clusters, *(f"{CLAIM}{name}" for name in claims)])]


def only(
    some: Collection[str],
    quota: QuotaState | None,
    places: SlotState | None,
    waiting: Sequence[WaitingClaim] = (),
) -> Parts:
    """The same decision, as if only these names existed."""
    if quota is not None:
        quota = replace(
            quota,
            cohorts=[each for each in quota.cohorts if each.name in some],
            queues=[each for each in quota.queues if each.name in some],
            holders=[each for each in quota.holders if _cluster(each.name) in some and each.queue in some],
            wants=[each for each in quota.wants if each.name in some],
        )
    if places is not None:
        places = replace(
            places,
            cohorts=[each for each in places.cohorts if each.name in some],
            members=[each for each in places.members if each.name in some],
            lots=[each for each in places.lots if each.owner in some],
            holders=[each for each in places.holders if f"{CLAIM}{each.name}" in some],
            nominated=[each for each in places.nominated if f"{CLAIM}{each.name}" in some],
        )
    return quota, places, [each for each in waiting if f"{CLAIM}{each.want.name}" in some]


def _cluster(name: str) -> str:
    return name.removesuffix(GROWTH)
