"""Claims that wait at one moment, assigned together.

Invariant: no reservation is planned beyond its free slots, by whichever way it is reached (id, group, open
match); every slot that some assignment of these claims could use is used; a claim misses a slot only for
claims before it (higher priority, then older, then by name); a gang is assigned whole or not at all; and the
result does not depend on the order in which anything is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from broker.capacity import reasons
from broker.capacity.flow import Flow
from broker.capacity.model import Assignment, Claim, Inventory, NodeClass, Option, Plan, Skipped, Unplaced
from broker.capacity.prospects import Prospect, Shops
from broker.capacity.shortages import Shortages
from providers.model import InstanceType

_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


def plan(
    claims: Iterable[Claim],
    node_classes: Mapping[str, NodeClass],
    types: Mapping[str, InstanceType],
    inventory: Inventory,
    shortages: Shortages,
    now: datetime,
) -> Plan:
    """Who is launched into what now, and why the others are not."""
    waiting = sorted(claims, key=order)
    shops = Shops(node_classes, types, inventory, shortages, now)
    prospects: dict[str, Prospect] = {}
    unplaced: dict[str, Unplaced] = {}
    for claim in waiting:
        if refusal := reasons.refusal(claim, node_classes):
            unplaced[claim.uid] = refusal
        else:
            prospects[claim.uid] = shops.prospect(claim)
    chosen, broken = _match(waiting, prospects, inventory)
    for claim in waiting:
        if claim.uid not in unplaced and claim.uid not in chosen:
            known = shops.known(claim.node_class)
            unplaced[claim.uid] = reasons.unplaced(claim, prospects[claim.uid], known, inventory)
    for gang, lacking in broken.items():
        unplaced |= reasons.gang_incomplete(gang, lacking, waiting, unplaced)
    told: dict[tuple[int, Option], tuple[tuple[Option, ...], tuple[Skipped, ...]]] = {}
    assignments: list[Assignment] = []
    skipped: dict[str, tuple[Skipped, ...]] = {}
    for claim in waiting:
        if (option := chosen.get(claim.uid)) is None:
            continue
        prospect = prospects[claim.uid]
        key = (id(prospect), option)
        if key not in told:
            told[key] = reasons.passed(claim, prospect, option, shops.known(claim.node_class), inventory)
        rest, better = told[key]
        assignments.append(Assignment(claim=claim, option=option, rest=rest))
        if better:
            skipped[claim.uid] = better
    return Plan(
        assignments=tuple(assignments),
        unplaced=tuple(unplaced[claim.uid] for claim in waiting if claim.uid in unplaced),
        skipped=skipped,
    )


def order(claim: Claim) -> tuple[int, datetime, str, str]:
    """Claims in this order: higher priority first, then older, then by name."""
    return (-claim.priority, claim.created or _FOREVER, claim.name, claim.uid)


def _match(
    waiting: Sequence[Claim], prospects: Mapping[str, Prospect], inventory: Inventory
) -> tuple[dict[str, Option], dict[str, list[str]]]:
    """Claims (by uid) with the option each takes, and gangs with the claims that found nothing."""
    kinds = {uid: id(prospect) for uid, prospect in prospects.items()}
    by_kind = {id(prospect): prospect for prospect in prospects.values()}
    flow = Flow(
        {kind: tuple(prospect.slots) for kind, prospect in by_kind.items()},
        {each: inventory.free(each) for prospect in by_kind.values() for each in prospect.slots},
    )
    matched: list[str] = []
    chosen: dict[str, Option] = {}
    broken: dict[str, list[str]] = {}
    for unit in _units(waiting):
        before = flow.state() if len(unit) > 1 else None
        with_slot: list[str] = []
        without: dict[str, Option] = {}
        lacking: list[str] = []
        for claim in sorted(unit, key=lambda each: _flexible(each, prospects)):
            prospect = prospects.get(claim.uid)
            if prospect is None:
                lacking.append(claim.name)
            elif flow.add(kinds[claim.uid]):
                with_slot.append(claim.uid)
            elif prospect.plain is not None:
                without[claim.uid] = prospect.plain
            else:
                lacking.append(claim.name)
        if lacking and unit[0].gang:
            broken[unit[0].gang] = lacking
            if before is not None:
                flow.restore(before)
            continue
        matched += with_slot
        chosen |= without
    # Claims of one kind share what the kind holds: the first takes the most preferred.
    stock = {
        kind: [prospect.slots[each] for each, count in flow.taken(kind).items() for _ in range(count)]
        for kind, prospect in by_kind.items()
    }
    took = set(matched)
    chosen |= {claim.uid: stock[kinds[claim.uid]].pop(0) for claim in waiting if claim.uid in took}
    return chosen, broken


def _flexible(claim: Claim, prospects: Mapping[str, Prospect]) -> bool:
    """Whether a claim has another way than a reserved slot: in its gang it leaves slots to those without."""
    prospect = prospects.get(claim.uid)
    return prospect is not None and prospect.plain is not None


def _units(waiting: Sequence[Claim]) -> list[list[Claim]]:
    """Single claims and whole gangs; a gang stands where its first claim does."""
    units: dict[tuple[str, str], list[Claim]] = defaultdict(list)
    for claim in waiting:
        units[("gang", claim.gang) if claim.gang else ("claim", claim.uid)].append(claim)
    return list(units.values())
