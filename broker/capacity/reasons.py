"""The reasons reported for a claim that did not get a better option, or any option.

Invariant: each message contains the numbers that it follows from. A waiting claim reports the one reason
that would have to change first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from typing import Final

from broker.apis.names import CAPACITY_TYPE, GANG_DOMAIN, REGION, ZONE, ZONE_ID
from broker.capacity.class_catalog import ClassCatalog
from broker.capacity.entitlement import RECLAIMING, RESERVATION_FULL, Entitlements, NominatedSlot
from broker.capacity.full_slots import none_left
from broker.capacity.inventory import Inventory
from broker.capacity.mismatches import dropped, misfits
from broker.capacity.model import (
    RESERVATION_PENDING,
    Claim,
    GangHold,
    NodeClass,
    Option,
    Resolved,
    Selection,
    Skipped,
    Unplaced,
)
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.options import capacity_types, possible_values, too_dear, unreserved_kinds
from broker.capacity.shortages import BACKING_OFF
from broker.capacity.unknown_values import unknown_values
from broker.text import abridged, counted, format_time, group_name
from providers.launch import RESERVATIONS_ONLY
from providers.model import Odcr

ALL_FULL: Final = "AllReservationsFull"
CLASS_NOT_FOUND: Final = "NodeClassNotFound"
CLASS_NOT_READY: Final = "NodeClassNotReady"
CLASS_TERMINATING: Final = "NodeClassTerminating"
IMPOSSIBLE: Final = "ImpossibleRequirements"
NO_TYPES: Final = "NoCompatibleInstanceTypes"
NO_RESERVATION: Final = "NoUsableReservation"
# The reasons of claims that no machine serves as they and their class are.
WITHOUT_OPTION: Final = frozenset(
    {CLASS_NOT_FOUND, CLASS_NOT_READY, CLASS_TERMINATING, IMPOSSIBLE, NO_RESERVATION, NO_TYPES}
)
HELD_FOR_GANG: Final = "HeldForGang"
GANG_INCOMPLETE: Final = "GangIncomplete"
OUTBID: Final = "OutbidInPlan"
OVER_LIMIT: Final = "OverLimit"
# The domain of a gang while EC2 does not show in which reservation it counts an instance of the gang.
UNKNOWN_DOMAIN: Final = "not-known-yet"
MOST_REPORTED: Final = 20  # of the options a claim did not get; more is noise


class OutbidOptions:
    """The reasons why claims of one plan do not get a usable option; computed once for each option."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._skipped: dict[Option, Skipped] = {}

    def skipped(self, option: Option) -> Skipped:
        if (skip := self._skipped.get(option)) is None:
            skip = self._skipped[option] = self._outbid(option)
        return skip

    def _outbid(self, option: Option) -> Skipped:
        if not option.pool.reserved:
            return option.skipped("NotRequired", "not taken")
        free = counted(sum(self._inventory.free(odcr_id) for odcr_id in option.odcr_ids), "free slot")
        return option.skipped(OUTBID, f"its {free} went to claims that come before")


def rest_and_skipped(
    claim: Claim,
    candidates: CandidateOptions,
    option: Option,
    outbid: OutbidOptions,
    held: Sequence[GangHold],
) -> tuple[tuple[Option, ...], tuple[Skipped, ...]]:
    """The options after this one, and the better ones that the claim did not get. `held`: for other gangs.

    A claim launched outside reservations also reports the reservations of its class that do not match
    it.
    """
    rest = candidates.usable[_place(option, candidates.usable) + 1 :]
    better = islice(candidates.options, _place(option, candidates.options))
    skipped = list(islice(_skips(better, candidates, outbid, held), MOST_REPORTED))
    if option.pool.capacity_type != "reserved":
        unfit = chain(candidates.withheld, misfits(claim, candidates.suitable_types, candidates.known))
        skipped += islice(unfit, MOST_REPORTED - len(skipped))
    return rest, tuple(skipped)


def with_ending(skip: Skipped, ending: Mapping[str, Sequence[str]]) -> Skipped:
    """The reason of a full reservation with the claims that free a slot of it soon.

    A claim that waits does not have them: each change of the text would be another event.
    """
    claims = sorted(name for odcr_id in skip.odcr_ids for name in ending.get(odcr_id, ()))
    if skip.reason != RESERVATION_FULL or not claims:
        return skip
    frees = "frees its slot as it ends" if len(claims) == 1 else "free their slots as they end"
    later = "the node may move there later if its NodePool returns nodes to reservations"
    return replace(skip, message=f"{skip.message}; {abridged(claims, 3)} {frees}, and {later}")


