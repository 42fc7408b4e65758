"""The free slots that a plan may use: for each slot pool, no more than its owner's quota has room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from broker.capacity.entitlement import Entitlements, SlotPool
from broker.capacity.flow import Flow
from broker.capacity.model import Inventory
from broker.capacity.problem import ClaimDemand, in_rank_order


def rationed(
    demands: Mapping[str, ClaimDemand], entitlements: Entitlements, inventory: Inventory
) -> Inventory:
    """The inventory without the free slots that are beyond their owners' quota.

    If quota has less room than there are free slots, the slots for the claims that come first are kept.
    """
    slot_pools = entitlements.by_slot_pool()
    tight = {
        slot_pool: ids
        for slot_pool, ids in slot_pools.items()
        if sum(map(inventory.free, ids)) > max(0, entitlements.of(slot_pool).room)
    }
    if not tight:
        return inventory
    remaining = {slot_pool: max(0, entitlements.of(slot_pool).room) for slot_pool in tight}
    ids = [odcr_id for pool_ids in tight.values() for odcr_id in pool_ids]
    short = frozenset(ids)
    narrow = {uid: tuple(slot for slot in demand.slots if slot in short) for uid, demand in demands.items()}
    flow = Flow(
        {slots: slots for slots in narrow.values()}, {odcr_id: inventory.free(odcr_id) for odcr_id in ids}
    )

    def close(slot_pool: SlotPool) -> None:
        if remaining[slot_pool] <= 0:
            for odcr_id in tight[slot_pool]:
                flow.narrow(odcr_id, 0)

    for slot_pool in tight:
        close(slot_pool)
    for _, uids in in_rank_order(demands, demands):
        before, counts = flow.state(), dict(remaining)
        for uid in uids:
            if flow.add(narrow[uid]):
                assert flow.filled is not None
                slot_pool = entitlements.slot_pools[flow.filled]
                remaining[slot_pool] -= 1
                close(slot_pool)
            elif (
                len(uids) > 1
                and not demands[uid].rank.falls_back
                and len(narrow[uid]) == len(demands[uid].slots)
            ):
                flow.restore(before)
                remaining = counts
                break
    debits = Counter(inventory.debits)
    for odcr_id in ids:
        debits[odcr_id] += inventory.free(odcr_id) - flow.holds(odcr_id)
    return replace(inventory, debits=debits)
