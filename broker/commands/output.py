"""Prints for commands: an aligned table for a person, JSON or YAML for a machine; colour for terminals."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import orjson
import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text, TextType

from broker.capacity.shortages import Shortage
from broker.oncall.wording import scope_name
from broker.text import format_time, plain

# Keys of words that people search for and copy: other columns give way first.
UNBROKEN: Final = frozenset({"id", "pool", "code"})
_MONEY = re.compile(r"\d+\.\d\d")


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="table, json or yaml.")]


def console() -> Console:
    """Standard output; as wide as the terminal, and never cut when it goes to a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else 240, highlight=False, soft_wrap=False)


def table(title: str, rows: Sequence[Mapping[str, Any]], *, columns: Mapping[str, TextType]) -> Table:
    """`columns` maps a row's key to its heading, which stays on one line if it is a Text."""
    drawn = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for key, heading in columns.items():
        number = any(_MONEY.fullmatch(str(row.get(key))) or isinstance(row.get(key), int) for row in rows)
        justify: Literal["right", "left"] = "right" if number else "left"
        least = len(heading) if isinstance(heading, Text) else None
        drawn.add_column(heading, justify=justify, overflow="fold", no_wrap=key in UNBROKEN, min_width=least)
    for row in rows:
        # Text, since a string's [brackets] would be read as markup and vanish.
        drawn.add_row(*(Text("" if row.get(key) is None else str(row[key])) for key in columns))
    return drawn


def fitting(
    rows: Sequence[Mapping[str, Any]], *, columns: Mapping[str, str], extra: Sequence[str], width: int
) -> dict[str, str]:
    """The columns without those of `extra` that a line has no room for, the first of them first."""
    kept = dict(columns)

    def wide() -> int:
        cells = ([heading, *(str(row.get(key) or "") for row in rows)] for key, heading in kept.items())
        return sum(max(map(len, widths)) + 2 for widths in cells) - 2

    for key in extra:
        if wide() > width:
            del kept[key]
    return kept


def _blocks(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], width: int) -> str:
    """The rows one below the other, a line for each value, if their longest words are too wide for a table;
    else empty. A table would break these words, which people search for and copy.
    """
    cells = [[heading, *(str(row.get(key) or "") for row in rows)] for key, heading in columns.items()]
    least = (max(len(word) for text in column for word in text.split()) + 2 for column in cells)
    if sum(least) - 2 <= width:
        return ""
    first = max(map(len, columns.values())) + 2
    given = [[(columns[key], row[key]) for key in columns if row.get(key) is not None] for row in rows]
    return "\n".join("".join(f"{heading:{first}}{value}\n" for heading, value in row) for row in given)


def shortage_row(shortage: Shortage) -> dict[str, Any]:
    """A current shortage, for a machine."""
    return {
        "scope": shortage.scope.kind,
        "pool": shortage.scope.key,
        "code": shortage.code,
        "class": shortage.class_.value,
        "message": shortage.message,
        "since": format_time(shortage.since),
        "last": format_time(shortage.last),
        "next_try": format_time(shortage.next_try),
        "until": format_time(shortage.until),
    }


def shortage_name(row: Mapping[str, Any]) -> str:
    """The resource of a shortage in a column of its own: a reservation by its id alone."""
    scope, key = row["scope"], row["pool"]
    return plain(key) if scope == "reservation" else scope_name(scope, key)


def age(length: timedelta) -> str:
    """A duration in one unit, as kubectl prints it: `40s`, `12m`, `30h`, `9d`."""
    seconds = max(int(length.total_seconds()), 0)
    for unit, size, least in (("d", 86400, 2), ("h", 3600, 2), ("m", 60, 2)):
        if seconds >= least * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def show(
    rows: Sequence[Mapping[str, Any]],
    *,
    columns: Mapping[str, str],
    format_: Format,
    extra: Sequence[str] = (),
    nothing: str = "nothing to show",
) -> None:
    """Prints the rows. Machines get every key, a person the columns, `extra` ones where there is room."""
    if format_ is not Format.TABLE:
        show_one([dict(row) for row in rows], format_=format_)
    elif not rows:
        sys.stdout.write(f"{nothing}\n")
    else:
        out = console()
        kept = fitting(rows, columns=columns, extra=extra, width=out.width)
        if blocks := _blocks(rows, kept, out.width) if sys.stdout.isatty() else "":
            sys.stdout.write(blocks)
        else:
            out.print(table("", rows, columns=kept))


def show_one(document: Any, *, format_: Format) -> None:
    """Prints a document for a machine. Raises ValueError for a format that is none of a machine's."""
    match format_:
        case Format.JSON:
            sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
        case Format.YAML:
            sys.stdout.write(yaml.safe_dump(document, sort_keys=False))
        case Format.TABLE:
            raise ValueError("a single document has no table")
