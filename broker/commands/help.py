"""How `--help` looks: plain text in 80 columns, options under the heading that they are about.

Invariant: no name is ever cut, since a person copies flags and variables from here. Typer's own boxes cut
both at 80 columns.
"""

from __future__ import annotations

import os
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command with help that groups the options by heading."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer prints neither the value of a switch's variable nor the accepted values."""
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            variable = str(getattr(error.param, "envvar", None) or "")
            if getattr(error.param, "is_flag", False) and variable in os.environ:
                error.message = f"{os.environ[variable]!r}: write true or false"
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                heading = getattr(param, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class Group(TyperGroup):
    """A command with subcommands; the help has the whole sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=200)) for name, command in commands if command is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
