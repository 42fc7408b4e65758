"""Gangs whose claims must be in one zone or reservation launch in the one that serves them best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.apis.names import GANG_DOMAIN, RESERVATION_ID, ZONE
from broker.capacity.domains import in_domains
from broker.capacity.model import Claim, LaunchDefaults, Plan, Selection
from tests.support.examples import times

from .builders import GROUP, NOW, claim, inventory, minutes, node_class, odcr, planned

pytestmark = pytest.mark.covers("FLT-30")

A, B = "us-east-1a", "us-east-1b"
BOTH = ("reserved", "on-demand")


def gang(count: int = 2, name: str = "g", *, domain: str = ZONE, **more: Any) -> list[Claim]:
    given = {"kinds": ["reserved"], "types": ["m5.large"], "gang_size": count, **more}
    return [claim(f"{name}-{n}", gang=name, domain=domain, **given) for n in range(count)]


def plan(claims: list[Claim], free: dict[str, int], *, total: int | None = None, **more: Any) -> Plan:
    """The plan with a reservation for each name, in the zone of its first letter, with so many slots."""
    odcrs = [
        odcr(f"cr-{name}", "m5.large", zone=f"us-east-1{name[0]}", free=count, total=total)
        for name, count in free.items()
    ]
    world = inventory(*odcrs, groups={GROUP: [item.id for item in odcrs]})
    defaults = {"defaults": more.pop("defaults")} if "defaults" in more else {}
    return planned(claims, node_class(Selection(group_arn=GROUP), world, **defaults), world, **more)


def launched(result: Plan) -> dict[str, tuple[str, str]]:
    return {
        item.claim.name: (item.option.pool.zone, item.option.pool.capacity_type)
        for item in result.assignments
    }


@pytest.mark.parametrize("free", [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2, "c": 1}])
def test_the_zone_with_slots_for_all_is_chosen(free: dict[str, int]) -> None:
    assert launched(plan(gang(), free)) == {"g-0": (B, "reserved"), "g-1": (B, "reserved")}
    assert launched(plan(gang(kinds=BOTH), free)) == {"g-0": (B, "reserved"), "g-1": (B, "reserved")}


def test_claims_that_may_buy_stay_in_the_zone_with_most_slots() -> None:
    result = launched(plan(gang(3, kinds=BOTH), {"a": 1, "b": 2}))
    assert {zone for zone, _ in result.values()} == {B}
    assert sorted(kind for _, kind in result.values()) == ["on-demand", "reserved", "reserved"]


def test_a_gang_that_no_zone_holds_waits_whole() -> None:
    result = plan(gang(), {"a": 1, "b": 1})
    assert launched(result) == {} and len(result.unplaced) == 2
    assert any(
        f"nothing for g-1 in {A}: {GANG_DOMAIN} keeps it in one {ZONE}, that of its claims with instances or "
        "else the one that serves most of it" in w.message
        for w in result.unplaced
    )
    without = [replace(item, domain="") for item in gang()]
    assert len(launched(plan(without, {"a": 1, "b": 1}))) == 2


def test_the_reservation_with_slots_for_all_is_chosen() -> None:
    result = plan(gang(domain=RESERVATION_ID), {"a": 1, "a2": 2, "b": 1})
    assert {item.option.odcr_ids for item in result.assignments} == {("cr-a2",)}
    assert len(result.assignments) == 2


def test_the_zone_of_claims_that_run_is_kept() -> None:
    last = replace(gang(1)[0], gang_size=2)
    result = plan([last], {"a": 1, "b": 2}, launched={"g": [{ZONE: A}]})
    assert launched(result) == {"g-0": (A, "reserved")}
    assert launched(plan([last], {"b": 2}, launched={"g": [{ZONE: A}]})) == {}


def test_a_claim_waits_until_the_reservation_of_the_others_is_known() -> None:
    (last,) = gang(1, domain=RESERVATION_ID)
    free = {"a": 1, "b": 2}
    result = plan([last], free, launched={"g": [{ZONE: A}]})
    assert launched(result) == {}, result.assignments
    assert launched(plan([last], free, launched={"g": [{RESERVATION_ID: "cr-a"}]})) == {
        "g-0": (A, "reserved")
    }


def test_claims_that_allow_no_common_zone_wait() -> None:
    apart = [
        claim(f"g-{zone}", kinds=["reserved"], types=["m5.large"], zones=[zone], gang="g", domain=ZONE)
        for zone in (A, B)
    ]
    assert launched(plan(apart, {"a": 2, "b": 2})) == {}


def test_one_claim_with_the_domain_is_enough() -> None:
    first, second = gang()
    result = launched(plan([first, replace(second, domain="")], {"a": 1, "b": 2}))
    assert result == {"g-0": (B, "reserved"), "g-1": (B, "reserved")}


def test_a_gang_leaves_the_zone_to_one_that_comes_before_it() -> None:
    first = gang(name="first", priority=5, created=NOW + minutes(1))
    second = gang(name="second")
    result = launched(plan([*second, *first], {"a": 1, "b": 2}))
    assert result == {"first-0": (B, "reserved"), "first-1": (B, "reserved")}
    both = launched(plan([*second, *first], {"a": 2, "b": 2}))
    assert len(both) == 4
    for name in ("first", "second"):
        assert len({zone for key, (zone, _) in both.items() if key.startswith(name)}) == 1


def test_no_gang_is_ever_in_two_zones() -> None:
    counts = itertools.product(range(3), repeat=3)
    for a, b, c in itertools.islice(counts, times(27)):
        claims = [
            *gang(name="x"),
            *gang(name="y", kinds=BOTH, created=NOW + minutes(1)),
            claim("z", kinds=BOTH),
        ]
        result = plan(claims, {"a": a, "b": b, "c": c})
        by_gang = {
            name: {item.option.pool.zone for item in result.assignments if item.claim.gang == name}
            for name in "xy"
        }
        assert all(len(zones) < 2 for zones in by_gang.values()), (a, b, c)
        assert bool(by_gang["x"]) == (max(a, b, c) == 2), (a, b, c)


def test_without_time_the_domains_are_compared_for_the_gang_alone() -> None:
    sizes: list[int] = []

    def trial(part: Sequence[Claim]) -> Plan:
        sizes.append(len(part))
        return Plan()

    older = claim("older", priority=1)
    classes = {"default": node_class(zones=[A, B])}
    in_domains([older, *gang()], classes, {}, trial, lambda: not sizes)
    assert sizes == [3, 2, 2]


@pytest.mark.parametrize("kinds", [("reserved",), ("reserved", "spot"), BOTH, ("on-demand",)])
def test_a_gang_of_one_reservation_waits_while_there_is_none(kinds: tuple[str, ...]) -> None:
    assert launched(plan(gang(domain=RESERVATION_ID, kinds=kinds), {})) == {}


def test_the_narrower_of_two_domains_counts() -> None:
    zone, reservation = gang()[0], gang(domain=RESERVATION_ID)[1]
    for claims in [zone, reservation], [reservation, replace(zone, created=NOW + minutes(1))]:
        result = plan(claims, {"a": 1, "a2": 1, "b": 2})
        assert launched(result) == {"g-0": (B, "reserved"), "g-1": (B, "reserved")}
        assert launched(plan(claims, {"a": 1, "a2": 1})) == {}


def test_a_gang_waits_for_the_zone_that_lacks_least() -> None:
    result = plan(gang(3), {"a": 1, "b": 2})
    assert launched(result) == {}
    assert any(f"nothing for g-2 in {B}: {GANG_DOMAIN}" in w.message for w in result.unplaced)


def test_slots_are_held_in_the_zone_that_lacks_least() -> None:
    defaults = LaunchDefaults(gang_hold_seconds=600)
    result = plan(gang(3, priority=5), {"a": 1, "b": 2}, total=4, defaults=defaults)
    assert [hold.slots for hold in result.holds] == [{"cr-b": 2}]


def test_a_zone_with_a_known_price_comes_before_one_without() -> None:
    """A price of spot is known in zone a only."""
    for zones in (A, B), (B, A):
        result = plan(gang(kinds=("spot",), zones=zones), {})
        assert launched(result) == {"g-0": (A, "spot"), "g-1": (A, "spot")}


def test_a_reservation_that_ec2_does_not_show_yet_is_told_in_words() -> None:
    result = plan(gang(domain=RESERVATION_ID, gang_size=3), {"a": 2}, launched={"g": [{}]})
    text = "is cr-a, needs that of its gang's claims with instances, which EC2 does not show yet"
    assert launched(result) == {} and all(text in waiting.message for waiting in result.unplaced)
