"""Instances outside reservations that EC2 can count in one later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.capacity import launches
from broker.capacity.absorption import ClosedPlaces, absorbs
from broker.capacity.entitlement import Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, NodeClass, ReservationTerm, Selection
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.plan import plan
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.vacancy import Vacancy
from broker.capacity.ways import ways
from providers.errors import ErrorClass
from providers.launch import ReservationTarget
from providers.model import Instance, ReservationGroup

from .builders import GROUP, NOW, TYPES, claim, instance, inventory, minutes, node_class, odcr, supply

BOTH = ["reserved", "on-demand"]
OPEN = Selection(preference="open")
BY_ID, BY_GROUP = Selection(reservation_id="cr-1"), Selection(group_arn=GROUP)
BY_TERMS = Selection(terms=(ReservationTerm(id="cr-1"),))
NEVER = ReservationTarget(preference="none")
MATCHED = ReservationTarget(preference="open")
SPILLED = ReservationTarget(group_arn=GROUP, spills=True)
PLACEMENT = "arn:aws:ec2:us-east-1:111122223333:placement-group/rack"


def world(*more: Any, criteria: str = "open", **reservation: Any) -> Inventory:
    """A full reservation, a member of the group."""
    full = odcr("cr-1", total=1, free=0, match_criteria=criteria, **reservation)
    return inventory(full, *more, groups={GROUP: ["cr-1"]})


def calls(
    selection: Selection, known: Inventory, *claims: Claim, entitlements: Entitlements | None = None
) -> list[launches.LaunchGroup]:
    class_: NodeClass = node_class(selection, known)
    classes: Mapping[str, NodeClass] = {class_.name: class_}
    given = supply(classes, known, **({"entitlements": entitlements} if entitlements else {}))
    assignments = plan(claims, given).assignments
    return launches.group(assignments, node_classes=classes, types=TYPES, shortages=Shortages(), now=NOW)


def target(selection: Selection, known: Inventory, **more: Any) -> ReservationTarget:
    """The target of an on-demand launch beside the reservation."""
    required = claim("c", kinds=BOTH, types=["m5.xlarge"], zones=["us-east-1a"], **more)
    (call,) = calls(selection, known, required)
    assert call.capacity_type == "on-demand"
    return call.target


SELECTIONS = pytest.mark.parametrize(
    ("selection", "criteria", "expected"),
    [
        (OPEN, "open", MATCHED),
        (BY_ID, "open", MATCHED),
        (BY_TERMS, "open", MATCHED),
        (BY_ID, "targeted", NEVER),
        (BY_TERMS, "targeted", NEVER),
        (BY_GROUP, "open", SPILLED),
        (BY_GROUP, "targeted", SPILLED),
        (Selection(preference="none"), "open", NEVER),
        (Selection(), "open", NEVER),
    ],
)


@pytest.mark.covers("FUL-10")
@SELECTIONS
def test_fallback_is_launched_so_that_ec2_can_count_it_in_the_reservations_of_its_class(
    selection: Selection, criteria: str, expected: ReservationTarget
) -> None:
    assert target(selection, world(criteria=criteria)) == expected


@pytest.mark.covers("FUL-10", "FUL-13")
def test_named_reservations_are_matched_openly_only_if_no_other_open_one_is_beside_them() -> None:
    other = odcr("cr-9", total=1, free=0)
    assert target(BY_ID, world(other)) == NEVER
    elsewhere = odcr("cr-9", zone="us-east-1b", total=1, free=0)
    assert target(BY_ID, world(elsewhere)) == MATCHED
    assert target(BY_GROUP, world(other)) == SPILLED  # EC2 counts it in members alone


@pytest.mark.covers("FUL-13")
@pytest.mark.parametrize("selection", [OPEN, BY_ID, BY_GROUP], ids=["open", "id", "group"])
@pytest.mark.parametrize(
    ("draws", "free", "quota", "allowed"),
    [("a", 0, 1, True), ("a", 0, 0, True), ("a", 1, 0, False), ("b", 0, 1, False), ("", 0, 1, False)],
    ids=["owner", "owner-full", "owner-over-quota", "borrower", "stranger"],
)
def test_slots_of_an_owner_are_offered_to_ec2_for_its_own_claims_alone(
    selection: Selection, draws: str, free: int, quota: int, allowed: bool
) -> None:
    known = inventory(odcr("cr-1", total=1, free=free), groups={GROUP: ["cr-1"]})
    pool = SlotPool("a", "f")
    entitlements = Entitlements(
        slot_pools={"cr-1": pool},
        availability={pool: SlotAvailability(quota=quota, room=quota, lendable=quota)},
        draws={"uid-c": draws} if draws else {},
        peers={"b": frozenset({"a"})},
    )
    required = claim("c", kinds=BOTH, types=["m5.xlarge"], zones=["us-east-1a"])
    (call,) = calls(selection, known, required, entitlements=entitlements)
    assert call.capacity_type == "on-demand"
    assert (call.target != NEVER) == allowed


@pytest.mark.covers("FUL-04", "FUL-10")
@pytest.mark.parametrize("selection", [OPEN, BY_GROUP], ids=["open", "group"])
def test_nothing_is_launched_to_be_counted_in_a_slot_that_is_kept_for_a_successor(
    selection: Selection,
) -> None:
    holder = claim("s", kinds=BOTH, types=["m5.xlarge"], slot="cr-1", slot_until=NOW + minutes(9.5))
    other = claim("c", kinds=BOTH, types=["m5.xlarge"], zones=["us-east-1a"])
    (call,) = calls(selection, world(), holder, other)
    assert [assignment.claim.name for assignment in call.assignments] == ["c"]
    assert call.target == NEVER


@pytest.mark.covers("FUL-06", "FUL-10")
@pytest.mark.parametrize("selection", [OPEN, BY_ID, BY_GROUP], ids=["open", "id", "group"])
@pytest.mark.parametrize(("left", "offered"), [(1, False), (0, True)])
def test_slot_that_is_left_to_karpenter_is_not_offered_to_ec2(
    selection: Selection, left: int, offered: bool
) -> None:
    known = inventory(odcr("cr-1", total=1, free=left), groups={GROUP: ["cr-1"]}, left={"cr-1": left})
    assert (target(selection, known) != NEVER) == offered


@pytest.mark.covers("FUL-10", "FUL-11")
@pytest.mark.parametrize("selection", [OPEN, BY_ID, BY_GROUP], ids=["open", "id", "group"])
@pytest.mark.parametrize(
    ("waits", "offered"),
    [
        ({"kinds": ["reserved"]}, False),
        ({"kinds": ["reserved"], "types": ["m5.large"]}, True),  # for no slot of it
        ({"kinds": BOTH}, True),
        ({"kinds": BOTH, "gang": "g", "gang_size": 2}, True),  # it may launch outside once it is complete
        ({"kinds": ["reserved"], "gang": "g", "gang_size": 2}, False),
    ],
    ids=["reserved", "another-type", "with-fallback", "gang-with-fallback", "gang"],
)
def test_nothing_is_launched_to_be_counted_in_a_slot_that_a_claim_without_another_way_waits_for(
    selection: Selection, waits: Mapping[str, Any], offered: bool
) -> None:
    waiting = claim("w", **{"types": ["m5.xlarge"], "zones": ["us-east-1a"], **waits})
    required = claim("c", kinds=BOTH, types=["m5.xlarge"], zones=["us-east-1a"])
    by_claim = {
        assignment.claim.name: call.target
        for call in calls(selection, world(), required, waiting)
        for assignment in call.assignments
    }
    assert (by_claim["c"] != NEVER) == offered


@pytest.mark.covers("FUL-10")
def test_one_call_has_only_pools_of_one_kind_and_the_order_of_the_options_stays() -> None:
    """Beside the named reservation EC2 may count the instance; in other places no class may say so."""
    required = claim("c", kinds=BOTH, types=["m5.xlarge", "m5.2xlarge"], zones=["us-east-1a"])
    (first,) = calls(BY_ID, world(), required)
    assert [(o.instance_type, o.priority) for o in first.overrides] == [("m5.xlarge", 0)]
    assert first.target == MATCHED
    (by_group,) = calls(BY_GROUP, world(), required)
    assert [o.instance_type for o in by_group.overrides] == ["m5.xlarge", "m5.2xlarge"]


def running(**more: Any) -> Instance:
    return instance("i-1", **{"reservation_preference": "open", **more})


@pytest.mark.covers("FUL-10", "FUL-11")
@pytest.mark.parametrize(
    ("runs", "reservation", "expected"),
    [
        ({}, {}, True),
        ({"type_name": "m5.large"}, {}, False),
        ({"zone": "us-east-1b"}, {}, False),
        ({"platform": "Windows"}, {}, False),
        ({"tenancy": "dedicated"}, {}, False),
        ({"lifecycle": "spot"}, {}, False),
        ({"state": "stopped"}, {}, False),
        ({"state": "pending"}, {}, True),
        ({"reservation": "cr-2"}, {}, False),
        ({"reservation_preference": "none"}, {}, False),
        ({"reservation_preference": "capacity-reservations-only"}, {}, False),
        ({}, {"match_criteria": "targeted"}, False),
        ({}, {"state": "cancelled"}, False),
        ({}, {"interruptible": True}, False),
        ({}, {"placement_group_arn": PLACEMENT}, False),
        ({"placement_group": "rack"}, {"placement_group_arn": PLACEMENT}, True),
        ({"reservation_group": GROUP, "reservation_preference": ""}, {"match_criteria": "targeted"}, True),
        ({"reservation_group": f"{GROUP}-2", "reservation_preference": ""}, {}, False),
        ({"reservation_group": GROUP}, {"placement_group_arn": PLACEMENT}, False),
        ({"reservation_group": GROUP, "placement_group": "rack"}, {"placement_group_arn": PLACEMENT}, True),
    ],
)
def test_ec2_can_count_a_running_instance_only_where_all_is_equal_and_it_allows_it(
    runs: Mapping[str, Any], reservation: Mapping[str, Any], expected: bool
) -> None:
    members: Sequence[str] = ("cr-1",)
    groups = {GROUP: ReservationGroup(arn=GROUP, name="gpus", member_ids=tuple(members))}
    assert absorbs(odcr("cr-1", **reservation), running(**runs), groups) == expected


def joined(
    selection: Selection, known: Inventory, *, kept: Sequence[str] = (), short: bool = False, **more: Any
) -> set[str]:
    """The reservations that the on-demand ways of a successor lead into once its node left cr-1."""
    class_ = node_class(selection, known)
    given = supply({class_.name: class_}, known)
    if short:
        scope = Scope("pool", "on-demand:m5.xlarge:us-east-1a")
        refused = Shortages().record(scope, class_=ErrorClass.CAPACITY, code="Insufficient", now=NOW)
        given = replace(given, shortages=refused)
    need = claim("c", **{"kinds": BOTH, "types": ["m5.xlarge"], "zones": ["us-east-1a"], **more})
    vacancy = Vacancy(odcr_id="cr-1", closed=ClosedPlaces(kept, given), supply=given)
    candidates = OptionCatalog(given).candidates(need)
    offered = [*ways(need, candidates, given, vacancy=vacancy)]
    assert all(not way.joins for way in offered if way.odcr_id)
    assert not any(way.joins for way in ways(need, candidates, given))
    return {way.joins for way in offered} - {""}


@pytest.mark.covers("FUL-02")
@SELECTIONS
def test_way_outside_joins_the_slot_that_a_node_leaves_where_ec2_can_count_it(
    selection: Selection, criteria: str, expected: ReservationTarget
) -> None:
    assert joined(selection, world(criteria=criteria)) == (set() if expected == NEVER else {"cr-1"})


@pytest.mark.covers("FUL-02")
@pytest.mark.parametrize("selection", [OPEN, BY_GROUP], ids=["open", "group"])
@pytest.mark.parametrize(
    "given",
    [
        {"kept": ["cr-1"]},
        {"short": True},
        {"kinds": ["reserved"]},
        {"kinds": ["on-demand"]},
        {"zones": ["us-east-1b"]},
        {"types": ["m5.2xlarge"]},
    ],
    ids=str,
)
def test_no_way_joins_a_slot_that_others_need_or_that_its_instance_does_not_match(
    selection: Selection, given: Mapping[str, Any]
) -> None:
    assert joined(selection, world(), **given) == set()


@pytest.mark.covers("FUL-02")
@pytest.mark.parametrize("selection", [OPEN, BY_GROUP], ids=["open", "group"])
def test_way_joins_no_reservation_of_another_platform(selection: Selection) -> None:
    assert joined(selection, world(platform="Windows")) == set()
