"""Assignments as fleet calls, and the distribution of their responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.names import RESERVATION_ID, RESERVATION_TYPE
from broker.capacity.inventory import Inventory
from broker.capacity.launches import Distribution, LaunchGroup, distribute, group, refused, undone
from broker.capacity.model import Claim, NodeClass, ReservationTerm, Selection
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.types import EFA
from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchError, LaunchResult, ReservationTarget
from providers.model import Image, Instance, InstanceType, Subnet

from .builders import (
    GROUP,
    NOW,
    TYPES,
    claim,
    instance,
    inventory,
    minutes,
    node_class,
    odcr,
    planned,
    type_,
)

BOTH = ["reserved", "on-demand"]
BOTH_IDS = (ReservationTerm(id="cr-1"), ReservationTerm(id="cr-2"))
OPEN = Selection(preference="open")
BY_ID = Selection(reservation_id="cr-1")
OUTPOST = "arn:aws:outposts:us-east-1:111122223333:outpost/op-1"
FULL = LaunchError(code="ReservationCapacityExceeded", message="no slot", class_=ErrorClass.RESERVATION_FULL)


def groups(
    claims: Sequence[Claim],
    classes: NodeClass | Sequence[NodeClass],
    world: Inventory | None = None,
    *,
    shortages: Shortages | None = None,
) -> list[LaunchGroup]:
    known = [classes] if isinstance(classes, NodeClass) else list(classes)
    plan = planned(claims, known, world or inventory(), shortages=shortages)
    return group(
        reversed(plan.assignments),  # in any order
        node_classes={nodeclass.name: nodeclass for nodeclass in known},
        types=TYPES,
        shortages=shortages or Shortages(),
        now=NOW,
    )


def only(calls: Sequence[LaunchGroup]) -> LaunchGroup:
    (call,) = calls
    return call


def by_id(count: int = 2, *, free: int | None = None, **more: Any) -> LaunchGroup:
    world = inventory(odcr("cr-1", free=count if free is None else free))
    claims = [claim(f"c{n}", kinds=["reserved"], **more) for n in range(count)]
    return only(groups(claims, node_class(BY_ID, world), world))


def distributed(call: LaunchGroup, *instances: Instance, errors: Sequence[LaunchError] = ()) -> Distribution:
    return distribute(call, LaunchResult(instances=instances, errors=tuple(errors)))


@pytest.mark.covers("KRP-21")
def test_same_inputs_are_one_call() -> None:
    call = by_id(5)
    assert call.count == 5
    assert call.target == ReservationTarget(preference="capacity-reservations-only", reservation_id="cr-1")
    (override,) = call.overrides
    assert (override.instance_type, override.zone, override.subnet_id) == (
        "m5.xlarge",
        "us-east-1a",
        "subnet-a",
    )


@pytest.mark.covers("KRP-21")
def test_different_inputs_are_several_calls() -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2"))
    classes = [
        node_class(BY_ID, world),
        node_class(BY_ID, world, name="other"),
    ]
    claims = [
        claim("a", kinds=["reserved"]),
        claim("b", node_class="other", kinds=["on-demand"]),
        claim("c", kinds=["on-demand"], types=["m5.large"]),
        claim("d", kinds=["on-demand"], types=["m5.xlarge"]),
        claim("e", kinds=["on-demand"], types=["c6g.xlarge"]),
        claim("f", kinds=["on-demand"], types=["c6g.xlarge"], template="other user data"),
        claim("g", kinds=["spot"], types=["m5.large"]),
    ]
    calls = groups(claims, classes, world)
    assert [[assignment.claim.name for assignment in call.assignments] for call in calls] == [
        [claim.name] for claim in claims
    ]
    assert {call.image.id for call in calls if "e" in call.assignments[0].claim.name} == {"ami-arm64"}
    assert [call.market for call in calls] == ["on-demand"] * 6 + ["spot"]


@pytest.mark.covers("KRP-21")
def test_types_with_unequal_numbers_of_efas_are_not_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The template names an interface for each EFA; without EFA any type is allowed."""
    for name, efas in (("p4d.24xlarge", 4), ("p4de.24xlarge", 4)):
        instance_type = type_(name, vcpus=96, memory_gib=1152, price=20.0, gpus=8, efa_interfaces=efas)
        monkeypatch.setitem(cast("dict[str, InstanceType]", TYPES), name, instance_type)
    world = inventory()
    for requests, names in (
        ({"nvidia.com/gpu": 8.0, EFA: 4.0}, {"p4d.24xlarge", "p4de.24xlarge"}),
        ({"nvidia.com/gpu": 8.0}, {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge"}),
    ):
        (call, *_) = groups([claim("c", kinds=["on-demand"], requests=requests)], node_class(), world)
        assert {override.instance_type for override in call.overrides} == names


@pytest.mark.covers("KRP-21")
def test_two_reservations_of_one_type_and_zone_are_two_calls() -> None:
    # EC2 refuses a fleet with two entries of one type and zone, even of different targets.
    world = inventory(odcr("cr-1"), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    pin = "karpenter.k8s.aws/capacity-reservation-id"
    claims = [claim(f"c{n}", (pin, "In", [f"cr-{n}"]), kinds=["reserved"]) for n in (1, 2)]
    calls = groups(claims, node_class(Selection(group_arn=GROUP), world), world)
    assert [call.target.reservation_id for call in calls] == ["cr-1", "cr-2"]
    open_to_both = claim("c3", (pin, "Exists", []), kinds=["reserved"])
    calls = groups([open_to_both], node_class(Selection(terms=BOTH_IDS), world), world)
    assert [len(call.overrides) for call in calls] == [1]


def test_launches_that_name_a_reservation_go_before_those_that_could_take_its_slot() -> None:
    world = inventory(odcr("cr-1", free=9), groups={GROUP: ["cr-1"]})
    classes = [
        node_class(selection, world, name=name)
        for name, selection in (
            ("open", OPEN),
            ("group", Selection(group_arn=GROUP)),
            ("id", BY_ID),
            ("plain", Selection()),
        )
    ]
    claims = [claim(nodeclass.name, node_class=nodeclass.name, types=["m5.xlarge"]) for nodeclass in classes]
    calls = groups(claims, classes, world)
    assert [(call.assignments[0].claim.name, call.wave) for call in calls] == [
        ("id", 0),
        ("group", 1),
        ("open", 2),
        ("plain", 3),
    ]


@pytest.mark.parametrize(
    ("kinds", "requirements", "preference", "spills"),
    [
        (BOTH, [], "open", True),
        (["reserved"], [], "capacity-reservations-only", False),
        (BOTH, [(RESERVATION_ID, "In", ["cr-1"])], "capacity-reservations-only", False),
        (BOTH, [(RESERVATION_TYPE, "Exists", [])], "capacity-reservations-only", False),
        (BOTH, [(RESERVATION_ID, "NotIn", ["cr-9"])], "open", True),
    ],
)
def test_open_launch_spills_inside_ec2_only_if_the_claim_may_leave_reservations(
    kinds: list[str], requirements: list[Any], preference: str, spills: bool
) -> None:
    world = inventory(odcr("cr-1"))
    call = only(groups([claim("c", *requirements, kinds=kinds)], node_class(OPEN, world), world))
    assert call.target == ReservationTarget(preference=preference)  # type: ignore[arg-type]
    assert call.spills == spills


@pytest.mark.parametrize(
    ("requirements", "preference"),
    [([], "open"), ([(RESERVATION_ID, "NotIn", ["cr-1"])], "none"), ([("team", "In", ["ml"])], "open")],
)
def test_on_demand_launch_matches_openly_only_if_any_reservation_will_do(
    requirements: list[Any], preference: str
) -> None:
    world = inventory(odcr("cr-1", free=0))
    call = only(groups([claim("c", *requirements, kinds=BOTH)], node_class(OPEN, world), world))
    assert (call.capacity_type, call.target.preference) == ("on-demand", preference)


@pytest.mark.covers("KRP-15")
@pytest.mark.parametrize(
    ("kind", "market"),
    [
        ({}, "on-demand"),
        ({"reservation_type": "capacity-block", "end": NOW + minutes(600)}, "capacity-block"),
        ({"interruptible": True}, "interruptible-capacity-reservation"),
    ],
)
def test_market_type_by_reservation(kind: dict[str, Any], market: str) -> None:
    world = inventory(odcr("cr-1", "p5.48xlarge", match_criteria="targeted", **kind))
    call = only(groups([claim()], node_class(BY_ID, world), world))
    assert (call.market, call.capacity_type) == (market, "reserved")


@pytest.mark.covers("KRP-21")
def test_unreserved_call_requests_all_pools_of_its_kind_once_cheapest_first() -> None:
    call = only(groups([claim(kinds=["on-demand"], types=["m5.large", "m5.xlarge"])], node_class()))
    requested = [(override.instance_type, override.zone, override.priority) for override in call.overrides]
    assert requested == [
        ("m5.large", "us-east-1a", 0),
        ("m5.large", "us-east-1b", 1),
        ("m5.large", "us-east-1c", 2),
        ("m5.xlarge", "us-east-1a", 3),
        ("m5.xlarge", "us-east-1b", 4),
        ("m5.xlarge", "us-east-1c", 5),
    ]


def test_call_requests_only_types_of_its_image_architecture() -> None:
    call = only(groups([claim(kinds=["on-demand"], types=["c6g.xlarge", "m5.xlarge"])], node_class()))
    assert {override.instance_type for override in call.overrides} == {"c6g.xlarge"}
    assert call.image.id == "ami-arm64"


def test_call_requests_only_types_that_its_image_supports() -> None:
    images = (Image(id="ami-plain", accelerator="none"), Image(id="ami-gpu", accelerator="nvidia"))
    nodeclass = node_class(images=images)
    plain = only(groups([claim(kinds=["on-demand"], types=["m5.large", "p5.48xlarge"])], nodeclass))
    assert (plain.image.id, {override.instance_type for override in plain.overrides}) == (
        "ami-plain",
        {"m5.large"},
    )
    gpu = only(groups([claim(kinds=["on-demand"], types=["p5.48xlarge"])], nodeclass))
    assert gpu.image.id == "ami-gpu"


@pytest.mark.parametrize(("zones", "pools"), [("abc", 180), ("abcdef", 300)])
def test_call_requests_at_most_sixty_types_and_three_hundred_pools(zones: str, pools: int) -> None:
    zone_names = [f"us-east-1{zone_letter}" for zone_letter in zones]
    large = replace(TYPES["m5.large"], zones=frozenset(zone_names))
    types = {
        f"m{n}.large": replace(large, name=f"m{n}.large", on_demand_price=1 + n / 100) for n in range(100)
    }
    nodeclass = node_class(zones=zone_names)
    plan = planned([claim()], nodeclass, inventory(), types=types)
    call = only(
        group(
            plan.assignments,
            node_classes={"default": nodeclass},
            types=types,
            shortages=Shortages(),
            now=NOW,
        )
    )
    assert len({override.instance_type for override in call.overrides}) <= 60
    assert len(call.overrides) == pools


@pytest.mark.covers("KRP-21")
def test_more_than_a_thousand_are_several_calls() -> None:
    calls = groups(
        [claim(f"c{n:04}", kinds=["on-demand"], types=["m5.large"]) for n in range(2100)], node_class()
    )
    assert [call.count for call in calls] == [1000, 1000, 100]


@pytest.mark.covers("KRP-22")
def test_a_gang_is_a_call_of_its_own_that_launches_whole() -> None:
    claims = [
        claim("a", kinds=["on-demand"], types=["m5.large"]),
        claim("b", kinds=["on-demand"], types=["m5.large"], gang="g"),
        claim("c", kinds=["on-demand"], types=["m5.large"], gang="g"),
    ]
    calls = groups(claims, node_class())
    assert [(call.gang, call.count, call.minimum) for call in calls] == [("", 1, 0), ("g", 2, 2)]


def test_launch_uses_the_subnet_with_most_addresses_that_did_not_run_out_lately() -> None:
    subnets = tuple(
        Subnet(id=id_, zone="us-east-1a", available_addresses=free)
        for id_, free in (("subnet-1", 5), ("subnet-2", 50), ("subnet-3", 20))
    )
    nodeclass = node_class(subnets=subnets)
    new_claim = claim(kinds=["on-demand"], types=["m5.large"])
    assert only(groups([new_claim], nodeclass)).overrides[0].subnet_id == "subnet-2"
    short = Shortages().record(Scope("subnet", "subnet-2"), class_=ErrorClass.SUBNET, code="Code", now=NOW)
    assert only(groups([new_claim], nodeclass, shortages=short)).overrides[0].subnet_id == "subnet-3"


def test_zone_without_free_subnet_addresses_is_not_requested() -> None:
    short = Shortages().record(Scope("subnet", "subnet-b"), class_=ErrorClass.SUBNET, code="Code", now=NOW)
    call = only(groups([claim(kinds=["on-demand"], types=["m5.large"])], node_class(), shortages=short))
    assert [override.zone for override in call.overrides] == ["us-east-1a", "us-east-1c"]


def test_a_reservation_on_an_outpost_is_launched_into_from_its_subnet() -> None:
    subnets = (
        Subnet(id="subnet-1", zone="us-east-1a", available_addresses=500),
        Subnet(id="subnet-2", zone="us-east-1a", available_addresses=5, outpost_arn=OUTPOST),
    )
    world = inventory(odcr("cr-1", outpost_arn=OUTPOST))
    nodeclass = node_class(BY_ID, world, subnets=subnets)
    assert only(groups([claim(kinds=["reserved"])], nodeclass, world)).overrides[0].subnet_id == "subnet-2"
    plain = only(groups([claim(kinds=["on-demand"], types=["m5.large"])], nodeclass, world))
    assert plain.overrides[0].subnet_id == "subnet-1"


@pytest.mark.parametrize(
    ("full", "kinds", "used"),
    [
        ("subnet-1", ["reserved", "on-demand"], ["subnet-2"]),
        ("subnet-2", ["reserved", "on-demand"], ["subnet-1", "subnet-3"]),
        ("subnet-1", ["on-demand"], ["subnet-3"]),
        ("subnet-2", ["on-demand"], ["subnet-1", "subnet-3"]),
    ],
)
def test_subnet_on_an_outpost_does_not_hide_a_full_one_outside(
    full: str, kinds: list[str], used: list[str]
) -> None:
    outposts = {"subnet-1": "", "subnet-2": OUTPOST, "subnet-3": ""}
    subnets = tuple(
        Subnet(id=id_, zone=f"us-east-1{'b' if id_ == 'subnet-3' else 'a'}", outpost_arn=outpost)
        for id_, outpost in outposts.items()
    )
    world = inventory(odcr("cr-1", outpost_arn=OUTPOST))
    short = Shortages().record(Scope("subnet", full), class_=ErrorClass.SUBNET, code="Code", now=NOW)
    new_claim = claim(kinds=kinds, types=["m5.xlarge"])
    call = only(groups([new_claim], node_class(BY_ID, world, subnets=subnets), world, shortages=short))
    assert [override.subnet_id for override in call.overrides] == used


def test_the_image_is_of_the_reservations_platform() -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2", platform="Windows"))
    images = (Image(id="ami-linux"), Image(id="ami-windows", platform="Windows"))
    both = node_class(Selection(terms=BOTH_IDS), world, images=images)
    new_claim = claim("c", (RESERVATION_ID, "In", ["cr-2"]))
    assert only(groups([new_claim], both, world)).image.id == "ami-windows"


@pytest.mark.covers("KRP-21")
def test_partial_fulfillment_gives_instances_in_priority_order_and_sends_the_rest_on() -> None:
    world = inventory(odcr("cr-1", free=3))
    claims = [claim(f"c{n}", kinds=["reserved"], priority=n) for n in range(3)]
    call = only(groups(claims, node_class(BY_ID, world), world))
    answer = distributed(call, instance("i-1", reservation="cr-1"), errors=[FULL])
    assert [(pair.claim.name, pair.instance.id) for pair in answer.pairs] == [("c2", "i-1")]
    assert [(refusal.claim.name, refusal.errors) for refusal in answer.refused] == [
        ("c1", (FULL,)),
        ("c0", (FULL,)),
    ]
    assert answer.surplus == ()


@pytest.mark.covers("KRP-33")
@pytest.mark.parametrize(
    ("selection", "landed", "spilled"),
    [
        (BY_ID, "cr-1", False),
        (BY_ID, "", True),
        (BY_ID, "cr-9", True),
        (OPEN, "cr-1", False),
        (OPEN, "", True),
        (Selection(group_arn=GROUP), "cr-1", False),
        (Selection(group_arn=GROUP), "", True),
    ],
)
def test_whether_an_instance_is_reserved_is_read_from_ec2_never_from_the_request(
    selection: Selection, landed: str, spilled: bool
) -> None:
    world = inventory(odcr("cr-1"), groups={GROUP: ["cr-1"]})
    call = only(groups([claim()], node_class(selection, world), world))
    (pair,) = distributed(call, instance("i-1", reservation=landed)).pairs
    assert pair.spilled == spilled


@pytest.mark.covers("KRP-33")
def test_undescribed_instance_is_neither_spilled_nor_unwanted() -> None:
    world = inventory(odcr("cr-1"))
    call = only(groups([claim(kinds=["reserved"])], node_class(BY_ID, world), world))
    (pair,) = distributed(call, instance("i-1", described=False)).pairs
    assert not pair.spilled
    assert not pair.unwanted


@pytest.mark.covers("KRP-33")
def test_an_on_demand_launch_that_ec2_counts_in_a_reservation_did_not_spill() -> None:
    call = only(groups([claim(types=["m5.xlarge"])], node_class(OPEN)))
    (pair,) = distributed(call, instance("i-1", reservation="cr-7")).pairs
    assert not pair.spilled


@pytest.mark.covers("KRP-33")
def test_first_claims_get_the_reserved_instances_of_a_call_that_spilled_in_part() -> None:
    world = inventory(odcr("cr-1", free=2))
    claims = [claim("low"), claim("high", priority=1)]
    call = only(groups(claims, node_class(OPEN, world), world))
    answer = distributed(call, instance("i-1"), instance("i-2", reservation="cr-1"))
    assert [(pair.claim.name, pair.instance.id, pair.spilled) for pair in answer.pairs] == [
        ("high", "i-2", False),
        ("low", "i-1", True),
    ]


@pytest.mark.covers("KRP-33")
@pytest.mark.parametrize(
    ("kinds", "requirements", "unwanted"),
    [
        (["reserved"], [], True),
        ([], [], False),
        ([], [(RESERVATION_ID, "In", ["cr-1"])], True),
        ([], [(RESERVATION_ID, "NotIn", ["cr-2"])], False),
    ],
)
def test_an_instance_off_the_reservations_is_unwanted_by_a_claim_that_takes_nothing_else(
    kinds: list[str], requirements: list[Any], unwanted: bool
) -> None:
    world = inventory(odcr("cr-1"))
    call = only(groups([claim("c", *requirements, kinds=kinds)], node_class(BY_ID, world), world))
    (pair,) = distributed(call, instance("i-1")).pairs
    assert pair.unwanted == unwanted
    for runs_in in ("cr-1", "cr-9"):
        (pair,) = distributed(call, instance("i-1", reservation=runs_in)).pairs
        assert not pair.unwanted


def test_instances_beyond_the_request_are_surplus() -> None:
    call = by_id(1)
    foreign = instance("i-9", "t3.micro", reservation="cr-1")
    answer = distributed(
        call, foreign, instance("i-2", reservation="cr-1"), instance("i-1", reservation="cr-1")
    )
    assert [pair.instance.id for pair in answer.pairs] == ["i-1"]
    assert {surplus.id for surplus in answer.surplus} == {"i-2", "i-9"}
    assert answer.refused == ()


def test_missing_instances_without_an_error_are_transient_and_no_shortage() -> None:
    (refusal,) = distributed(by_id(1)).refused
    (error,) = refusal.errors
    assert error.class_ is ErrorClass.TRANSIENT
    assert error.message == "EC2 gave 0 of 1 instance and no error"


@pytest.mark.covers("KRP-18")
def test_refused_call_is_an_error_of_each_requested_pool() -> None:
    call = only(groups([claim("a", kinds=["on-demand"], types=["m5.large"])], node_class()))
    error = ProviderError("InsufficientInstanceCapacity", "none", class_=ErrorClass.CAPACITY)
    answer = refused(call, error)
    assert answer.pairs == ()
    (refusal,) = answer.refused
    assert [(error.code, error.zone, error.subnet_id) for error in refusal.errors] == [
        ("InsufficientInstanceCapacity", "us-east-1a", "subnet-a"),
        ("InsufficientInstanceCapacity", "us-east-1b", "subnet-b"),
        ("InsufficientInstanceCapacity", "us-east-1c", "subnet-c"),
    ]


def test_an_error_leads_back_to_the_option_it_is_about() -> None:
    call = only(groups([claim("a", kinds=["on-demand"], types=["m5.large"])], node_class()))
    assert str(call.option("m5.large", "us-east-1c").pool) == "on-demand:m5.large:us-east-1c"
    assert call.option("", "") == call.assignments[0].option
    assert [call.subnet("m5.large", zone) for zone in ("us-east-1c", "")] == ["subnet-c", "subnet-a"]


@pytest.mark.covers("KRP-22")
def test_partial_gang_instances_are_returned_from_every_call() -> None:
    whole = by_id(2, gang="g")
    first = distributed(whole, instance("i-1", reservation="cr-1"), instance("i-2", reservation="cr-1"))
    other = distributed(by_id(1, gang="g"), errors=[FULL])
    single = distributed(by_id(2), instance("i-3", reservation="cr-1"), errors=[FULL])
    assert undone([first, single]) == ()
    assert [pair.instance.id for pair in undone([first, other, single])] == ["i-1", "i-2"]


@st.composite
def _answers(draw: st.DrawFn) -> tuple[LaunchGroup, list[Instance], list[LaunchError]]:
    call = by_id(draw(st.integers(1, 5)))
    instances = [
        instance(f"i-{n}", draw(st.sampled_from(["m5.xlarge", "t3.micro"])), reservation=landed)
        for n, landed in enumerate(draw(st.lists(st.sampled_from(["cr-1", ""]), max_size=7)))
    ]
    return call, draw(st.permutations(instances)), draw(st.lists(st.just(FULL), max_size=2))


@pytest.mark.covers("KRP-21")
@given(_answers())
def test_every_claim_and_every_instance_is_in_exactly_one_place(
    answer: tuple[LaunchGroup, list[Instance], list[LaunchError]],
) -> None:
    call, instances, errors = answer
    result = distribute(call, LaunchResult(instances=tuple(instances), errors=tuple(errors)))
    claims = [pair.claim.name for pair in result.pairs] + [refusal.claim.name for refusal in result.refused]
    assert claims == [assignment.claim.name for assignment in call.assignments]
    given_out = [pair.instance.id for pair in result.pairs] + [instance.id for instance in result.surplus]
    assert sorted(given_out) == sorted(instance.id for instance in instances)
    assert all(refusal.errors for refusal in result.refused)
    ordered = LaunchResult(instances=tuple(sorted(instances, key=lambda i: i.id)), errors=tuple(errors))
    assert distribute(call, ordered) == result
