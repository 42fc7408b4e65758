"""The number of admitted pods of a workload, if not all of them fit.

Invariant: every pod set gets at least its minimum count and at most its count. Pods are dropped from the
last pod set to the first, as few as the search finds sufficient, and then restored from the first on if
that still fits. The rule is Kueue's partial admission (pkg/scheduler/flavorassigner/podset_reducer.go).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from broker.quota.flavors import PodSetRequest

T = TypeVar("T")


def reduced(
    pod_sets: Sequence[PodSetRequest], attempt: Callable[[list[PodSetRequest]], T | None]
) -> T | None:
    """The result of `attempt` for the largest counts that it accepts; None if it accepts none.

    `attempt` refuses with None, and accepts any counts below accepted ones.
    """
    spare = [
        pod_set.count - (pod_set.count if pod_set.min_count is None else pod_set.min_count)
        for pod_set in pod_sets
    ]
    if not any(spare):
        return None
    accepted: dict[tuple[int, ...], T] = {}

    def tried(counts: Sequence[int]) -> bool:
        given = attempt(
            [replace(pod_set, count=count) for pod_set, count in zip(pod_sets, counts, strict=True)]
        )
        if given is not None:
            accepted[tuple(counts)] = given
        return given is not None

    def without(pods: int) -> list[int]:
        counts = [pod_set.count for pod_set in pod_sets]
        for index in range(len(counts) - 1, -1, -1):
            taken = min(spare[index], pods)
            counts[index] -= taken
            pods -= taken
        return counts

    fewest = bisect_left(range(sum(spare) + 1), True, key=lambda pods: tried(without(pods)))
    if fewest > sum(spare):
        return None
    counts = without(fewest)
    full = [pod_set.count for pod_set in pod_sets]
    # With one pod set cut short, more pods of it were refused already.
    if sum(count < most for count, most in zip(counts, full, strict=True)) > 1:
        for index, most in enumerate(full):
            _grow(counts, index, most, tried)
    return accepted[tuple(counts)]


def _grow(counts: list[int], index: int, most: int, tried: Callable[[Sequence[int]], bool]) -> None:
    """Raises one count as far as it is accepted."""
    if counts[index] == most:
        return

    def refused(count: int) -> bool:
        return not tried([*counts[:index], count, *counts[index + 1 :]])

    if not refused(most):
        counts[index] = most
        return
    sizes = range(counts[index] + 1, most)
    counts[index] += bisect_left(sizes, True, key=refused)