def _place(option: Option, among: Sequence[Option]) -> int:
    """The position of the option; by identity, since a plan has each option once."""
    return next(place for place, candidate in enumerate(among) if candidate is option)


def _skips(
    options: Iterable[Option],
    candidates: CandidateOptions,
    outbid: OutbidOptions,
    held: Sequence[GangHold] = (),
) -> Iterator[Skipped]:
    for option in options:
        yield candidates.refused.get(option) or _held(option, held) or outbid.skipped(option)


def unplaced(
    claim: Claim,
    candidates: CandidateOptions,
    outbid: OutbidOptions,
    held: Sequence[GangHold] = (),
) -> Unplaced:
    """Why a claim waits. `held`: the slots held for gangs that outrank it."""
    reported = chain(
        _skips(candidates.options, candidates, outbid, held),
        candidates.withheld,
        misfits(claim, candidates.suitable_types, candidates.known),
    )
    skipped = tuple(islice(reported, MOST_REPORTED))
    retry_at = candidates.retry_at
    if not candidates.options:
        reason, message = _nothing(claim, candidates, skipped)
    elif holds := [hold for hold in held if _holds_any(hold, candidates.options)]:
        reason = HELD_FOR_GANG
        retry_at = min([*filter(None, [retry_at]), *(hold.until for hold in holds)])
        message = "; ".join(_hold(hold) for hold in holds[:3])
    elif retry_at is not None:
        reason = BACKING_OFF
        short = [skip for skip in candidates.refused.values() if skip.reason == reason]
        all_ = counted(len(candidates.options), "option")
        message = f"{len(short)} of {all_} refused lately; {short[0].message}"
        count, ceiling = too_dear(claim.requirements, candidates.suitable_types, candidates.known)
        if count:
            cost = "option costs" if count == 1 else "options cost"
            message += f"; {count} {cost} more than the ceiling of ${ceiling:.4f} an hour (--price-ceiling)"
    else:
        reason = ALL_FULL
        message = "no free slot: " + "; ".join(skip.message for skip in skipped[:5])
    return Unplaced(claim=claim, reason=reason, message=message, skipped=skipped, retry_at=retry_at)


def reclaiming(
    claim: Claim,
    candidates: CandidateOptions,
    nominated: NominatedSlot,
    entitlements: Entitlements,
    outbid: OutbidOptions,
) -> Unplaced:
    """Why a claim waits although it may fall back, or waits for a slot that is being given back."""
    slot_pool, full = nominated.slot_pool, none_left(dict.fromkeys(nominated.odcr_ids, ""))
    owner, queue = entitlements.name(slot_pool.owner), entitlements.name(nominated.queue)
    if slot_pool.owner == nominated.queue and entitlements.of(slot_pool).quota > 0:
        message = (
            f"{owner} is entitled to a slot of flavor {slot_pool.flavor} that others have: {full}; "
            "the claim waits until it is given back"
        )
    else:
        message = (
            f"{queue} has no slot of flavor {slot_pool.flavor} left for it, and a claim of lower priority "
            f"holds one of {owner}: {full}; the claim waits until that is given back"
        )
    skipped = tuple(islice(_skips(candidates.options, candidates, outbid), MOST_REPORTED))
    return Unplaced(claim=claim, reason=RECLAIMING, message=message, skipped=skipped)


def later(claim: Claim, planned: int, all_: int) -> Unplaced:
    """Why a claim is not planned yet."""
    message = (
        f"{planned} of {counted(all_, 'claim')} that wait together were planned within --plan-seconds; "
        "this one is planned after them"
    )
    return Unplaced(claim=claim, reason="PlannedLater", message=message)


def pending(waits: Unplaced, odcr: Odcr, by: datetime) -> Unplaced:
    """Why a claim waits for a reservation that is not launchable yet."""
    message = (
        f"reservation {odcr.id} ({odcr.instance_type} in {odcr.zone}) is about to begin, and EC2 makes it "
        f"launchable within five minutes: before {format_time(by)} nothing is launched beside it"
    )
    return replace(waits, reason=RESERVATION_PENDING, message=message, retry_at=by)


