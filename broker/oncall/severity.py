"""The severity of each part of an explanation and of the overview, in the words of the alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CRITICAL: Final = "critical"  # paid for, and of no use
WARNING: Final = "warning"
# Colour only repeats the word.
SEVERITIES: Final[Mapping[str, str]] = {
    "broken": CRITICAL,
    "short": WARNING,
    "pods": WARNING,
    "waiting": WARNING,
}
