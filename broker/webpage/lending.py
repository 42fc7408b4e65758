"""The slots that reservations lend to each other, from the claims in them.

A slot counts as borrowed if its claim draws from another reservation than the one that owns the slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from broker.apis.karpenter import NodeClaim
from broker.controllers.slots.builder import draw_requests, drawn
from broker.controllers.snapshot import Snapshot
from broker.reservations.claims import occupied_odcr


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


def loans(claims: Iterable[NodeClaim], snapshot: Snapshot) -> Iterator[LoanRow]:
    """The loans, by owner, borrower and flavor."""
    owned = snapshot.odcrs.owned
    held = [(claim, odcr) for claim in claims if (odcr := occupied_odcr(claim)) in owned.owner]
    draws, _, _ = drawn(draw_requests(claim for claim, _ in held), snapshot.rights)
    by_queue = {reserved.queue: reserved for reserved in snapshot.reservations}

    def parties(item: tuple[NodeClaim, str]) -> tuple[str, str, str]:
        claim, odcr = item
        return str(owned.owner[odcr]), draws.get(claim.uid, ""), owned.flavor.get(odcr, "")

    for (_, queue, flavor), items in groupby(sorted(held, key=parties), key=parties):
        lent = [*items]
        owner = owned.owner[lent[0][1]]
        if queue != owner.queue:
            yield LoanRow(
                owner=str(owner),
                borrower=str(by_queue.get(queue, "")),
                flavor=flavor,
                slots=len(lent),
                claims=sorted(claim.name for claim, _ in lent),
                ending=sum(claim.deleting for claim, _ in lent),
            )
