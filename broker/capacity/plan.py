"""Claims that wait at one moment, assigned together.

Invariant: no reservation is planned beyond its free slots, by whichever way it is reached (id, group, open
match); every slot that some assignment of these claims could use is used; a claim misses a slot only for
claims before it (higher priority, then older, then by name); a gang is assigned whole or not at all; and the
result does not depend on the order in which anything is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker.capacity.flow import Flow
from broker.capacity.model import (
    Assignment,
    Claim,
    Inventory,
    NodeClass,
    Option,
    Plan,
    Skipped,
    Unplaced,
)
from broker.capacity.options import Catalog, Choice, catalog, choose
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortage, Shortages
from broker.capacity.types import ZONE
from providers.model import InstanceType

_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


class _Need(NamedTuple):
    """What makes claims interchangeable."""

    node_class: str
    requirements: Requirements
    requests: frozenset[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prospect:
    """A need's options as they stand: which may be asked, by which reservations, and why not the others."""

    choice: Choice
    usable: tuple[Option, ...]
    slots: Mapping[str, Option]  # reservation → the option that draws from it, in order of preference
    plain: Option | None  # the first option that needs no reservation
    refused: Mapping[Option, Skipped]
    retry_at: datetime | None


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
    catalogs: dict[str, Catalog] = {}
    prospects: dict[_Need, _Prospect] = {}
    unplaced: dict[str, Unplaced] = {}
    for claim in waiting:
        if refusal := _refusal(claim, node_classes):
            unplaced[claim.uid] = refusal
            continue
        need = _need(claim)
        if need not in prospects:
            if claim.node_class not in catalogs:
                catalogs[claim.node_class] = catalog(node_classes[claim.node_class], types)
            known = catalogs[claim.node_class]
            prospects[need] = _prospect(
                choose(claim, known, inventory, now), known, inventory, shortages, now
            )
    reserved, plain, broken = _match(waiting, unplaced, prospects, inventory)
    unplaced |= {
        claim.uid: _unplaced(claim, prospects[_need(claim)], inventory)
        for claim in waiting
        if claim.uid not in unplaced and claim.uid not in reserved and claim.uid not in plain
    }
    for gang, lacking in broken.items():
        unplaced |= _whole(gang, lacking, waiting, unplaced)
    return _written(waiting, reserved | plain, prospects, unplaced, inventory)


def order(claim: Claim) -> tuple[int, datetime, str, str]:
    """Claims in this order: higher priority first, then older, then by name."""
    return (-claim.priority, claim.created or _FOREVER, claim.name, claim.uid)


def _need(claim: Claim) -> _Need:
    return _Need(claim.node_class, claim.requirements, frozenset(claim.requests.items()))


def _refusal(claim: Claim, node_classes: Mapping[str, NodeClass]) -> Unplaced | None:
    """Why a claim is not even considered."""
    node_class = node_classes.get(claim.node_class)
    if node_class is None:
        message = f"EC2NodeClass {claim.node_class or '(no name)'} does not exist"
        return Unplaced(claim=claim, reason="NodeClassNotFound", message=message)
    if problems := claim.requirements.problems():
        return Unplaced(claim=claim, reason="ImpossibleRequirements", message="; ".join(problems))
    not_ready = node_class.not_ready or (
        "it has no subnet" if not node_class.subnets else "it has no image" if not node_class.images else ""
    )
    if not_ready:
        message = f"EC2NodeClass {node_class.name} is not ready: {not_ready}"
        return Unplaced(claim=claim, reason="NodeClassNotReady", message=message)
    return None


def _prospect(
    choice: Choice, known: Catalog, inventory: Inventory, shortages: Shortages, now: datetime
) -> _Prospect:
    subnets: dict[str, list[str]] = defaultdict(list)
    for subnet in known.node_class.subnets:
        subnets[subnet.zone].append(subnet.id)
    usable: list[Option] = []
    slots: dict[str, Option] = {}
    refused: dict[Option, Skipped] = {}
    ends: list[datetime] = []
    for option in choice.options:
        shortage = shortages.active(option, now, subnet_ids=subnets[option.pool.zone])
        free = [each for each in option.odcr_ids if inventory.free(each)]
        if option.pool.capacity_type == "reserved" and not free:
            refused[option] = _full(option, inventory)
            continue
        asked = shortages.open_reservations(free, now)
        if shortage is None and option.odcr_ids and not asked:
            # Some are full, all the others are short.
            shortage = shortages.active(Option(pool=option.pool, odcr_ids=tuple(free)), now)
        if shortage is not None:
            refused[option] = _short(option, shortage)
            ends.append(shortage.until)
            continue
        usable.append(option)
        slots |= dict.fromkeys(asked, option)
    return _Prospect(
        choice=choice,
        usable=tuple(usable),
        slots=slots,
        plain=next((option for option in usable if option.pool.capacity_type != "reserved"), None),
        refused=refused,
        retry_at=min(ends, default=None),
    )


