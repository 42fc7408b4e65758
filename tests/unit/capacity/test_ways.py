"""The ways to a machine: free, lent and foreign slots, and what is out for a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from broker.capacity.entitlement import Borrower, Entitlements, SlotAvailability, SlotPool
from broker.capacity.model import Selection
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.ways import Way, ways
from broker.quota.model import Preemption
from providers.errors import ErrorClass

from .builders import GROUP, NOW, claim, inventory, node_class, odcr, supply

OWNED = SlotPool("a", "f")


def owned(queue: str, *borrowers: Borrower, **availability: int) -> Entitlements:
    """The queue `a` owns cr-1, in which these borrowers run; the need draws from `queue`."""
    amounts: dict[str, Any] = {"quota": 2, "room": 1, "lendable": 1, **availability}
    given = SlotAvailability(**amounts, borrowers=borrowers)
    return Entitlements(
        slot_pools={"cr-1": OWNED},
        availability={OWNED: given},
        draws={"uid-need": queue},
        rules={"a": Preemption(reclaim="LowerPriority")},
        borrow={SlotPool("b", "f"): 1},
        peers={"b": frozenset({"a", "b"})},
        names={"a": "team/a"},
    )


def found(
    *free: int,
    kinds: Sequence[str] = ("reserved",),
    entitlements: Entitlements | None = None,
    short: str = "",
    reclaimed: Mapping[SlotPool, int] | None = None,
) -> list[Way]:
    """The ways of a need to a group of reservations (cr-1, …) of four slots with these free ones."""
    ids = [f"cr-{number}" for number, _ in enumerate(free, 1)]
    world = inventory(
        *(odcr(id_, total=4, free=count) for id_, count in zip(ids, free, strict=True)), groups={GROUP: ids}
    )
    shortages = Shortages()
    if short:
        scope = Scope("reservation", short)
        shortages = shortages.record(scope, class_=ErrorClass.RESERVATION_FULL, code="Full", now=NOW, free=1)
    classes = {"default": node_class(Selection(group_arn=GROUP), world)}
    world_supply = supply(classes, world, entitlements=entitlements or Entitlements(), shortages=shortages)
    need = claim("need", kinds=kinds, types=["m5.xlarge"], zones=["us-east-1a"], priority=10)
    return [*ways(need, OptionCatalog(world_supply).candidates(need), world_supply, reclaimed)]


def shown(way: Way) -> tuple[str, int, int, bool, str]:
    return way.odcr_id, way.free, way.lent, way.borrows, way.out.reason if way.out else ""


LOW, HIGH = (Borrower("cr-1", priority, queue="b") for priority in (0, 20))


@pytest.mark.parametrize(
    ("free", "entitlements", "expected"),
    [
        ([2], None, ("cr-1", 2, 0, False, "")),
        ([0], None, ("cr-1", 0, 0, False, "ReservationFull")),
        ([2], owned("a"), ("cr-1", 2, 0, False, "")),
        ([2], owned("b"), ("cr-1", 2, 0, True, "")),
        ([0], owned("a", LOW), ("cr-1", 0, 1, False, "")),
        ([0], owned("a", LOW, LOW, LOW), ("cr-1", 0, 2, False, "")),  # within its quota
        ([0], owned("a", HIGH), ("cr-1", 0, 0, False, "ReservationFull")),
        ([0], owned("b", LOW), ("cr-1", 0, 0, True, "ReservationFull")),
        ([2], owned("a", LOW, quota=0), ("cr-1", 0, 0, False, "QuotaReached")),
    ],
)
def test_slots_of_one_reservation(
    free: Sequence[int], entitlements: Entitlements | None, expected: tuple[str, int, int, bool, str]
) -> None:
    (way,) = found(*free, entitlements=entitlements)
    assert shown(way) == expected


def test_slots_of_another_owner_are_no_way() -> None:
    assert found(2, entitlements=owned("")) == []


def test_lent_slots_that_others_get_back_are_not_offered_twice() -> None:
    (way,) = found(0, entitlements=owned("a", LOW, LOW), reclaimed={OWNED: 1})
    assert way.lent == 1


def test_each_reservation_of_a_group_is_a_way_of_its_own() -> None:
    full, free = found(0, 3)
    assert [shown(full), shown(free)] == [
        ("cr-1", 0, 0, False, "ReservationFull"),
        ("cr-2", 3, 0, False, ""),
    ]
    assert full.out is not None and full.out.message.endswith("free slots: cr-1 0 of 4")


def test_free_slots_that_ec2_refused_are_out_until_the_shortage_ends() -> None:
    refused, free = found(2, 3, short="cr-1")
    assert shown(refused) == ("cr-1", 0, 0, False, "BackingOff")
    assert shown(free) == ("cr-2", 3, 0, False, "")


def test_ways_outside_reservations_come_after_the_slots() -> None:
    slot, bought = found(1, kinds=("reserved", "on-demand"))
    assert (slot.odcr_id, bought.odcr_id) == ("cr-1", "")
    assert bought.option.pool.capacity_type == "on-demand" and bought.out is None
