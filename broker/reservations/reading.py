"""Parses a CapacityReservation's spec and annotations into desired capacity and ownership claims.

Invariant: nothing is bought unless the policy is Manage and every annotation is valid. An invalid one is
reported with its value and the allowed ones. Until it is corrected, the object is read as cautiously as
possible: nothing is bought, resized, given back or ended otherwise for it. A misspelt annotation that would
decide about buying counts as invalid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeVar

from broker.apis import names, spelling
from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Object
from broker.apis.ome_rules import JudgedSpec
from broker.apis.reservation_spec import ARN, LONGEST_ARN, malformed_ids
from broker.quota.usage import ReservationKey
from broker.reservations.annotations import (
    DELETION,
    INVALID_ANNOTATION,
    MATCH_CRITERIA,
    POLICY,
    SIZING,
    TENANCY,
    Choice,
)
from broker.reservations.desired import DesiredCapacity, FlavorDemand, PurchaseSpec
from broker.reservations.drawing import allowed_namespaces
from broker.reservations.flavors import Flavors
from broker.reservations.ownership import OwnershipClaim, ReservationProblem
from broker.reservations.sizing import FlavorProblem, InstanceFlavor
from broker.reservations.spec import Reservation, reserved_of
from broker.text import InvalidText, decode_time, decode_whole, quantity, shortened
from providers.model import LINUX
from providers.names import MANAGED_BY, MANAGER

T = TypeVar("T", bound=str)

NO_OBJECTS: Final[Mapping[str, ResourceFlavor]] = {}
_MOST_INSTANCES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReservation:
    """A parsed CapacityReservation."""

    reservation: Reservation
    reserved: ReservationKey
    managed: bool
    claimant: OwnershipClaim
    desired: DesiredCapacity
    problems: tuple[ReservationProblem, ...] = ()
    flavors: tuple[ResourceFlavor, ...] = ()  # those of Kueue that it names

    @property
    def rules(self) -> tuple[Object, ...]:
        """The objects that decide what is bought for it, and given back."""
        return (self.reservation, *self.flavors)

    @property
    def gives_back(self) -> bool:
        """Whether the broker gives its ODCRs back once it is deleted."""
        return self.managed and self.desired.cancels and not self.desired.frozen


def as_decided(reservation: Reservation, judged: JudgedSpec, flavors: Flavors) -> OwnershipClaim:
    """The object's ownership claim by the broker's last decision, which is in its status. For commands.

    Annotations are not read, since a setting of the broker decides which of them are allowed. Use it with
    ALL_ADOPTERS.
    """
    claimant = read(reservation, judged, flavors).claimant
    ids = frozenset(odcr.id for odcr in reservation.status.cloud_reservations)
    return replace(claimant, ids=ids, group_arn="")


def read(
    reservation: Reservation,
    judged: JudgedSpec,
    flavors: Flavors,
    *,
    cost_labels: Sequence[str] = (),
    objects: Mapping[str, ResourceFlavor] = NO_OBJECTS,
) -> ParsedReservation:
    """Parses one object. State that only EC2 knows is still missing from its desired capacity.

    `objects`: the flavors as Kueue has them, by name.
    """
    reserved = reserved_of(reservation)
    problems: list[ReservationProblem] = []
    policy = _choice(reservation, POLICY, problems)
    deletion = _choice(reservation, DELETION, problems)
    match_criteria = _choice(reservation, MATCH_CRITERIA, problems)
    tenancy = _choice(reservation, TENANCY, problems)
    sizing = _choice(reservation, SIZING, problems)
    end = _end(reservation, problems)
    minimum = _minimum(reservation, problems)
    ids, group_arn = _ids(reservation, names.ADOPT_IDS, problems), _group_arn(reservation, problems)
    restored = _ids(reservation, names.RESTORE_MOVED, problems)
    unknown = spelling.misspelt(reservation.KIND.kind, reservation.annotations)
    invalid = bool(problems) or any(misspelling.meant in names.BUYING_TERMS for misspelling in unknown)
    if problem := allowed_namespaces(reservation)[1]:
        problems.append(ReservationProblem(reason=INVALID_ANNOTATION, message=problem))
    problems += [
        ReservationProblem(reason=spelling.REASON, message=misspelling.message) for misspelling in unknown
    ]
    named_flavors = [
        (quotas.name, flavors(quotas.name), quotas)
        for group in judged.spec.resource_groups
        for quotas in group.flavors
    ]
    problems += [
        ReservationProblem(reason=flavor.reason, message=flavor.message)
        for _, flavor, _ in named_flavors
        if isinstance(flavor, FlavorProblem)
    ]
    demands = {
        name: FlavorDemand(
            flavor=flavor,
            nominal={resource.name: quantity(resource.nominal_quota) for resource in quotas.resources},
            sizing=sizing,
        )
        for name, flavor, quotas in named_flavors
        if isinstance(flavor, InstanceFlavor) and not judged.problems
    }
    flavor_names = tuple(name for name, _, _ in named_flavors)
    desired = DesiredCapacity(
        reserved=reserved,
        demands=demands,
        flavor_names=flavor_names,
        terms=PurchaseSpec(
            match_criteria=match_criteria,
            platform=reservation.annotations.get(names.PLATFORM, "").strip() or LINUX,
            tenancy=tenancy,
            end=end,
            tags=_tags(reservation, reserved, cost_labels),
        ),
        deleted=reservation.deleting,
        cancels=deletion == "Cancel",
        ready=names.RESERVED_FINALIZER in reservation.metadata.finalizers,
        frozen="an annotation of the reservation is invalid: correct it" if invalid else "",
        minimum=minimum,
        restored=restored,
    )
    return ParsedReservation(
        reservation=reservation,
        reserved=reserved,
        managed=policy == "Manage",
        claimant=OwnershipClaim(
            reserved=reserved,
            flavor_names=flavor_names,
            flavors={name: flavor for name, flavor, _ in named_flavors if isinstance(flavor, InstanceFlavor)},
            ids=ids,
            group_arn=group_arn,
            created=reservation.metadata.creation_timestamp,
        ),
        desired=desired,
        problems=tuple(problems),
        flavors=tuple(objects[name] for name in flavor_names if name in objects),
    )


def _choice(reservation: Reservation, choice: Choice[T], problems: list[ReservationProblem]) -> T:
    value, problem = choice.read(reservation)
    if problem:
        problems.append(ReservationProblem(reason=INVALID_ANNOTATION, message=problem))
    return value


def _end(reservation: Reservation, problems: list[ReservationProblem]) -> datetime | None:
    given = reservation.annotations.get(names.END_DATE, "").strip()
    if not given:
        return None
    try:
        return decode_time(given).replace(microsecond=0)
    except InvalidText:
        message = (
            f"annotation {names.END_DATE} is {shortened(given)}: write a time such as 2027-01-31T00:00:00Z"
        )
        problems.append(ReservationProblem(reason=INVALID_ANNOTATION, message=message))
        return None


def _minimum(reservation: Reservation, problems: list[ReservationProblem]) -> int | None:
    """The least instances of a flavor; None: all."""
    given = reservation.annotations.get(names.MINIMUM, "").strip()
    if given in ("", "all"):
        return None
    try:
        return decode_whole(given, least=1, most=_MOST_INSTANCES)
    except InvalidText:
        message = (
            f"annotation {names.MINIMUM} is {shortened(given)}: write all, or a number of instances from 1"
        )
        problems.append(ReservationProblem(reason=INVALID_ANNOTATION, message=message))
        return None


def _ids(reservation: Reservation, key: str, problems: list[ReservationProblem]) -> frozenset[str]:
    given = reservation.annotations.get(key, "")
    malformed = malformed_ids(given)
    problems += [
        ReservationProblem(reason=INVALID_ANNOTATION, message=malformed_id(key, id_)) for id_ in malformed
    ]
    return frozenset(id_ for text in given.split(",") if (id_ := text.strip()) and id_ not in malformed)


def malformed_id(key: str, id_: str) -> str:
    """The message about an id in an annotation that EC2 cannot have given."""
    return f"annotation {key} has {shortened(id_)}: write EC2's ids (cr-0123456789abcdef0)"


def _group_arn(reservation: Reservation, problems: list[ReservationProblem]) -> str:
    """The ARN, if it is well-formed. AWS is not called for any other."""
    given = reservation.annotations.get(names.ADOPT_GROUP, "").strip()
    if not given or re.fullmatch(ARN, given):
        return given
    message = (
        f"annotation {names.ADOPT_GROUP} is {shortened(given, LONGEST_ARN)}: write the ARN of a "
        "resource group, such as arn:aws:resource-groups:us-east-1:123456789012:group/NAME"
    )
    problems.append(ReservationProblem(reason=INVALID_ANNOTATION, message=message))
    return ""


def _tags(reservation: Reservation, reserved: ReservationKey, cost_labels: Sequence[str]) -> dict[str, str]:
    tags = {key: reservation.labels[key] for key in cost_labels if key in reservation.labels}
    tags |= {names.TAG_RESERVATION: str(reserved), MANAGED_BY: MANAGER}
    if reservation.spec.compartment_id:
        tags[names.TAG_COMPARTMENT] = reservation.spec.compartment_id
    return tags
