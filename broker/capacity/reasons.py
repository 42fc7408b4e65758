"""The reasons reported for a claim: why it did not get a better option, or any option.

Invariant: each message contains the numbers that it follows from. A waiting claim reports the one reason
that would have to change first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from typing import Final

from broker.capacity.class_catalog import ClassCatalog
from broker.capacity.entitlement import RECLAIMING, Entitlements, NominatedSlot
from broker.capacity.model import Claim, Inventory, NodeClass, Option, Skipped, Unplaced
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.options import dropped, misfits, unreserved_kinds
from broker.capacity.types import ZONE
from providers.model import Odcr

MOST_REPORTED: Final = 20  # of the options a claim did not get; more is noise


def passed(
    claim: Claim, candidates: CandidateOptions, option: Option, known: ClassCatalog, inventory: Inventory
) -> tuple[tuple[Option, ...], tuple[Skipped, ...]]:
    """The options after this one, and the better ones that the claim did not get.

    A claim launched outside reservations also reports the reservations of its class that do not match
    it.
    """
    rest = candidates.usable[_place(option, candidates.usable) + 1 :]
    better = islice(candidates.options, _place(option, candidates.options))
    skipped = list(islice(_why_not(better, candidates, inventory), MOST_REPORTED))
    if option.pool.capacity_type != "reserved":
        unfit = chain(candidates.withheld, misfits(claim, candidates.suited, known))
        skipped += islice(unfit, MOST_REPORTED - len(skipped))
    return rest, tuple(skipped)


def _place(option: Option, among: Sequence[Option]) -> int:
    """The position of the option; by identity, since a plan has each option once."""
    return next(place for place, each in enumerate(among) if each is option)


def _why_not(
    options: Iterable[Option], candidates: CandidateOptions, inventory: Inventory
) -> Iterator[Skipped]:
    for option in options:
        yield candidates.refused.get(option) or _taken(option, inventory)


def unplaced(
    claim: Claim, candidates: CandidateOptions, known: ClassCatalog, inventory: Inventory
) -> Unplaced:
    reported = chain(
        _why_not(candidates.options, candidates, inventory),
        candidates.withheld,
        misfits(claim, candidates.suited, known),
    )
    skipped = tuple(islice(reported, MOST_REPORTED))
    retry_at = candidates.retry_at
    if not candidates.options:
        reason, message = _nothing(claim, candidates, known, skipped)
    elif retry_at is not None:
        reason = "BackingOff"
        short = [each for each in candidates.refused.values() if each.reason == reason]
        message = f"{len(short)} of {len(candidates.options)} options refused lately; {short[0].message}"
    else:
        reason = "AllReservationsFull"
        message = "no free slot: " + "; ".join(each.message for each in skipped[:5])
    return Unplaced(claim=claim, reason=reason, message=message, skipped=skipped, retry_at=retry_at)


def reclaiming(
    claim: Claim,
    candidates: CandidateOptions,
    awaited: NominatedSlot,
    entitlements: Entitlements,
    inventory: Inventory,
) -> Unplaced:
    """Why a claim waits although it may fall back, or waits for a slot that is being given back."""
    lot, held = awaited.lot, ", ".join(awaited.odcr_ids)
    owner, queue = entitlements.name(lot.owner), entitlements.name(awaited.queue)
    if lot.owner == awaited.queue and entitlements.of(lot).quota > 0:
        message = (
            f"{owner} is entitled to a slot of flavor {lot.flavor} that others have ({held}); "
            "the claim waits until it is given back"
        )
    else:
        message = (
            f"{queue} has no slot of flavor {lot.flavor} left for it, and one of lower priority has one of "
            f"{owner} ({held}); the claim waits until that is given back"
        )
    skipped = tuple(islice(_why_not(candidates.options, candidates, inventory), MOST_REPORTED))
    return Unplaced(claim=claim, reason=RECLAIMING, message=message, skipped=skipped)


def pending(waits: Unplaced, odcr: Odcr, by: datetime) -> Unplaced:
    """Why a claim waits for a reservation that is not launchable yet."""
    message = (
        f"reservation {odcr.id} ({odcr.instance_type} in {odcr.zone}) is about to begin, and EC2 makes it "
        f"launchable within five minutes: before {by:%Y-%m-%dT%H:%M:%SZ} nothing is launched beside it"
    )
    return replace(waits, reason="ReservationPending", message=message, retry_at=by)


def _nothing(
    claim: Claim, candidates: CandidateOptions, known: ClassCatalog, skipped: Sequence[Skipped]
) -> tuple[str, str]:
    """Why the claim has no option."""
    considered = len(known.candidates) + len(known.imageless) + len(known.unfit)
    if not candidates.suited:
        why = ", ".join(f"{key} excludes {count}" for key, count in dropped(claim, known).items())
        return "NoCompatibleInstanceTypes", f"none of {considered} instance types suits: {why}"
    message = f"{len(candidates.suited)} of {considered} instance types suit, but "
    if unreserved_kinds(claim.requirements, known.node_class):
        zones = ", ".join(sorted(known.zones))
        message += f"none is offered in a zone of the class ({zones}) that the claim accepts"
        message += f" ({claim.requirements.describe(ZONE)})"
        return "NoCompatibleInstanceTypes", message
    message += "the class has no reservation that the claim can use"
    unfit = [each.message for each in known.node_class.resolved.misfits[:5]]
    return "NoUsableReservation", "; ".join([message, *(each.message for each in skipped[:5]), *unfit])


def _taken(option: Option, inventory: Inventory) -> Skipped:
    if option.pool.capacity_type != "reserved":
        return Skipped(pool=option.pool, reason="NotRequired", message=f"{option.pool}: not taken")
    free = sum(inventory.free(each) for each in option.odcr_ids)
    message = f"{option.pool}: its {free} free slots went to claims that come before"
    return Skipped(pool=option.pool, reason="OutbidInPlan", message=message)


def refusal(claim: Claim, node_classes: Mapping[str, NodeClass]) -> Unplaced | None:
    """Why a claim is excluded before planning."""
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


def gang_incomplete(
    gang: str,
    members: Sequence[Claim],
    lacking: Sequence[str],
    unplaced: Mapping[str, Unplaced],
    message: str = "",
) -> dict[str, Unplaced]:
    """Makes the claims of a gang wait for those without an option, which keep their own reason."""
    shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
    nothing = f"nothing for {shown}" if lacking else "its slots went to claims that make better use of them"
    retries = [
        each.retry_at
        for claim in members
        if claim.name in lacking and (each := unplaced.get(claim.uid)) and each.retry_at is not None
    ]
    return {
        claim.uid: Unplaced(
            claim=claim,
            reason="GangIncomplete",
            message=message or f"gang {gang} launches whole or not at all; {nothing}",
            retry_at=max(retries, default=None),
        )
        for claim in members
        if claim.name not in lacking
    }
