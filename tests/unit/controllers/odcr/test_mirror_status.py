"""A mirror's fields of a reservation: its source, the cost of its idle slots, its users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.capacity.model import Resolved
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.odcr.mirror import status_of, temporarily_unresolved, users
from broker.reservations.odcr_view import OdcrView, view_of
from tests.unit.capacity.builders import TYPES, odcr


@pytest.mark.covers("KRP-10")
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({}, "other"),
        ({"Name": "training", "team": "research"}, "other"),
        ({"capacity-broker.io/managed-by": "capacity-broker"}, "broker"),
        ({"capacity-broker.io/managed-by": "capacity-broker", "ManagedBy": "terraform"}, "broker"),
        ({"capacity-broker.io/cluster": "blue"}, "other"),
        ({"capacity-broker.io/cluster": "blue", "ManagedBy": "terraform"}, "terraform"),
        ({"ManagedBy": "Terraform"}, "terraform"),
        ({"managed-by": "terraform"}, "terraform"),
        ({"managed_by": "OpenTofu"}, "terraform"),
        ({"app.kubernetes.io/managed-by": "terraform"}, "terraform"),
        ({"terraform": "true"}, "terraform"),
        ({"Terraform": "false"}, "other"),
        ({"ManagedBy": "console"}, "other"),
        ({"Name": "terraform"}, "other"),
    ],
)
def test_the_maker_of_a_reservation_is_in_its_tags(tags: Mapping[str, str], expected: str) -> None:
    assert odcr("cr-1", tags=tags).maker == expected


@pytest.mark.covers("KRP-10")
@pytest.mark.parametrize(
    ("given", "cost"),
    [
        ({"free": 3, "total": 4}, "0.58"),
        ({"free": 0, "total": 4}, "0.00"),
        ({"free": 3, "state": "cancelled"}, "0.00"),
        ({"free": 3, "state": "pending"}, "0.00"),
        ({"free": 3, "type_name": "unheard.of"}, ""),
    ],
)
def test_idle_slots_cost_the_on_demand_price(given: dict[str, Any], cost: str) -> None:
    reservation = odcr("cr-1", **given)
    assert status_of(view_of(reservation, TYPES, account=""), ()).idle_cost_per_hour == cost


@pytest.mark.parametrize(
    ("tag", "owner"), [("default/training", "default/training"), ("gpus", "gpus"), ("default/", ""), ("", "")]
)
def test_owner_is_the_one_that_launches_read_from_the_tag(tag: str, owner: str) -> None:
    tagged = odcr("cr-1", tags={"capacity-broker.io/reservation": tag})
    assert view_of(tagged, TYPES, account="").owner == owner


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "default"),
        ({"reservation_type": "capacity-block"}, "capacity-block"),
        ({"interruptible": True}, "interruptible"),
    ],
)
def test_kind(given: dict[str, Any], kind: str) -> None:
    assert status_of(OdcrView(odcr=odcr("cr-1", **given)), ()).reservation_type == kind


def test_times_are_whole_seconds() -> None:
    end = datetime(2027, 1, 1, 12, 0, 0, 999, tzinfo=UTC)
    status = status_of(OdcrView(odcr=odcr("cr-1", end=end)), ())
    assert status.end == end.replace(microsecond=0)
    assert type(status).model_validate(status.wire()) == status


@pytest.mark.covers("KRP-10")
def test_classes_use_their_usable_and_pending_reservations() -> None:
    resolved: Mapping[str, Resolved] = {
        "a": Resolved(usable=(odcr("cr-1"),), pending=(odcr("cr-2"),)),
        "b": Resolved(usable=(odcr("cr-1"),)),
    }

    def of(name: str) -> Resolved:
        if name not in resolved:
            raise Unresolved("NodeClassNotReady", "no subnets")
        return resolved[name]

    assert users(["b", "broken", "a"], of) == {"cr-1": ["a", "b"], "cr-2": ["a"]}


def test_a_temporarily_unresolved_class_is_listed() -> None:
    troubles = {
        "new": Unresolved("NodeClassNotReady", "not resolved yet", passing=True),
        "broken": Unresolved("NodeClassInvalid", "no subnets"),
    }

    def of(name: str) -> Resolved:
        raise troubles[name]

    assert temporarily_unresolved(troubles, of) == {"new"}
