"""The picture of capacity: each EC2 reservation a row with one mark a slot.

Invariant: a row has as many marks as EC2 counts slots, whatever claims say: what EC2 counts as used without a
claim of this cluster is of others, and a kept slot is an unused one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from broker.oncall.metrics import GaugeTable, Rows
from broker.oncall.slot_holders import SlotUse, SlotUser, held_by

Use = Literal["broken", "ending", "lent", "borrowed", "idle", "held", "other", "own"]
# By use, what an on-call person looks for first: the letter of its mark, and its meaning.
USES: Final[Mapping[Use, tuple[str, str]]] = {
    "broken": ("!", "a broken node"),
    "ending": ("E", "a node that ends"),
    "lent": ("L", "lent to a claim without a right to it"),
    "borrowed": ("B", "borrowed from another owner"),
    "idle": ("·", "idle"),
    "held": ("K", "kept for a certain claim"),
    "other": ("X", "of another account or user"),
    "own": ("O", "own"),
}
Group = Literal["owner", "zone"]
SlotPrice = Callable[[SlotUse], float | None]

SLOTS_BY_USE: Final = GaugeTable(
    "capacity_broker_slots",
    "Slots of an EC2 capacity reservation by use: own, lent, idle, held, other, ending, broken; and "
    "borrowed, which counts the lent ones once more, with their borrower as owner.",
    ("odcr", "instance_type", "zone", "owner", "use"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMark:
    """One slot. `user`: the claim in it."""

    use: Use
    user: SlotUser | None = None

    @property
    def letter(self) -> str:
        return USES[self.use][0]

    @property
    def meaning(self) -> str:
        return USES[self.use][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """One EC2 reservation. `usd_hour`: of one slot; None if unknown. `lender`: its owner, if the marks are
    those of a borrower.
    """

    id: str
    type: str
    zone: str
    state: str
    owner: str
    marks: tuple[SlotMark, ...]
    usd_hour: float | None
    lender: str = ""

    def count(self, use: Use) -> int:
        return sum(mark.use == use for mark in self.marks)

    @property
    def free(self) -> int:
        return self.count("idle")

    @property
    def held_by(self) -> str:
        """The users of the slots in words; empty without any."""
        return held_by((mark.user for mark in self.marks if mark.user is not None), self.count("other"))

    @property
    def counts(self) -> Sequence[tuple[Use, int]]:
        """The uses that the row has, with their numbers."""
        return [(use, count) for use in USES if (count := self.count(use))]

    @property
    def urgency(self) -> tuple[int, int, float, str]:
        """What is broken or ends comes first, then what costs most idle."""
        wasted = self.count("idle") * (self.usd_hour or 0.0)
        return -self.count("broken"), -self.count("ending"), -wasted, self.id


def slot_rows(uses: Iterable[SlotUse], *, broken: Collection[str], price: SlotPrice) -> list[SlotRow]:
    """The rows, the most urgent first. `broken`: the claims of broken nodes."""
    return sorted((_row(use, broken, price) for use in uses), key=lambda row: row.urgency)


def by_group(rows: Iterable[SlotRow], group: Group) -> Mapping[str, Sequence[SlotRow]]:
    """The rows of each owner or zone, the group of the most urgent row first.

    An owner also has a row for each EC2 reservation of others in which its claims are.
    """
    groups: dict[str, list[SlotRow]] = {}
    for row in rows:
        groups.setdefault(row.owner if group == "owner" else row.zone, []).append(row)
        for borrowed in _borrowed(row) if group == "owner" else ():
            groups.setdefault(borrowed.owner, []).append(borrowed)
    return groups


def counts_by_use(rows: Iterable[SlotRow]) -> Rows:
    """The rows of the metric `SLOTS_BY_USE`."""
    own_and_borrowed = [part for row in rows for part in (row, *_borrowed(row))]
    return {
        (row.id, row.type, row.zone, row.owner, use): row.count(use)
        for row in own_and_borrowed
        for use in USES
        if use == "borrowed" or not row.lender
    }


def _borrowed(row: SlotRow) -> Iterator[SlotRow]:
    borrowers: dict[str, list[SlotMark]] = {}
    for mark in row.marks:
        if mark.use == "lent" and mark.user is not None and mark.user.owner:
            borrowers.setdefault(mark.user.owner, []).append(replace(mark, use="borrowed"))
    for owner, marks in borrowers.items():
        yield replace(row, owner=owner, lender=row.owner, marks=tuple(marks))


def _row(use: SlotUse, broken: Collection[str], price: SlotPrice) -> SlotRow:
    marks = [
        *(_mark(user, use, broken) for user in use.holders),
        *(SlotMark(use="other") for _ in range(use.elsewhere)),
        *(SlotMark(use="held") for _ in range(use.kept)),
        *(SlotMark(use="idle") for _ in range(use.free)),
    ]
    order = [*USES]
    return SlotRow(
        id=use.id,
        type=use.type,
        zone=use.zone,
        state=use.state,
        owner=use.owner,
        marks=tuple(sorted(marks[: use.total], key=lambda mark: order.index(mark.use))),
        usd_hour=price(use),
    )


def _mark(user: SlotUser, use: SlotUse, broken: Collection[str]) -> SlotMark:
    if user.claim in broken:
        return SlotMark(use="broken", user=user)
    if user.ends:
        return SlotMark(use="ending", user=user)
    if use.lends_to(user):
        return SlotMark(use="lent", user=user)
    return SlotMark(use="own", user=user)
