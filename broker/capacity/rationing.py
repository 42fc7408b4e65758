"""The free slots that a plan may use: for each lot, no more than the quota of its owner has room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from broker.capacity.entitlement import Entitlements, SlotPool
from broker.capacity.flow import Flow
from broker.capacity.model import Inventory
from broker.capacity.problem import ClaimDemand, in_rank_order


def rationed(
    wishes: Mapping[str, ClaimDemand], entitlements: Entitlements, inventory: Inventory
) -> Inventory:
    """The inventory without the free slots that are beyond their owners' quota.

    If quota has less room than there are free slots, the slots for the claims that come first are kept.
    """
    lots = entitlements.by_lot()
    tight = {
        lot: ids
        for lot, ids in lots.items()
        if sum(map(inventory.free, ids)) > max(0, entitlements.of(lot).room)
    }
    if not tight:
        return inventory
    left = {lot: max(0, entitlements.of(lot).room) for lot in tight}
    ids = [odcr_id for some in tight.values() for odcr_id in some]
    short = frozenset(ids)
    narrow = {uid: tuple(each for each in wish.slots if each in short) for uid, wish in wishes.items()}
    flow = Flow({slots: slots for slots in narrow.values()}, {each: inventory.free(each) for each in ids})

    def close(lot: SlotPool) -> None:
        if left[lot] <= 0:
            for odcr_id in tight[lot]:
                flow.narrow(odcr_id, 0)

    for lot in tight:
        close(lot)
    for _, uids in in_rank_order(wishes, wishes):
        before, counts = flow.state(), dict(left)
        for uid in uids:
            if flow.add(narrow[uid]):
                assert flow.filled is not None
                lot = entitlements.lots[flow.filled]
                left[lot] -= 1
                close(lot)
            elif (
                len(uids) > 1
                and not wishes[uid].rank.falls_back
                and len(narrow[uid]) == len(wishes[uid].slots)
            ):
                flow.restore(before)
                left = counts
                break
    debits = Counter(inventory.debits)
    for odcr_id in ids:
        debits[odcr_id] += inventory.free(odcr_id) - flow.holds(odcr_id)
    return replace(inventory, debits=debits)
