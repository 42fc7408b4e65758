"""One policy for each class of error, and the scopes that it marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.capacity.answers import (
    answer,
    foremost,
    full,
    launched,
    learn,
    remember,
    scopes,
    spilled,
)
from broker.capacity.launches import LaunchGroup, distribute
from broker.capacity.model import Assignment, Option, Selection
from broker.capacity.shortages import Shortages
from broker.capacity.template import target_for
from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchError, LaunchResult, Override
from providers.model import Image, Instance

from .builders import GROUP, NOW, claim, instance, inventory, minutes, odcr, on_demand, reserved, spot

BY_ID, BY_GROUP, BY_MATCH = reserved("cr-1"), reserved(GROUP, "cr-1", "cr-2"), reserved("", "cr-1", "cr-2")
MEMBERS = ["reservation:cr-1", "reservation:cr-2"]
PLAIN = "pool:on-demand:m5.xlarge:us-east-1a"


def marked(class_: ErrorClass, option: Option, *, spills: bool = False) -> list[str]:
    marked_scopes = scopes(class_, option, node_class="gpu", subnet_id="subnet-1", spills=spills)
    return [str(scope) for scope in marked_scopes]


def placed(option: Option, group: str = "dedicated,seven") -> Option:
    """The option in a placement group."""
    return replace(option, pool=replace(option.pool, placement=group))


@pytest.mark.covers("KRP-18")
def test_every_class_has_an_answer_with_a_reason_of_its_own_and_a_sentence() -> None:
    reasons = [class_.policy.reason for class_ in ErrorClass]
    assert len(set(reasons)) == len(reasons)
    assert "LaunchFailed" not in reasons
    assert all(reason.isalnum() and reason[0].isupper() for reason in reasons)
    assert all(class_.policy.next_step for class_ in ErrorClass)
    assert "a reservation for minutes" in ErrorClass.NOT_OFFERED.policy.next_step  # as `shortages` has it


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize("class_", list(ErrorClass))
def test_an_answer_never_goes_elsewhere_and_stops(class_: ErrorClass) -> None:
    policy = answer(class_)
    assert not (policy.elsewhere and policy.stops)
    assert (policy.marks != "nothing") == policy.elsewhere == bool(policy.remedy)


@pytest.mark.covers("KRP-18", "KRP-24")
@pytest.mark.parametrize(
    ("class_", "reason"),
    [
        (ErrorClass.QUOTA, "VCPULimitExceeded"),
        (ErrorClass.SUBNET, "InsufficientFreeAddressesInSubnet"),
        (ErrorClass.THROTTLING, "RequestLimitExceeded"),
        (ErrorClass.PERMISSION, "Unauthorized"),
        (ErrorClass.TRANSIENT, "InternalError"),
        (ErrorClass.TEMPLATE_GONE, "LaunchTemplateNotFound"),
        (ErrorClass.CAPACITY, "InsufficientCapacity"),
        (ErrorClass.RESERVATION_FULL, "ReservationCapacityExceeded"),
    ],
)
def test_reasons_are_karpenters_if_it_has_one(class_: ErrorClass, reason: str) -> None:
    assert answer(class_).reason == reason


def test_a_spot_limit_is_called_by_its_name() -> None:
    assert answer(ErrorClass.QUOTA, option=spot()).reason == "SpotQuotaExceeded"
    assert answer(ErrorClass.QUOTA, option=on_demand()).reason == "VCPULimitExceeded"
    assert answer(ErrorClass.CAPACITY, option=spot()) == answer(ErrorClass.CAPACITY)


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize(
    ("class_", "option", "expected"),
    [
        (ErrorClass.CAPACITY, on_demand(), [PLAIN]),
        (ErrorClass.CAPACITY, spot(), ["pool:spot:m5.large:us-east-1a"]),
        (ErrorClass.NOT_OFFERED, on_demand(), [PLAIN]),
        (ErrorClass.UNSUPPORTED, on_demand(), ["class:gpu:on-demand:m5.xlarge:us-east-1a"]),
        (ErrorClass.UNSUPPORTED, BY_ID, ["class:gpu:reserved:m5.xlarge:us-east-1a:cr-1"]),
        (ErrorClass.SPREAD_FULL, placed(on_demand()), ["placement:seven:us-east-1a"]),
        (ErrorClass.SPREAD_FULL, placed(BY_ID), ["placement:seven:us-east-1a"]),
        (ErrorClass.SPREAD_FULL, on_demand(), [PLAIN]),
        (ErrorClass.RESERVATION_FULL, BY_ID, ["reservation:cr-1"]),
        (ErrorClass.RESERVATION_FULL, BY_GROUP, MEMBERS),
        (ErrorClass.RESERVATION_FULL, BY_MATCH, MEMBERS),
        (ErrorClass.CAPACITY, BY_GROUP, MEMBERS),  # EC2 does not document the code of a full group
        (ErrorClass.RESERVATION_GONE, BY_ID, ["reservation:cr-1"]),
        (ErrorClass.SUBNET, BY_ID, ["subnet:subnet-1"]),
        (ErrorClass.SUBNET, on_demand(), ["subnet:subnet-1"]),
        (ErrorClass.QUOTA, BY_ID, ["quota:reserved:standard"]),
        (ErrorClass.QUOTA, on_demand("p5.48xlarge"), ["quota:on-demand:p"]),
        (ErrorClass.QUOTA, spot("g5.xlarge"), ["quota:spot:g"]),
        (ErrorClass.THROTTLING, BY_ID, []),
        (ErrorClass.TRANSIENT, BY_ID, []),
        (ErrorClass.PERMISSION, BY_ID, []),
        (ErrorClass.CONFIGURATION, on_demand(), []),
        (ErrorClass.NOT_FOUND, on_demand(), []),
        (ErrorClass.TEMPLATE_GONE, on_demand(), []),
        (ErrorClass.LIMIT, on_demand(), []),
        (ErrorClass.TEMPLATE_LIMIT, on_demand(), []),
        (ErrorClass.PROFILE_UNKNOWN, on_demand(), []),
    ],
)
def test_error_marks_only_its_own_scope(class_: ErrorClass, option: Option, expected: list[str]) -> None:
    assert marked(class_, option) == expected


@pytest.mark.covers("KRP-18")
def test_a_quota_or_subnet_error_never_marks_a_reservation_full() -> None:
    # should not mark capacity reservations unavailable for RequestLimitExceeded CreateFleet errors
    for class_ in (ErrorClass.QUOTA, ErrorClass.SUBNET, ErrorClass.THROTTLING, ErrorClass.TRANSIENT):
        for option in (BY_ID, BY_GROUP, BY_MATCH):
            assert not [scope for scope in marked(class_, option) if scope.startswith("reservation")]


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize("class_", list(ErrorClass))
def test_only_a_refusal_about_the_reservation_marks_it_full(
    class_: ErrorClass,
) -> None:
    error = LaunchError(code="Code", message="", class_=class_, instance_type="m5.xlarge", zone="us-east-1a")
    group = call(BY_MATCH, 1)
    full_ids = full(group, distribute(group, LaunchResult(errors=(error,))), (error,))
    about_it = class_ in (ErrorClass.RESERVATION_FULL, ErrorClass.RESERVATION_GONE)
    assert full_ids == ({"cr-1", "cr-2"} if about_it else set())


def test_refusal_of_a_call_that_could_spill_marks_on_demand_too() -> None:
    assert marked(ErrorClass.CAPACITY, BY_MATCH, spills=True) == [*MEMBERS, PLAIN]
    assert marked(ErrorClass.CAPACITY, BY_MATCH) == MEMBERS
    assert marked(ErrorClass.QUOTA, BY_MATCH, spills=True) == ["quota:reserved:standard"]
    assert marked(ErrorClass.RESERVATION_FULL, BY_MATCH, spills=True) == MEMBERS


@pytest.mark.parametrize("class_", [ErrorClass.LIMIT, ErrorClass.TEMPLATE_LIMIT])
def test_a_limit_that_is_no_vcpu_quota_names_its_own_code(class_: ErrorClass) -> None:
    assert answer(class_, code="VolumeLimitExceeded").reason == "VolumeLimitExceeded"
    assert answer(class_, code="Some.LimitExceeded").reason == "SomeLimitExceeded"
    assert answer(class_).reason == class_.policy.reason


def test_unsupported_request_marks_the_pool_for_its_own_class_only() -> None:
    error = LaunchError(code="Unsupported", message="", class_=ErrorClass.UNSUPPORTED)
    known = remember(Shortages(), error, on_demand(), inventory=inventory(), now=NOW, node_class="gpu")
    assert known.active(on_demand(), NOW, node_class="gpu") is not None
    assert known.active(on_demand(), NOW, node_class="other") is None
    assert known.active(on_demand(), NOW + minutes(3), node_class="gpu") is None


def test_a_full_spread_group_marks_every_type_of_the_zone_and_no_other_zone() -> None:
    error = LaunchError(code="InstanceLimitExceeded", message="", class_=ErrorClass.SPREAD_FULL)
    known = remember(Shortages(), error, placed(on_demand()), inventory=inventory(), now=NOW)
    other = placed(on_demand("c5.large"))
    elsewhere = replace(other, pool=replace(other.pool, zone="us-east-1b"))
    assert known.active(other, NOW) is not None
    assert known.active(elsewhere, NOW) is None
    assert known.active(on_demand("c5.large"), NOW) is None
    assert launched(known, other, reservation_id="").active(other, NOW) is None


@pytest.mark.covers("KRP-18")
def test_a_call_level_error_is_remembered_like_an_overrides() -> None:
    world = inventory(odcr("cr-1", free=2))
    within = LaunchError(
        code="ReservationCapacityExceeded", message="full", class_=ErrorClass.RESERVATION_FULL
    )
    whole = ProviderError("ReservationCapacityExceeded", "full", class_=ErrorClass.RESERVATION_FULL)
    assert remember(Shortages(), within, BY_ID, inventory=world, now=NOW) == remember(
        Shortages(), whole, BY_ID, inventory=world, now=NOW
    )


@pytest.mark.covers("KRP-18")
def test_the_subnet_that_the_error_names_is_marked() -> None:
    error = LaunchError(
        code="InsufficientFreeAddressesInSubnet", message="", class_=ErrorClass.SUBNET, subnet_id="subnet-2"
    )
    known = remember(Shortages(), error, BY_ID, inventory=inventory(), now=NOW, subnet_id="subnet-1")
    assert [str(shortage.scope) for shortage in known.lasting(NOW)] == ["subnet:subnet-2"]


@pytest.mark.covers("KRP-19")
def test_a_refusal_that_contradicts_the_description_is_not_ended_by_the_same_numbers() -> None:
    world = inventory(odcr("cr-1", free=2))
    error = LaunchError(code="InsufficientInstanceCapacity", message="", class_=ErrorClass.CAPACITY)
    known = remember(Shortages(), error, BY_ID, inventory=world, now=NOW)
    again = inventory(odcr("cr-1", free=2), described=NOW + minutes(1))
    assert known.observed(again, NOW + minutes(1)).active(BY_ID, NOW + minutes(1)) is not None


@pytest.mark.covers("KRP-19")
def test_launch_clears_the_shortages_of_its_scopes() -> None:
    known = Shortages()
    for class_ in (ErrorClass.CAPACITY, ErrorClass.QUOTA, ErrorClass.SUBNET):
        error = LaunchError(code="Code", message="", class_=class_, subnet_id="subnet-1")
        known = remember(known, error, on_demand(), inventory=inventory(), now=NOW)
    assert len(list(known.lasting(NOW))) == 3
    assert not [*launched(known, on_demand(), reservation_id="", subnet_id="subnet-1").lasting(NOW)]
    # Other scopes stay short.
    left = launched(known, on_demand("m5.large"), reservation_id="", subnet_id="subnet-2")
    assert [shortage.scope.kind for shortage in left.lasting(NOW)] == ["pool", "subnet"]


@pytest.mark.covers("KRP-33")
def test_a_launch_that_spilled_does_not_clear_the_reservation_it_missed() -> None:
    error = LaunchError(code="Code", message="", class_=ErrorClass.RESERVATION_FULL)
    known = remember(Shortages(), error, BY_MATCH, inventory=inventory(), now=NOW)
    assert launched(known, BY_MATCH, reservation_id="").active(BY_MATCH, NOW) is not None
    assert launched(known, BY_MATCH, reservation_id="cr-2").active(BY_MATCH, NOW) is None


@pytest.mark.covers("KRP-33")
def test_reservation_that_ec2_passed_over_is_short() -> None:
    known = spilled(Shortages(), BY_MATCH, now=NOW)
    assert [(str(shortage.scope), shortage.code) for shortage in known.lasting(NOW)] == [
        ("reservation:cr-1", "SpilledToOnDemand"),
        ("reservation:cr-2", "SpilledToOnDemand"),
    ]


def call(option: Option, count: int) -> LaunchGroup:
    """A fleet call for as many claims with this option."""
    pool = option.pool
    selection = Selection(preference="open")
    return LaunchGroup(
        node_class="gpu",
        capacity_type=pool.capacity_type,
        market="on-demand",
        target=target_for(selection, option, True),
        image=Image(id="ami-1"),
        overrides=(Override(instance_type=pool.instance_type, zone=pool.zone, subnet_id="subnet-9"),),
        assignments=tuple(Assignment(claim=claim(f"c-{n}"), option=option) for n in range(count)),
    )


def learned(group: LaunchGroup, *instances: Instance, errors: Sequence[LaunchError] = ()) -> Shortages:
    distribution = distribute(group, LaunchResult(instances=instances, errors=tuple(errors)))
    world = inventory(odcr("cr-1", free=2), odcr("cr-2", free=2))
    return learn(Shortages(), group, distribution, errors, inventory=world, now=NOW)


@pytest.mark.covers("KRP-19", "KRP-21")
@pytest.mark.parametrize(
    ("option", "class_", "landed"),
    [
        (on_demand(), ErrorClass.CAPACITY, ""),
        (on_demand(), ErrorClass.QUOTA, ""),
        (reserved("cr-1"), ErrorClass.RESERVATION_FULL, "cr-1"),
    ],
)
def test_pool_that_gave_some_and_refused_the_rest_is_short(
    option: Option, class_: ErrorClass, landed: str
) -> None:
    error = LaunchError(
        code="Code", message="", class_=class_, instance_type="m5.xlarge", zone="us-east-1a", subnet_id="s"
    )
    known = learned(call(option, 2), instance("i-1", reservation=landed), errors=[error])
    assert known.active(option, NOW) is not None


@pytest.mark.covers("KRP-33")
def test_slots_that_ec2_passed_over_are_not_planned_again() -> None:
    group = call(BY_MATCH, 2)
    out, within = instance("i-1"), instance("i-2", reservation="cr-1")
    assert learned(group, out, within).active(BY_MATCH, NOW) is not None
    assert full(group, distribute(group, LaunchResult(instances=(out, within))), ()) == {"cr-1", "cr-2"}


@pytest.mark.covers("KRP-33")
@pytest.mark.parametrize("landed", ["cr-1", "cr-7"])
def test_launch_in_one_reservation_marks_no_other_as_full(landed: str) -> None:
    group = call(BY_MATCH, 1)
    inside = instance("i-1", reservation=landed)
    assert not [*learned(group, inside).lasting(NOW)]
    assert not full(group, distribute(group, LaunchResult(instances=(inside,))), ())


@pytest.mark.covers("KRP-33")
def test_undescribed_instance_marks_no_reservation() -> None:
    assert not [*learned(call(BY_MATCH, 1), instance("i-1", described=False)).lasting(NOW)]


@pytest.mark.covers("KRP-18")
def test_error_without_a_subnet_marks_the_requested_one() -> None:
    error = LaunchError(code="InsufficientFreeAddressesInSubnet", message="", class_=ErrorClass.SUBNET)
    known = learned(call(on_demand(), 1), errors=[error])
    assert [str(shortage.scope) for shortage in known.lasting(NOW)] == ["subnet:subnet-9"]


def test_of_several_errors_the_one_that_needs_action_is_reported() -> None:
    def error(class_: ErrorClass) -> LaunchError:
        return LaunchError(code=class_.value, message="", class_=class_)

    assert foremost([]) is None
    mixed = [error(ErrorClass.CAPACITY), error(ErrorClass.PERMISSION), error(ErrorClass.THROTTLING)]
    assert foremost(mixed) == error(ErrorClass.PERMISSION)
    assert {foremost([error(class_)]) for class_ in ErrorClass} == {error(class_) for class_ in ErrorClass}
