"""The rooms on nodes that reservations keep: of whom, for which pods, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from broker.apis.units import written
from broker.placement.holds import Consumption, Hold, HoldState
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_match import IndexMatcher, OwnerTest

_KINDS = {Consumption.WHOLE: "Gödel Reservation", Consumption.TURNS: "Pod"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomRow:
    """`namespace` is empty for a Koordinator reservation. `pods`: the number of owners that use the room."""

    kind: str
    namespace: str
    name: str
    node: str
    owners: str
    idle: str
    pods: int
    until: datetime | None


def rooms(ledger: HoldLedger) -> list[RoomRow]:
    """The rooms of a ledger; those that no pod uses come first."""
    rows = map(_row, ledger.states.values())
    return sorted(rows, key=lambda row: (row.pods > 0, row.namespace, row.name))


def _row(state: HoldState) -> RoomRow:
    hold = state.hold
    idle = [f"{written(name, amount)} {name}" for name, amount in sorted(state.idle.items()) if amount]
    return RoomRow(
        kind=_KINDS.get(hold.consumption, "Koordinator Reservation"),
        namespace=_namespace(hold),
        name=hold.name.rpartition("/")[2],
        node=hold.node,
        owners=" or ".join(_owners(hold)) or "no pod",
        idle=", ".join(idle),
        pods=len(state.owners),
        until=hold.deadline,
    )


def _namespace(hold: Hold) -> str:
    if isinstance(hold.matcher, IndexMatcher):
        return hold.matcher.namespace
    return hold.template.namespace if hold.consumption is Consumption.TURNS and hold.template else ""


def _owners(hold: Hold) -> Iterator[str]:
    """The pods that the room is for."""
    if isinstance(hold.matcher, IndexMatcher):
        yield f"pods with the index {hold.matcher.index}" if hold.matcher.index else "no pod"
        return
    yield from map(_owner, hold.matcher.items)


def _owner(test: OwnerTest) -> str:
    parts: list[str] = []
    if test.object is not None:
        named = test.object.namespace, test.object.name, test.object.uid
        parts.append(f"the pod {'/'.join(filter(None, named))}")
    if test.controller is not None:
        parts.append(f"pods of {test.controller.kind or 'the controller'} {test.controller.name}".rstrip())
    if test.labels:
        labels = (
            f"{item.key} {item.operator} {','.join(sorted(item.values))}".rstrip() for item in test.labels
        )
        parts.append(f"pods with {' and '.join(labels)}")
    return ", ".join(parts) or "any pod"
