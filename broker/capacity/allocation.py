"""Turns counts back into claims: the slot of each claim, and the claims that keep a gang from launching.

Invariant: of interchangeable claims the first are served, and claims with the same slots take them in order,
the best first; no reservation exceeds its room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, repeat

from broker.capacity.flow import Flow
from broker.capacity.model import Claim, Inventory
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
    for reach, slot, count in zip(problem.arc_reach, problem.arc_slot, taken.flow, strict=True):
        if count:
            stock[int(reach)] += islice(units[slot], int(count))
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
) -> list[str]:
    """The claims of a gang (by name) for which earlier claims leave no slot."""
    before = Counter(odcr_id for uid, odcr_id in allocated.items() if demands[uid].rank < rank)
    must = [claim for claim in gang if not demands[claim.uid].rank.falls_back]
    edges = {claim.uid: tuple(demands[claim.uid].slots) for claim in must}
    room = {slot: inventory.free(slot) - before[slot] for slots in edges.values() for slot in slots}
    flow = Flow(edges, room)
    return [claim.name for claim in must if not flow.add(claim.uid)]


def _units(odcr_ids: Sequence[str], inventory: Inventory) -> Iterator[str]:
    return chain.from_iterable(repeat(odcr_id, inventory.free(odcr_id)) for odcr_id in odcr_ids)
