"""Translates a NodeClaim for the planner; an invalid value becomes a reason, never a launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import ClaimRequirement, NodeClaim, pods_of
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.demand import units
from broker.capacity.domains import DOMAINS, LaunchedGangs
from broker.capacity.model import Claim
from broker.capacity.options import tenancy
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.successors import over
from broker.placement.node_settings import template_key
from broker.placement.reading import requirements_of
from broker.text import InvalidText, decode_duration, decode_time, decode_whole, quantities, shortened

_KIND: Final = EC2NodeClass.KIND.kind
_MOST: Final = 9_999_999_999


class BadClaim(Exception):
    """A claim that cannot be planned: `reason` for the condition, `message` with field and remedy."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def planned(claim: NodeClaim, *, since: datetime | None = None) -> Claim:
    """The claim as the planner reads it. Raises BadClaim.

    `since`: as of `waiting_since`; without it, the claim waits since its creation.
    """
    ref = claim.spec.node_class_ref
    if not ref.name:
        raise BadClaim(
            "NodeClassNotNamed", "spec.nodeClassRef.name is empty: name the EC2NodeClass to launch with"
        )
    if ref.kind != _KIND:
        raise BadClaim(
            "NodeClassKindUnknown",
            f"spec.nodeClassRef.kind is {ref.kind!r}: the broker launches with kind {_KIND} only",
        )
    try:
        requirements = requirements_of(claim.spec)
    except InvalidRequirement as error:
        raise BadClaim("InvalidRequirements", f"spec.requirements: {error}") from error
    if problems := requirements.problems():
        raise BadClaim("InvalidRequirements", f"spec.requirements can never hold: {'; '.join(problems)}")
    try:
        requests = quantities(claim.spec.resources.requests)
    except InvalidText as error:
        raise BadClaim("InvalidRequests", f"spec.resources.requests: {error}") from error
    slot, until = taken_over(claim)
    return Claim(
        name=claim.name,
        uid=claim.uid,
        node_class=ref.name,
        requirements=requirements,
        requests=requests,
        priority=_priority(claim),
        created=claim.metadata.creation_timestamp,
        since=since,
        gang=claim.gang,
        gang_size=_gang_size(claim),
        domain=_gang_domain(claim),
        template=template_key(claim),
        min_values=minimums(claim.spec.requirements),
        slot=slot,
        slot_until=until,
    )


def minimums(requirements: Iterable[ClaimRequirement]) -> tuple[tuple[str, int], ...]:
    """The labels of which a launch must be able to choose so many values."""
    return tuple((item.key, item.min_values) for item in requirements if item.min_values)


def taken_over(claim: NodeClaim) -> tuple[str, datetime | None]:
    """The ODCR of which the claim takes over a slot, and until when that is kept; empty if it takes none.

    An end that cannot be read is over: a person has changed it.
    """
    slot, _, text = claim.annotations.get(names.TAKES_SLOT, "").partition("/")
    if not slot or names.REPLACES not in claim.annotations:
        return "", None
    try:
        return slot, decode_time(text) if text else None
    except InvalidText:
        return "", None


def successor_units(claims: Iterable[NodeClaim]) -> list[list[NodeClaim]]:
    """The claims that wait for the slot of the node that they replace, those of a gang together."""
    waiting = (claim for claim in claims if claim.waits and not claim.deleting and taken_over(claim)[0])
    return units(waiting, lambda claim: claim.gang)


def hold_over(unit: Iterable[NodeClaim], now: datetime) -> bool:
    """Whether no slot is kept for a unit of successors any more."""
    return over((taken_over(claim)[1] for claim in unit), now)


def kept_slots(claims: Iterable[NodeClaim], now: datetime) -> dict[str, str]:
    """The ODCR of the slot that a node left for each successor, by the uid of its claim."""
    slots: dict[str, str] = {}
    for unit in successor_units(claims):
        if hold_over(unit, now):
            continue
        for claim in unit:
            slot, until = taken_over(claim)
            if until is not None:
                slots[claim.uid] = slot
    return slots