def too_few_values(claim: Claim, candidates: CandidateOptions) -> Unplaced | None:
    """The reason why a claim with unmet minValues waits; None if they are met.

    Karpenter launches no such claim either, unless its minValuesPolicy is BestEffort
    (https://karpenter.sh/docs/concepts/nodepools/#min-values).
    """
    if not candidates.suitable_types:
        return None  # a reason of its own
    for key, least in claim.min_values:
        values = sorted(possible_values(key, claim.requirements, candidates.suitable_types, candidates.known))
        if len(values) < least:
            shown = ", ".join(values[:10]) + (", ..." if len(values) > 10 else "")
            message = (
                f"minValues of {key} is {least}, and {counted(len(values), 'value is', 'values are')} "
                f"possible{f' ({shown})' if values else ''}: allow more, or lower minValues"
            )
            return Unplaced(claim=claim, reason="MinValuesNotMet", message=message)
    return None


def _nothing(claim: Claim, candidates: CandidateOptions, skipped: Sequence[Skipped]) -> tuple[str, str]:
    """Why the claim has no option."""
    known = candidates.known
    considered = len(known.candidates) + len(known.imageless) + len(known.unfit)
    if not candidates.suitable_types:
        exclusions = ", ".join(f"{key} excludes {count}" for key, count in dropped(claim, known).items())
        unknown = _unknown_names(claim, known)
        message = f"none of {counted(considered, 'instance type')} suits: {exclusions}{unknown}"
        return NO_TYPES, message
    # The same pool counts more types for no pod than for one with requests, so both counts name their tests.
    tests = "its requirements and requests" if claim.requests else "its requirements"
    all_ = counted(considered, f"instance type meets {tests}", f"instance types meet {tests}")
    message = f"{len(candidates.suitable_types)} of {all_}, but "
    if not capacity_types(claim.requirements):
        kinds = claim.requirements.describe(CAPACITY_TYPE)
        message += f"none of a capacity type that the claim accepts ({kinds}){_unknown_names(claim, known)}"
        return NO_RESERVATION, message
    if unreserved_kinds(claim.requirements, known.node_class):
        zones = ", ".join(sorted(known.zones))
        others = [key for key in (ZONE_ID, REGION) if key in claim.requirements]
        accepted = [claim.requirements.describe(ZONE)] if ZONE in claim.requirements or not others else []
        accepted += [f"{key} {claim.requirements.describe(key)}" for key in others]
        message += f"none is offered in a zone of the class ({zones}) that the claim accepts "
        message += f"({', '.join(accepted)})"
        return NO_TYPES, f"{message}{_unknown_names(claim, known)}"
    message += f"the class has no reservation that the claim can use{_unknown_names(claim, known)}"
    unfit = [misfit.message for misfit in known.node_class.resolved.misfits[:5]]
    parts = dict.fromkeys(
        [message, *_by_preference(claim, known), *(skip.message for skip in skipped[:5]), *unfit]
    )
    return NO_RESERVATION, "; ".join(parts)


def _by_preference(claim: Claim, known: ClassCatalog) -> Iterator[str]:
    """Why the class itself leaves a claim without an option, and what to change."""
    node_class, selection = known.node_class, known.node_class.selection
    named = f"capacityReservationPreference of EC2NodeClass {node_class.name} is {selection.preference}"
    if selection == Selection():
        named = f"EC2NodeClass {node_class.name} has no capacityReservationSpec"
    if selection.preference == "none" or selection == Selection():
        instead = " in its place" if selection.preference else ""
        yield f"{named}: set capacityReservationTarget{instead}, or allow on-demand in {CAPACITY_TYPE}"
    elif selection.preference == RESERVATIONS_ONLY:
        if "reserved" not in capacity_types(claim.requirements):
            yield f"{named}: allow reserved in {CAPACITY_TYPE}, or set it to open"
        else:
            fits = " that fits" if known.reserved else ""
            buys = capacity_types(claim.requirements) != ("reserved",)
            yield f"{named}: make an open reservation{fits}{', or set it to open' if buys else ''}"
    elif not selection.preference and node_class.resolved == Resolved():
        yield f"{shown_selection(selection)} of EC2NodeClass {node_class.name} finds no reservation"


def shown_selection(selection: Selection) -> str:
    """The selection as messages name it."""
    if selection.preference:
        return f"preference {selection.preference}"
    if selection.terms:
        return "capacityReservationSelectorTerms"
    return selection.reservation_id or f"group {group_name(selection.group_arn)}"


def _holds_any(hold: GangHold, options: Iterable[Option]) -> bool:
    return any(odcr_id in hold.slots for option in options for odcr_id in option.odcr_ids)


