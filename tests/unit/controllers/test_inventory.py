"""What launches and ends do to the count of free slots between two descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.controllers.inventory import InventoryKeeper
from broker.kube.clock import FakeClock
from providers.model import Odcr


class Ec2:
    """A provider that describes one reservation of four, as a test says."""

    def __init__(self) -> None:
        self.available = 0
        self.calls = 0

    def reservations(self) -> Sequence[Odcr]:
        self.calls += 1
        return [
            Odcr(id="cr-1", instance_type="m5.large", zone="us-east-1a", total=4, available=self.available)
        ]


class World:
    def __init__(self) -> None:
        self.clock, self.ec2 = FakeClock(), Ec2()
        provider: Any = self.ec2
        self.keeper = InventoryKeeper(provider, clock=self.clock, groups=lambda: ())

    def described(self, available: int) -> None:
        self.ec2.available = available
        self.clock.advance(1)
        self.keeper.refresh()
        self.clock.advance(1)

    def alive(self, instance: str) -> None:
        self.keeper.ending(instance_id=instance, odcr_id="cr-1", alive=True)
        self.clock.advance(2)

    def gone(self, instance: str) -> None:
        self.keeper.ending(instance_id=instance, odcr_id="cr-1", alive=False)

    def ended(self, *instances: str) -> None:
        """EC2 was seen to end them."""
        for instance in instances:
            self.alive(instance)
        for instance in instances:
            self.gone(instance)

    @property
    def free(self) -> int:
        return self.keeper.snapshot().free("cr-1")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.covers("KRP-30")
def test_the_slot_of_an_instance_that_has_ended_is_free_before_the_next_description(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    assert world.free == 1
    assert world.ec2.calls == 1


@pytest.mark.covers("KRP-30")
def test_an_end_that_is_seen_twice_frees_one_slot(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    world.gone("i-1")
    assert world.free == 1
    world.described(0)
    world.gone("i-1")
    assert world.free == 0


@pytest.mark.covers("KRP-30")
@pytest.mark.parametrize("available", [0, 1, 4])
def test_the_next_description_settles_it(world: World, available: int) -> None:
    world.described(0)
    world.ended("i-1")
    world.described(available)
    assert world.free == available


@pytest.mark.covers("KRP-30")
def test_there_are_never_more_slots_than_the_reservation_has(world: World) -> None:
    world.described(4)
    world.ended("i-1", "i-2")
    assert world.free == 4
    world.keeper.launched(instance_id="i-3", odcr_id="cr-1")
    assert world.free == 3


@pytest.mark.covers("KRP-30")
def test_an_instance_that_no_description_has_counted_gives_back_what_it_took(world: World) -> None:
    world.described(2)
    world.keeper.launched(instance_id="i-1", odcr_id="cr-1")
    assert world.free == 1
    world.ended("i-1")
    world.gone("i-1")
    assert world.free == 2


def test_what_ec2_says_is_full_is_full_whatever_ended_before(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    world.keeper.full("cr-1")
    assert world.free == 0
    world.ended("i-2")
    assert world.free == 1


@pytest.mark.covers("KRP-20", "KRP-30")
def test_a_slot_that_the_last_description_may_count_is_not_counted_twice(world: World) -> None:
    world.described(0)
    world.alive("i-1")
    world.described(1)
    world.gone("i-1")
    assert world.free == 1


@pytest.mark.covers("KRP-20", "KRP-30")
def test_an_instance_that_ended_unseen_gives_no_credit(world: World) -> None:
    world.described(1)
    world.gone("i-1")
    assert world.free == 1


def test_an_end_that_comes_after_a_description_began_is_not_lost_by_it(world: World) -> None:
    world.described(0)
    answers = world.ec2.reservations

    def slow() -> Sequence[Odcr]:
        found = answers()
        world.ended("i-1")
        return found

    world.ec2.reservations = slow  # type: ignore[method-assign]
    world.keeper.refresh()
    assert world.free == 1
