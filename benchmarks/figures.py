"""The result of a benchmark: one row a figure, with its target and the value of a plain baseline.

Invariant: a row reports whether its figure holds only if it has a target. The comparison is made before
rounding, so no figure is rounded into holding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from benchmarks.processes import ROOT
from broker.commands.output import Format, show

COLUMNS = {
    "figure": "FIGURE",
    "measured": "MEASURED",
    "wanted": "WANTED",
    "holds": "HOLDS",
    "baseline": "BASELINE",
    "of": "BASELINE IS",
}

Small = Annotated[bool, typer.Option("--small", help="A size for trying out; its figures mean nothing.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="table, json or yaml.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`measured` and `baseline` in `unit`. The target, if any: at most `most` and at least `least`."""

    name: str
    measured: float
    unit: str = ""
    most: float | None = None
    least: float | None = None
    baseline: float | None = None
    of: str = ""  # a description of the baseline

    @property
    def holds(self) -> bool | None:
        if self.most is None and self.least is None:
            return None
        return (self.most is None or self.measured <= self.most) and (
            self.least is None or self.measured >= self.least
        )

    def row(self) -> dict[str, Any]:
        """The figure as it is printed; JSON has the numbers themselves too."""
        bounds = [
            f"{word} {_plain(bound)}"
            for word, bound in (("at least", self.least), ("at most", self.most))
            if bound is not None
        ]
        exact = self.least is not None and self.least == self.most
        return {
            "figure": self.name,
            "measured": _formatted(self.measured, self.unit),
            "wanted": _plain(self.most) if exact and self.most is not None else ", ".join(bounds),
            "holds": {True: "yes", False: "NO", None: ""}[self.holds],
            "baseline": "" if self.baseline is None else _formatted(self.baseline, self.unit),
            "of": self.of,
            "value": self.measured,
            "unit": self.unit,
            "baseline_value": self.baseline,
        }


def run(measure: Callable[..., Sequence[Figure]], **options: Any) -> None:
    """The command line of a benchmark: `measure(small=...)` gives its figures."""

    def command(small: Small = False, output: Output = Format.TABLE) -> None:
        _compile_once()
        rows = [figure.row() for figure in measure(small=small, **options)]
        show(rows, columns=COLUMNS, format_=output)

    command.__doc__ = measure.__doc__
    typer.run(command)


def _compile_once() -> None:
    """Keeps bytecode, as the image does: each process compiles all modules where the shell forbids it."""
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(ROOT / ".cache/pycache")
    os.environ.update(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=sys.pycache_prefix)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def _formatted(value: float, unit: str) -> str:
    shown = _plain(value) if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
    return f"{shown} {unit}".strip()
