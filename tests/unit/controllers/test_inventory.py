"""The effect of launches and terminations on the count of free slots between two descriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.controllers.inventory import InventoryCache
from providers.errors import ErrorClass, ProviderError
from providers.model import Odcr, ReservationGroup
from tests.support.clock import FakeClock


class Ec2:
    """A provider that describes one reservation of four slots, as set by the test."""

    def __init__(self) -> None:
        self.available, self.total = 0, 4
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
            Odcr(
                id="cr-1",
                instance_type="m5.large",
                zone="us-east-1a",
                total=self.total,
                available=self.available,
            )
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
        self.cache = InventoryCache(provider, clock=self.clock, groups=lambda: self.groups)
        self.news = 0
        self.cache.on_change(self._on_change)

    def _on_change(self) -> None:
        self.news += 1

    def described(self, available: int) -> None:
        self.ec2.available = available
        self.clock.advance(1)
        self.cache.refresh()
        self.clock.advance(1)

    def alive(self, instance: str) -> None:
        self.cache.ending(instance_id=instance, odcr_id="cr-1", alive=True, began=self.clock.now())
        self.clock.advance(2)

    def gone(self, instance: str) -> None:
        self.cache.ending(instance_id=instance, odcr_id="cr-1", alive=False, began=self.clock.now())

    def ended(self, *instances: str) -> None:
        """These instances were seen alive, then terminated."""
        for instance in instances:
            self.alive(instance)
        for instance in instances:
            self.gone(instance)

    @property
    def free(self) -> int:
        return self.cache.snapshot().free("cr-1")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.covers("KRP-30")
def test_the_slot_of_an_ended_instance_is_free_before_the_next_description(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    assert world.free == 1
    assert world.ec2.calls == 1


@pytest.mark.covers("KRP-30")
def test_an_end_that_is_reported_twice_frees_one_slot(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    world.gone("i-1")
    assert world.free == 1
    world.described(0)
    world.gone("i-1")
    assert world.free == 0


@pytest.mark.covers("KRP-30")
@pytest.mark.parametrize("available", [0, 1, 4])
def test_the_next_description_overrides_the_assumption(world: World, available: int) -> None:
    world.described(0)
    world.ended("i-1")
    world.described(available)
    assert world.free == available


@pytest.mark.covers("KRP-30")
def test_free_slots_never_exceed_the_reservation(world: World) -> None:
    world.described(4)
    world.ended("i-1", "i-2")
    assert world.free == 4
    world.cache.launched(instance_id="i-3", odcr_id="cr-1")
    assert world.free == 3


@pytest.mark.covers("KRP-30")
def test_an_uncounted_instance_returns_its_slot(world: World) -> None:
    world.described(2)
    world.cache.launched(instance_id="i-1", odcr_id="cr-1")
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
            world.cache.launched(instance_id=name, odcr_id="cr-1")

    world.described(4)
    world.cache.launched(instance_id="i-0", odcr_id="cr-1")
    world.ec2.meanwhile = launches
    world.described(3 - counted)
    assert world.free == 1
    world.ec2.meanwhile = lambda: None
    world.described(1)
    assert world.free == 1


@pytest.mark.covers("KRP-30")
@pytest.mark.parametrize("counted", [0, 1, 2])
def test_launch_answered_after_the_description_that_counts_it_takes_one_slot(
    world: World, counted: int
) -> None:
    """Of the three instances of two calls, a description before the answers counts none, one or two."""
    world.described(4)
    with world.cache.calling(["cr-1", "cr-2"]):
        with world.cache.calling(["cr-1"]):
            world.described(4 - counted)
            world.cache.launched(instance_id="i-1", odcr_id="cr-1")
            world.cache.launched(instance_id="i-2", odcr_id="cr-1")
        world.cache.launched(instance_id="i-3", odcr_id="cr-1")
    assert world.free == 1
    with world.cache.calling(["cr-1"]):
        world.cache.launched(instance_id="i-4", odcr_id="cr-1")
    assert world.free == 0


@pytest.mark.covers("KRP-30")
def test_slot_that_another_took_while_no_call_is_open_hides_no_launch(world: World) -> None:
    world.described(4)
    with world.cache.calling(["cr-1"]):
        pass
    world.described(3)
    with world.cache.calling(["cr-1"]):
        world.cache.launched(instance_id="i-1", odcr_id="cr-1")
    assert world.free == 2


@pytest.mark.covers("FLT-70")
def test_a_resize_during_a_description_is_no_sign_of_a_launch(world: World) -> None:
    """A slot went, since a person gave it back: the launch of that moment takes another."""
    world.described(2)
    world.ec2.total = 3
    world.ec2.meanwhile = lambda: world.cache.launched(instance_id="i-1", odcr_id="cr-1")
    world.described(1)
    assert world.free == 0


def test_a_full_refusal_overrides_earlier_ends(world: World) -> None:
    world.described(0)
    world.ended("i-1")
    world.cache.full("cr-1")
    assert world.free == 0
    world.ended("i-2")
    assert world.free == 1


def test_a_description_after_a_refusal_is_a_change(
    world: World,
) -> None:
    world.described(1)
    news = world.news
    world.cache.full("cr-1")
    world.described(0)
    assert world.news == news + 1
    world.cache.full("cr-1")
    world.described(0)
    assert world.news == news + 1


@pytest.mark.covers("KRP-20", "KRP-30")
def test_a_slot_of_the_last_description_is_not_counted_twice(world: World) -> None:
    world.described(0)
    world.alive("i-1")
    world.described(1)
    world.gone("i-1")
    assert world.free == 1


@pytest.mark.covers("KRP-20", "KRP-30")
def test_an_unseen_end_frees_no_slot(world: World) -> None:
    world.described(1)
    world.gone("i-1")
    assert world.free == 1


@pytest.mark.covers("KRP-20")
def test_a_launch_is_counted_until_a_description_that_began_after_it(world: World) -> None:
    world.described(4)
    answers = world.ec2.reservations

    def slow() -> Sequence[Odcr]:
        answer = answers()
        world.clock.advance(1)
        world.cache.launched(instance_id="i-2", odcr_id="cr-1")
        return answer

    world.cache.launched(instance_id="i-1", odcr_id="cr-1")
    world.ec2.available = 3
    world.clock.advance(1)
    world.ec2.reservations = slow  # type: ignore[method-assign]
    world.cache.refresh()
    assert world.free == 2  # the first is in EC2's count, the second is not
    world.ec2.reservations = answers  # type: ignore[method-assign]
    world.described(2)
    assert world.free == 2


@pytest.mark.covers("KRP-06")
@pytest.mark.parametrize(
    ("class_", "kept"),
    [(ErrorClass.THROTTLING, True), (ErrorClass.TRANSIENT, True), (ErrorClass.NOT_FOUND, False)],
)
def test_a_group_keeps_its_members_during_a_transient_error(
    world: World, class_: ErrorClass, kept: bool
) -> None:
    world.groups = ("arn:1",)
    world.ec2.group_refused = class_
    world.described(1)
    assert not world.cache.snapshot().groups
    world.ec2.group_refused = None
    world.described(1)
    world.ec2.group_refused = class_
    world.described(1)
    assert bool(world.cache.snapshot().groups) is kept
    assert world.cache.group_errors["arn:1"].class_ is class_


@pytest.mark.covers("KRP-11")
def test_readers_are_notified_of_changes_only(world: World) -> None:
    def changed() -> bool:
        before = world.news
        world.described(world.ec2.available)
        return world.news > before

    world.groups = ("arn:1",)
    assert changed() and not changed()
    world.ec2.available = 2
    assert changed() and not changed()
    world.ec2.members = ("cr-1", "cr-2")
    assert changed() and not changed()
    world.cache.launched(instance_id="i-1", odcr_id="cr-1")
    assert changed() and not changed()  # the launch is no longer counted apart
    world.ec2.refused = ErrorClass.TRANSIENT
    with pytest.raises(ProviderError):
        world.described(2)
    assert world.cache.error is not None and world.free == 2
    world.ec2.refused = None
    assert changed() and not changed()
    assert world.cache.error is None


@pytest.mark.covers("KRP-20", "KRP-30")
@pytest.mark.parametrize("counted", [0, 1])
def test_an_end_during_a_description_frees_no_slot_beside_the_described_ones(
    world: World, counted: int
) -> None:
    world.described(0)
    world.ec2.meanwhile = lambda: world.ended("i-1")
    world.described(counted)
    assert world.free == counted


@pytest.mark.covers("KRP-20", "KRP-30", "FUL-01")
def test_an_end_that_is_reported_after_the_description_that_counts_it_frees_no_second_slot(
    world: World,
) -> None:
    world.described(0)
    read = world.clock.now()  # the instance is alive, and ends soon after
    world.described(1)
    world.cache.ending(instance_id="i-1", odcr_id="cr-1", alive=True, began=read)
    world.gone("i-1")
    assert world.free == 1


@pytest.mark.covers("FLT-52")
@pytest.mark.parametrize(
    ("recorded", "total", "resized"),
    [(2, 1, {"cr-1": (2, 1)}), (3, 1, {"cr-1": (3, 1)}), (1, 1, {}), (1, 2, {}), (0, 1, {})],
)
@pytest.mark.parametrize("described_first", [True, False])
def test_size_that_an_earlier_process_recorded_shows_a_shrunk_reservation(
    recorded: int, total: int, resized: dict[str, tuple[int, int]], described_first: bool
) -> None:
    world = World()
    world.ec2.total = total
    if described_first:
        world.described(0)
    world.cache.recorded("cr-1", recorded)
    world.described(0)
    assert world.cache.resized == resized
    world.described(0)
    assert world.cache.resized == resized


def _during(world: World, inner: Callable[[], None]) -> None:
    """A description whose answer EC2 made before `inner`, and that arrives after it."""
    answer = world.ec2.available, world.ec2.total

    def meanwhile() -> None:
        world.ec2.meanwhile = lambda: None
        world.clock.advance(1)
        inner()
        world.ec2.available, world.ec2.total = answer

    world.ec2.meanwhile = meanwhile
    world.cache.refresh()


def test_a_description_that_arrives_after_a_newer_one_frees_no_slot_again(world: World) -> None:
    world.described(4)

    def launch() -> None:
        world.cache.launched(instance_id="i-1", odcr_id="cr-1")
        world.described(3)

    _during(world, launch)
    assert world.cache.snapshot().free("cr-1") == 3


def test_a_description_that_arrives_after_a_newer_one_shows_no_shrunk_reservation(world: World) -> None:
    world.described(4)

    def grow() -> None:
        world.ec2.total = 6
        world.described(6)

    _during(world, grow)
    assert not world.cache.resized
