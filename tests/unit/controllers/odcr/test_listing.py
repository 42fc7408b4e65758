"""One listing of the instances for every reader, and doubts that no running listing can resolve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from providers.errors import ErrorClass, ProviderError
from providers.model import Instance
from tests.unit.controllers.odcr.world import World, instance


def test_readers_are_notified_after_each_listing(world: World) -> None:
    listings: list[set[str]] = []
    world.view.on_listing(
        lambda: listings.append(set(world.view.listing.instances if world.view.listing else ()))
    )
    world.listed(instance("a"))
    world.view.put([instance("new")])
    world.view.drop(["i-a"])
    assert world.view.listing is not None and set(world.view.listing.instances) == {"i-a"}
    world.listed(instance("a"), instance("b"))
    assert listings == [{"i-a"}, {"i-a", "i-b"}]


def test_a_doubt_during_a_listing_causes_another_listing(world: World) -> None:
    def answers(ids: object = None) -> Sequence[Instance]:
        world.ec2.calls.append("instances")
        if len(world.ec2.calls) == 1:
            world.view.doubt()
        return []

    world.ec2.instances = answers  # type: ignore[method-assign]
    for _ in range(3):
        world.view.refresh()
    assert world.ec2.calls == ["instances"] * 2


def test_a_failed_listing_is_repeated(world: World) -> None:
    world.listed(instance("a"))

    def refuses(ids: object = None) -> Sequence[Instance]:
        raise ProviderError("RequestLimitExceeded", "slow down", class_=ErrorClass.THROTTLING)

    works = world.ec2.instances
    world.ec2.instances = refuses  # type: ignore[method-assign]
    world.view.doubt()
    with pytest.raises(ProviderError):
        world.view.refresh()
    assert world.view.listing is not None and set(world.view.listing.instances) == {"i-a"}
    world.ec2.instances = works  # type: ignore[method-assign]
    world.ec2.listed = [instance("b")]
    world.view.refresh()
    assert set(world.view.listing.instances) == {"i-b"}


def test_an_instance_that_ec2_does_not_show_yet_is_listed_again_soon(world: World) -> None:
    world.listed()
    world.view.put([instance("new", described=False, launched=world.clock.now())])
    world.view.doubt()
    world.view.refresh()
    calls = len(world.ec2.calls)
    world.clock.advance(4)
    world.view.refresh()
    assert len(world.ec2.calls) == calls
    world.ec2.listed = [instance("new")]
    world.clock.advance(1)
    world.view.refresh()
    assert len(world.ec2.calls) == calls + 1
    world.clock.advance(59)
    world.view.refresh()
    assert len(world.ec2.calls) == calls + 1


def test_an_orphan_is_due_when_its_grace_time_ends(world: World) -> None:
    world.listed(instance("a"))
    assert world.view.due() == 60
    assert world.view.orphans([])
    world.clock.advance(10)
    assert world.view.due() == 20
    world.clock.advance(20)
    assert world.view.overdue(world.view.orphans([]))
    assert world.view.due() == 60  # this pass requests its end
