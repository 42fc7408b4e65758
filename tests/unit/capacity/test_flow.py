"""The matching of plans and adoption, compared with every possible assignment."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.flow import Flow

Edges = Mapping[str, Sequence[str]]


def best(takers: Sequence[str], edges: Edges, room: Mapping[str, int]) -> list[bool]:
    """The served takers if the first come first: each is served if all before stay served, by exhaustive
    search."""

    def possible(served: Sequence[str]) -> bool:
        return any(
            all(picks.count(slot) <= room[slot] for slot in room)
            for picks in itertools.product(*(edges[kind] for kind in served))
        )

    answers: list[bool] = []
    for place, taker in enumerate(takers):
        before = [kind for kind, got in zip(takers[:place], answers, strict=True) if got]
        answers.append(possible([*before, taker]))
    return answers


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[str], dict[str, list[str]], dict[str, int]]:
    slots = ["s1", "s2", "s3"]
    room = {slot: draw(st.integers(0, 2)) for slot in slots}
    edges = {kind: draw(st.lists(st.sampled_from(slots), unique=True)) for kind in ("a", "b", "c", "d")}
    return draw(st.lists(st.sampled_from("abcd"), max_size=6)), edges, room


@given(worlds())
def test_taker_is_served_if_no_earlier_taker_loses(
    world: tuple[list[str], dict[str, list[str]], dict[str, int]],
) -> None:
    takers, edges, room = world
    flow = Flow(edges, room)
    assert [flow.add(taker) for taker in takers] == best(takers, edges, room)


@given(worlds())
def test_no_slot_exceeds_its_room_and_takers_hold_only_their_own_slots(
    world: tuple[list[str], dict[str, list[str]], dict[str, int]],
) -> None:
    takers, edges, room = world
    flow = Flow(edges, room)
    served = [taker for taker in takers if flow.add(taker)]
    for slot, count in room.items():
        held = sum(flow.taken(kind).get(slot, 0) for kind in edges)
        assert held <= count
    for kind in edges:
        assert set(flow.taken(kind)) <= set(edges[kind])
        assert sum(flow.taken(kind).values()) == served.count(kind)


@given(worlds(), st.integers(0, 6))
def test_takers_that_do_not_all_fit_leave_no_trace(
    world: tuple[list[str], dict[str, list[str]], dict[str, int]], cut: int
) -> None:
    takers, edges, room = world
    flow = Flow(edges, room)
    straight = [flow.add(taker) for taker in takers]
    tried = Flow(edges, room)
    again = [tried.add(taker) for taker in takers[:cut]]
    assert not tried.add_all("abcd" * 20)
    again += [tried.add(taker) for taker in takers[cut:]]
    assert again == straight


def test_a_taker_gets_its_first_choice_while_it_is_free() -> None:
    flow = Flow({"a": ["s2", "s1"]}, {"s1": 1, "s2": 1})
    assert flow.add("a")
    assert flow.taken("a") == {"s2": 1}
    assert flow.add("a")
    assert flow.taken("a") == {"s2": 1, "s1": 1}
    assert not flow.add("a")


def test_a_holder_moves_to_make_room_through_several_others() -> None:
    edges = {"a": ["s1", "s2"], "b": ["s2", "s3"], "c": ["s1"]}
    flow = Flow(edges, {"s1": 1, "s2": 1, "s3": 1})
    assert flow.add("a") and flow.add("b") and flow.add("c")
    assert (flow.taken("a"), flow.taken("b"), flow.taken("c")) == ({"s2": 1}, {"s3": 1}, {"s1": 1})
