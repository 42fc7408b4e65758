"""How commands print: an aligned table for a person, JSON or YAML for a machine; colour for terminals."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import orjson
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def console() -> Console:
    """Standard output; as wide as the terminal, and never cut when it goes to a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else 240, highlight=False, soft_wrap=False)


def table(title: str, rows: Sequence[Mapping[str, Any]], *, columns: Mapping[str, str]) -> Table:
    """`columns` maps a row's key to its heading."""
    drawn = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for key, heading in columns.items():
        number = any(isinstance(row.get(key), int | float) for row in rows)
        drawn.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        # Text, since a string's [brackets] would be read as markup and vanish.
        drawn.add_row(*(Text("" if row.get(key) is None else str(row[key])) for key in columns))
    return drawn


def show(
    rows: Sequence[Mapping[str, Any]],
    *,
    columns: Mapping[str, str],
    format_: Format,
    title: str = "",
    nothing: str = "nothing to show",
) -> None:
    """Prints the rows. Machines get every key, a person the columns."""
    if format_ is not Format.TABLE:
        show_one([dict(row) for row in rows], format_=format_)
    elif not rows:
        sys.stdout.write(f"{nothing}\n")
    else:
        console().print(table(title, rows, columns=columns))


def show_one(document: Any, *, format_: Format) -> None:
    """Prints a document for a machine. Raises ValueError for a format that is none of a machine's."""
    match format_:
        case Format.JSON:
            sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
        case Format.YAML:
            sys.stdout.write(yaml.safe_dump(document, sort_keys=False))
        case Format.TABLE:
            raise ValueError("a single document has no table")
