"""Prices of purchases and of held reservations, against the caps: those of the page, or unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from broker.reservations.desired import Caps
from broker.reservations.sizing import InstanceFlavor
from broker.reservations.spending import costs
from providers.prices import slot_price

from .test_procurement import OTHER, P5, RICH, TEAM, TYPES, A, buys, desired, managed, planned, reasons

LOCAL = "us-east-1-bos-1a"
TYPES_TOO = TYPES | {P5: replace(TYPES[P5], zones=frozenset({A, LOCAL}))}


@pytest.mark.covers("SAF-08")
@pytest.mark.parametrize(
    ("zones", "caps", "bought", "why"),
    [
        ((LOCAL,), RICH, [], ["PriceUnknown"]),
        ((LOCAL,), Caps(dollars=math.inf), [(P5, LOCAL, 8)], []),
        ((LOCAL, A), RICH, [(P5, A, 8)], []),
        ((A, LOCAL), Caps(dollars=300.0), [(P5, A, 3)], ["SpendingCapReached"]),
        (("use1-az4",), Caps(dollars=300.0), [(P5, "use1-az4", 3)], ["SpendingCapReached"]),
        (("use1-bos1-az1",), RICH, [], ["PriceUnknown"]),
    ],
    ids=["Local Zone", "no cap", "Local Zone first", "Local Zone last", "zone id", "id of a Local Zone"],
)
def test_a_purchase_has_the_price_of_its_zone(
    zones: tuple[str, ...], caps: Caps, bought: list[tuple[str, str, int]], why: list[str]
) -> None:
    flavor = InstanceFlavor(name="h100", instance_types=(P5,), zones=zones)
    procurement = planned(desired(64, flavor), caps=caps, types=TYPES_TOO)
    assert (buys(procurement), reasons(procurement)) == (bought, why)


@pytest.mark.covers("SAF-08")
def test_a_held_reservation_in_a_local_zone_leaves_the_spending_unknown() -> None:
    held = managed("cr-1", 1, reserved=OTHER)
    assert buys(planned(desired(), odcrs=(held,), types=TYPES_TOO)) == [(P5, A, 8)]
    local = replace(held, zone=LOCAL)
    (problem,) = planned(desired(), odcrs=(local,), types=TYPES_TOO).statuses[TEAM].problems
    assert problem.reason == "PriceUnknown"
    assert f"the price of {P5} in {LOCAL}, held in all, is unknown" in problem.message
    assert costs([held, local], TYPES_TOO) == (
        f"2 instances, 100.00 dollars an hour without the unknown price of {P5} in {LOCAL}"
    )


@pytest.mark.covers("SAF-08")
def test_zone_of_an_unknown_price_is_named_only_if_it_is_the_cause() -> None:
    flavor = InstanceFlavor(name="h100", instance_types=(P5,), zones=(LOCAL,))
    (problem,) = planned(desired(64, flavor), types=TYPES_TOO).statuses[TEAM].problems
    assert f"its price in {LOCAL} is unknown" in problem.message
    unpriced = {P5: replace(TYPES[P5], on_demand_price=None)}
    (problem,) = planned(desired(), types=unpriced).statuses[TEAM].problems
    assert "its price is unknown" in problem.message


def test_a_block_with_the_tags_of_a_purchase_is_paid_already() -> None:
    block = managed("cr-1", 9, reserved=OTHER, reservation_type="capacity-block")
    assert buys(planned(desired(), odcrs=(block,), caps=Caps(dollars=800.0))) == [(P5, A, 8)]
    assert costs([block], TYPES) == "9 instances, 0.00 dollars an hour"
    assert slot_price(TYPES, block) == 0.0
