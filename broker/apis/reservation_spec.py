"""`capacityReservationSpec`: the reservation settings of an EC2NodeClass, and their validation.

The shape is EC2's CapacityReservationSpecification, narrowed: a preference or a target, never both (the
first draft of Karpenter's ODCR design, aws/karpenter-provider-aws#5716). Each check is written once here,
as CEL for the API server and as Python for a spec that bypassed it (Karpenter's own CRD, an annotation).
Both give the same message: a test runs one table of cases through the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ValidationError

from broker.apis import names
from broker.apis.meta import Model
from broker.apis.schema import SchemaRule, crd
from broker.text import InvalidText, decode_object, nearest, shortened
from providers.launch import RESERVATIONS_ONLY, Preference

FIELD = "spec.capacityReservationSpec"

# The draft writes both `none` and `None` for one value, and `open` in one way. EC2 added
# `capacity-reservations-only` later:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservationSpecification.html
PREFERENCES: Mapping[str, Preference] = {
    "open": "open",
    "none": "none",
    "None": "none",
    RESERVATIONS_ONLY: RESERVATIONS_ONLY,
}
# Karpenter's pattern (apis/v1/ec2nodeclass.go), for fields that Karpenter's definition has as well.
ID = "^cr-[0-9a-z]+$"
# EC2's ids are hexadecimal; their length is not documented as fixed
# (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html).
HEX_ID = "^cr-[0-9a-f]+$"
# Resource Groups' own pattern for a group's ARN (its API model, GroupArnV2), open to new regions.
ARN = (
    "^arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:[0-9]{12}:group/"
    "([a-zA-Z0-9_.-]{1,300}|[a-zA-Z0-9_.-]{1,150}/[a-z0-9]{26})$"
)

LONGEST_ARN = 512
_TARGET = "capacityReservationTarget"

PREFERENCE_RULE = SchemaRule(
    f"self in {list(PREFERENCES)}",
    "capacityReservationPreference must be open, none or capacity-reservations-only; to launch into one "
    "reservation or group, set capacityReservationTarget instead",
)
ID_RULE = SchemaRule(
    f"self.matches('{HEX_ID}')",
    "capacityReservationId must be the id that EC2 gave the reservation, such as cr-0123456789abcdef0",
)
ARN_RULE = SchemaRule(
    f"self.matches('{ARN}')",
    "capacityReservationResourceGroupArn must be the ARN of a resource group, such as "
    "arn:aws:resource-groups:us-east-1:123456789012:group/NAME",
)
ONE_TARGET_RULE = SchemaRule(
    "!(has(self.capacityReservationId) && has(self.capacityReservationResourceGroupArn))",
    "capacityReservationId and capacityReservationResourceGroupArn cannot be set together: remove one, or "
    "add the reservation to the group",
)
EMPTY_TARGET_RULE = SchemaRule(
    "has(self.capacityReservationId) || has(self.capacityReservationResourceGroupArn)",
    "capacityReservationTarget is empty: set capacityReservationId or capacityReservationResourceGroupArn, "
    "or remove capacityReservationTarget",
)
ONE_CHOICE_RULE = SchemaRule(
    "!(has(self.capacityReservationPreference) && has(self.capacityReservationTarget))",
    "capacityReservationPreference and capacityReservationTarget cannot be set together: keep "
    "capacityReservationTarget to launch into that reservation or group, or capacityReservationPreference to "
    "match open reservations or none",
)
EMPTY_RULE = SchemaRule(
    "has(self.capacityReservationPreference) || has(self.capacityReservationTarget)",
    "capacityReservationSpec is empty: set capacityReservationPreference or capacityReservationTarget, "
    "or remove capacityReservationSpec",
)


class CapacityReservationTarget(Model):
    """The reservation, or the group of reservations, to launch into; one of the two."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (ONE_TARGET_RULE, EMPTY_TARGET_RULE)

    capacity_reservation_id: Annotated[
        str | None,
        crd("Id of one capacity reservation, open or targeted.", ID_RULE, maxLength=64),
    ] = None
    capacity_reservation_resource_group_arn: Annotated[
        str | None,
        crd(
            "ARN of a resource group; reservations that join the group later are used too.",
            ARN_RULE,
            maxLength=LONGEST_ARN,
        ),
    ] = None


class CapacityReservationSpec(Model):
    """The capacity reservations that instances of this class use: a preference, or a target."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (ONE_CHOICE_RULE, EMPTY_RULE)

    capacity_reservation_preference: Annotated[
        str | None,
        crd(
            "open: any open reservation that matches. none: no reservation, and instances opt out of open "
            "matching. capacity-reservations-only: an open reservation or nothing.",
            PREFERENCE_RULE,
            maxLength=64,
        ),
    ] = None
    capacity_reservation_target: Annotated[CapacityReservationTarget | None, crd()] = None

    @property
    def preference(self) -> Preference | None:
        """The preference in EC2's own spelling; None with a target, or for an unknown value."""
        return PREFERENCES.get(self.capacity_reservation_preference or "")

    @property
    def reservation_id(self) -> str:
        target = self.capacity_reservation_target
        return (target and target.capacity_reservation_id) or ""

    @property
    def group_arn(self) -> str:
        target = self.capacity_reservation_target
        return (target and target.capacity_reservation_resource_group_arn) or ""


