"""Nodes of static pools are granted beside all claims that wait, and following pools count usable slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.entitlement import Borrower, Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.launches import MAX_INSTANCES
from broker.capacity.matching import LEAVES_BEFORE, leaves_at
from broker.capacity.model import Claim, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.static_nodes import (
    UsableSlots,
    granted,
    next_departure,
    staying,
    usable_slots,
)
from broker.capacity.supply import LaunchSupply
from broker.quota.model import Preemption

from .builders import GROUP, IMAGES, NOW, claim, inventory, minutes, node_class, odcr, supply
from .test_plan_properties import World, worlds

RESERVED = ("reserved",)
KINDS = ("reserved", "on-demand")
OWNED = SlotPool("ours", "flavor")


def world_of(inventory_: Inventory, entitlements: Entitlements | None = None) -> LaunchSupply:
    classes = {"default": node_class(Selection(group_arn=GROUP), inventory_)}
    return supply(classes, inventory_, entitlements=entitlements or Entitlements())


def group(*free: int, total: int = 3, **more: Any) -> Inventory:
    ids = [f"cr-{number}" for number, _ in enumerate(free, 1)]
    odcrs = [odcr(id_, total=total, free=n, **more) for id_, n in zip(ids, free, strict=True)]
    return inventory(*odcrs, groups={GROUP: ids})


def count(of: Claim, wanted: int, waiting: Sequence[Claim], given_supply: LaunchSupply) -> int:
    return granted(of, wanted, waiting, given_supply, seconds=60).count


@pytest.mark.covers("FUL-31")
def test_reservation_that_ec2_describes_no_more_has_no_usable_slots() -> None:
    """Its sharing ended, and the class was resolved before that."""
    given_supply = world_of(group(1, 1))
    odcrs = {"cr-2": given_supply.inventory.odcrs["cr-2"]}
    later = replace(given_supply, inventory=replace(given_supply.inventory, odcrs=odcrs))
    assert usable_slots(claim("static", kinds=RESERVED), later).odcr_ids == {"cr-2"}


@pytest.mark.covers("FUL-30", "FUL-32")
@pytest.mark.parametrize(
    ("kinds", "free", "waiting", "wanted", "expected"),
    [
        (RESERVED, 3, 0, 5, 3),
        (RESERVED, 3, 1, 5, 2),
        (RESERVED, 3, 4, 5, 0),
        (RESERVED, 0, 0, 5, 0),
        (KINDS, 0, 0, 5, 5),
        (KINDS, 3, 4, 2, 2),
    ],
    ids=["slots", "beside-a-claim", "all-promised", "full", "on-demand", "on-demand-beside"],
)
def test_a_pool_gets_nodes_beside_the_claims_that_wait(
    kinds: tuple[str, ...], free: int, waiting: int, wanted: int, expected: int
) -> None:
    others = [claim(f"w-{number}", kinds=RESERVED) for number in range(waiting)]
    assert count(claim("static", kinds=kinds), wanted, others, world_of(group(free))) == expected


@pytest.mark.covers("FUL-32")
def test_the_slot_of_a_successor_is_granted_to_no_static_pool() -> None:
    successor = claim("next", kinds=RESERVED, slot="cr-1")
    assert count(claim("static", kinds=RESERVED), 2, [successor], world_of(group(1))) == 0
    assert count(claim("static", kinds=RESERVED), 2, [successor], world_of(group(2))) == 1


@pytest.mark.covers("FUL-32")
def test_priority_takes_no_slot_that_was_promised_before() -> None:
    low = claim("low", kinds=RESERVED, priority=-5)
    assert count(claim("static", kinds=RESERVED, priority=1000), 1, [low], world_of(group(1))) == 0


def test_the_reason_of_a_missing_node_is_that_of_a_claim() -> None:
    result = granted(claim("static", kinds=RESERVED), 2, (), world_of(group(1)), seconds=60)
    assert result.count == 1 and "cr-1 1 of 3" not in result.problem and result.problem


@pytest.mark.covers("FUL-30")
def test_more_claims_than_one_call_takes_are_granted() -> None:
    many = MAX_INSTANCES + 1
    assert count(claim("static", kinds=RESERVED), many, (), world_of(group(many, total=many))) == many


# ---- usable slots


def owned(*, lent: int = 0, queue: str = "ours", peers: tuple[str, ...] = ()) -> Entitlements:
    """`cr-1` belongs to `ours`; so many of its slots are lent."""
    borrowers = tuple(Borrower(odcr_id="cr-1", priority=0, queue="theirs") for _ in range(lent))
    return Entitlements(
        slot_pools={"cr-1": OWNED},
        availability={OWNED: SlotAvailability(quota=9, room=9, lendable=9, borrowers=borrowers)},
        draws={"uid-static": queue} if queue else {},
        borrow={SlotPool("theirs", "flavor"): 9},
        peers={"theirs": frozenset(peers)},
        rules={"ours": Preemption(reclaim="Any")},
    )


@pytest.mark.covers("FUL-31")
@pytest.mark.parametrize(
    ("entitlements", "usable", "open_"),
    [
        (Entitlements(), {"cr-1", "cr-2"}, 3),
        (owned(queue=""), {"cr-2"}, 1),
        (owned(), {"cr-1", "cr-2"}, 3),
        (owned(queue="theirs", peers=("ours",)), {"cr-2"}, 1),
        (owned(lent=1), {"cr-1", "cr-2"}, 4),
    ],
    ids=["unowned", "another-owner", "own", "a-loan", "own-and-lent"],
)
def test_slots_of_other_owners_and_loans_do_not_count(
    entitlements: Entitlements, usable: set[str], open_: int
) -> None:
    slots = usable_slots(claim("static", kinds=RESERVED), world_of(group(2, 1), entitlements))
    assert (set(slots.odcr_ids), slots.open) == (usable, open_)


@pytest.mark.covers("FUL-31")
def test_loans_are_avoided_by_launches() -> None:
    given_supply = world_of(group(2, 1), owned(queue="theirs", peers=("ours",)))
    static = claim("static", kinds=RESERVED)
    slots = usable_slots(static, given_supply)
    assert slots.avoided == ("cr-1",)
    assert count(slots.narrowed(static), 3, (), given_supply) == 1
    assert UsableSlots().narrowed(static) is static


BLOCK = {"reservation_type": "capacity-block"}


@pytest.mark.covers("FUL-31")
@pytest.mark.parametrize(
    ("more", "ends_in", "usable"),
    [
        ({}, None, True),
        ({}, LEAVES_BEFORE + minutes(1), True),
        ({}, LEAVES_BEFORE, False),
        (BLOCK, minutes(41), True),
        (BLOCK, minutes(40), False),
        ({"state": "scheduled", "start": NOW + minutes(60)}, None, False),
        ({"state": "expired"}, None, False),
        ({"state": "cancelled"}, None, False),
    ],
    ids=["endless", "later", "ends", "block", "block-drains", "not-begun", "over", "cancelled"],
)
def test_usable_slots_follow_the_dates_of_a_reservation(
    more: dict[str, Any], ends_in: timedelta | None, usable: bool
) -> None:
    end = None if ends_in is None else NOW + ends_in
    market = "p5.48xlarge" if more is BLOCK else "m5.xlarge"
    dated = odcr("cr-1", market, total=2, free=2, end=end, **more)
    given_supply = world_of(inventory(dated, groups={GROUP: ["cr-1"]}))
    slots = usable_slots(claim("static", kinds=RESERVED), given_supply)
    assert (slots.odcr_ids, slots.open) == ((frozenset({"cr-1"}), 2) if usable else (frozenset(), 0))


@pytest.mark.covers("FUL-31")
def test_full_reservations_stay_usable_and_have_no_open_slot() -> None:
    slots = usable_slots(claim("static", kinds=RESERVED), world_of(group(0, 0)))
    assert (set(slots.odcr_ids), slots.open, slots.avoided) == ({"cr-1", "cr-2"}, 0, ())


ULTRASERVER: dict[str, Any] = {**BLOCK, "ultraserver": True, "unlaunchable": True}


def kept_in(given_supply: LaunchSupply, **more: Any) -> set[str]:
    return {*staying(claim("static", kinds=RESERVED, **more), given_supply)}


@pytest.mark.covers("FUL-31")
def test_what_only_launches_need_ends_no_node() -> None:
    """Requests that fit no more, another image, a zone without a subnet, a type that EC2 does not offer."""
    full = group(0, 0)
    selection = Selection(group_arn=GROUP)
    windows = (replace(IMAGES[0], platform="Windows"),)
    for changed in (
        node_class(selection, full),
        node_class(selection, full, images=windows),
        node_class(selection, full, images=()),
        node_class(selection, full, zones=("us-east-1b",)),
    ):
        given_supply = supply({"default": changed}, full)
        assert kept_in(given_supply, requests={"cpu": 200.0}) == {"cr-1", "cr-2"}
        assert kept_in(replace(given_supply, types={}), types=("m5.xlarge",)) == {"cr-1", "cr-2"}
    assert usable_slots(claim(kinds=RESERVED, requests={"cpu": 200.0}), world_of(full)) == UsableSlots()
    server = odcr("cr-1", "p5.48xlarge", total=2, free=0, end=NOW + minutes(90), **ULTRASERVER)
    assert kept_in(world_of(inventory(server, groups={GROUP: ["cr-1"]}))) == {"cr-1"}


@pytest.mark.covers("FUL-31")
@pytest.mark.parametrize(
    ("of", "entitlements", "expected"),
    [
        ({"types": ("m5.large",)}, Entitlements(), set()),
        ({"zones": ("us-east-1b",)}, Entitlements(), set()),
        ({}, owned(queue=""), {"cr-2"}),
        ({}, owned(), {"cr-1", "cr-2"}),
        ({}, owned(queue="theirs", peers=("ours",)), {"cr-2"}),
        ({}, replace(owned(), barred={"ours": "held"}), {"cr-1", "cr-2"}),
        ({}, replace(owned(queue="?gone"), barred={"?gone": "not found"}), {"cr-1", "cr-2"}),
    ],
    ids=["type", "zone", "another-owner", "own", "a-loan", "own-and-held", "owner-not-found"],
)
def test_nodes_leave_by_requirements_and_owners(
    of: dict[str, Any], entitlements: Entitlements, expected: set[str]
) -> None:
    assert kept_in(world_of(group(0, 0), entitlements), **of) == expected


@pytest.mark.covers("FUL-31")
@pytest.mark.parametrize(
    ("more", "ends_in", "stays"),
    [
        ({}, LEAVES_BEFORE + minutes(1), True),
        ({}, LEAVES_BEFORE, False),
        (BLOCK, minutes(41), True),
        (BLOCK, minutes(40), False),
        ({"state": "expired"}, None, False),
        ({"state": "cancelling"}, None, False),
        ({"state": "unavailable"}, None, True),
        ({"state": "a-new-state"}, None, True),
    ],
)
def test_nodes_leave_by_dates(more: dict[str, Any], ends_in: timedelta | None, stays: bool) -> None:
    end = None if ends_in is None else NOW + ends_in
    world = inventory(odcr("cr-1", total=2, free=0, end=end, **more), groups={GROUP: ["cr-1"]})
    assert kept_in(world_of(world)) == ({"cr-1"} if stays else set())


@pytest.mark.covers("FUL-31")
def test_selection_is_read_with_the_description_that_decides() -> None:
    """The class was resolved with an older description: without a reservation, or with its group."""
    world, older = group(0, 0), inventory(groups={GROUP: []})
    stale = {"default": node_class(Selection(group_arn=GROUP), older)}
    assert kept_in(supply(stale, world)) == {"cr-1", "cr-2"}
    assert kept_in(supply(stale, replace(world, groups={}))) == {"cr-1", "cr-2"}
    assert kept_in(world_of(replace(world, groups=group(0).groups))) == {"cr-1"}


def test_the_next_departure_is_the_first_that_is_to_come() -> None:
    gone, soon, later = (odcr(f"cr-{n}", end=NOW + minutes(n)) for n in (5, 30, 60))
    odcrs = {item.id: item for item in (gone, soon, later)}
    assert next_departure(odcrs, odcrs, NOW) == NOW + minutes(20) == leaves_at(soon)
    assert next_departure(odcrs, ["cr-5", "cr-404"], NOW) is None


# ---- one plan


def served(result: Plan) -> set[str]:
    return {assignment.claim.uid for assignment in result.assignments}


makers = st.lists(
    st.tuples(
        st.sampled_from(["id", "group", "open"]),
        st.sampled_from([["reserved"], ["reserved", "on-demand"]]),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
    max_size=4,
)


@pytest.mark.covers("FUL-32")
@given(worlds(ends=True), makers, st.booleans())
def test_no_two_makers_count_on_one_slot(
    world: World, pools: list[tuple[str, list[str], int, int]], holds: bool
) -> None:
    """However many pools make claims beside those that wait: each claim that was placed stays placed."""
    waiting = [*world.claims]
    if holds and waiting:
        waiting[0] = replace(waiting[0], slot="cr-1")
    given_supply = supply(world.classes, world.inventory, shortages=world.shortages)
    placed = served(plan(waiting, given_supply))
    for number, (class_name, kinds, wanted, priority) in enumerate(pools):
        static = claim(f"p{number}", node_class=class_name, kinds=kinds)
        got = granted(static, wanted, waiting, given_supply, seconds=60).count
        copies = [
            replace(static, uid=f"{static.uid}-{n}", name=f"{static.name}-{n}", created=NOW + minutes(1))
            for n in range(got)
        ]
        waiting += copies
        placed |= {item.uid for item in copies}
        assert served(plan(waiting, given_supply)) >= placed, priority
