"""An explanation for a person: headings and aligned tables, 100 columns wide unless a terminal is narrower.

Colour is for terminals only: rich leaves it out for a file or a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from broker.commands.explain.explanation import (
    ATTEMPTS,
    CLAIMS,
    COLUMNS,
    EVENTS,
    HEADINGS,
    NOTHING,
    Explanation,
)
from broker.commands.output import shortage_name, table
from broker.text import plain

WIDTH: Final = 100
_MOST: Final = {
    "broken": CLAIMS,
    "tried": ATTEMPTS,
    "pods": CLAIMS,
    "options": CLAIMS,
    "slots": CLAIMS,
    "placed": CLAIMS,
    "waiting": CLAIMS,
    "short": CLAIMS,
    "events": EVENTS,
    "costs": CLAIMS,
}
_ORDER: Final = ("state", "broken", "pods", "short", "waiting", "tried", "next", "costs", "do", "events")


def page(wide: int = WIDTH) -> Console:
    """Standard output, at most `wide` columns."""
    terminal = Console(highlight=False)
    return Console(width=min(terminal.width, wide) if sys.stdout.isatty() else wide, highlight=False)


def rendered(
    explanation: Explanation, *, most: Mapping[str, int] = _MOST, parts: Sequence[str] = _ORDER
) -> Group:
    """Each part with its heading; `most` limits the rows of a part."""
    return Group(*_parts(explanation, most, parts))


def _parts(
    explanation: Explanation, most: Mapping[str, int], parts: Sequence[str]
) -> Iterator[RenderableType]:
    yield Text(f"{explanation.subject}: {explanation.headline}", style="bold")
    for part in parts:
        if part == "next":
            yield from _heading("Next")
            yield from (_indented(Text(plain(line))) for line in explanation.next or ("nothing is planned",))
            continue
        given = explanation.shown.get(part, explanation.parts.get(part, ()))
        rows = [_formatted(row) for row in given]
        if not rows and part not in NOTHING:
            continue
        yield from _heading(HEADINGS[part])
        if not rows:
            yield _indented(Text(NOTHING[part], style="dim"))
            continue
        kept = rows[: most.get(part, len(rows))]
        columns = {
            key: name for key, name in COLUMNS[part].items() if any(row.get(key) is not None for row in kept)
        }
        yield _indented(table("", kept, columns=columns))
        if left := len(rows) - len(kept):
            yield _indented(Text(f"and {left} more", style="dim"))
    yield from (Text(line, style="dim") for line in explanation.unread)


def _heading(text: str) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(text, style="bold")


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)


def _formatted(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values for a person: groups by name, times without a T, dollars with cents."""
    shown: dict[str, Any] = {}
    for key, value in row.items():
        match key, value:
            case (("since" | "until" | "next_try" | "first" | "last" | "at"), str()):
                shown[key] = value.replace("T", " ")
            case (("usd_hour" | "usd"), (float() | int())):
                shown[key] = f"{value:.2f}"
            case (("usd_hour" | "usd"), None):
                shown[key] = "unknown"
            case _, str():
                shown[key] = plain(value)
            case _:
                shown[key] = value
    if "scope" in row:
        shown["pool"] = shortage_name(row)
    if "outcome" in row:
        request = row["request_id"] and f"AWS request {row['request_id']}"
        shown["result"] = "\n".join(filter(None, (shown["pool"], shown["result"], request)))
    return shown
