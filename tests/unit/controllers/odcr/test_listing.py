"""One listing of the instances for every reader, and doubts that no running listing can resolve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from providers.model import ErrorClass, Instance, ProviderError
from tests.unit.controllers.odcr.world import World, instance


def test_readers_hear_of_each_listing_and_see_all_of_it(world: World) -> None:
    heard: list[set[str]] = []
    world.view.on_listing(
        lambda: heard.append(set(world.view.listing.instances if world.view.listing else ()))
    )
    world.listed(instance("a"))
    world.view.put([instance("new")])
    world.view.drop(["i-a"])
    assert world.view.listing is not None and set(world.view.listing.instances) == {"i-a"}
    world.listed(instance("a"), instance("b"))
    assert heard == [{"i-a"}, {"i-a", "i-b"}]


def test_a_doubt_that_comes_while_ec2_answers_asks_again(world: World) -> None:
    def answers(ids: object = None) -> Sequence[Instance]:
        world.ec2.calls.append("instances")
        if len(world.ec2.calls) == 1:
            world.view.doubt()
        return []

    world.ec2.instances = answers  # type: ignore[method-assign]
    for _ in range(3):
        world.view.refresh()
    assert world.ec2.calls == ["instances"] * 2


def test_a_listing_that_failed_is_asked_for_again(world: World) -> None:
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


def test_what_ec2_does_not_show_yet_is_looked_for_again_soon(world: World) -> None:
    world.listed()
    world.view.put([instance("new", described=False, launched=world.clock.now())])
    world.view.doubt()
    world.view.refresh()
    asked = len(world.ec2.calls)
    world.clock.advance(4)
    world.view.refresh()
    assert len(world.ec2.calls) == asked
    world.ec2.listed = [instance("new")]
    world.clock.advance(1)
    world.view.refresh()
    assert len(world.ec2.calls) == asked + 1
    world.clock.advance(59)
    world.view.refresh()
    assert len(world.ec2.calls) == asked + 1


def test_an_orphan_is_looked_at_when_its_grace_time_ends(world: World) -> None:
    world.listed(instance("a"))
    assert world.view.due() == 60
    assert world.view.orphans([])
    world.clock.advance(10)
    assert world.view.due() == 20
    world.clock.advance(20)
    assert world.view.overdue(world.view.orphans([]))
    assert world.view.due() == 60  # this pass requests its end
