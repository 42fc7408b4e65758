"""Every way to get a machine for a need now, with what it takes, or the reason why it is out.

Pods that wait, replacements and returns choose among these ways; the plan of launches assigns the same
options (see `option_catalog`). A way is one reservation's slots, or an option outside reservations. One of
the latter may lead into a slot later: EC2 counts the instance there once the slot is free (`absorption`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from broker.capacity.entitlement import RESERVATION_FULL, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Option, Skipped
from broker.capacity.option_catalog import CandidateOptions, full
from broker.capacity.shortages import BACKING_OFF
from broker.capacity.supply import LaunchSupply
from broker.capacity.vacancy import Vacancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`odcr_id`: the reservation; empty outside reservations, where `free` and `lent` are 0.

    `free`: its slots without an instance. `lent`: those that their owner, the need's queue, gets back from
    borrowers. `borrows`: the slots belong to another owner. `joins`: the reservation in which EC2 counts an
    instance outside once the node that it succeeds has left its slot there; empty without one.
    `last_resort`: EC2 refused it lately, and it may be tried all the same. `valued`: a slot with
    accelerators, for needs alone that no plain machine outside reservations serves. `out`: why the way leads
    to no machine now.
    """

    option: Option
    odcr_id: str = ""
    free: int = 0
    lent: int = 0
    borrows: bool = False
    joins: str = ""
    last_resort: bool = False
    valued: bool = False
    out: Skipped | None = None


def ways(
    need: Claim,
    candidates: CandidateOptions,
    supply: LaunchSupply,
    reclaimed: Mapping[SlotPool, int] | None = None,
    *,
    vacancy: Vacancy | None = None,
) -> Iterator[Way]:
    """The ways of a claim with these options, the preferred first.

    `reclaimed`: lent slots that other claims get back. `vacancy`: the slot of the node that it succeeds.
    """
    last_resort = frozenset(candidates.last_resort)
    lent = _returnable(need, candidates, supply, reclaimed or {})
    for option in candidates.options:
        refused = candidates.refused.get(option)
        if not option.odcr_ids:
            short = refused is not None or option in last_resort
            takes = vacancy and not short and vacancy.takes(option, need, candidates.known)
            joins = vacancy.odcr_id if vacancy and takes else ""
            yield Way(option=option, joins=joins, last_resort=option in last_resort, out=refused)
            continue
        reclaims = refused is None or refused.reason == RESERVATION_FULL
        for odcr_id in option.odcr_ids:
            borrows = odcr_id in candidates.lenders
            open_ = odcr_id in candidates.borrowable or odcr_id in candidates.slots
            free = supply.inventory.free(odcr_id) if open_ else 0
            back = lent[odcr_id] if reclaims else 0
            out = None if free or back else refused or _closed(option, odcr_id, supply.inventory)
            yield Way(
                option=option,
                odcr_id=odcr_id,
                free=free,
                lent=back,
                borrows=borrows,
                valued=option in candidates.valued,
                out=out,
            )


def _closed(option: Option, odcr_id: str, inventory: Inventory) -> Skipped:
    """Why a reservation has no slot, although others of the option have some."""
    alone = replace(option, odcr_ids=(odcr_id,))
    if inventory.free(odcr_id):
        return alone.skipped(BACKING_OFF, "EC2 refused its free slots lately")
    return full(alone, inventory)


def _returnable(
    need: Claim, candidates: CandidateOptions, supply: LaunchSupply, reclaimed: Mapping[SlotPool, int]
) -> Counter[str]:
    """The lent slots, by reservation, that the claim's queue may have back beside those of other claims."""
    entitlements = supply.entitlements
    queue = entitlements.draws.get(need.uid, "")
    returnable: Counter[str] = Counter()
    for slot_pool in {entitlements.slot_pools[odcr_id] for odcr_id in candidates.own}:
        counts = entitlements.returnable(queue, slot_pool, need.priority)
        left = max(0, counts.total() - reclaimed.get(slot_pool, 0))
        returnable.update(islice(counts.elements(), left))
    return returnable
