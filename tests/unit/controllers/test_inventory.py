"""The effect of launches and terminations on the count of free slots between two descriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.controllers.inventory import InventoryCache
from broker.kube.clock import FakeClock
from providers.model import ErrorClass, Odcr, ProviderError, ReservationGroup


class Ec2:
    """A provider that describes one reservation of four slots, as set by the test."""

    def __init__(self) -> None:
        self.available = 0
        self.calls = 0
        self.members: tuple[str, ...] = ("cr-1",)
        self.refused: ErrorClass | None = None
        self.group_refused: ErrorClass | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def reservations(self) -> Sequence[Odcr]:
        self.calls += 1
        self.meanwhile()
        if self.refused:
            raise ProviderError("Refused", "no", class_=self.refused)
        return [
            Odcr(id="cr-1", instance_type="m5.large", zone="us-east-1a", total=4, available=self.available)
        ]

    def group(self, arn: str) -> ReservationGroup:
        if self.group_refused:
            raise ProviderError("Refused", "no", class_=self.group_refused)
        return ReservationGroup(arn=arn, name="gpus", member_ids=self.members)


class World:
    def __init__(self) -> None:
        self.clock, self.ec2 = FakeClock(), Ec2()
        provider: Any = self.ec2
        self.groups: tuple[str, ...] = ()
        self.keeper = InventoryCache(provider, clock=self.clock, groups=lambda: self.groups)
        self.news = 0
        self.keeper.on_change(self._hear)

    def _hear(self) -> None:
        self.news += 1

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
        """These instances were seen alive, then terminated."""
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


@pytest.mark.covers("KRP-30")
@pytest.mark.parametrize("counted", [0, 1, 2])
def test_launch_during_a_description_takes_one_slot(world: World, counted: int) -> None:
    """Whether EC2 counts none, one or both of the launches already."""

    def launches() -> None:
        for name in ("i-1", "i-2"):
            world.keeper.launched(instance_id=name, odcr_id="cr-1")

    world.described(4)
    world.keeper.launched(instance_id="i-0", odcr_id="cr-1")
    world.ec2.meanwhile = launches
    world.described(3 - counted)
    assert world.free == 1
    world.ec2.meanwhile = lambda: None
    world.described(1)
    assert world.free == 1


def test_what_ec2_says_is_full_is_full_whatever_ended_before(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    world.keeper.full("cr-1")
    assert world.free == 0
    world.ended("i-2")
    assert world.free == 1


def test_a_description_that_agrees_with_a_refusal_is_news_to_those_that_read_the_one_before(
    world: World,
) -> None:
    world.described(1)
    news = world.news
    world.keeper.full("cr-1")
    world.described(0)
    assert world.news == news + 1
    world.keeper.full("cr-1")
    world.described(0)
    assert world.news == news + 1


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


@pytest.mark.covers("KRP-20")
def test_a_launch_is_counted_until_a_description_that_began_after_it(world: World) -> None:
    world.described(4)
    answers = world.ec2.reservations

    def slow() -> Sequence[Odcr]:
        found = answers()
        world.clock.advance(1)
        world.keeper.launched(instance_id="i-2", odcr_id="cr-1")
        return found

    world.keeper.launched(instance_id="i-1", odcr_id="cr-1")
    world.ec2.available = 3
    world.clock.advance(1)
    world.ec2.reservations = slow  # type: ignore[method-assign]
    world.keeper.refresh()
    assert world.free == 2  # the first is in EC2's count, the second is not
    world.ec2.reservations = answers  # type: ignore[method-assign]
    world.described(2)
    assert world.free == 2


@pytest.mark.covers("KRP-06")
@pytest.mark.parametrize(
    ("class_", "kept"),
    [(ErrorClass.THROTTLING, True), (ErrorClass.TRANSIENT, True), (ErrorClass.NOT_FOUND, False)],
)
def test_a_group_that_cannot_be_read_for_a_moment_is_what_it_was(
    world: World, class_: ErrorClass, kept: bool
) -> None:
    world.groups = ("arn:1",)
    world.ec2.group_refused = class_
    world.described(1)
    assert not world.keeper.snapshot().groups
    world.ec2.group_refused = None
    world.described(1)
    world.ec2.group_refused = class_
    world.described(1)
    assert bool(world.keeper.snapshot().groups) is kept
    assert world.keeper.group_errors["arn:1"].class_ is class_


@pytest.mark.covers("KRP-11")
def test_readers_hear_of_what_changed_and_of_nothing_else(world: World) -> None:
    def heard() -> bool:
        before = world.news
        world.described(world.ec2.available)
        return world.news > before

    world.groups = ("arn:1",)
    assert heard() and not heard()
    world.ec2.available = 2
    assert heard() and not heard()
    world.ec2.members = ("cr-1", "cr-2")
    assert heard() and not heard()
    world.keeper.launched(instance_id="i-1", odcr_id="cr-1")
    assert heard() and not heard()  # the launch is no longer counted apart
    world.ec2.refused = ErrorClass.TRANSIENT
    with pytest.raises(ProviderError):
        world.described(2)
    assert world.keeper.error is not None and world.free == 2
    world.ec2.refused = None
    assert heard() and not heard()
    assert world.keeper.error is None


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
