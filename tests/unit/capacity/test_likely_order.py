"""Equal options in the order of their forecast: the zones of one type at one price."""

from __future__ import annotations

from broker.capacity.inventory import Inventory

from .builders import claim, inventory, node_class, planned, type_

A, B, C = (f"on-demand:m5.large:us-east-1{zone}" for zone in "abc")
TYPES = {
    instance_type.name: instance_type
    for instance_type in (type_("m5.large", price=0.1), type_("m5.xlarge", vcpus=8, price=0.2))
}


def order(world: Inventory) -> list[str]:
    """The pools that a claim tries, in order."""
    new_claim = claim(kinds=["on-demand"])
    (assignment,) = planned(
        [new_claim], node_class(zones=("us-east-1a", "us-east-1b", "us-east-1c")), world, types=TYPES
    ).assignments
    return [str(option.pool).removeprefix("on-demand:") for option in (assignment.option, *assignment.rest)]


def test_likely_zone_of_one_type_and_price_is_requested_first() -> None:
    larges, xlarges = ([f"{name}:us-east-1{zone}" for zone in "abc"] for name in ("m5.large", "m5.xlarge"))
    assert order(inventory()) == [*larges, *xlarges]
    a, b, c = larges
    assert order(inventory(odds={A: 2})) == [b, c, a, *xlarges]
    assert order(inventory(odds={A: 1, C: -1})) == [c, b, a, *xlarges]


def test_the_forecast_never_outweighs_a_price() -> None:
    pools = order(inventory(odds={A: 2, B: 2, C: 2, "on-demand:m5.xlarge:us-east-1c": -2}))
    assert pools == [
        *(f"m5.large:us-east-1{zone}" for zone in "abc"),
        *(f"m5.xlarge:us-east-1{zone}" for zone in "cab"),
    ]


def test_rank_of_an_unreadable_key_changes_nothing() -> None:
    assert order(inventory(odds={"": 2, "on-demand": 2})) == order(inventory())
