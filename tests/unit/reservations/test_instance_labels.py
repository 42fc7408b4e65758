"""Labels that follow from EC2's descriptions of an instance and its reservation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.names import (
    CAPACITY_TYPE,
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    SHOWN_LATER,
)
from broker.reservations.instance_labels import ENDS_WITH_IT, InstanceLabels, instance_labels
from providers.model import Instance, Odcr
from tests.unit.capacity.builders import odcr

RUNNING = Instance(id="i-1", instance_type="m5.xlarge", zone="us-east-1a", state="running")
INSIDE = replace(RUNNING, reservation_id="cr-1")
BARE: Mapping[str, str | None] = {
    CAPACITY_TYPE: "on-demand",
    RESERVATION_ID: None,
    RESERVATION_TYPE: None,
    RESERVATION_INTERRUPTIBLE: None,
}


def reserved(type_: str = "default", interruptible: str = "false") -> dict[str, str | None]:
    return {
        CAPACITY_TYPE: "reserved",
        RESERVATION_ID: "cr-1",
        RESERVATION_TYPE: type_,
        RESERVATION_INTERRUPTIBLE: interruptible,
    }


@pytest.mark.covers("KRP-27", "KRP-28")
@pytest.mark.parametrize(
    ("instance", "reservation", "labels"),
    [
        pytest.param(INSIDE, odcr("cr-1"), reserved(), id="counted in an active one"),
        pytest.param(
            INSIDE, odcr("cr-1", state="cancelling"), reserved(), id="still counted while it winds down"
        ),
        pytest.param(
            replace(INSIDE, lifecycle="capacity-block"),
            odcr("cr-1", reservation_type="capacity-block"),
            reserved("capacity-block"),
            id="counted in a block",
        ),
        pytest.param(
            replace(INSIDE, lifecycle="interruptible-capacity-reservation"),
            odcr("cr-1", interruptible=True),
            reserved("default", "true"),
            id="counted in an interruptible",
        ),
        pytest.param(RUNNING, None, BARE, id="counted in none"),
        pytest.param(INSIDE, odcr("cr-1", state="cancelled"), BARE, id="of a cancelled one"),
        pytest.param(INSIDE, odcr("cr-1", state="expired"), BARE, id="of an expired one"),
        pytest.param(
            replace(RUNNING, lifecycle="spot"), None, {**BARE, CAPACITY_TYPE: "spot"}, id="spot stays spot"
        ),
        pytest.param(INSIDE, None, None, id="counted in one that is not described"),
        pytest.param(replace(RUNNING, described=False), None, None, id="launched, not described yet"),
        pytest.param(replace(RUNNING, state="shutting-down"), None, None, id="ends"),
        pytest.param(replace(RUNNING, state="terminated"), None, None, id="has ended"),
        pytest.param(replace(RUNNING, state="stopped"), None, BARE, id="stopped"),
        pytest.param(replace(RUNNING, lifecycle="capacity-block"), None, None, id="ends with its block"),
        pytest.param(
            replace(INSIDE, lifecycle="interruptible-capacity-reservation"),
            odcr("cr-1", interruptible=True, state="cancelled"),
            None,
            id="ends with its interruptible reservation",
        ),
    ],
)
def test_labels(instance: Instance, reservation: Odcr | None, labels: dict[str, str | None] | None) -> None:
    derived = instance_labels(instance, reservation)
    assert (derived and derived.labels) == labels


@pytest.mark.parametrize(
    ("instance", "reservation", "contradicted"),
    [
        pytest.param(INSIDE, odcr("cr-1", state="cancelled"), True, id="runs in an ended reservation"),
        pytest.param(RUNNING, None, False, id="runs in no reservation"),
        pytest.param(INSIDE, odcr("cr-1"), False, id="runs in an active reservation"),
    ],
)
def test_a_contradiction_of_instance_and_reservation_is_detected(
    instance: Instance, reservation: Odcr | None, contradicted: bool
) -> None:
    derived = instance_labels(instance, reservation)
    assert derived is not None and derived.contradicted is contradicted


IN_ONE, IN_ANOTHER = reserved(), {**reserved(), RESERVATION_ID: "cr-2"}
ON_DEMAND = {CAPACITY_TYPE: "on-demand"}


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (IN_ONE, BARE, "demoted"),
        (ON_DEMAND, IN_ONE, "promoted"),
        (IN_ANOTHER, IN_ONE, "moved"),
        (IN_ONE, IN_ONE, None),
        (ON_DEMAND, BARE, None),
        ({**ON_DEMAND, RESERVATION_ID: "cr-1", RESERVATION_INTERRUPTIBLE: "false"}, BARE, None),
        ({CAPACITY_TYPE: "reserved", RESERVATION_ID: "cr-1"}, IN_ONE, None),
        ({}, IN_ONE, None),  # EC2 did not show the reservation at its launch
        ({}, BARE, None),
    ],
)
def test_changes_of_a_nodes_labels_are_classified(
    before: dict[str, str], after: Any, change: str | None
) -> None:
    assert InstanceLabels(labels=after).change(before) == change


labels = st.dictionaries(
    st.sampled_from([*sorted(SHOWN_LATER), "team"]), st.sampled_from(["reserved", "cr-1", "false", "x"])
)
instances = st.builds(
    Instance,
    id=st.just("i-1"),
    instance_type=st.just("m5.xlarge"),
    zone=st.just("us-east-1a"),
    state=st.sampled_from(["pending", "running", "stopped", "shutting-down", "terminated"]),
    reservation_id=st.sampled_from(["", "cr-1"]),
    lifecycle=st.sampled_from(["", "spot", *ENDS_WITH_IT]),
    described=st.booleans(),
)
odcrs = st.none() | st.builds(
    odcr,
    st.just("cr-1"),
    state=st.sampled_from(["active", "pending", "cancelled", "expired", "cancelling"]),
    reservation_type=st.sampled_from(["default", "capacity-block"]),
    interruptible=st.booleans(),
)


@given(instance=instances, reservation=odcrs, before=labels)
def test_reservation_labels_are_all_set_or_none_and_others_are_unchanged(
    instance: Instance, reservation: Odcr | None, before: dict[str, str]
) -> None:
    derived = instance_labels(instance, reservation)
    if derived is None:
        return
    after = {key: value for key, value in (before | derived.lacking(before)).items() if value is not None}
    three = [key in after for key in SHOWN_LATER if key != CAPACITY_TYPE]
    assert all(three) if after[CAPACITY_TYPE] == "reserved" else not any(three)
    assert after.get("team") == before.get("team")
    assert derived.lacking({k: str(v) for k, v in after.items()}) == {}
    assert derived.change({k: str(v) for k, v in after.items()}) is None
