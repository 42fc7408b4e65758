"""The quota of slots: the resources that a slot takes in the tree of slots.

A slot takes one of its pool, one of its EC2 reservation, and, if its queue is not its owner, one of the
borrowing limit of this queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.quota.model import Amounts, FlavorResource, Queue, Quota
from broker.quota.slot_model import Member, OwnedSlots

_SLOTS: Final = "slots"
_BORROWED: Final = "borrowed slots"


def pool_key(slot_pool: OwnedSlots) -> FlavorResource:
    return FlavorResource(f"{slot_pool.owner}/{slot_pool.flavor}", _SLOTS)


def odcr_key(odcr_id: str) -> FlavorResource:
    return FlavorResource(odcr_id, _SLOTS)


def limit_key(queue: str, flavor: str) -> FlavorResource:
    """The borrowing limit of a queue: a pool that only this queue uses."""
    return FlavorResource(f"{queue}/{flavor}", _BORROWED)


def queue_of(member: Member, owned: Iterable[OwnedSlots]) -> Queue:
    """The queue of a member, with the quota of the slot pools that it owns."""
    quotas: dict[FlavorResource, Quota] = {}
    for slot_pool in owned:
        quotas[pool_key(slot_pool)] = Quota(nominal=slot_pool.nominal, lending_limit=slot_pool.lending_limit)
        quotas |= {odcr_key(id_): Quota(nominal=count) for id_, count in slot_pool.slots.items()}
    for flavor, limit in member.borrowing_limit.items():
        if limit is not None:
            quotas[limit_key(member.name, flavor)] = Quota(nominal=limit, lending_limit=0)
    return Queue(name=member.name, cohort=member.cohort, quotas=quotas, preemption=member.preemption)


def slot_amounts(member: Member, slot_pool: OwnedSlots, odcr_id: str) -> Amounts:
    """The quota of a slot for a member; without an id, of any slot of the pool."""
    amounts = {pool_key(slot_pool): 1}
    if odcr_id:
        amounts[odcr_key(odcr_id)] = 1
    if slot_pool.owner != member.name and member.borrowing_limit.get(slot_pool.flavor, 0) is not None:
        amounts[limit_key(member.name, slot_pool.flavor)] = 1
    return amounts
