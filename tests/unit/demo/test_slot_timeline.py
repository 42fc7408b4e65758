"""The picture of slots over time, and the figures that follow from the same samples."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from local.demo.slot_timeline import WIDTH, SlotFigures, SlotSample, SlotTimeline

Moment = tuple[float, Mapping[str, str], Mapping[str, str], int, int]
NONE: Mapping[str, str] = {}


def timeline(slots: int, *moments: Moment) -> SlotTimeline:
    """Of each moment: its time, uses in the reservation and outside, kept slots, and missing pods."""
    drawn = SlotTimeline(slots)
    for at, reserved, outside, kept, missing in moments:
        drawn.record(SlotSample(at=at, reserved=reserved, outside=outside, kept=kept, missing=missing))
    return drawn


IN_ITS_SLOT = timeline(
    2,
    (100, {"a": "o", "b": "o"}, NONE, 0, 0),
    (104, {"a": "d", "b": "o"}, NONE, 0, 1),
    (106, {"b": "o"}, NONE, 0, 1),
    (107, {"b": "o"}, NONE, 1, 1),
    (108, {"b": "o", "c": "s"}, NONE, 0, 1),
    (110, {"b": "o", "c": "N"}, NONE, 0, 0),
    (112, {"b": "o", "c": "N"}, NONE, 0, 0),
)
BESIDE = timeline(
    1,
    (0, {"a": "o"}, NONE, 0, 0),
    (2, {"a": "d"}, {"b": "s"}, 0, 0),
    (3, NONE, {"b": "N"}, 0, 0),
    (7, NONE, {"b": "N"}, 0, 0),
)


def test_successor_has_the_row_of_the_node_that_it_replaces() -> None:
    assert IN_ITS_SLOT.picture() == [
        "slot 1       oooodd.kssNN",
        "slot 2       oooooooooooo",
        "pods away    ----111111--",
        "             0 s",
    ]
    assert IN_ITS_SLOT.latest() == {"slot 1": "N", "slot 2": "o"}


def test_instances_outside_have_rows_below() -> None:
    assert BESIDE.picture() == [
        "slot 1       ood....",
        "on-demand 1    sNNNN",
        "pods away    -------",
        "             0 s",
    ]


def test_legend_explains_the_letters_of_the_picture_alone() -> None:
    assert BESIDE.legend() == [
        "o old node                             d old node that ends",
        ". empty                                s new node without pods",
        "N new node with pods",
    ]


@pytest.mark.parametrize(
    ("drawn", "figures"),
    [
        (
            IN_ITS_SLOT,
            SlotFigures(
                seconds=12,
                launches=1,
                idle=2,
                outside=0,
                most_outside=0,
                most_missing=1,
                missing=6,
                idle_at_end=0,
                outside_at_end=0,
            ),
        ),
        (
            BESIDE,
            SlotFigures(
                seconds=7,
                launches=1,
                idle=4,
                outside=5,
                most_outside=1,
                most_missing=0,
                missing=0,
                idle_at_end=1,
                outside_at_end=1,
            ),
        ),
    ],
    ids=["in its slot", "beside"],
)
def test_figures_sum_the_time_of_each_sample_up_to_the_next(
    drawn: SlotTimeline, figures: SlotFigures
) -> None:
    assert drawn.figures() == figures


def test_instance_that_ec2_counts_in_the_reservation_leaves_its_row_outside() -> None:
    absorbed = timeline(
        1,
        (0, {"a": "d"}, {"b": "N"}, 0, 0),
        (2, {"b": "N"}, NONE, 0, 0),
        (4, {"b": "N"}, NONE, 0, 0),
    )
    assert absorbed.picture()[:2] == ["slot 1       ddNN", "on-demand 1  NN"]
    assert absorbed.figures().launches == 0


def test_long_picture_fits_the_terminal_and_loses_no_use() -> None:
    long = timeline(
        1,
        (0, {"a": "o"}, NONE, 0, 0),
        (500, NONE, NONE, 0, 3),
        (501, {"b": "N"}, NONE, 0, 0),
        (1000, {"b": "N"}, NONE, 0, 0),
    )
    row, pods, times = long.picture()
    assert max(map(len, (row, pods, times))) <= WIDTH
    assert row.count(".") == 1 and pods.count("3") == 1
    assert times.split() == ["0", "s", "240", "s", "480", "s", "720", "s", "960", "s"]


def test_one_sample_is_a_picture() -> None:
    assert timeline(1, (5, {"a": "o"}, NONE, 0, 0)).picture()[0] == "slot 1       o"
