"""Decides which preferences of pending pods count as rules.

As in Karpenter all do at first, and one after another is dropped while the pod gets no machine. One rule more
is the broker's: a free slot is paid for in any case, so a preference that buys a machine beside it is dropped
as well.

Invariant: no pod waits for a preference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from broker.placement.packing_model import PackedBin, Packing

# How many preferences each pod has lost, by its key.
Drops = Mapping[str, int]

PLACED: Final = 0  # on a node, a claim or a free slot
BOUGHT: Final = 1
WAITS: Final = 2


class Decided(Protocol):
    """`slots`: whether there were free slots."""

    @property
    def reasons(self) -> Mapping[str, str]: ...
    @property
    def packing(self) -> Packing | None: ...
    @property
    def slots(self) -> bool: ...


D = TypeVar("D", bound=Decided)


class _Best(NamedTuple):
    """The best that a pod got, and the fewest drops that gave it."""

    result: int
    drops: int


def by_preference(steps: Mapping[str, int], decide: Callable[[Drops], D]) -> D:
    """The decision with as many preferences as can hold. `steps`: how many each pod has, by its key."""
    drops = dict.fromkeys(steps, 0)
    decision = decide(drops)
    best = _better({}, decision, drops)

    def settled(key: str) -> int:
        """Without any machine, the reason is that of the rules."""
        return steps[key] if best[key].result == WAITS else best[key].drops

    for dropped in range(1, max(steps.values(), default=0) + 1):
        enough = PLACED if decision.slots else BOUGHT
        more = {key for key, got in best.items() if got.result > enough and dropped <= steps[key]}
        if not more:
            break
        drops = {key: dropped if key in more else settled(key) for key in steps}
        decision = decide(drops)
        best = _better(best, decision, drops)
    final = {key: settled(key) for key in steps}
    if final != drops:
        decision = decide(final)
    results = _results(decision)
    lost = {key: steps[key] for key, got in best.items() if results.get(key) == WAITS != got.result}
    return decide({**final, **lost}) if lost else decision


def _better(best: Mapping[str, _Best], decision: Decided, drops: Drops) -> dict[str, _Best]:
    results = _results(decision)
    return {
        key: min(best.get(key, _Best(WAITS, 0)), _Best(results.get(key, PLACED), dropped))
        for key, dropped in drops.items()
    }


def _results(decision: Decided) -> dict[str, int]:
    """What the pods got that are not placed."""
    bins: Sequence[PackedBin] = decision.packing.bins if decision.packing is not None else ()
    bought = {pod.key: BOUGHT for item in bins if not item.option.source for pod in item.pods}
    return bought | dict.fromkeys(decision.reasons, WAITS)
