"""Finds the one of many values that a judgement of all of them fails on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.kube.suspects import CulpritFound

P = TypeVar("P")
R = TypeVar("R")


def bisected(
    judge: Callable[[Sequence[P]], R], parts: Sequence[P], suspect: Callable[[P], object] = lambda part: part
) -> R:
    """`judge(parts)`; if one of the parts makes it fail, raises CulpritFound with its suspect.

    `judge` has no effects, so it is tried with ever fewer of the parts: as often as their number has bits.
    """
    return bisected_among(lambda: judge(parts), judge, lambda: parts, suspect)


def bisected_among(
    whole: Callable[[], R],
    among: Callable[[Sequence[P]], object],
    parts: Callable[[], Sequence[P]],
    suspect: Callable[[P], object] = lambda part: part,
) -> R:
    """`whole()`, which is `among` all of the parts; `parts` is called only if it fails."""
    try:
        return whole()
    except CulpritFound:
        raise
    except Exception as error:
        if (culprit := _first_bad(among, parts(), type(error))) is None:
            raise
        raise CulpritFound(suspect(culprit)) from error


def _first_bad(
    judge: Callable[[Sequence[P]], object], parts: Sequence[P], error: type[Exception]
) -> P | None:
    """The part with which the judgement of the parts up to it begins to fail."""

    def fails(count: int) -> bool:
        try:
            judge(parts[:count])
        except Exception as other:  # noqa: BLE001 the first error is raised, not those of the trials
            return isinstance(other, error)
        return False

    good, bad = 0, len(parts)
    if fails(good):
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(middle) else (middle, bad)
    return parts[bad - 1] if parts else None
