"""The number of examples that a property is tried with."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings

QUICK: Final = 50  # a property without a number of its own
DEEP: Final = 20 * QUICK  # with HYPOTHESIS_PROFILE=deep


def times(count: int) -> int:
    """So many; with the profile `deep`, twenty times as many."""
    return count * settings().max_examples // QUICK


def examples(count: int, **more: Any) -> settings:
    """The settings of a property that is tried so many times."""
    return settings(max_examples=times(count), deadline=None, **more)
