"""The pods and reservations that wait for a node, in the order in which they are tried.

Order: priority from high to low, then age, then name. A pod for which others were evicted comes before all
of other namespaces, so that none of them takes its room first. A pod that failed waits 1 s, doubled with each
failure up to 10 s, as in kube-scheduler. Only these times are remembered; after a restart all are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from broker.apis import koordinator as koord
from broker.apis.core import Pod
from broker.doubling import doubled
from broker.placement.holds_reading import priority

Waiting = Pod | koord.KoordinatorReservation

FIRST: Final = 1.0
LONGEST_BACKOFF: Final = 10.0


def waits(pod: Pod, names: frozenset[str]) -> bool:
    """Whether the pod needs a node from one of these schedulers, and has no gate."""
    return pod.waits and pod.spec.scheduler_name in names and not pod.spec.scheduling_gates


def in_turn(waiting: Iterable[Waiting], begun: Collection[str] = ()) -> list[Waiting]:
    """Pods of gangs that have begun, by uid, come first, then nominated ones; then by priority and age."""
    items = [*waiting]
    # Lowest priority of the nominated pods, by namespace.
    nominated: dict[str, int] = {}
    for item in items:
        if isinstance(item, Pod) and item.status.nominated_node_name:
            nominated[item.namespace] = min(_level(item), nominated.get(item.namespace, _level(item)))

    def place(item: Waiting) -> tuple[bool, bool, int, datetime, str]:
        first = isinstance(item, Pod) and _comes_first(item, nominated.get(item.namespace))
        return (item.uid not in begun, not first, -_level(item), *item.age)

    return sorted(items, key=place)


def _comes_first(pod: Pod, nominated: int | None) -> bool:
    """Whether the pod is nominated, or goes before one of its namespace that is."""
    return bool(pod.status.nominated_node_name) or (nominated is not None and _level(pod) > nominated)


def _level(item: Waiting) -> int:
    return item.spec.priority if isinstance(item, Pod) else priority(item)


class SchedulingBackoff:
    """When each uid may be tried again. Used by one thread."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, uid: str, now: float) -> None:
        count = self._failures.get(uid, (0, 0.0))[0] + 1
        self._failures[uid] = (count, now + doubled(FIRST, LONGEST_BACKOFF, count - 1))

    def succeeded(self, uid: str) -> None:
        self._failures.pop(uid, None)

    def wait(self, uid: str, now: float) -> float:
        """Seconds until the next try."""
        return max(0.0, self._failures.get(uid, (0, 0.0))[1] - now)

    def keep(self, kept: Collection[str]) -> None:
        """Forgets all but these uids."""
        self._failures = {uid: entry for uid, entry in self._failures.items() if uid in kept}


class UnfitPods:
    """The pods that no node can have until room is made. Used by one thread."""

    def __init__(self) -> None:
        self._rejected: dict[str, tuple[Pod, int]] = {}

    def rejected(self, pod: Pod, freed: int) -> None:
        """`freed` counts the changes that may make room."""
        self._rejected[pod.uid] = (pod, freed)

    def still(self, pod: Pod, freed: int) -> bool:
        """Whether nothing happened since that may help the pod."""
        before, count = self._rejected.get(pod.uid, (None, 0))
        return before is not None and count == freed and _scheduling_inputs(before) == _scheduling_inputs(pod)

    def keep(self, kept: Collection[str]) -> None:
        """Forgets all but these uids."""
        self._rejected = {uid: entry for uid, entry in self._rejected.items() if uid in kept}


def _scheduling_inputs(pod: Pod) -> tuple[object, ...]:
    return pod.spec, pod.labels, pod.annotations
