"""Purchases, changes and launches that EC2 shows late: nothing is bought, changed or cancelled by mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

from broker.apis import names
from broker.capacity.inventory import Inventory
from tests.unit.controllers.odcr.test_purchase_properties import MANAGE, Purchases, begun

CANCEL = MANAGE | {names.DELETION_POLICY: "Cancel"}
NAME = "a"


def reserved(instances: int) -> tuple[Purchases, str]:
    """A world with one reservation of so many instances, which EC2 shows, and its id."""
    world = begun(dollars=800.0)
    world.shows_late(0)
    world.reserve(NAME, instances=instances, annotations=CANCEL)
    world.time_passes(6)
    world.work(1, kill=False)
    (id_,) = (odcr.id for odcr in world.ec2.odcrs.values() if names.TAG_RESERVATION in odcr.tags)
    return world, id_


def counted_calls(world: Purchases, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Mock]:
    """The calls that change reservations, from now on."""
    calls = {
        name: Mock(wraps=getattr(world.ec2, f"{name}_reservation")) for name in ("create", "resize", "cancel")
    }
    for name, call in calls.items():
        monkeypatch.setattr(world.ec2, f"{name}_reservation", call)
    return calls


def obtained(world: Purchases) -> int:
    """The instances in the reservation's status."""
    (status,) = world.published.statuses.values()
    return sum(count.obtained for count in status.flavors.values())


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("before", "after", "call"), [(0, 1, "create"), (1, 2, "resize"), (2, 1, "resize"), (1, 0, "cancel")]
)
def test_purchase_or_change_that_ec2_shows_late_is_made_once_and_counts(
    before: int, after: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = reserved(before)[0] if before else begun(dollars=800.0)
    shown = {**world.ec2.odcrs}
    monkeypatch.setattr(world.ec2, "reservations", lambda: [*shown.values()])
    calls = counted_calls(world, monkeypatch)
    world.reserve(NAME, instances=after, annotations=CANCEL)
    for _ in range(3):
        world.time_passes(1)
        world.work(1, kill=False)
        assert {name: mock.call_count for name, mock in calls.items() if mock.called} == {call: 1}
        assert obtained(world) == after


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("shown", "state"), [("", "cancelled"), ("debit", "active"), ("description", "active")]
)
def test_reservation_is_not_cancelled_under_an_instance_launched_since_the_decision(
    shown: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch counts as a debit, until a newer description counts its slot as used."""
    world, id_ = reserved(1)
    describe, snapshot = Mock(wraps=world.ec2.reservations), world.snapshot
    monkeypatch.setattr(world.ec2, "reservations", describe)

    def late() -> Inventory:
        """The launch comes after the second description of the pass, by which it acts."""
        launched = describe.call_count > 1
        inventory = snapshot()
        if not launched or not shown:
            return inventory
        if shown == "debit":
            return replace(inventory, debits={id_: 1})
        assert inventory.described is not None
        used = replace(inventory.odcrs[id_], available=0)
        later = inventory.described + timedelta(seconds=1)
        return replace(inventory, odcrs={**inventory.odcrs, id_: used}, described=later)

    monkeypatch.setattr(world, "snapshot", late)
    world.reserve(NAME, instances=0, annotations=CANCEL)
    assert world.ec2.odcrs[id_].state == state
