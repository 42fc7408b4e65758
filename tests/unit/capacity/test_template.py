"""The reservation target of a launch; a target that EC2 would reject is never built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.model import Option, ReservationTerm, Selection
from broker.capacity.template import target_for
from providers.launch import ReservationTarget

from .builders import GROUP, on_demand, reserved, spot

OPEN, NONE = Selection(preference="open"), Selection(preference="none")
ONLY = Selection(preference="capacity-reservations-only")
BY_ID, BY_GROUP = Selection(reservation_id="cr-1"), Selection(group_arn=GROUP)
BY_TERMS = Selection(terms=(ReservationTerm(id="cr-1"),))
ID_TARGET = ReservationTarget(preference="capacity-reservations-only", reservation_id="cr-1")
GROUP_TARGET = ReservationTarget(preference="capacity-reservations-only", group_arn=GROUP)


@pytest.mark.covers("KRP-12")
@pytest.mark.parametrize(
    ("selection", "option", "falls_back", "target"),
    [
        (OPEN, reserved("", "cr-1"), True, ReservationTarget(preference="open")),
        (OPEN, reserved("", "cr-1"), False, ReservationTarget(preference="capacity-reservations-only")),
        (OPEN, reserved("cr-1"), True, ID_TARGET),
        (OPEN, spot(), True, ReservationTarget(preference="none")),
        (ONLY, reserved("", "cr-1"), True, ReservationTarget(preference="capacity-reservations-only")),
        (BY_ID, reserved("cr-1"), True, ID_TARGET),
        (BY_ID, reserved("cr-1"), False, ID_TARGET),
        (BY_ID, spot(), True, ReservationTarget(preference="none")),
        (BY_GROUP, reserved(GROUP, "cr-1"), True, GROUP_TARGET),
        (BY_GROUP, reserved("cr-1"), True, ID_TARGET),
        (BY_TERMS, reserved("cr-1"), True, ID_TARGET),
        (Selection(), spot(), True, ReservationTarget(preference="none")),
    ],
)
def test_reservation_target_by_selection_and_option(
    selection: Selection, option: Option, falls_back: bool, target: ReservationTarget
) -> None:
    assert target_for(selection, option, falls_back) == target


@pytest.mark.covers("FUL-10")
@pytest.mark.parametrize(
    ("selection", "target"),
    [
        (OPEN, ReservationTarget(preference="open")),
        (BY_ID, ReservationTarget(preference="open")),
        (BY_TERMS, ReservationTarget(preference="open")),
        (BY_GROUP, ReservationTarget(group_arn=GROUP, spills=True)),
    ],
)
def test_instance_outside_reservations_is_launched_so_that_ec2_can_count_it_later(
    selection: Selection, target: ReservationTarget
) -> None:
    none = ReservationTarget(preference="none")
    assert target_for(selection, on_demand(), True, absorbable=True) == target
    assert target_for(selection, on_demand(), True, absorbable=False) == none
    assert target_for(selection, spot(), True, absorbable=True) == none


@pytest.mark.covers("KRP-12")
@pytest.mark.parametrize(
    ("selection", "option", "message"),
    [
        (NONE, reserved("cr-1"), "preference is none, which excludes reservations"),
        (Selection(), reserved("", "cr-1"), "preference is not open"),
        (BY_ID, reserved("", "cr-1"), "preference is not open"),
        (BY_ID, reserved("cr-2"), "the class's reservation is cr-1"),
        (BY_ID, reserved(GROUP, "cr-1"), "the class's group is \\(none\\)"),
        (ONLY, on_demand(), "capacity-reservations-only, which excludes on-demand"),
        (ONLY, spot(), "which excludes spot"),
        (OPEN, reserved("", "cr-1", market="capacity-block"), "never matched openly"),
        (OPEN, on_demand(market="capacity-block"), "cannot be launched into a reservation"),
        (OPEN, on_demand(odcr_ids=("cr-1",)), "cannot be launched into a reservation"),
    ],
)
def test_targets_that_ec2_rejects_or_the_class_excludes_are_never_built(
    selection: Selection, option: Option, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        target_for(selection, option, True)


@given(
    st.sampled_from([OPEN, NONE, ONLY, BY_ID, BY_GROUP, BY_TERMS, Selection()]),
    st.sampled_from([reserved("", "cr-1"), reserved("cr-1"), reserved(GROUP, "cr-1"), on_demand(), spot()]),
    st.booleans(),
    st.booleans(),
)
def test_ec2_accepts_every_built_target_and_only_an_open_class_that_may_fall_back_lets_ec2_spill(
    selection: Selection, option: Option, on_demand_too: bool, absorbable: bool
) -> None:
    try:
        target = target_for(selection, option, on_demand_too, absorbable=absorbable)
    except ValueError:
        return
    # EC2 takes one target, with this preference alone.
    assert not (target.reservation_id and target.group_arn)
    if target.reservation_id or target.group_arn:
        assert target.preference in (None, "capacity-reservations-only")
    if option.pool.capacity_type == "reserved" and target.preference != "capacity-reservations-only":
        assert target.preference == "open"
        assert selection == OPEN
        assert on_demand_too