def malformed_ids(listed: str) -> tuple[str, ...]:
    """Lists, of ids with commas between them, those that EC2 cannot have given."""
    ids = (id_.strip() for id_ in listed.split(","))
    return tuple(id_ for id_ in ids if id_ and not re.fullmatch(HEX_ID, id_))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecProblem:
    """An error in one field, and its fix."""

    field: str
    value: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}; got {self.value}"


def validate_reservation_spec(
    spec: CapacityReservationSpec | Mapping[str, Any], *, where: str = FIELD
) -> tuple[SpecProblem, ...]:
    """All errors of a spec; empty if it is valid. `where` is its path in the object."""
    if isinstance(spec, CapacityReservationSpec):
        return tuple(_problems(spec, where))
    try:
        decoded = CapacityReservationSpec.model_validate(dict(spec))
    except ValidationError as error:
        return tuple(
            SpecProblem(
                field=".".join((where, *map(str, item["loc"]))),
                value=shortened(item["input"]),
                message=f"has the wrong type: {item['msg']}",
            )
            for item in error.errors()
        )
    return tuple(_problems(decoded, where))


def _unknown_keys(raw: Mapping[str, Any], model: type[Model], where: str) -> Iterator[SpecProblem]:
    """Keys without effect: only the API server's own definition would refuse them."""
    fields = {field.alias or name: name for name, field in model.model_fields.items()}
    for key in sorted(raw):
        if key not in fields:
            message = f"unknown key; write {' or '.join(fields)}{nearest(key, fields)}"
            yield SpecProblem(field=where, value=shortened(key), message=message)
    if isinstance(target := raw.get(_TARGET), Mapping) and _TARGET in fields:
        yield from _unknown_keys(target, CapacityReservationTarget, f"{where}.{_TARGET}")


def _problems(spec: CapacityReservationSpec, where: str) -> Iterator[SpecProblem]:
    preference, target = spec.capacity_reservation_preference, spec.capacity_reservation_target
    has_preference, has_target = preference is not None, target is not None
    at_preference, at_target = f"{where}.capacityReservationPreference", f"{where}.capacityReservationTarget"
    checks: list[tuple[bool, SchemaRule, str, object]] = [
        (has_preference and has_target, ONE_CHOICE_RULE, where, spec.wire()),
        (not (has_preference or has_target), EMPTY_RULE, where, spec.wire()),
        (
            has_preference and preference not in PREFERENCES,
            PREFERENCE_RULE,
            at_preference,
            preference,
        ),
    ]
    if target is not None:
        id_, arn = target.capacity_reservation_id, target.capacity_reservation_resource_group_arn
        at_id, at_arn = (
            f"{at_target}.capacityReservationId",
            f"{at_target}.capacityReservationResourceGroupArn",
        )
        checks += [
            (id_ is not None and arn is not None, ONE_TARGET_RULE, at_target, target.wire()),
            (id_ is None and arn is None, EMPTY_TARGET_RULE, at_target, target.wire()),
            (id_ is not None and not _fits(HEX_ID, id_, 64), ID_RULE, at_id, id_),
            (arn is not None and not _fits(ARN, arn, LONGEST_ARN), ARN_RULE, at_arn, arn),
        ]
    for wrong, rule, field, value in checks:
        if wrong:
            yield SpecProblem(field=field, value=shortened(value, LONGEST_ARN), message=rule.message)


def _fits(pattern: str, text: str, longest: int) -> bool:
    return len(text) <= longest and re.fullmatch(pattern, text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSettings:
    """The reservation settings of a class: none, a valid spec, or problems. Never a spec with problems."""

    spec: CapacityReservationSpec | None = None
    problems: tuple[SpecProblem, ...] = ()


ANNOTATION = f"metadata.annotations[{names.RESERVATION_SPEC}]"
EXAMPLE = '{"capacityReservationPreference": "open"}'


def reservation_settings(
    field: CapacityReservationSpec | None, *, annotation: str | None
) -> ReservationSettings:
    """From the field, or from the annotation if the CRD could not be changed. The field wins, valid or
    not."""
    if field is not None:
        problems = validate_reservation_spec(field)
        return ReservationSettings(spec=None if problems else field, problems=problems)
    if annotation is None:
        return ReservationSettings()
    try:
        raw = decode_object(annotation)
    except InvalidText as error:
        return _unreadable(annotation, str(error))
    unknown = tuple(_unknown_keys(raw, CapacityReservationSpec, ANNOTATION))
    if problems := unknown or validate_reservation_spec(raw, where=ANNOTATION):
        return ReservationSettings(problems=problems)
    return ReservationSettings(spec=CapacityReservationSpec.model_validate(raw))


def _unreadable(text: str, subject: str) -> ReservationSettings:
    message = f"{subject}: write a capacityReservationSpec as JSON, such as {EXAMPLE}"
    return ReservationSettings(
        problems=(SpecProblem(field=ANNOTATION, value=shortened(text), message=message),)
    )
