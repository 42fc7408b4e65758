"""Formats `--help` and wrong options: plain text in 80 columns, options under their headings.

Invariant: no name is ever cut, since a person copies flags and variables from here. Typer's own boxes cut
both at 80 columns. A wrong value is reported like that of a setting: option, value and accepted values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from broker.oncall.workload_kinds import WORKLOADS
from broker.option_rules import wrong
from broker.options import BadOptions
from broker.text import similar


class Command(TyperCommand):
    """A command with help that groups the options by heading."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer prints neither the value of a switch's variable nor the accepted values."""
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            if problem := _rejected(error):
                raise BadOptions([problem]) from error
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


def _rejected(error: BadParameter) -> str:
    """The sentence about a wrong number or choice; empty for other errors."""
    if error.param is None or not isinstance(error.__cause__, ValidationError):
        return ""
    problem = error.__cause__.errors()[0]
    limits = problem.get("ctx", {})
    choices = re.findall(r"'([^']*)'", str(limits.get("error", "")).partition(" is not one of ")[2])
    value = _number(problem["input"])
    if problem["type"] in ("float_parsing", "int_parsing") or value != value:
        write = "a number"
    elif "ge" in limits:
        write = f"at least {limits['ge']:g}"
    elif "le" in limits:
        write = f"at most {limits['le']:g}"
    elif choices:
        write = f"one of {', '.join(choices)}"
    else:
        return ""
    return wrong(max(error.param.opts, key=len), value, write)


def _number(value: Any) -> str | float:
    try:
        return float(value)
    except ValueError:
        return str(value)


# The kinds that `explain` knows, by the names that kubectl has for them.
KINDS: Final[Mapping[str, str]] = {
    alias: command
    for command, aliases in {
        "pod": "po pod pods",
        "claim": "claim nodeclaim nodeclaims",
        "class": "class ec2nodeclass ec2nodeclasses",
        "reservation": "reservation capacityreservation capacityreservations "
        "clustercapacityreservation clustercapacityreservations "
        "odcr odcrs ondemandcapacityreservation ondemandcapacityreservations",
    }.items()
    for alias in aliases.split()
} | {alias: name for name, item in WORKLOADS.items() for alias in item.aliases}


class Group(TyperGroup):
    """A command with subcommands; the help has the whole sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=200)) for name, command in commands if command is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class KindGroup(Group):
    """Commands named after kinds. `TYPE/NAME` is `TYPE NAME`, with kubectl's names of a type: `sts/web` and
    `statefulset.apps/web` are `statefulset web`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        kind, slash, name = args[0].partition("/")
        kind, _, group = kind.lower().partition(".")
        command = KINDS.get(kind)
        workload = WORKLOADS.get(command or "")
        if command is not None and (workload is None or workload.written(group)):
            args = [command, *([name] if slash and name else []), *args[1:]]
        if args[0] not in self.commands:
            ctx.fail(self._unknown(args[0], kind))
        return super().resolve_command(ctx, args)

    def _unknown(self, written: str, kind: str) -> str:
        near = similar(kind, {*KINDS, *self.commands})
        meant = f"; the nearest is {KINDS.get(near, near)}" if near else ""
        return f"No such command {written!r}: explain knows {', '.join(sorted(self.commands))}{meant}"
