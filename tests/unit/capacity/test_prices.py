"""Prices of options outside reservations: the order of spot, exotic types, the ceiling; accelerator slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.capacity import launches
from broker.capacity.entitlement import Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.launches import LaunchGroup
from broker.capacity.model import Claim, LaunchDefaults, NodeClass, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Scope, Shortages
from providers.errors import ErrorClass
from providers.launch import ReservationTarget
from providers.model import InstanceType, MatchCriteria

from .builders import GROUP, IMAGES, NOW, chosen, claim, inventory, node_class, odcr, planned, supply, type_

A = ("us-east-1a",)
SPOT_TOO = ["reserved", "on-demand", "spot"]
BOTH = ["reserved", "on-demand"]
OPEN = Selection(preference="open")
TYPES: Mapping[str, InstanceType] = {
    instance_type.name: instance_type
    for instance_type in (
        type_("m5.large", vcpus=2, price=0.1, spot_prices={"us-east-1a": 0.04}, zones=A),
        type_("m5.xlarge", vcpus=4, price=0.2, spot_prices={"us-east-1a": 0.15}, zones=A),
        type_("m5.metal", vcpus=96, price=0.05, spot_prices={"us-east-1a": 0.01}, zones=A, bare_metal=True),
        type_("g5.xlarge", vcpus=4, price=0.06, gpus=1, zones=A),
        type_("new.large", vcpus=2, zones=A),
        type_("x1.32xlarge", vcpus=128, price=9.0, zones=A),
    )
}


def order(new_claim: Claim, *, shortages: Shortages | None = None, **more: Any) -> list[str]:
    """The pools that the claim tries, in order."""
    classes = node_class(zones=A, **more)
    plan = planned([new_claim], classes, inventory(), types=TYPES, shortages=shortages)
    return [
        str(option.pool)
        for assignment in plan.assignments
        for option in (assignment.option, *assignment.rest)
    ]


def calls(claims: Sequence[Claim], classes: NodeClass, world: Inventory) -> list[LaunchGroup]:
    plan = planned(claims, classes, world, types=TYPES)
    return launches.group(
        plan.assignments,
        node_classes={classes.name: classes},
        types=TYPES,
        shortages=Shortages(),
        now=NOW,
    )


@pytest.mark.covers("KRP-16", "KRP-37")
def test_spot_comes_before_on_demand_unless_it_is_dearer_than_the_cheapest_on_demand() -> None:
    assert order(claim(kinds=SPOT_TOO, types=["m5.large", "m5.xlarge"])) == [
        "spot:m5.large:us-east-1a",
        "on-demand:m5.large:us-east-1a",
        "on-demand:m5.xlarge:us-east-1a",
    ]
    assert order(claim(kinds=["spot"], types=["m5.large", "m5.xlarge"])) == [
        "spot:m5.large:us-east-1a",
        "spot:m5.xlarge:us-east-1a",
    ]


@pytest.mark.covers("KRP-16")
def test_spot_is_launched_after_the_slots_are_taken_and_without_a_target() -> None:
    world = inventory(odcr("cr-1", "m5.large"))
    classes = node_class(OPEN, world, zones=A)
    claims = [claim(f"c{number}", kinds=SPOT_TOO, types=["m5.large"]) for number in (1, 2)]
    first, second = calls(claims, classes, world)
    assert (first.capacity_type, first.target) == ("reserved", ReservationTarget(preference="open"))
    assert (second.capacity_type, second.target) == ("spot", ReservationTarget(preference="none"))
    assert [override.instance_type for override in second.overrides] == ["m5.large"]


@pytest.mark.covers("KRP-16")
def test_on_demand_serves_if_spot_was_refused() -> None:
    short = Shortages().record(
        Scope("pool", "spot:m5.large:us-east-1a"),
        class_=ErrorClass.CAPACITY,
        code="InsufficientInstanceCapacity",
        now=NOW,
    )
    assert order(claim(kinds=SPOT_TOO, types=["m5.large"]), shortages=short) == [
        "on-demand:m5.large:us-east-1a"
    ]


@pytest.mark.covers("KRP-37")
def test_exotic_types_are_left_out_of_a_call_while_plainer_ones_remain() -> None:
    """Metal, accelerators and unknown prices, however cheap."""
    (call,) = calls([claim(kinds=["on-demand"])], node_class(zones=A), inventory())
    assert [override.instance_type for override in call.overrides] == ["m5.large", "m5.xlarge"]
    odd = claim(kinds=["on-demand"], types=["m5.metal", "g5.xlarge", "new.large"])
    (call,) = calls([odd], node_class(zones=A), inventory())
    assert [override.instance_type for override in call.overrides] == ["m5.metal", "g5.xlarge", "new.large"]


@pytest.mark.covers("KRP-37")
def test_no_option_costs_more_than_the_ceiling() -> None:
    every = claim(kinds=["on-demand"], types=["m5.large", "m5.xlarge", "x1.32xlarge"])
    large, xlarge, huge = (
        f"on-demand:{name}:us-east-1a" for name in ("m5.large", "m5.xlarge", "x1.32xlarge")
    )
    assert order(every) == [large, xlarge]
    assert order(every, defaults=LaunchDefaults(price_ceiling=1.5)) == [large]
    assert order(every, defaults=LaunchDefaults(price_ceiling=100)) == [large, xlarge, huge]
    assert order(claim(kinds=["on-demand"], types=["x1.32xlarge"])) == [huge]


@pytest.mark.covers("KRP-36")
def test_fallback_prefers_an_instance_that_ec2_can_count_in_a_reservation_within_the_premium() -> None:
    """EC2 counts such an instance in the reservation once a slot is free."""
    types = {
        instance_type.name: instance_type
        for instance_type in (
            type_("m5.large", vcpus=2, price=0.1, zones=A),
            type_("m6.large", vcpus=2, price=0.109, zones=A),
        )
    }
    new_claim = claim(kinds=BOTH, types=["m5.large", "m6.large"])

    def first(
        selection: Selection, premium: float, new_claim: Claim = new_claim, criteria: MatchCriteria = "open"
    ) -> str:
        full = odcr("cr-1", "m6.large", total=1, free=0, match_criteria=criteria)
        world = inventory(full, groups={GROUP: ["cr-1"]})
        classes = node_class(selection, world, zones=A, defaults=LaunchDefaults(fallback_premium=premium))
        (assignment,) = planned([new_claim], classes, world, types=types).assignments
        return assignment.option.pool.instance_type

    assert first(OPEN, 0.1) == "m6.large"
    assert first(OPEN, 0.05) == "m5.large"
    assert first(Selection(reservation_id="cr-1"), 0.1) == "m6.large"
    assert first(Selection(group_arn=GROUP), 0.1, criteria="targeted") == "m6.large"
    # EC2 would never count it.
    assert first(Selection(reservation_id="cr-1"), 0.1, criteria="targeted") == "m5.large"
    assert first(OPEN, 0.1, claim(kinds=["on-demand"], types=["m5.large", "m6.large"])) == "m5.large"


@pytest.mark.covers("KRP-37")
def test_claim_waits_with_a_reason_if_only_options_above_the_ceiling_are_left() -> None:
    short = Shortages().record(
        Scope("pool", "on-demand:m5.large:us-east-1a"),
        class_=ErrorClass.CAPACITY,
        code="InsufficientInstanceCapacity",
        now=NOW,
    )
    new_claim = claim(kinds=["on-demand"], types=["m5.large", "x1.32xlarge"])
    plan = planned([new_claim], node_class(zones=A), inventory(), types=TYPES, shortages=short)
    (unplaced,) = plan.unplaced
    assert unplaced.reason == "BackingOff"
    assert "1 option costs more than the ceiling of $1.0000 an hour (--price-ceiling)" in unplaced.message


@pytest.mark.covers("KRP-37")
def test_each_call_outside_reservations_has_a_limit_of_its_price() -> None:
    world = inventory(odcr("cr-1", "m5.large"))
    classes = node_class(Selection(reservation_id="cr-1"), world, zones=A)
    claims = [claim(name, kinds=BOTH, types=["m5.large", "m5.xlarge"]) for name in ("c1", "c2")]
    first, second = calls(claims, classes, world)
    assert (first.capacity_type, first.price_limit) == ("reserved", 0.0)
    assert second.capacity_type == "on-demand"
    assert second.price_limit == pytest.approx(1.0)


@pytest.mark.covers("KRP-38")
def test_claim_without_accelerator_leaves_an_accelerator_slot_while_a_plainer_option_exists() -> None:
    world = inventory(odcr("cr-gpu", "g5.xlarge"))
    classes = node_class(OPEN, world, zones=A)
    plain = claim("plain", kinds=BOTH, priority=9)
    gpu_claim = claim("gpu", kinds=BOTH, requests={"nvidia.com/gpu": 1.0})
    plan = planned([plain, gpu_claim], classes, world, types=TYPES)
    assert chosen(plan) == {
        "plain": "on-demand:m5.large:us-east-1a",
        "gpu": "reserved:g5.xlarge:us-east-1a",
    }
    assert [skip.reason for skip in plan.skipped["uid-plain"]] == ["AcceleratorNotRequested"]
    # Without a plainer option the slot serves: no way out of the reservations, or the type required.
    for new_claim in (claim("c", kinds=["reserved"]), claim("c", kinds=BOTH, types=["g5.xlarge"])):
        plan = planned([new_claim], classes, world, types=TYPES)
        assert chosen(plan) == {"c": "reserved:g5.xlarge:us-east-1a"}


@pytest.mark.covers("KRP-38")
def test_claim_waits_for_no_accelerator_slot_that_it_would_leave_to_others() -> None:
    begins = odcr("cr-gpu", "g5.xlarge", total=2, free=0, state="pending", created=NOW)
    world = inventory(begins)
    classes = node_class(OPEN, world, zones=A)
    gpu_claim = claim("gpu", kinds=BOTH, requests={"nvidia.com/gpu": 1.0})
    plan = planned([claim("plain", kinds=BOTH, priority=9), gpu_claim], classes, world, types=TYPES)
    assert chosen(plan) == {"plain": "on-demand:m5.large:us-east-1a"}
    assert [waits.reason for waits in plan.unplaced] == ["ReservationPending"]


@pytest.mark.covers("KRP-38")
def test_plain_slot_comes_before_an_accelerator_slot_for_a_claim_of_reservations_alone() -> None:
    world = inventory(odcr("cr-gpu", "g5.xlarge"), odcr("cr-1", "m5.xlarge"))
    plan = planned([claim("c", kinds=["reserved"])], node_class(OPEN, world, zones=A), world, types=TYPES)
    assert chosen(plan) == {"c": "reserved:m5.xlarge:us-east-1a"}


def test_claim_of_the_owner_of_an_accelerator_slot_takes_it() -> None:
    world = inventory(odcr("cr-gpu", "g5.xlarge"))
    classes = replace(node_class(OPEN, world, zones=A))
    slot_pool = SlotPool("a", "f")
    given = Entitlements(
        slot_pools={"cr-gpu": slot_pool},
        availability={slot_pool: SlotAvailability(quota=1, room=1)},
        draws={"uid-c": "a"},
    )
    owned = supply({"default": classes}, world, types=TYPES, entitlements=given)
    result = plan([claim("c", kinds=BOTH)], owned)
    assert chosen(result) == {"c": "reserved:g5.xlarge:us-east-1a"}


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("more", "price"),
    [
        ({}, 0.1),
        ({"tenancy": "dedicated"}, 0.15),
        ({"images": [replace(image, platform="Red Hat Enterprise Linux") for image in IMAGES]}, None),
    ],
    ids=["plain", "dedicated", "other platform"],
)
def test_an_option_has_the_price_of_its_platform_and_tenancy_or_none(
    more: dict[str, Any], price: float | None
) -> None:
    """An unknown price is not shown, and the order of the options stays that of the types' known prices."""
    dedicated = {"Linux/UNIX": {"dedicated": 0.15}}
    types = {
        "m5.large": replace(TYPES["m5.large"], other_prices=dedicated),
        "m5.xlarge": TYPES["m5.xlarge"],
    }
    classes = node_class(zones=A, **more)
    (assignment,) = planned([claim("c", kinds=["on-demand"])], classes, inventory(), types=types).assignments
    options = (assignment.option, *assignment.rest)
    assert [option.pool.instance_type for option in options] == ["m5.large", "m5.xlarge"]
    assert options[0].usd_hour == price
    assert options[1].usd_hour == (None if more else 0.2)
