"""An explanation for a person: headings and aligned tables, 100 columns wide unless a terminal is narrower.

Colour is for terminals only: rich leaves it out for a file or a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text, TextType

from broker.commands.explain.explanation import (
    ATTEMPTS,
    CLAIMS,
    COLUMNS,
    EVENTS,
    HEADINGS,
    NOTHING,
    Explanation,
)
from broker.commands.explain.shown_rows import format_clock, relative_text
from broker.commands.output import table
from broker.oncall.wording import CRITICAL, SEVERITIES, WARNING
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
# Failures first, then what helps, then the record.
_ORDER: Final = (
    "broken",
    "state",
    "pods",
    "short",
    "waiting",
    "next",
    "do",
    "slots",
    "tried",
    "events",
    "costs",
)
_COLOURS: Final[Mapping[str, str]] = {CRITICAL: "bold red", WARNING: "bold yellow"}
_INDENT: Final = 2
_BELOW: Final[Mapping[str, str]] = {"short": "who"}  # a list of names, which a column would break
_TIMES: Final = frozenset({"since", "until", "next_try", "first", "last", "at"})


def page(wide: int = WIDTH) -> Console:
    """Standard output, at most `wide` columns."""
    terminal = Console(highlight=False)
    return Console(width=min(terminal.width, wide) if sys.stdout.isatty() else wide, highlight=False)


def rendered(
    explanation: Explanation, *, most: Mapping[str, int] = _MOST, parts: Sequence[str] = _ORDER
) -> Group:
    """Each part with its heading; `most` limits the rows of a part."""
    return Group(*_parts(explanation, most, parts))


# Lines of text, or the rows of a table and its columns.
TextOrTable = list[str] | tuple[Sequence[Mapping[str, Any]], Mapping[str, str]]


def stacked(parts: Iterable[TextOrTable]) -> Group:
    """The parts below each other with a line between them; a table without rows is left out. A line that
    begins with spaces keeps them where it is broken.
    """
    shown: list[RenderableType] = []
    for part in parts:
        if isinstance(part, tuple):
            rows, columns = part
            content: list[RenderableType] = [table("", rows, columns=columns)] if rows else []
        else:
            content = [_indented(Text(line.lstrip()), len(line) - len(line.lstrip())) for line in part]
        shown += [Text(""), *content] if shown and content else content
    return Group(*shown)


def _parts(
    explanation: Explanation, most: Mapping[str, int], parts: Sequence[str]
) -> Iterator[RenderableType]:
    at = f", {format_clock(explanation.now)} UTC" if explanation.now else ""
    yield Text(f"{explanation.subject}{at}: {explanation.headline}", style="bold")
    for part in parts:
        if part == "next":
            yield from _heading("Next")
            steps = explanation.next or ("no launch is planned",)
            yield from (_indented(Text(plain(line))) for line in steps)
            continue
        every = explanation.parts.get(part, ())
        rows = [_formatted(row, explanation.now) for row in explanation.shown.get(part, every)]
        if not rows and (every or part not in NOTHING):
            continue
        severity = SEVERITIES.get(part, "") if rows else ""
        if not severity:
            yield from _heading(HEADINGS[part])
        if not rows:
            yield _indented(Text(NOTHING[part], style="dim"))
            continue
        kept = rows[: most.get(part, len(rows))]
        if part == "do":
            yield Commands(kept)
            continue
        columns: dict[str, TextType] = {
            key: name
            for key, name in COLUMNS[part].items()
            if key != _BELOW.get(part) and any(row.get(key) not in (None, "") for row in kept)
        }
        if severity:  # its heading is that of its first column
            yield Text("")
            columns[next(iter(columns))] = _with_severity(HEADINGS[part], severity)
        yield _indented(table("", kept, columns=columns), 0 if severity else _INDENT)
        for row in kept:
            if text := row.get(_BELOW.get(part, "")):
                yield _indented(Text(f"{row['pool']}: {text}"))
        if left := len(rows) - len(kept):
            yield _indented(Text(f"and {left} more", style="dim"))
    yield from (Text(line, style="dim") for line in explanation.unread)


def _heading(text: str) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(text, style="bold")


def _with_severity(text: str, severity: str) -> Text:
    """Colour only repeats the word, and is for terminals."""
    return Text(text, style="bold").append(f" ({severity})", style=_COLOURS[severity])


class Commands:
    """Commands with their reasons. A command is never broken, as it is copied: where the line has no room
    for the reason, that is below.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _INDENT
        fitting = [row for row in self._rows if len(row["command"]) + 2 + len(row["why"]) <= room]
        column = room - 2 - max((len(row["why"]) for row in fitting), default=0)
        aligned = max((length for row in fitting if (length := len(row["command"])) <= column), default=0)
        for row in self._rows:
            yield Segment(" " * _INDENT + row["command"].ljust(aligned if row in fitting else 0))
            if row in fitting:
                yield Segment(f"  {row['why']}")
            yield Segment.line()
            if row not in fitting:
                yield Padding(Text(row["why"]), (0, 0, 0, 3 * _INDENT), expand=False)


def _indented(content: RenderableType, indent: int = _INDENT) -> Padding:
    return Padding(content, (0, 0, 0, indent), expand=False)


def _formatted(row: Mapping[str, Any], now: datetime | None) -> dict[str, Any]:
    """Values for a person: groups by name, times relative or without a T, dollars with cents."""
    shown: dict[str, Any] = {}
    for key, value in row.items():
        match key, value:
            case _, str() if key in _TIMES and value.endswith("Z"):
                shown[key] = relative_text(value, now) if now else value.replace("T", " ")
            case (("usd_hour" | "usd"), (float() | int())):
                shown[key] = f"{value:.2f}"
            case (("usd_hour" | "usd"), None):
                shown[key] = "unknown"
            case _, str():
                shown[key] = plain(value)
            case _:
                shown[key] = value
    return shown
