"""Claims planned together: slots, fallbacks, waits, and the reported reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from broker.apis import names
from broker.capacity.answers import remember, scopes
from broker.capacity.full_slots import full_ids
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Plan, ReservationTerm, Selection
from broker.capacity.shortages import Scope, Shortages
from broker.commands.explain.options import forecast_planned
from providers.errors import ErrorClass, ProviderError
from providers.model import Odcr

from .builders import (
    GROUP,
    INSTANCE_TYPE,
    NOW,
    TYPES,
    chosen,
    claim,
    inventory,
    minutes,
    node_class,
    odcr,
    planned,
    refusals,
    supply,
)

OPEN = Selection(preference="open")
BY_GROUP = Selection(group_arn=GROUP)
FIRST: dict[str, Any] = {"kinds": ["reserved", "on-demand"]}


def full(*ids: str, class_: ErrorClass = ErrorClass.RESERVATION_FULL) -> Shortages:
    known = Shortages()
    for id_ in ids:
        known = known.record(
            Scope("reservation", id_), class_=class_, code="ReservationCapacityExceeded", now=NOW
        )
    return known


@pytest.mark.covers("KRP-05")
def test_a_claim_goes_into_the_reservation_of_its_class() -> None:
    world = inventory(odcr("cr-1"))
    plan = planned([claim()], node_class(Selection(reservation_id="cr-1"), world), world)
    assert chosen(plan) == {"claim-1": "reserved:m5.xlarge:us-east-1a:cr-1"}
    assert plan.unplaced == ()
    assert plan.assignments[0].rest[0].pool.capacity_type == "on-demand"


@pytest.mark.covers("KRP-20")
def test_shouldnt_fall_back_to_on_demand_or_spot_when_compatible_reserved_offerings_are_available() -> None:
    world = inventory(odcr("cr-1", free=2))
    claims = [claim(f"c{n}", kinds=["reserved", "on-demand", "spot"]) for n in range(3)]
    plan = planned(claims, node_class(OPEN, world), world)
    assert chosen(plan) == {
        "c0": "reserved:m5.xlarge:us-east-1a",
        "c1": "reserved:m5.xlarge:us-east-1a",
        "c2": "spot:m5.large:us-east-1a",
    }
    (skipped,) = plan.skipped["uid-c2"]
    assert (skipped.reason, skipped.message) == (
        "OutbidInPlan",
        "open reservations (m5.xlarge, us-east-1a): its 2 free slots went to claims that come before",
    )


def test_one_slot_that_went_to_another_claim_is_reported_in_the_singular() -> None:
    world = inventory(odcr("cr-1", free=1))
    claims = [claim(f"c{n}", kinds=["reserved", "on-demand"]) for n in range(2)]
    (skipped,) = planned(claims, node_class(OPEN, world), world).skipped["uid-c1"]
    assert "its 1 free slot went to claims that come before" in skipped.message


def test_full_reservation_falls_back_to_on_demand_and_reports_its_slots() -> None:
    world = inventory(odcr("cr-1", total=4, free=0))
    plan = planned([claim()], node_class(Selection(reservation_id="cr-1"), world), world)
    assert chosen(plan) == {"claim-1": "on-demand:m5.large:us-east-1a"}
    (skipped,) = plan.skipped["uid-claim-1"]
    assert skipped.reason == "ReservationFull"
    assert skipped.message == "cr-1 (m5.xlarge, us-east-1a): free slots: cr-1 0 of 4"


def test_reserved_alone_never_leaves_the_reservations() -> None:
    world = inventory(odcr("cr-1", total=4, free=0))
    plan = planned([claim(kinds=["reserved"])], node_class(Selection(reservation_id="cr-1"), world), world)
    assert plan.assignments == ()
    (unplaced,) = plan.unplaced
    assert unplaced.reason == "AllReservationsFull"
    assert "cr-1 0 of 4" in unplaced.message and full_ids(unplaced.message) == ("cr-1",)


@pytest.mark.covers("KRP-17")
def test_a_reservation_that_refused_is_passed_over_for_the_next_reserved_one_before_any_on_demand() -> None:
    world = inventory(
        odcr("cr-1"),
        odcr("cr-2", "m5.2xlarge", "us-east-1b"),
        groups={GROUP: ["cr-1", "cr-2"]},
    )
    plan = planned([claim()], node_class(BY_GROUP, world), world, shortages=full("cr-1"))
    assert chosen(plan) == {"claim-1": f"reserved:m5.2xlarge:us-east-1b:{GROUP}"}
    (skipped,) = plan.skipped["uid-claim-1"]
    assert skipped.reason == "BackingOff"
    assert skipped.message == (
        "group gpus (m5.xlarge, us-east-1a): ReservationCapacityExceeded at 2026-11-01T12:00:00Z, "
        "not tried again before 2026-11-01T12:03:00Z"
    )


@pytest.mark.covers("KRP-19")
def test_a_claim_with_only_short_pools_waits_until_the_first_of_them_ends() -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2", zone="us-east-1b"), groups={GROUP: ["cr-1", "cr-2"]})
    known = full("cr-1", "cr-2").record(
        Scope("quota", "reserved:standard"), class_=ErrorClass.QUOTA, code="VcpuLimitExceeded", now=NOW
    )
    new_claim, nodeclass = claim(kinds=["reserved"]), node_class(BY_GROUP, world)
    plan = planned([new_claim], nodeclass, world, shortages=full("cr-1", "cr-2"))
    (unplaced,) = plan.unplaced
    assert (unplaced.reason, unplaced.retry_at) == ("BackingOff", NOW + minutes(3))
    assert "2026-11-01T12:03:00Z" in unplaced.message
    plan = planned([new_claim], nodeclass, world, shortages=known)
    assert plan.unplaced[0].retry_at == NOW + minutes(15)


@pytest.mark.covers("KRP-19")
def test_the_slots_of_a_reservation_that_refused_are_no_room_of_its_group() -> None:
    world = inventory(odcr("cr-1", free=3), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    claims = [claim(f"c{n}", kinds=["reserved"]) for n in range(2)]
    plan = planned(claims, node_class(BY_GROUP, world), world, shortages=full("cr-1"))
    assert list(chosen(plan)) == ["c0"]


@pytest.mark.covers("KRP-19")
def test_group_of_full_or_refusing_members_is_not_requested() -> None:
    world = inventory(odcr("cr-1", free=0), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    new_claim, nodeclass = claim(kinds=["reserved"]), node_class(BY_GROUP, world)
    plan = planned([new_claim], nodeclass, world, shortages=full("cr-2"))
    assert refusals(plan) == {"claim-1": "BackingOff"}


@pytest.mark.covers("KRP-08")
def test_claim_outside_reservations_reports_those_that_do_not_match() -> None:
    world = inventory(odcr("cr-1", "p5.48xlarge"))
    plan = planned([claim(types=["m5.large"])], node_class(OPEN, world), world)
    (skipped,) = plan.skipped["uid-claim-1"]
    assert (skipped.pool.reservation, skipped.reason) == ("cr-1", "InstanceTypeMismatch")


@pytest.mark.covers("KRP-19")
@pytest.mark.parametrize(
    ("scope", "gone"),
    [
        (Scope("pool", "on-demand:m5.large:us-east-1a"), "on-demand:m5.large:us-east-1a"),
        (Scope("subnet", "subnet-a"), "on-demand:m5.large:us-east-1a"),
    ],
)
def test_launch_in_another_zone_while_one_is_short(scope: Scope, gone: str) -> None:
    class_ = ErrorClass.SUBNET if scope.kind == "subnet" else ErrorClass.CAPACITY
    known = Shortages().record(scope, class_=class_, code="InsufficientInstanceCapacity", now=NOW)
    plan = planned([claim(types=["m5.large"])], node_class(), inventory(), shortages=known)
    assert chosen(plan) == {"claim-1": "on-demand:m5.large:us-east-1b"}
    given = supply({"default": node_class()}, inventory(), shortages=known)
    wants = claim(types=["m5.large"])
    forecast = forecast_planned(wants, [wants], given, launched={})
    assert [shortage.scope for shortage in forecast.shortages] == [scope]
    assert gone not in [str(option.pool) for option in plan.assignments[0].rest]
    later = planned(
        [claim(types=["m5.large"])], node_class(), inventory(), shortages=known, now=NOW + minutes(3)
    )
    assert chosen(later) == {"claim-1": gone}


@pytest.mark.covers("KRP-19")
def test_claim_with_only_short_fallbacks_tries_them_in_one_call_every_six_minutes() -> None:
    known, zones = Shortages(), ("us-east-1a", "us-east-1b")
    at = [NOW, NOW + minutes(3), NOW + minutes(9)]  # the third refusal is remembered for 12 minutes
    for now in at:
        for zone in zones:
            scope = Scope("pool", f"on-demand:m5.large:{zone}")
            known = known.record(scope, class_=ErrorClass.CAPACITY, code="Insufficient", now=now)

    def planned_at(now: datetime, *types: str) -> Plan:
        new_claim = claim(types=types, zones=zones)
        return planned([new_claim], node_class(), inventory(), shortages=known, now=now)

    (unplaced,) = planned_at(at[-1] + minutes(5), "m5.large").unplaced
    assert (unplaced.reason, unplaced.retry_at) == ("BackingOff", at[-1] + minutes(6))
    assert f"{at[-1] + minutes(6):%H:%M}" in unplaced.message
    (tried,) = planned_at(at[-1] + minutes(6), "m5.large").assignments
    assert [option.pool.zone for option in (tried.option, *tried.rest)] == [*zones]
    # With another way, the pools that are short are left out until their time is over.
    (other,) = planned_at(at[-1] + minutes(6), "m5.large", "m5.xlarge").assignments
    assert {option.pool.instance_type for option in (other.option, *other.rest)} == {"m5.xlarge"}


GROUPED = "arn:aws:ec2:us-east-1:123456789012:placement-group/mpi"


@pytest.mark.covers("KRP-19")
@pytest.mark.parametrize(
    ("class_fields", "refused", "zone"),
    [
        ({"placement_group_arn": GROUPED}, "@mpi", "b"),
        ({"placement_group_arn": GROUPED}, "", "a"),
        ({"placement_group_arn": GROUPED}, "@other", "a"),
        ({"placement_group_arn": GROUPED}, "@dedicated,mpi", "a"),
        ({"placement_group_arn": GROUPED, "tenancy": "dedicated"}, "@dedicated,mpi", "b"),
        ({"tenancy": "dedicated"}, "@dedicated", "b"),
        ({"tenancy": "dedicated"}, "", "a"),
        ({}, "@mpi", "a"),
        ({}, "@dedicated", "a"),
    ],
)
def test_refusal_in_a_placement_group_or_of_a_tenancy_marks_only_those(
    class_fields: dict[str, Any], refused: str, zone: str
) -> None:
    scope = Scope("pool", f"on-demand:m5.large:us-east-1a{refused}")
    known = Shortages().record(
        scope, class_=ErrorClass.CAPACITY, code="InsufficientInstanceCapacity", now=NOW
    )
    plan = planned([claim(types=["m5.large"])], node_class(**class_fields), inventory(), shortages=known)
    (assignment,) = plan.assignments
    assert assignment.option.pool.zone == f"us-east-1{zone}"
    # Its own refusal is remembered under the same key.
    error = ProviderError("InsufficientInstanceCapacity", "none", class_=ErrorClass.CAPACITY)
    again = remember(Shortages(), error, assignment.option, inventory=inventory(), now=NOW)
    plan = planned([claim(types=["m5.large"])], node_class(**class_fields), inventory(), shortages=again)
    assert plan.assignments[0].option.pool != assignment.option.pool


def test_an_open_launch_that_goes_on_to_on_demand_is_refused_in_its_placement_group_alone() -> None:
    world = inventory(odcr("cr-1", placement_group_arn=GROUPED))
    grouped = node_class(OPEN, world, placement_group_arn=GROUPED)
    (assignment,) = planned([claim(**FIRST)], grouped, world).assignments
    assert str(assignment.option.pool) == "reserved:m5.xlarge:us-east-1a@mpi"
    assert scopes(ErrorClass.CAPACITY, assignment.option, spills=True) == (
        Scope("reservation", "cr-1"),
        Scope("pool", "on-demand:m5.xlarge:us-east-1a@mpi"),
    )


def test_on_demand_if_spot_is_unavailable() -> None:
    known = Shortages()
    for zone in "abc":
        scope = Scope("pool", f"spot:m5.large:us-east-1{zone}")
        known = known.record(scope, class_=ErrorClass.CAPACITY, code="UnfulfillableCapacity", now=NOW)
    new_claim = claim(kinds=["spot", "on-demand"], types=["m5.large"])
    assert chosen(planned([new_claim], node_class(), inventory(), shortages=known)) == {
        "claim-1": "on-demand:m5.large:us-east-1a"
    }
    only = claim(kinds=["spot"], types=["m5.large"])
    assert refusals(planned([only], node_class(), inventory(), shortages=known)) == {"claim-1": "BackingOff"}


@pytest.mark.covers("KRP-20")
def test_higher_priority_first_then_the_older_then_by_name() -> None:
    world = inventory(odcr("cr-1", free=3))
    claims = [
        claim("low", priority=-1, **FIRST),
        claim("b", **FIRST),
        claim("a", **FIRST),
        claim("old", created=NOW - minutes(5), **FIRST),
        claim("high", priority=5, created=NOW + minutes(5), **FIRST),
    ]
    plan = planned(claims, node_class(OPEN, world), world)
    kinds = {name: pool.split(":")[0] for name, pool in chosen(plan).items()}
    assert kinds == {
        "high": "reserved",
        "old": "reserved",
        "a": "reserved",
        "b": "on-demand",
        "low": "on-demand",
    }


@pytest.mark.covers("KRP-20")
def test_smaller_instance_first_then_the_soonest_ending_reservation() -> None:
    world = inventory(
        odcr("cr-1", "m5.2xlarge"),
        odcr("cr-2"),
        odcr("cr-3", end=NOW + minutes(90)),
    )
    terms = Selection(terms=tuple(ReservationTerm(id=f"cr-{n}") for n in (1, 2, 3)))
    claims = [claim(f"c{n}", kinds=["reserved"]) for n in range(3)]
    plan = planned(claims, node_class(terms, world), world)
    assert [pool.rsplit(":")[-1] for pool in chosen(plan).values()] == ["cr-3", "cr-2", "cr-1"]


@pytest.mark.covers("KRP-20")
def test_a_claim_that_could_go_elsewhere_makes_room_for_one_that_cannot() -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2", "m5.2xlarge"))
    terms = Selection(terms=(ReservationTerm(id="cr-1"), ReservationTerm(id="cr-2")))
    claims = [
        claim("any", priority=9, kinds=["reserved"]),
        claim("picky", kinds=["reserved"], types=["m5.xlarge"]),
    ]
    assert chosen(planned(claims, node_class(terms, world), world)) == {
        "any": "reserved:m5.2xlarge:us-east-1a:cr-2",
        "picky": "reserved:m5.xlarge:us-east-1a:cr-1",
    }


@pytest.mark.covers("KRP-20")
def test_room_that_is_reached_by_id_by_group_and_by_open_match_is_counted_once() -> None:
    world = inventory(odcr("cr-1", free=2), groups={GROUP: ["cr-1"]})
    classes = [
        node_class(Selection(reservation_id="cr-1"), world, name="id"),
        node_class(BY_GROUP, world, name="group"),
        node_class(OPEN, world, name="open"),
    ]
    claims = [claim(nodeclass.name, node_class=nodeclass.name, kinds=["reserved"]) for nodeclass in classes]
    plan = planned(claims, classes, world)
    assert len(plan.assignments) == 2
    assert list(refusals(plan).values()) == ["AllReservationsFull"]


@pytest.mark.covers("KRP-20")
def test_correctly_track_reservations_shared_across_nodepools() -> None:
    # EC2 chooses the member of a group: two launches that name cr-1 and the group fit only as cr-1 and cr-2.
    world = inventory(odcr("cr-1"), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    classes = [
        node_class(BY_GROUP, world, name="group"),
        node_class(Selection(reservation_id="cr-1"), world, name="id"),
    ]
    claims = [
        claim("a", node_class="group", kinds=["reserved"], priority=1),
        claim("b", node_class="id", kinds=["reserved"]),
        claim("c", node_class="group", kinds=["reserved"], priority=-1),
    ]
    plan = planned(claims, classes, world)
    assert chosen(plan) == {
        "a": f"reserved:m5.xlarge:us-east-1a:{GROUP}",
        "b": "reserved:m5.xlarge:us-east-1a:cr-1",
    }
    assert refusals(plan) == {"c": "AllReservationsFull"}


@pytest.mark.covers("KRP-20")
def test_launches_that_ec2_does_not_show_yet_are_taken_off_the_room() -> None:
    world = inventory(odcr("cr-1", free=3), debits={"cr-1": 2})
    claims = [claim(f"c{n}", kinds=["reserved"]) for n in range(3)]
    assert len(planned(claims, node_class(OPEN, world), world).assignments) == 1


@pytest.mark.covers("KRP-20")
def test_several_reservations_for_the_same_instance_pool_are_all_used() -> None:
    world = inventory(*(odcr(f"cr-{n}", "p5.48xlarge", free=1) for n in range(3)))
    terms = Selection(terms=tuple(ReservationTerm(id=f"cr-{n}") for n in range(3)))
    claims = [claim(f"c{n}", kinds=["reserved"]) for n in range(3)]
    plan = planned(claims, node_class(terms, world), world)
    assert sorted(pool[-4:] for pool in chosen(plan).values()) == ["cr-0", "cr-1", "cr-2"]


@pytest.mark.covers("KRP-22")
def test_a_gang_is_assigned_whole_over_several_pools_or_not_at_all() -> None:
    world = inventory(odcr("cr-1", free=2), odcr("cr-2", zone="us-east-1b"), groups={GROUP: ["cr-1", "cr-2"]})
    gang = [claim(f"g{n}", kinds=["reserved"], gang="g", priority=5) for n in range(3)]
    plan = planned(gang, node_class(BY_GROUP, world), world)
    assert len(plan.assignments) == 3
    more = [*gang, claim("g3", kinds=["reserved"], gang="g", priority=5)]
    single = claim("single", kinds=["reserved"])
    plan = planned([*more, single], node_class(BY_GROUP, world), world)
    assert list(chosen(plan)) == ["single"]
    assert refusals(plan) == {
        "g0": "GangIncomplete",
        "g1": "GangIncomplete",
        "g2": "GangIncomplete",
        "g3": "AllReservationsFull",
    }
    assert plan.unplaced[0].message == "gang g launches whole or not at all; nothing for g3"


@pytest.mark.covers("KRP-22")
def test_gang_may_fall_back_in_part_if_its_claims_may() -> None:
    world = inventory(odcr("cr-1", free=2))
    gang = [claim(f"g{n}", gang="g", types=["m5.xlarge"], **FIRST) for n in range(3)]
    plan = planned(gang, node_class(OPEN, world), world)
    assert sorted(pool.split(":")[0] for pool in chosen(plan).values()) == [
        "on-demand",
        "reserved",
        "reserved",
    ]


@pytest.mark.covers("KRP-22")
def test_gang_gives_slots_to_its_claims_that_cannot_fall_back() -> None:
    world = inventory(odcr("cr-1"))
    gang = [claim("g0", gang="g", priority=9, **FIRST), claim("g1", gang="g", kinds=["reserved"])]
    plan = planned(gang, node_class(OPEN, world), world)
    assert {name: pool.split(":")[0] for name, pool in chosen(plan).items()} == {
        "g0": "on-demand",
        "g1": "reserved",
    }


@pytest.mark.covers("KRP-22")
def test_gang_with_an_impossible_claim_waits_whole() -> None:
    gang = [claim("g0", gang="g"), claim("g1", gang="g", node_class="gone")]
    plan = planned(gang, node_class(), inventory())
    assert refusals(plan) == {"g0": "GangIncomplete", "g1": "NodeClassNotFound"}


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"not_ready": "no security group"}, "NodeClassNotReady", "not ready: no security group"),
        ({"subnets": ()}, "NodeClassNotReady", "it has no subnet"),
        ({"images": ()}, "NodeClassNotReady", "it has no image"),
    ],
)
def test_nothing_is_launched_from_a_class_that_is_not_ready(
    change: Mapping[str, object], reason: str, words: str
) -> None:
    plan = planned([claim()], replace(node_class(), **change), inventory())  # type: ignore[arg-type]
    (unplaced,) = plan.unplaced
    assert unplaced.reason == reason
    assert words in unplaced.message
    assert "default" in unplaced.message


def test_claim_without_its_class_reports_the_class_name() -> None:
    (unplaced,) = planned([claim(node_class="gone")], node_class(), inventory()).unplaced
    assert (unplaced.reason, unplaced.message) == ("NodeClassNotFound", "EC2NodeClass gone does not exist")


def test_impossible_requirements_are_reported_and_launch_nothing() -> None:
    new_claim = claim(
        "c", ("karpenter.k8s.aws/instance-cpu", "Lt", ["2"]), ("karpenter.k8s.aws/instance-cpu", "Gt", ["8"])
    )
    (unplaced,) = planned([new_claim], node_class(), inventory()).unplaced
    assert unplaced.reason == "ImpossibleRequirements"
    assert unplaced.message == "karpenter.k8s.aws/instance-cpu: no value satisfies Lt [2] and Gt [8]"


def test_no_compatible_instance_type_reports_the_excluding_requirements() -> None:
    new_claim = claim(
        "c",
        ("karpenter.k8s.aws/instance-family", "In", ["p5"]),
        ("kubernetes.io/arch", "In", ["arm64"]),
        requests={"cpu": 3.0},
    )
    (unplaced,) = planned([new_claim], node_class(), inventory()).unplaced
    assert unplaced.reason == "NoCompatibleInstanceTypes"
    assert unplaced.message == (
        "none of 5 instance types suits: karpenter.k8s.aws/instance-family (one of p5) excludes 4, "
        "kubernetes.io/arch (one of arm64) excludes 4, requests of cpu excludes 1"
    )


@pytest.mark.covers("USR-06")
def test_type_or_zone_that_does_not_exist_is_named_with_the_nearest_name() -> None:
    kind = claim("c", ("node.kubernetes.io/instance-type", "In", ["m5.lagre"]))
    (unplaced,) = planned([kind], node_class(), inventory()).unplaced
    assert (
        "EC2 has no instance type 'm5.lagre' in this Region; the nearest name is m5.large" in unplaced.message
    )
    (unplaced,) = planned([claim(zones=["us-est-1a"])], node_class(), inventory()).unplaced
    assert unplaced.message.endswith("this Region has no zone 'us-est-1a'; the nearest name is us-east-1a")


def test_zone_outside_the_class_is_reported() -> None:
    (unplaced,) = planned([claim(zones=["us-east-1f"])], node_class(), inventory()).unplaced
    assert unplaced.reason == "NoCompatibleInstanceTypes"
    assert unplaced.message == (
        "5 of 5 instance types meet its requirements, but none is offered in a zone of the class "
        "(us-east-1a, us-east-1b, us-east-1c) that the claim accepts (one of us-east-1f); "
        "this Region has no zone 'us-east-1f'; the nearest name is us-east-1c"
    )


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (names.INSTANCE_GPU_NAME, "H100", "EC2 has no GPU 'H100' in this Region; the nearest name is h100"),
        (
            names.INSTANCE_CATEGORY,
            "M",
            f"EC2 has no instance type with {names.INSTANCE_CATEGORY} 'M' in this Region"
            "; the nearest name is m",
        ),
        (
            names.CAPACITY_TYPE,
            "ondemand",
            "but none of a capacity type that the claim accepts (one of ondemand); "
            "there is no capacity type 'ondemand'; the nearest name is on-demand",
        ),
        (names.OS, "Linux", "nodes of operating system 'Linux'; the nearest name is linux"),
        (names.ZONE_ID, "use1-az9", "that the claim accepts (topology.k8s.aws/zone-id one of use1-az9)"),
    ],
    ids=["gpu", "category", "capacity type", "system", "zone id"],
)
def test_value_that_nothing_has_is_named_whichever_label_it_is_of(key: str, value: str, text: str) -> None:
    (unplaced,) = planned([claim("claim-1", (key, "In", [value]))], node_class(), inventory()).unplaced
    assert unplaced.message.endswith(text)


def test_counts_of_types_name_what_they_test() -> None:
    """A NodePool counts the types for no pod, and the page of its pod those with room for it."""
    of_pool, of_pod = claim(kinds=["reserved"]), claim(kinds=["reserved"], requests={"cpu": 6.0})
    texts = [planned([item], node_class(), inventory()).unplaced[0].message for item in (of_pool, of_pod)]
    assert texts[0].startswith("5 of 5 instance types meet its requirements, but ")
    assert texts[1].startswith("2 of 5 instance types meet its requirements and requests, but ")


def test_reserved_claim_without_usable_reservations_reports_each_misfit() -> None:
    world = inventory(odcr("cr-1", "m5.xlarge"))
    new_claim = claim(kinds=["reserved"], types=["p5.48xlarge"])
    (unplaced,) = planned([new_claim], node_class(OPEN, world), world).unplaced
    assert unplaced.reason == "NoUsableReservation"
    assert (
        "m5.xlarge: node.kubernetes.io/instance-type is m5.xlarge, needs one of p5.48xlarge"
        in unplaced.message
    )


@pytest.mark.covers("KRP-04")
def test_invalid_claim_does_not_block_another() -> None:
    world = inventory(odcr("cr-1"))
    claims = [claim("bad", node_class="gone"), claim("good", kinds=["reserved"])]
    plan = planned(claims, node_class(OPEN, world), world)
    assert list(chosen(plan)) == ["good"]
    assert refusals(plan) == {"bad": "NodeClassNotFound"}


def test_plan_without_claims_is_empty() -> None:
    plan = planned([], node_class(), Inventory())
    assert (plan.assignments, plan.unplaced) == ((), ())


@pytest.mark.covers("KRP-20")
def test_a_thousand_claims_over_hundreds_of_reservations_and_types_are_one_plan() -> None:
    types = dict(TYPES)
    for n in range(400):
        types[f"m{n}.xlarge"] = replace(TYPES["m5.xlarge"], name=f"m{n}.xlarge")
    world = inventory(*(odcr(f"cr-{n}", f"m{n % 400}.xlarge", free=1) for n in range(800)))
    claims = [claim(f"c{n}", requests={"cpu": 1 + (n % 20) / 10}, **FIRST) for n in range(1000)]
    plan = planned(claims, node_class(OPEN, world), world, types=types)
    kinds = [pool.split(":")[0] for pool in chosen(plan).values()]
    assert (kinds.count("reserved"), kinds.count("on-demand")) == (800, 200)


@pytest.mark.covers("KRP-22")
def test_a_gang_of_declared_size_waits_until_so_many_claims_exist() -> None:
    world = inventory(odcr("cr-1", free=4))
    gang = [claim(f"g{n}", gang="g", gang_size=4, kinds=["reserved"]) for n in range(4)]
    plan = planned(gang[:3], node_class(OPEN, world), world)
    assert refusals(plan) == dict.fromkeys(["g0", "g1", "g2"], "GangIncomplete")
    assert plan.unplaced[0].message == "gang g is to have 4 claims; 3 are waiting"
    assert len(planned(gang, node_class(OPEN, world), world).assignments) == 4


@pytest.mark.covers("KRP-22")
def test_launched_claims_count_toward_the_size_of_a_gang() -> None:
    world = inventory(odcr("cr-1", free=1))
    last = [claim("g3", gang="g", gang_size=4, kinds=["reserved"])]
    plan = planned(last, node_class(OPEN, world), world, launched={"g": [{}] * 2, "other": [{}] * 9})
    assert plan.unplaced[0].message == "gang g is to have 4 claims; 1 is waiting and 2 have launched"
    assert list(chosen(planned(last, node_class(OPEN, world), world, launched={"g": [{}] * 3}))) == ["g3"]


@pytest.mark.covers("KRP-22")
def test_invalid_claim_of_an_incomplete_gang_reports_its_own_reason() -> None:
    gang = [claim("g0", gang="g", gang_size=3), claim("g1", gang="g", gang_size=3, node_class="gone")]
    assert refusals(planned(gang, node_class(), inventory())) == {
        "g0": "GangIncomplete",
        "g1": "NodeClassNotFound",
    }


@pytest.mark.covers("KRP-22")
def test_gang_outbid_by_a_better_use_of_its_slots_reports_that() -> None:
    world = inventory(odcr("cr-1", free=10))
    claims = [
        claim(f"{gang}-{n}", gang=gang, kinds=["reserved"])
        for gang, size in (("a", 7), ("b", 6), ("c", 4))
        for n in range(size)
    ]
    plan = planned(claims, node_class(OPEN, world), world)
    assert {name[0] for name in chosen(plan)} == {"b", "c"}
    assert plan.unplaced[0].message == (
        "gang a launches whole or not at all; its slots went to claims that make better use of them"
    )


@pytest.mark.covers("KRP-20")
def test_a_slot_goes_to_the_claim_that_has_no_other_way() -> None:
    world = inventory(odcr("cr-1"))
    claims = [claim("any", created=NOW - minutes(5), **FIRST), claim("only", kinds=["reserved"])]
    assert {
        name: pool.split(":")[0]
        for name, pool in chosen(planned(claims, node_class(OPEN, world), world)).items()
    } == {
        "any": "on-demand",
        "only": "reserved",
    }


@pytest.mark.covers("KRP-20")
def test_a_slot_goes_to_the_claim_that_costs_more_on_demand() -> None:
    world = inventory(odcr("cr-1", "m5.2xlarge"))
    small = claim("a-small", types=["m5.large", "m5.2xlarge"], **FIRST)
    large = claim("b-large", types=["m5.2xlarge"], **FIRST)
    assert chosen(planned([small, large], node_class(OPEN, world), world)) == {
        "a-small": "on-demand:m5.large:us-east-1a",
        "b-large": "reserved:m5.2xlarge:us-east-1a",
    }


@pytest.mark.covers("KRP-20")
def test_priority_comes_before_cost() -> None:
    world = inventory(odcr("cr-1", "m5.2xlarge"))
    small = claim("a-small", types=["m5.large", "m5.2xlarge"], priority=1, **FIRST)
    large = claim("b-large", types=["m5.2xlarge"], **FIRST)
    assert chosen(planned([small, large], node_class(OPEN, world), world))["a-small"].startswith("reserved")


def test_plan_reports_its_solver() -> None:
    world = inventory(odcr("cr-1", free=2))
    claims = [claim(f"c{n}", kinds=["reserved"]) for n in range(3)]
    plan = planned(claims, node_class(OPEN, world), world)
    assert str(plan.solution) == (
        "min-cost flow: 2 claims in reservations, optimal, 0.000 s (1 group of like claims, "
        "1 match with reservations)"
    )


# ---- reservations that are about to begin


def about_to_begin(count: int = 1, **more: Any) -> Odcr:
    """As EC2 shows a reservation created a minute ago: no slot is available yet."""
    begins = {"state": "pending", "created": NOW - minutes(1)}
    return odcr("cr-new", total=count, free=0, **{**begins, **more})


def beside(pending: Odcr, *claims: Claim, **more: Any) -> Plan:
    world = inventory(pending, groups={GROUP: [pending.id]})
    nodeclass = node_class(Selection(group_arn=GROUP), world)
    return planned([*claims], nodeclass, world, **more)


@pytest.mark.covers("SAF-10")
@pytest.mark.parametrize("kinds", [["reserved", "on-demand"], ["reserved"], []])
def test_pending_reservation_holds_as_many_claims_as_it_has_slots(kinds: list[str]) -> None:
    claims = [claim(name, kinds=kinds, priority=9 - n) for n, name in enumerate("abc")]
    plan = beside(about_to_begin(2), *claims)
    held = [unplaced for unplaced in plan.unplaced if unplaced.reason == "ReservationPending"]
    assert [unplaced.claim.name for unplaced in held] == ["a", "b"]
    assert all(unplaced.retry_at == NOW + minutes(4) and "cr-new" in unplaced.message for unplaced in held)
    on_demand = [assignment.claim.name for assignment in plan.assignments]
    assert on_demand == (["c"] if kinds != ["reserved"] else [])


@pytest.mark.covers("SAF-10")
@pytest.mark.parametrize(
    ("more", "holds"),
    [
        ({}, True),
        ({"created": NOW - minutes(5)}, False),
        ({"created": NOW - minutes(60), "start": NOW - minutes(2)}, True),
        ({"created": NOW - minutes(60), "start": NOW + minutes(4)}, True),
        ({"created": NOW - minutes(60), "start": NOW + minutes(6)}, False),
        ({"state": "scheduled", "start": NOW + minutes(3)}, True),
        ({"state": "scheduled", "start": NOW + minutes(30)}, False),
        ({"state": "assessing"}, False),
        ({"state": "delayed", "start": NOW}, False),
        ({"type_name": "m5.2xlarge"}, False),
    ],
)
def test_only_a_reservation_that_may_take_the_claim_within_five_minutes_holds_it(
    more: dict[str, Any], holds: bool
) -> None:
    new_claim = claim("c", (INSTANCE_TYPE, "In", ["m5.xlarge"]), kinds=["reserved", "on-demand"])
    plan = beside(about_to_begin(**more), new_claim)
    assert [unplaced.reason for unplaced in plan.unplaced] == (["ReservationPending"] if holds else [])
    assert [assignment.option.pool.capacity_type for assignment in plan.assignments] == (
        [] if holds else ["on-demand"]
    )


@pytest.mark.covers("SAF-10")
def test_slot_that_is_free_now_is_taken_and_on_demand_claims_do_not_wait() -> None:
    world = inventory(odcr("cr-1"), about_to_begin(), groups={GROUP: ["cr-1", "cr-new"]})
    nodeclass = node_class(Selection(group_arn=GROUP), world)
    both, plain = claim("a", kinds=["reserved", "on-demand"]), claim("b", kinds=["on-demand"])
    plan = planned([both, plain], nodeclass, world)
    assert [assignment.option.pool.capacity_type for assignment in plan.assignments] == [
        "reserved",
        "on-demand",
    ]


@pytest.mark.covers("SAF-10")
def test_gang_waits_whole_for_a_reservation_that_begins() -> None:
    claims = [claim(name, kinds=["reserved", "on-demand"], gang="g", gang_size=2) for name in "ab"]
    plan = beside(about_to_begin(1), *claims)
    assert not plan.assignments
    assert {unplaced.reason for unplaced in plan.unplaced} == {"ReservationPending", "GangIncomplete"}
    assert all(unplaced.retry_at == NOW + minutes(4) for unplaced in plan.unplaced)
