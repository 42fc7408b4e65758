"""What the embedded server may answer otherwise than kube-apiserver, and why. Everything else is a defect.

A line names the requests (method and path, a regular expression), the places of the answer that may differ
(a regular expression over paths such as `body.message`), and the reason.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.lockstep import Difference
from tests.conformance.steps import Step


@dataclass(frozen=True, kw_only=True)
class Allowed:
    request: str
    place: str
    reason: str
    theirs: str = ""  # what the real server says there, where only that is excused


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        request=r".*",
        place=r"body\.columnDefinitions\[\d+\]\.description",
        reason="The columns of built-in kinds are described by the API's Go comments, which nobody acts on.",
    ),
)


def unexplained(difference: Difference) -> list[tuple[str, Any, Any]]:
    """The changes that no line of the table excuses."""
    request = difference.request
    name = f"{request.method} {request.path}" if isinstance(request, Step) else f"WATCH {request.path}"
    return [
        change for change in difference.changes() if not any(_excuses(line, name, change) for line in ALLOWED)
    ]


def _excuses(line: Allowed, request: str, change: tuple[str, Any, Any]) -> bool:
    place, theirs, _ = change
    return (
        re.fullmatch(line.request, request) is not None
        and re.fullmatch(line.place, place) is not None
        and re.search(line.theirs, str(theirs)) is not None
    )


def defects(differences: Iterator[Difference]) -> Iterator[Difference]:
    return (difference for difference in differences if unexplained(difference))
