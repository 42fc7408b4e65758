"""Why a claim's class has no option in a reservation, or of a type: each with the reason.

Invariant: a reservation or a type has a reason here exactly if `options` makes no option of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from broker.apis.names import CAPACITY_TYPE, ZONE
from broker.capacity.class_catalog import CandidateType, ClassCatalog, LiveReservation
from broker.capacity.model import RESERVATION_PENDING, Claim, Misfit, Pool, Skipped
from broker.capacity.options import ORDER, PLACE_KEYS, TYPE_KEYS, capacity_types, pool_of
from broker.capacity.types import fits, lacking
from broker.text import format_time
from providers.model import CapacityType, Odcr


def misfits(claim: Claim, suitable_types: Sequence[CandidateType], known: ClassCatalog) -> Iterator[Skipped]:
    """The reservations of the class that the claim cannot use, each with the reason.

    Those that no claim of the class can use are among them only if the class has no other.
    """
    kinds = capacity_types(claim.requirements)
    names = {candidate.type.name for candidate in suitable_types}
    resolved = known.node_class.resolved
    if not resolved.usable and "reserved" in kinds:
        yield from map(_unusable, resolved.misfits)
    for live, _ in known.pending:
        yield _unfit(claim, live, kinds, names, known) or _begins(live.odcr)
    yield from filter(None, (_unfit(claim, live, kinds, names, known) for live in known.reserved))


def closed(claim: Claim, suitable_types: Sequence[CandidateType], known: ClassCatalog) -> Iterator[Skipped]:
    """The reservations of the class with types and zones that the claim accepts, and without launches now:
    they begin later, or no claim of the class can use them.
    """
    kinds = capacity_types(claim.requirements)
    names = {candidate.type.name for candidate in suitable_types}
    for live, _ in known.pending:
        if _unfit(claim, live, kinds, names, known) is None:
            yield _begins(live.odcr)
    if "reserved" in kinds:
        for unusable in known.node_class.resolved.misfits:
            if unusable.instance_type in names and claim.requirements.allows(ZONE, unusable.zone):
                yield _unusable(unusable)


def _unfit(
    claim: Claim,
    live: LiveReservation,
    kinds: Sequence[CapacityType],
    names: Collection[str],
    known: ClassCatalog,
) -> Skipped | None:
    """Why the claim, of these capacity types, cannot use the reservation once it is launchable.

    `names`: of the suitable types.
    """
    odcr = live.odcr
    if "reserved" not in kinds:
        return _skip(odcr, "CapacityTypeMismatch", _takes(claim, kinds))
    if odcr.instance_type not in names:
        problem = mismatch(claim, odcr.instance_type, known)
        return _skip(odcr, "InstanceTypeMismatch", f"{odcr.instance_type}: {problem}")
    if live.problem:
        return _skip(odcr, *live.problem)
    mismatch_text = claim.requirements.accepts(live.labels, among=PLACE_KEYS)
    return _skip(odcr, "RequirementsMismatch", mismatch_text) if mismatch_text else None


def _begins(odcr: Odcr) -> Skipped:
    starts = f", starts at {format_time(odcr.start)}" if odcr.start else ""
    shown = f"{odcr.id} ({odcr.instance_type}, {odcr.zone})"
    return _skip(odcr, RESERVATION_PENDING, f"reservation {shown} is {odcr.state}{starts}")


def _unusable(misfit: Misfit) -> Skipped:
    pool = Pool(
        capacity_type="reserved", instance_type=misfit.instance_type, zone=misfit.zone, reservation=misfit.id
    )
    return Skipped(pool=pool, reason=misfit.reason, message=misfit.message)


def _takes(claim: Claim, kinds: Sequence[CapacityType]) -> str:
    if kinds:
        return f"the claim accepts only {' or '.join(kinds)}"
    requirement = claim.requirements.describe(CAPACITY_TYPE)
    return f"{CAPACITY_TYPE} of the claim is {requirement}, which leaves none of {', '.join(ORDER)}"


def mismatch(claim: Claim, instance_type: str, known: ClassCatalog) -> str:
    """Why a type does not match a claim."""
    candidate = known.candidates.get(instance_type)
    if candidate is None:
        exclusion = known.imageless.get(instance_type) or known.unfit.get(instance_type)
        return exclusion or "EC2 does not describe this instance type here"
    return (
        claim.requirements.accepts(candidate.labels, among=TYPE_KEYS)
        or fits(claim.requests, candidate.allocatable)
        or "it matches"
    )


def dropped(claim: Claim, known: ClassCatalog) -> dict[str, int]:
    """The number of types that each requirement (with its remaining values) and each request excludes.

    The largest number comes first.
    """
    texts = {*known.imageless.values()}
    # No image for an architecture means none with accelerators either.
    causes = sorted(
        text for text in texts if not any(text != other and text.startswith(other) for other in texts)
    )
    left_out = {f"image ({'; '.join(causes)})": len(known.imageless), "the class": len(known.unfit)}
    counts = Counter({key: count for key, count in left_out.items() if count})
    for candidate in known.candidates.values():
        counts.update(claim.requirements.unmet(candidate.labels, among=TYPE_KEYS))
        counts.update(f"requests of {name}" for name in lacking(claim.requests, candidate.allocatable))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    requirements = claim.requirements
    return {
        f"{key} ({requirements.describe(key)})" if key in requirements else key: count
        for key, count in ordered
    }


def _skip(odcr: Odcr, reason: str, message: str) -> Skipped:
    return Skipped(pool=pool_of(odcr), reason=reason, message=message)
