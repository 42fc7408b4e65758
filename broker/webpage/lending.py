"""The slots that reservations lend to each other, from the claims in them.

A slot counts as borrowed if its claim draws from another reservation than the one that owns the slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from broker.lists import lists_by_key
from broker.oncall.slot_holders import SlotUse


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanRow:
    """The slots of one flavor that a reservation lends to another. `borrower` is empty for claims that draw
    from none.

    `claims` hold them, by name. `ending`: the number of those that give their slot back now.
    """

    owner: str
    borrower: str
    flavor: str
    slots: int
    claims: Sequence[str]
    ending: int


def loans(uses: Iterable[SlotUse], flavors: Mapping[str, str], ending: Collection[str]) -> Iterator[LoanRow]:
    """The loans, by owner, borrower and flavor. `flavors`: of the EC2 reservations, by id. `ending`: the
    claims that are being deleted.
    """
    lent = lists_by_key(
        ((use.owner, user.owner, flavors.get(use.id, "")), user) for use in uses for user in use.lent
    )
    for (owner, borrower, flavor), users in sorted(lent.items()):
        yield LoanRow(
            owner=owner,
            borrower=borrower,
            flavor=flavor,
            slots=len(users),
            claims=sorted(user.claim for user in users),
            ending=sum(user.claim in ending for user in users),
        )
