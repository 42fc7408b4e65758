"""The reservations that a class's selection resolves to, and the reason against each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.inventory import Inventory
from broker.capacity.matching import ends_at, launchable, resolve
from broker.capacity.model import NodeClass, ReservationTerm, Resolved, Selection
from providers.model import Odcr

from .builders import ACCOUNT, GROUP, IMAGES, NOW, ZONES, inventory, minutes, node_class, odcr, subnets

OUTPOST = "arn:aws:outposts:us-east-1:111122223333:outpost/op-1"
PLACEMENT = "arn:aws:ec2:us-east-1:111122223333:placement-group/pg-1"


ON_OUTPOST = tuple(replace(subnet, outpost_arn=OUTPOST) for subnet in subnets())
WITH_WINDOWS = (*IMAGES, replace(IMAGES[0], id="ami-windows", platform="Windows"))


def resolved_for(
    selection: Selection, world: Inventory, *, now: datetime = NOW, zones: Sequence[str] = ZONES, **more: Any
) -> Resolved:
    fields = {"subnets": subnets(zones), "images": IMAGES, **more}
    of_class = NodeClass(name="default", selection=selection, **fields)
    return resolve(of_class, world, account_id=ACCOUNT, now=now)


def ids(resolved: Resolved) -> list[str]:
    return [odcr.id for odcr in resolved.usable]


def misfits(resolved: Resolved) -> dict[str, str]:
    return {misfit.id: misfit.reason for misfit in resolved.misfits}


@pytest.mark.covers("KRP-05")
@pytest.mark.parametrize("criteria", ["open", "targeted"])
def test_should_resolve_capacity_reservations_by_id_whatever_the_match_criteria(criteria: Any) -> None:
    world = inventory(odcr("cr-1", match_criteria=criteria), odcr("cr-2"))
    assert ids(resolved_for(Selection(reservation_id="cr-1"), world)) == ["cr-1"]


@pytest.mark.covers("KRP-05")
def test_unknown_id_is_reported_with_ec2s_code_and_the_account() -> None:
    resolved = resolved_for(Selection(reservation_id="cr-0"), inventory())
    assert resolved.usable == ()
    (misfit,) = resolved.misfits
    assert (misfit.id, misfit.reason, misfit.code) == (
        "cr-0",
        "ReservationNotFound",
        "InvalidCapacityReservationId.NotFound",
    )
    assert misfit.message == f"reservation cr-0 was not found, or is not shared with account {ACCOUNT}"


# DescribeCapacityReservations: every value of CapacityReservationState.
STATES = {
    "active": "usable",
    "pending": "pending",
    "scheduled": "pending",
    "assessing": "pending",
    "delayed": "pending",
    "payment-pending": "pending",
    "expired": "ReservationExpired",
    "cancelled": "ReservationCancelled",
    "cancelling": "ReservationCancelled",
    "failed": "ReservationFailed",
    "payment-failed": "ReservationFailed",
    "unsupported": "ReservationFailed",
    "unavailable": "ReservationUnavailable",
    "something-new": "ReservationNotActive",
}


@pytest.mark.covers("KRP-05", "KRP-08")
@pytest.mark.parametrize(("state", "expected"), STATES.items())
def test_should_exclude_non_active_capacity_reservations(state: str, expected: str) -> None:
    resolved = resolved_for(Selection(reservation_id="cr-1"), inventory(odcr("cr-1", state=state)))
    assert ids(resolved) == (["cr-1"] if expected == "usable" else [])
    assert [odcr.id for odcr in resolved.pending] == (["cr-1"] if expected == "pending" else [])
    if expected not in ("usable", "pending"):
        (misfit,) = resolved.misfits
        assert misfit.reason == expected
        assert state in misfit.message
        assert misfit.code == "InvalidCapacityReservationState"


@pytest.mark.covers("KRP-06")
def test_group_resolves_to_every_member_and_reports_invisible_ones() -> None:
    world = inventory(
        odcr("cr-1", match_criteria="open"),
        odcr("cr-2", "p5.48xlarge", match_criteria="targeted"),
        odcr("cr-3"),
        odcr("cr-4", state="cancelled"),
        groups={GROUP: ["cr-2", "cr-1", "cr-4", "cr-9"]},
    )
    resolved = resolved_for(Selection(group_arn=GROUP), world)
    assert ids(resolved) == ["cr-1", "cr-2"]
    assert misfits(resolved) == {"cr-4": "ReservationCancelled", "cr-9": "ReservationNotFound"}


@pytest.mark.covers("KRP-06")
def test_a_member_added_to_the_group_is_found_by_the_same_selection() -> None:
    before = inventory(odcr("cr-1"), odcr("cr-2"), groups={GROUP: ["cr-1"]})
    after = inventory(odcr("cr-1"), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    assert ids(resolved_for(Selection(group_arn=GROUP), before)) == ["cr-1"]
    assert ids(resolved_for(Selection(group_arn=GROUP), after)) == ["cr-1", "cr-2"]


def test_unknown_group_is_reported_by_its_arn() -> None:
    (misfit,) = resolved_for(Selection(group_arn=GROUP), inventory()).misfits
    assert (misfit.id, misfit.reason) == (GROUP, "GroupNotFound")
    assert ACCOUNT in misfit.message


@pytest.mark.covers("KRP-07")
@pytest.mark.parametrize("preference", ["open", "capacity-reservations-only"])
def test_open_matches_every_open_reservation_that_the_account_can_use_shared_ones_too(
    preference: Any,
) -> None:
    world = inventory(
        odcr("cr-own"),
        odcr("cr-shared", owner_id="999900001111"),
        odcr("cr-targeted", match_criteria="targeted"),
        odcr("cr-over", state="expired"),
        odcr("cr-windows", platform="Windows"),
    )
    resolved = resolved_for(Selection(preference=preference), world)
    assert ids(resolved) == ["cr-own", "cr-shared"]
    assert misfits(resolved) == {"cr-windows": "PlatformMismatch"}


@pytest.mark.covers("KRP-07")
@pytest.mark.parametrize("selection", [Selection(preference="none"), Selection()])
def test_none_and_nothing_mean_no_reservation(selection: Selection) -> None:
    assert resolved_for(selection, inventory(odcr("cr-1"))) == Resolved()


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([ReservationTerm(id="cr-1")], ["cr-1"]),
        ([ReservationTerm(tags={"team": "ml"})], ["cr-1", "cr-2"]),
        ([ReservationTerm(tags={"team": "*"})], ["cr-1", "cr-2", "cr-3"]),
        ([ReservationTerm(tags={"team": "ml"}, owner_id="999900001111")], ["cr-2"]),
        ([ReservationTerm(owner_id="999900001111")], ["cr-2"]),
        ([ReservationTerm(match_criteria="open")], ["cr-1", "cr-3"]),
        ([ReservationTerm(match_criteria="targeted")], ["cr-2", "cr-4"]),
        ([ReservationTerm(match_criteria="open", tags={"team": "ml"})], ["cr-1"]),
        ([ReservationTerm(match_criteria="targeted", tags={"team": "*"}, owner_id=ACCOUNT)], []),
        ([ReservationTerm(id="cr-4"), ReservationTerm(tags={"team": "web"})], ["cr-3", "cr-4"]),
        ([ReservationTerm(id="cr-4", tags={"team": "web"})], ["cr-4"]),
        ([ReservationTerm()], []),
    ],
    ids=[
        "by id",
        "by tags",
        "by any value of a tag",
        "by tags and owner",
        "by owner",
        "by match criteria open",
        "by match criteria targeted",
        "by match criteria with tags",
        "by match criteria with tags and owner",
        "terms are ORed",
        "an id stands alone",
        "an empty term selects nothing",
    ],
)
def test_should_resolve_capacity_reservations_by_karpenters_terms(
    terms: list[ReservationTerm], expected: list[str]
) -> None:
    world = inventory(
        odcr("cr-1", tags={"team": "ml"}),
        odcr("cr-2", tags={"team": "ml"}, owner_id="999900001111", match_criteria="targeted"),
        odcr("cr-3", tags={"team": "web"}),
        odcr("cr-4", match_criteria="targeted"),
        odcr("cr-5", tags={"team": "ml"}, state="cancelled"),
    )
    resolved = resolved_for(Selection(terms=tuple(terms)), world)
    assert ids(resolved) == expected
    assert resolved.misfits == ()


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("reservation_fields", "class_fields", "reason", "words"),
    [
        ({"platform": "Windows"}, {}, "PlatformMismatch", ["Windows", "Linux/UNIX"]),
        ({}, {"images": ()}, "PlatformMismatch", ["Linux/UNIX", "no image"]),
        ({"tenancy": "dedicated"}, {}, "TenancyMismatch", ["dedicated", "default"]),
        ({}, {"tenancy": "dedicated"}, "TenancyMismatch", ["default", "dedicated"]),
        ({"zone": "us-east-1c"}, {"zones": ["us-east-1a"]}, "ZoneMismatch", ["us-east-1c", "us-east-1a"]),
        ({}, {"zones": []}, "ZoneMismatch", ["us-east-1a", "no subnet"]),
        ({"placement_group_arn": PLACEMENT}, {}, "PlacementGroupMismatch", [PLACEMENT, "no placement group"]),
        ({}, {"placement_group_arn": PLACEMENT}, "PlacementGroupMismatch", ["(none)", PLACEMENT]),
        ({"outpost_arn": OUTPOST}, {}, "OutpostMismatch", [OUTPOST, "no subnet on an Outpost"]),
        ({}, {"subnets": ON_OUTPOST}, "ZoneMismatch", ["us-east-1a", "outside an Outpost"]),
    ],
)
def test_misfits_are_listed_with_both_values(
    reservation_fields: dict[str, Any], class_fields: dict[str, Any], reason: str, words: list[str]
) -> None:
    resolved = resolved_for(
        Selection(reservation_id="cr-1"), inventory(odcr("cr-1", **reservation_fields)), **class_fields
    )
    assert resolved.usable == ()
    (misfit,) = resolved.misfits
    assert misfit.reason == reason
    assert all(word in misfit.message for word in words), misfit.message


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("reservation_fields", "class_fields"),
    [
        ({"tenancy": "dedicated"}, {"tenancy": "dedicated"}),
        ({"placement_group_arn": PLACEMENT}, {"placement_group_arn": PLACEMENT}),
        ({"outpost_arn": OUTPOST}, {"subnets": ON_OUTPOST}),
        ({"platform": "Windows"}, {"images": WITH_WINDOWS}),
        ({"interruptible": None}, {}),
    ],
    ids=["tenancy", "placement group", "Outpost", "one of two platforms", "nil Interruptible field"],
)
def test_matching_reservations_are_usable(
    reservation_fields: dict[str, Any], class_fields: dict[str, Any]
) -> None:
    resolved = resolved_for(
        Selection(reservation_id="cr-1"), inventory(odcr("cr-1", **reservation_fields)), **class_fields
    )
    assert ids(resolved) == ["cr-1"]


@pytest.mark.covers("KRP-08")
def test_group_launch_uses_reservations_in_placement_groups_only_if_it_names_none() -> None:
    # EC2: "not in any placement group" first, then "in any placement group within the group".
    other = PLACEMENT.replace("pg-1", "pg-2")
    world = inventory(
        odcr("cr-1"),
        odcr("cr-2", placement_group_arn=PLACEMENT),
        odcr("cr-3", placement_group_arn=other),
        groups={GROUP: ["cr-1", "cr-2", "cr-3"]},
    )
    assert ids(resolved_for(Selection(group_arn=GROUP), world)) == ["cr-1", "cr-2", "cr-3"]
    assert ids(resolved_for(Selection(group_arn=GROUP), world, placement_group_arn=PLACEMENT)) == ["cr-2"]


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("left", "more", "reason"),
    [
        (0, {}, "ReservationExpired"),
        (-5, {}, "ReservationExpired"),
        (1, {}, None),  # shouldn't mark default capacity reservations as expiring 40 minutes prior
        (41, {"reservation_type": "capacity-block"}, None),
        (40, {"reservation_type": "capacity-block"}, "CapacityBlockEnding"),
        (5, {"reservation_type": "capacity-block"}, "CapacityBlockEnding"),
        (71, {"reservation_type": "capacity-block", "ultraserver": True}, None),
        (70, {"reservation_type": "capacity-block", "ultraserver": True}, "CapacityBlockEnding"),
    ],
)
def test_should_mark_capacity_blocks_as_expiring_40_minutes_prior_to_their_end_date(
    left: int, more: dict[str, Any], reason: str | None
) -> None:
    world = inventory(odcr("cr-1", end=NOW + minutes(left), **more))
    resolved = resolved_for(Selection(reservation_id="cr-1"), world)
    assert misfits(resolved) == ({"cr-1": reason} if reason else {})
    assert ids(resolved) == ([] if reason else ["cr-1"])


@pytest.mark.covers("SAF-16")
@pytest.mark.parametrize("selection", [Selection(reservation_id="cr-1"), Selection(group_arn=GROUP)])
def test_an_ultraserver_that_is_not_launchable_is_a_misfit_and_has_no_free_slot(selection: Selection) -> None:
    server = odcr("cr-1", reservation_type="capacity-block", ultraserver=True, unlaunchable=True)
    world = inventory(server, groups={GROUP: ["cr-1"]})
    resolved = resolved_for(selection, world)
    assert (ids(resolved), misfits(resolved)) == ([], {"cr-1": "ReservationNotLaunchable"})
    assert not launchable(server, NOW) and world.free("cr-1") == 0
    again = replace(server, unlaunchable=False)
    assert ids(resolved_for(selection, inventory(again, groups={GROUP: ["cr-1"]}))) == ["cr-1"]
    begins = replace(server, state="scheduled")
    assert [
        odcr.id for odcr in resolved_for(selection, inventory(begins, groups={GROUP: ["cr-1"]})).pending
    ] == ["cr-1"]


def test_a_reservation_that_starts_soon_must_fit_as_well() -> None:
    world = inventory(odcr("cr-1", state="scheduled", zone="us-east-1c"))
    resolved = resolved_for(Selection(reservation_id="cr-1"), world, zones=["us-east-1a"])
    assert resolved.pending == ()
    assert misfits(resolved) == {"cr-1": "ZoneMismatch"}


def test_a_class_resolves_from_its_subnets_and_images() -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2", zone="us-east-1c"), odcr("cr-3", platform="Windows"))
    nodeclass = node_class(Selection(preference="open"), zones=["us-east-1a"])
    assert misfits(resolve(nodeclass, world, account_id=ACCOUNT, now=NOW)) == {
        "cr-2": "ZoneMismatch",
        "cr-3": "PlatformMismatch",
    }
    (subnet,) = nodeclass.subnets
    outpost = replace(nodeclass, subnets=(replace(subnet, outpost_arn=OUTPOST),))
    outpost_world = inventory(odcr("cr-1"), odcr("cr-4", outpost_arn=OUTPOST))
    assert ids(resolve(outpost, outpost_world, account_id=ACCOUNT, now=NOW)) == ["cr-4"]
    assert ids(resolve(nodeclass, outpost_world, account_id=ACCOUNT, now=NOW)) == ["cr-1"]
    windows = replace(nodeclass, images=WITH_WINDOWS)
    assert ids(resolve(windows, world, account_id=ACCOUNT, now=NOW)) == ["cr-1", "cr-3"]


def test_launches_end_at_the_reservations_end_or_when_a_block_drains() -> None:
    assert ends_at(odcr("cr-1")) is None
    assert ends_at(odcr("cr-1", reservation_type="capacity-block")) is None
    assert ends_at(odcr("cr-1", end=NOW)) == NOW


@pytest.mark.covers("FUL-41", "KRP-29")
@pytest.mark.parametrize(
    ("ultraserver", "extending", "before"),
    [
        (False, False, 40),
        (False, True, 34),  # paid 35 minutes before the end at the latest, and described a minute later
        (True, False, 70),
        (True, True, 70),  # EC2 terminates its instances from 60 minutes before the end, whatever is paid
    ],
)
def test_a_block_drains_before_ec2_terminates_its_instances(
    ultraserver: bool, extending: bool, before: float
) -> None:
    block = odcr(
        "cr-1", end=NOW, reservation_type="capacity-block", ultraserver=ultraserver, extending=extending
    )
    assert ends_at(block) == NOW - minutes(before)


_odcrs: st.SearchStrategy[Odcr] = st.builds(
    odcr,
    st.sampled_from([f"cr-{n}" for n in range(6)]),
    zone=st.sampled_from(ZONES),
    state=st.sampled_from(list(STATES)),
    platform=st.sampled_from(["Linux/UNIX", "Windows"]),
    match_criteria=st.sampled_from(["open", "targeted"]),
    tags=st.sampled_from([{}, {"team": "ml"}]),
    end=st.sampled_from([None, NOW - minutes(1), NOW + minutes(1)]),
)
_selections = st.sampled_from(
    [
        Selection(preference="open"),
        Selection(reservation_id="cr-0"),
        Selection(group_arn=GROUP),
        Selection(terms=(ReservationTerm(tags={"team": "ml"}), ReservationTerm(id="cr-2"))),
    ]
)


def _id(odcr: Odcr) -> str:
    return odcr.id


@given(st.lists(_odcrs, unique_by=_id), _selections, st.randoms(use_true_random=False))
def test_every_selected_reservation_is_in_exactly_one_list_in_any_order(
    odcrs: list[Odcr], selection: Selection, random: Any
) -> None:
    members = ["cr-1", "cr-4", "cr-5"]
    resolved = resolved_for(selection, inventory(*odcrs, groups={GROUP: members}))
    listed = [odcr.id for odcr in (*resolved.usable, *resolved.pending)]
    listed += [misfit.id for misfit in resolved.misfits]
    assert len(listed) == len(set(listed))
    if selection.group_arn:
        assert set(listed) == set(members)
    shuffled = list(odcrs)
    random.shuffle(shuffled)
    random.shuffle(members)
    assert resolved_for(selection, inventory(*shuffled, groups={GROUP: members})) == resolved