def in_gangs(claims: Iterable[NodeClaim]) -> LaunchedGangs:
    """The labels of the claims of each gang that have their instance."""
    gangs: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for claim in claims:
        if claim.status.provider_id and not claim.deleting and claim.gang:
            gangs[claim.gang].append({key: claim.labels[key] for key in DOMAINS if key in claim.labels})
    return gangs


def required_tenancy(claim: NodeClaim) -> str:
    """The tenancy that a claim requires; empty if it requires none, or if its requirements cannot be read."""
    try:
        return tenancy(requirements_of(claim.spec))
    except InvalidRequirement:
        return ""


def priority_of(claim: NodeClaim) -> int:
    """The priority of a claim; 0 if it is no whole number, which is reported before a launch."""
    try:
        return _priority(claim)
    except BadClaim:
        return 0


def _priority(claim: NodeClaim) -> int:
    text = claim.annotations.get(names.PRIORITY, "0")
    try:
        return decode_whole(text, least=-_MOST, most=_MOST)
    except InvalidText as error:
        raise BadClaim(
            "InvalidPriority",
            f"metadata.annotations[{names.PRIORITY}] is {shortened(text)}: write a whole number such as 100",
        ) from error


def _gang_size(claim: NodeClaim) -> int:
    text = claim.annotations.get(names.GANG_SIZE)
    if text is None:
        return 0
    try:
        size = decode_whole(text, least=1, most=_MOST)
    except InvalidText as error:
        raise BadClaim(
            "InvalidGangSize",
            f"metadata.annotations[{names.GANG_SIZE}] is {shortened(text)}: write how many claims it has, "
            "such as 8",
        ) from error
    if not claim.gang:
        raise BadClaim(
            "InvalidGangSize",
            f"metadata.annotations[{names.GANG_SIZE}] is {text!r}, but {names.GANG} names no gang: "
            "name it, or leave the size out",
        )
    return size


def _gang_domain(claim: NodeClaim) -> str:
    key = claim.annotations.get(names.GANG_DOMAIN, "")
    if key and key not in DOMAINS:
        raise BadClaim(
            "InvalidGangDomain",
            f"metadata.annotations[{names.GANG_DOMAIN}] is {shortened(key)}: write {' or '.join(DOMAINS)}",
        )
    if key and not claim.gang:
        raise BadClaim(
            "InvalidGangDomain",
            f"metadata.annotations[{names.GANG_DOMAIN}] is {key!r}, but {names.GANG} names no gang: name it, "
            "or leave the domain out",
        )
    return key


def deadline_of(claim: NodeClaim) -> datetime | None:
    """The earlier of its terminationGracePeriod's end, once it is deleted, and Karpenter's annotation."""
    return min(_deadlines(claim), default=None)


def _deadlines(claim: NodeClaim) -> Iterator[datetime]:
    period, since = claim.spec.termination_grace_period, claim.metadata.deletion_timestamp
    if period and since is not None:
        with suppress(InvalidText):
            yield since + decode_duration(period)
    if text := claim.annotations.get(names.TERMINATION_DEADLINE, ""):
        with suppress(InvalidText):
            yield decode_time(text)


def waiting_since(claim: NodeClaim, pod: Callable[[str], Pod | None]) -> datetime | None:
    """The creation of the claim, or of the claims before it for its pods. `pod`: by `namespace/name`.

    The annotation alone is not believed. It counts only from the creation of the claim's pods on, and only
    before the claim's own creation; without known pods it does not count.
    """
    created, text = claim.metadata.creation_timestamp, claim.annotations.get(names.WAITING_SINCE)
    if created is None or text is None:
        return created
    pods = (known.metadata.creation_timestamp for key in pods_of(claim) if (known := pod(key)) is not None)
    first = min((at for at in pods if at is not None), default=None)
    try:
        since = decode_time(text)
    except InvalidText:
        return created
    return created if first is None else min(created, max(since, first))
