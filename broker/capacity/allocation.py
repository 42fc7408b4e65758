"""Turns counts back into claims: the slot of each claim, and the claims that keep a gang from launching.

Invariant: of interchangeable claims the first are served, and claims with the same slots take them in order:
their own before those of other owners, the best first; no reservation exceeds its room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat

import numpy as np

from broker.capacity.entitlement import Entitlements, SlotPool
from broker.capacity.flow import Flow
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim
from broker.capacity.problem import ClaimDemand, Rank, SlotFlow, SlotProblem


def allocate(
    problem: SlotProblem, taken: SlotFlow, demands: Mapping[str, ClaimDemand], inventory: Inventory
) -> dict[str, str]:
    """The reservation of each claim (by uid) that has a slot."""
    first = {uid: place for place, uid in enumerate(demands)}
    served: dict[int, list[str]] = defaultdict(list)
    for bundle, count in zip(problem.bundles, taken.served, strict=True):
        served[bundle.reach] += bundle.claims[: int(count)]
    units = [_units(odcr_ids, inventory) for odcr_ids in problem.members]
    stock: dict[int, list[str]] = defaultdict(list)
    for arc in np.argsort(problem.lent, kind="stable"):
        if count := int(taken.flow[arc]):
            stock[int(problem.arc_reach[arc])] += islice(units[problem.arc_slot[arc]], count)
    return {
        uid: odcr_id
        for reach, uids in served.items()
        for uid, odcr_id in zip(sorted(uids, key=first.__getitem__), stock[reach], strict=True)
    }


def lacking(
    gang: Sequence[Claim],
    rank: Rank,
    demands: Mapping[str, ClaimDemand],
    allocated: Mapping[str, str],
    inventory: Inventory,
    entitlements: Entitlements,
) -> list[str]:
    """The claims of a gang (by name) for which earlier claims leave no slot."""
    before = {uid: slot for uid, slot in allocated.items() if demands[uid].rank < rank}
    edges = {claim.uid: demands[claim.uid].slots for claim in gang if not demands[claim.uid].rank.falls_back}
    held = matched(
        edges,
        inventory.taken(Counter(before.values())),
        entitlements.after((demands[uid].queue, slot) for uid, slot in before.items()),
    )
    return [claim.name for claim in gang if claim.uid in edges and claim.uid not in held]


def matched(
    edges: Mapping[str, Collection[str]], inventory: Inventory, entitlements: Entitlements
) -> dict[str, str]:
    """A free slot for as many of these claims as can have one together, the first claims first; no more of
    a slot pool than its quota has room for.
    """
    flow: Flow[str, str] = Flow(
        {uid: tuple(slots) for uid, slots in edges.items()},
        {slot: inventory.free(slot) for slots in edges.values() for slot in slots},
    )
    ids, taken = entitlements.by_slot_pool(), Counter[SlotPool]()

    def close(slot_pool: SlotPool) -> None:
        if entitlements.of(slot_pool).room <= taken[slot_pool]:
            for slot in ids[slot_pool]:
                flow.close(slot)

    for slot_pool in ids:
        close(slot_pool)
    for uid in edges:
        if flow.add(uid) and flow.filled is not None and flow.filled in entitlements.slot_pools:
            slot_pool = entitlements.slot_pools[flow.filled]
            taken[slot_pool] += 1
            close(slot_pool)
    return {uid: next(iter(slots)) for uid in edges if (slots := flow.taken(uid))}


def _units(odcr_ids: Sequence[str], inventory: Inventory) -> Iterator[str]:
    return chain.from_iterable(repeat(odcr_id, inventory.free(odcr_id)) for odcr_id in odcr_ids)
