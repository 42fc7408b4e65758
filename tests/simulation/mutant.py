"""A deliberate fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `module`, `old` is replaced by `new`; it is there so many `times`.

    `about`: only the seeds of this part can show it.
    """

    name: str
    module: str
    old: str
    new: str
    times: int = 1
    about: str = "all"
