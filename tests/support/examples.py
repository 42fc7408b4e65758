"""The number of examples that a property is tried with."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings

QUICK: Final = 50  # a property without a number of its own
DEEP: Final = 20 * QUICK  # with HYPOTHESIS_PROFILE=deep


def examples(count: int, **more: Any) -> settings:
    """So many examples; with the profile `deep`, twenty times as many."""
    return settings(max_examples=count * settings().max_examples // QUICK, deadline=None, **more)