def _match(
    waiting: Sequence[Claim],
    refused: Mapping[str, Unplaced],
    prospects: Mapping[_Need, _Prospect],
    inventory: Inventory,
) -> tuple[dict[str, Option], dict[str, Option], dict[str, list[str]]]:
    """Claims (by uid) with a reserved slot, claims with other capacity, and gangs with who lacked what."""
    flow = Flow(
        {need: tuple(prospect.slots) for need, prospect in prospects.items()},
        {each: inventory.free(each) for prospect in prospects.values() for each in prospect.slots},
    )
    matched: dict[str, _Need] = {}
    plain: dict[str, Option] = {}
    broken: dict[str, list[str]] = {}
    for unit in _units(waiting):
        before = flow.state() if len(unit) > 1 else None
        with_slot: dict[str, _Need] = {}
        without: dict[str, Option] = {}
        lacking: list[str] = []
        for claim in unit:
            need = _need(claim)
            prospect = prospects.get(need)
            if claim.uid in refused or prospect is None:
                lacking.append(claim.name)
            elif flow.add(need):
                with_slot[claim.uid] = need
            elif prospect.plain is not None:
                without[claim.uid] = prospect.plain
            else:
                lacking.append(claim.name)
        if lacking and unit[0].gang:
            broken[unit[0].gang] = lacking
            if before is not None:
                flow.restore(before)
            continue
        matched |= with_slot
        plain |= without
    return _dealt(waiting, matched, flow, prospects), plain, broken


def _units(waiting: Sequence[Claim]) -> list[list[Claim]]:
    """Single claims and whole gangs; a gang stands where its first claim does."""
    units: dict[tuple[str, str], list[Claim]] = defaultdict(list)
    for claim in waiting:
        units[("gang", claim.gang) if claim.gang else ("claim", claim.uid)].append(claim)
    return list(units.values())


def _dealt(
    waiting: Sequence[Claim],
    matched: Mapping[str, _Need],
    flow: Flow[_Need, str],
    prospects: Mapping[_Need, _Prospect],
) -> dict[str, Option]:
    """Equal claims share what their kind holds: the first takes the most preferred."""
    stock: dict[_Need, list[Option]] = {}
    for need in set(matched.values()):
        slots = prospects[need].slots
        stock[need] = [slots[each] for each, count in flow.taken(need).items() for _ in range(count)]
        stock[need].reverse()
    return {claim.uid: stock[matched[claim.uid]].pop() for claim in waiting if claim.uid in matched}


def _written(
    waiting: Sequence[Claim],
    chosen: Mapping[str, Option],
    prospects: Mapping[_Need, _Prospect],
    unplaced: Mapping[str, Unplaced],
    inventory: Inventory,
) -> Plan:
    passed: dict[tuple[_Need, Option], tuple[tuple[Option, ...], tuple[Skipped, ...]]] = {}
    assignments: list[Assignment] = []
    skipped: dict[str, tuple[Skipped, ...]] = {}
    for claim in waiting:
        option = chosen.get(claim.uid)
        if option is None:
            continue
        key = (_need(claim), option)
        if key not in passed:
            passed[key] = _passed(prospects[key[0]], option, inventory)
        rest, better = passed[key]
        assignments.append(Assignment(claim=claim, option=option, rest=rest))
        if better:
            skipped[claim.uid] = better
    return Plan(
        assignments=tuple(assignments),
        unplaced=tuple(unplaced[claim.uid] for claim in waiting if claim.uid in unplaced),
        skipped=skipped,
    )


