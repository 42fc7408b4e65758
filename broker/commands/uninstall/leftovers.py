"""One thing that the broker left behind, and how it is removed.

Invariant: a removal that fails stops no other. Each is reported with its result, and a missing permission
by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from broker.commands import troubles
from broker.kube.errors import ApiError, Conflict, NotFound
from providers.errors import ProviderError

COLUMNS: Final = {"kind": "KIND", "name": "NAME", "action": "ACTION", "result": "RESULT"}
STAYS: Final = {"kind": "STAYS", "name": "NAME", "why": "WHY", "command": "REMOVE IT WITH"}
TRIES: Final = 5
WOULD: Final = "dry run"
KEPT: Final = "kept: another removal failed; run the command again"


@dataclass(frozen=True, kw_only=True)
class Removal:
    """`remove` returns why it stays, if it stays. `error`: the kind could not be listed."""

    kind: str
    name: str
    action: str
    remove: Callable[[], str | None] = str
    error: str = ""

    def row(self, result: str) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "action": self.action, "result": result}


@dataclass(frozen=True, kw_only=True)
class RemainingResource:
    """Something that the command leaves, and the command that removes it."""

    kind: str
    name: str
    why: str
    command: str


@dataclass(kw_only=True)
class RemovalPlan:
    """The removals in their order, those of the broker's `state` at the end, and the resources that stay."""

    removals: list[Removal] = field(default_factory=list)
    state: list[Removal] = field(default_factory=list)
    stays: list[RemainingResource] = field(default_factory=list)

    def collect(self, kind: str, find: Callable[[], Iterator[Removal | RemainingResource]]) -> None:
        """Adds the items that `find` yields. A kind that the cluster does not have has nothing to remove."""
        try:
            for item in find():
                if isinstance(item, Removal):
                    self.removals.append(item)
                else:
                    self.stays.append(item)
        except NotFound:
            return
        except troubles.EXPECTED_ERRORS as error:
            why = f"{troubles.format_error(error)}; these stay: run the command again"
            self.removals.append(Removal(kind=kind, name="", action="list", error=why))

    def rows(self, *, do: bool) -> Iterator[dict[str, Any]]:
        """A row for each removal, which is carried out if `do`."""
        failed = False
        for removal in self.removals:
            result = apply(removal) if do or removal.error else WOULD
            failed = failed or result.startswith("failed")
            yield removal.row(result)
        for removal in self.state:
            yield removal.row(WOULD if not do else KEPT if failed else apply(removal))


def apply(removal: Removal) -> str:
    """The result of a removal: `done`, or `stays: ` or `failed: ` and the reason."""
    if removal.error:
        return f"failed: {removal.error}"
    try:
        for _ in range(TRIES):
            try:
                why = removal.remove()
            except Conflict:
                continue  # changed since it was read: `remove` reads it again
            return f"stays: {why}" if why else "done"
    except NotFound:
        return "done"
    except ProviderError as error:
        return "done" if error.class_.policy.gone else f"failed: {troubles.format_error(error)}"
    except (ApiError, ValueError) as error:
        return f"failed: {troubles.format_error(error)}"
    return "failed: it changes faster than it can be written; run the command again"