def in_words(unplaced: Unplaced) -> Unplaced:
    """The reason with words for a domain that EC2 does not show yet."""
    words = "needs that of its gang's claims with instances, which EC2 does not show yet"
    return replace(unplaced, message=unplaced.message.replace(f"needs one of {UNKNOWN_DOMAIN}", words))


def _kept_in(key: str, value: str) -> str:
    """Why the claims of a gang may launch in this domain only."""
    kept = f"{GANG_DOMAIN} keeps it in one {key}, that of its claims with instances"
    if value == UNKNOWN_DOMAIN:
        return f": {kept}, and EC2 does not show yet which one that is"
    return f" in {value}: {kept} or else the one that serves most of it"


def _hold(hold: GangHold) -> str:
    slots = ", ".join(f"{count} of {odcr_id}" for odcr_id, count in sorted(hold.slots.items()))
    return (
        f"free slots ({slots}) are held until {format_time(hold.until)} for gang {hold.gang} "
        f"of priority {hold.priority}, which needs {hold.needs} at once"
    )


def _held(option: Option, held: Sequence[GangHold]) -> Skipped | None:
    """Why a claim does not get an option that has free slots: they are held for a gang."""
    for hold in held:
        if _holds_any(hold, [option]):
            return option.skipped(HELD_FOR_GANG, _hold(hold))
    return None


def _unknown_names(claim: Claim, known: ClassCatalog) -> str:
    """The required values of labels that the Region does not have, if the claim allows no other."""
    values = known.region_values()
    values = {**values, ZONE: {*values[ZONE], *known.zones}}
    return "".join(f"; {sentence}" for sentence in unknown_values(claim.requirements, values))


def refusal(claim: Claim, node_classes: Mapping[str, NodeClass]) -> Unplaced | None:
    """Why a claim is excluded before planning."""
    node_class = node_classes.get(claim.node_class)
    if node_class is None:
        message = f"EC2NodeClass {claim.node_class or '(no name)'} does not exist"
        return Unplaced(claim=claim, reason=CLASS_NOT_FOUND, message=message)
    if problems := claim.requirements.problems():
        return Unplaced(claim=claim, reason=IMPOSSIBLE, message="; ".join(problems))
    not_ready = node_class.not_ready or (
        "it has no subnet" if not node_class.subnets else "it has no image" if not node_class.images else ""
    )
    if not_ready:
        message = f"EC2NodeClass {node_class.name} is not ready: {not_ready}"
        return Unplaced(claim=claim, reason=CLASS_NOT_READY, message=message)
    return None


def gang_incomplete(
    gang: str,
    members: Sequence[Claim],
    lacking: Sequence[str],
    unplaced: Mapping[str, Unplaced],
    message: str,
    hold: GangHold | None,
    others: Iterable[GangHold],
) -> dict[str, Unplaced]:
    """Makes the claims of a gang wait for those without an option, which keep their own reason.

    `hold`: the slots held for the gang, which all its claims report. `others`: those held for other gangs,
    which the gang may get at their end.
    """
    nothing = "its slots went to claims that make better use of them"
    if lacking:
        nothing = f"nothing for {abridged(lacking, 5)}"
        domains = {
            (claim.domain, claim.requirements.single(claim.domain)) for claim in members if claim.domain
        }
        nothing += "".join(_kept_in(key, value) for key, value in domains if value)
    if hold is not None:
        nothing += f"; {_hold(hold)}"
    retries = [
        waiting.retry_at
        for claim in members
        if claim.name in lacking and (waiting := unplaced.get(claim.uid)) and waiting.retry_at is not None
    ]
    too_few = {
        claim.uid: replace(
            waiting,
            message=f"{waiting.message}; gang {gang} needs machines for its {len(members)} claims at once",
        )
        for claim in members
        if claim.name in lacking and (waiting := unplaced.get(claim.uid)) and _outbid_by_its_own(waiting)
    }
    return too_few | {
        claim.uid: Unplaced(
            claim=claim,
            reason=GANG_INCOMPLETE,
            message=message or f"gang {gang} launches whole or not at all; {nothing}",
            skipped=unplaced[claim.uid].skipped if hold and claim.uid in unplaced else (),
            retry_at=max(retries, default=min((other.until for other in others), default=None)),
        )
        for claim in members
        if hold is not None or claim.name not in lacking
    }


def _outbid_by_its_own(waiting: Unplaced) -> bool:
    """Whether free slots may have gone to the other claims of its gang, which do not launch without it."""
    return waiting.reason == ALL_FULL and any(skip.reason == OUTBID for skip in waiting.skipped)