def _passed(
    prospect: _Prospect, option: Option, inventory: Inventory
) -> tuple[tuple[Option, ...], tuple[Skipped, ...]]:
    """The options after this one, and the better ones that the claim did not get."""
    place = prospect.usable.index(option)
    better = prospect.choice.options[: prospect.choice.options.index(option)]
    return prospect.usable[place + 1 :], (
        *(prospect.refused.get(each) or _taken(each, inventory) for each in better),
        *prospect.choice.skipped,
    )


def _unplaced(claim: Claim, prospect: _Prospect, inventory: Inventory) -> Unplaced:
    choice = prospect.choice
    skipped = (
        *(prospect.refused.get(each) or _taken(each, inventory) for each in choice.options),
        *choice.skipped,
    )
    if not choice.options:
        reason, message = _nothing(claim, choice)
        return Unplaced(claim=claim, reason=reason, message=message, skipped=skipped)
    if prospect.retry_at is not None:
        shown = next(each for each in prospect.refused.values() if each.reason == "ShortageRemembered")
        count = sum(each.reason == "ShortageRemembered" for each in prospect.refused.values())
        message = (
            f"{count} of {len(choice.options)} options refused lately, the others are full; {shown.message}"
        )
        return Unplaced(
            claim=claim,
            reason="ShortageRemembered",
            message=message,
            skipped=skipped,
            retry_at=prospect.retry_at,
        )
    message = "no free slot: " + "; ".join(each.message for each in skipped[:5])
    return Unplaced(claim=claim, reason="AllReservationsFull", message=message, skipped=skipped)


def _nothing(claim: Claim, choice: Choice) -> tuple[str, str]:
    """Why there is no option at all."""
    if not choice.suited:
        counts = sorted(choice.dropped.items(), key=lambda each: (-each[1], each[0]))
        why = ", ".join(f"{key} excludes {count}" for key, count in counts)
        return "NoCompatibleInstanceTypes", f"none of {choice.considered} instance types suits: {why}"
    message = f"{choice.suited} of {choice.considered} instance types suit, "
    if choice.plain:
        message += f"but no zone of the class offers one in {claim.requirements.describe(ZONE)}"
        return "NoCompatibleInstanceTypes", message
    message += "but the class has no reservation that the claim can use"
    if choice.skipped:
        message += ": " + "; ".join(each.message for each in choice.skipped[:5])
    return "NoUsableReservation", message


def _whole(
    gang: str, lacking: Sequence[str], waiting: Sequence[Claim], unplaced: Mapping[str, Unplaced]
) -> dict[str, Unplaced]:
    """The other claims of a gang wait for those that found nothing."""
    shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
    message = f"gang {gang} launches whole or not at all; nothing for {shown}"
    retries = [
        each.retry_at
        for each in unplaced.values()
        if each.claim.gang == gang and each.claim.name in lacking and each.retry_at is not None
    ]
    return {
        claim.uid: Unplaced(
            claim=claim, reason="GangIncomplete", message=message, retry_at=max(retries, default=None)
        )
        for claim in waiting
        if claim.gang == gang and claim.name not in lacking
    }


def _full(option: Option, inventory: Inventory) -> Skipped:
    counts = ", ".join(f"{each} 0 of {_total(each, inventory)}" for each in option.odcr_ids)
    return Skipped(pool=option.pool, reason="ReservationFull", message=f"{option.pool}: free slots: {counts}")


def _taken(option: Option, inventory: Inventory) -> Skipped:
    if option.pool.capacity_type != "reserved":
        return Skipped(pool=option.pool, reason="NotNeeded", message=f"{option.pool}: not taken")
    free = sum(inventory.free(each) for each in option.odcr_ids)
    message = f"{option.pool}: its {free} free slots went to claims that come before"
    return Skipped(pool=option.pool, reason="SlotsTaken", message=message)


def _short(option: Option, shortage: Shortage) -> Skipped:
    message = (
        f"{option.pool}: {shortage.code} at {shortage.since:%H:%M:%SZ}, "
        f"not asked again before {shortage.until:%Y-%m-%dT%H:%M:%SZ}"
    )
    return Skipped(pool=option.pool, reason="ShortageRemembered", message=message)


def _total(odcr_id: str, inventory: Inventory) -> int:
    odcr = inventory.odcrs.get(odcr_id)
    return odcr.total if odcr else 0
