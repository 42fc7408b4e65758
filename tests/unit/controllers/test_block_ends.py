"""The end of a block as its extensions change it, also while EC2 does not answer about them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

import pytest

from broker.controllers.block_ends import BlockEnds
from providers.errors import ErrorClass, ProviderError
from providers.model import BlockExtension, Odcr
from tests.unit.capacity.builders import NOW, minutes, odcr

END = NOW + minutes(180)
DAY = timedelta(days=1)
PENDING = BlockExtension(odcr_id="cr-1", start=END, end=END + DAY, paid=False)
PAID = BlockExtension(odcr_id="cr-1", start=END, end=END + DAY, paid=True)
SECOND = BlockExtension(odcr_id="cr-1", start=END + DAY, end=END + 2 * DAY, paid=False)
BEGUN = BlockExtension(odcr_id="cr-1", start=END - DAY, end=END, paid=True)
OTHERS = BlockExtension(odcr_id="cr-2", start=END, end=END + DAY, paid=True)


class History:
    """EC2's answers about extensions, as the test sets them."""

    def __init__(self) -> None:
        self.asked: list[Collection[str]] = []
        self.extensions_: list[BlockExtension] = []
        self.refused: ErrorClass | None = None

    def extensions(self, odcr_ids: Collection[str]) -> Sequence[BlockExtension]:
        self.asked.append(odcr_ids)
        if self.refused is not None:
            raise ProviderError("Refused", "no", class_=self.refused, operation="Describe")
        return self.extensions_


class World:
    def __init__(self) -> None:
        self.history = History()
        listing: Any = self.history
        self.ends = BlockEnds(listing)

    def at(self, before: float, end: Any = END) -> Odcr:
        """The block so many minutes before its first end."""
        block = odcr("cr-1", end=end, reservation_type="capacity-block")
        return self.ends.applied({"cr-1": block}, END - minutes(before))["cr-1"]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.covers("FUL-41")
@pytest.mark.parametrize(
    ("extensions", "end", "extending"),
    [
        ([], END, False),
        ([BEGUN, OTHERS], END, False),
        ([PENDING], END, True),
        ([PAID], END + DAY, False),
        ([SECOND, PAID], END + DAY, True),
    ],
)
def test_block_ends_with_its_last_extension(
    world: World, extensions: list[BlockExtension], end: Any, extending: bool
) -> None:
    world.history.extensions_ = extensions
    block = world.at(80)
    assert (block.end, block.extending) == (end, extending)


@pytest.mark.covers("FUL-41")
def test_extensions_are_asked_for_only_while_a_block_ends_soon(world: World) -> None:
    world.at(120)
    assert world.history.asked == []
    world.at(80)
    world.at(80, end=None)
    assert world.history.asked == [["cr-1"]]


@pytest.mark.covers("FUL-41")
@pytest.mark.parametrize("refused", [ErrorClass.THROTTLING, ErrorClass.TRANSIENT, ErrorClass.PERMISSION])
@pytest.mark.parametrize(
    ("known", "answered", "extending"),
    [
        ([PENDING], 80, True),
        ([PENDING], 50, True),
        ([], 50, False),  # no more can be bought
        ([], 80, True),  # one may have been bought since
        (None, 0, True),  # after a restart
    ],
)
def test_last_answer_holds_while_ec2_gives_none(
    world: World, refused: ErrorClass, known: list[BlockExtension] | None, answered: float, extending: bool
) -> None:
    if known is not None:
        world.history.extensions_ = known
        world.at(answered)
    world.history.refused = refused
    block = world.at(41)
    assert (block.end, block.extending) == (END, extending)
    assert bool(world.ends.refused) == (not refused.passes)
    assert world.at(30, end=END + DAY).extending is False  # it was paid: the last answer is over


@pytest.mark.covers("FUL-41")
def test_refusal_that_lasts_is_kept_until_ec2_answers(world: World) -> None:
    world.history.refused = ErrorClass.PERMISSION
    world.at(80)
    assert [*world.ends.refused] == ["cr-1"]
    world.history.refused = ErrorClass.THROTTLING
    world.at(79)
    assert world.ends.refused == {}
