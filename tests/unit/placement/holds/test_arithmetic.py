"""The room of holds: partial and whole, restricted or not, with assumed owners."""

from __future__ import annotations

import pytest

from broker.placement.holds import Consumption, HoldOwner, placeholder
from broker.placement.holds_decide import preferred
from broker.placement.holds_fit import NodeRoom, lacks, score
from tests.unit.placement.holds.builders import hold, ledger, names, occupied, owner, request, state

SHARED, WHOLE = Consumption.SHARED, Consumption.WHOLE


def room(cpu: int, taken: int, *, pods: int = 10, places: int = 1) -> NodeRoom:
    return NodeRoom(capacity={"cpu": cpu, "pods": pods}, occupied={"cpu": taken, "pods": places})


def test_the_room_of_an_owner_counts_once() -> None:
    """Node occupancy is the larger of reserved and used, per resource."""
    kept = hold(amount={"cpu": 4, "memory": 8}, consumption=SHARED)
    for used, expected in (
        ({}, {"cpu": 4, "memory": 8}),
        ({"cpu": 3}, {"cpu": 4, "memory": 8}),
        ({"cpu": 6, "memory": 2}, {"cpu": 6, "memory": 8}),
        ({"cpu": 6, "memory": 9, "gpu": 1}, {"cpu": 6, "memory": 9, "gpu": 1}),
    ):
        taken = occupied([used] if used else [], [state(kept, *([HoldOwner("u", used)] if used else []))])
        assert {name: amount for name, amount in taken.items() if name != "pods"} == expected
        assert taken["pods"] == 1


def test_an_aligned_owner_takes_from_the_hold_first_and_the_rest_from_the_node() -> None:
    kept = state(hold(cpu=2))
    assert not lacks({"cpu": 5}, kept, room(8, 5))
    assert [*lacks({"cpu": 6}, kept, room(8, 5))] == ["Insufficient cpu by node"]


def test_an_owner_takes_from_one_hold_only() -> None:
    """Two matching holds of 2 on a node of 4 do not add up for a pod of 3."""
    kept = state(hold(cpu=2))
    assert lacks({"cpu": 3}, kept, room(4, 4, places=2))


def test_a_restricted_owner_takes_reserved_resources_from_the_hold_only() -> None:
    kept = state(hold(amount={"cpu": 2}, restricted=frozenset({"cpu"})))
    wide = NodeRoom(capacity={"cpu": 9, "memory": 9, "pods": 9}, occupied={"cpu": 2, "pods": 1})
    assert not lacks({"cpu": 2, "memory": 9}, kept, wide)
    reasons = [*lacks({"cpu": 3, "memory": 1}, kept, wide)]
    assert reasons == ["Reservation(s) Insufficient cpu"]


def test_whole_hold_is_replaced_for_any_size() -> None:
    kept = state(hold(cpu=2, consumption=WHOLE))
    assert not lacks({"cpu": 1}, kept, room(4, 4))
    assert not lacks({"cpu": 3}, kept, room(4, 3))
    assert [*lacks({"cpu": 4}, kept, room(4, 3))] == ["Insufficient cpu by node"]


def test_a_full_node_takes_an_owner_in_the_place_of_its_hold() -> None:
    kept = state(hold(cpu=2))
    assert not lacks({"cpu": 1}, kept, room(9, 2, pods=3, places=3))
    assert lacks({"cpu": 1}, state(hold(cpu=2, consumption=SHARED), owner("u")), room(9, 2, pods=3, places=3))


@pytest.mark.parametrize("consumption", [Consumption.ONCE, WHOLE])
def test_only_one_pod_takes_a_hold_that_is_for_one(consumption: Consumption) -> None:
    kept, second = hold(cpu=2, consumption=consumption), request("second", requests={"cpu": 1})
    before = ledger(kept)
    assert before.matching(second)
    assert not before.assume(kept.id, owner("first", assumed=True, cpu=1)).matching(second)


@pytest.mark.parametrize("consumption", [*Consumption])
def test_an_assumed_owner_frees_nothing(consumption: Consumption) -> None:
    before = state(hold(cpu=4, consumption=consumption))
    after = before.with_owner(owner("u", assumed=True, cpu=1))
    assert occupied([{"cpu": 1}], [after]) == occupied([], [before])
    assert not after.consumed


@pytest.mark.parametrize(
    ("consumption", "consumed"), [(Consumption.ONCE, True), (WHOLE, True), (SHARED, False)]
)
def test_a_confirmed_owner_consumes_a_hold_that_is_for_one(consumption: Consumption, consumed: bool) -> None:
    assert state(hold(cpu=4, consumption=consumption), owner("u", cpu=1)).consumed is consumed


def test_the_placeholder_is_the_idle_room() -> None:
    kept = hold(amount={"cpu": 4, "memory": 2}, consumption=SHARED)
    pod = placeholder(state(kept))
    assert (pod.requests, pod.places, pod.node_name) == ({"cpu": 4, "memory": 2}, 1, "n")
    pod = placeholder(state(kept, owner("u", cpu=1, memory=2)))
    assert (pod.requests, pod.places) == ({"cpu": 3}, 0)
    pod = placeholder(state(kept, owner("u", cpu=9, memory=2)))
    assert (pod.requests, pod.places) == ({}, 0)


def test_the_order_comes_first_then_the_fullest_hold_then_the_name() -> None:
    wide, narrow, same = state(hold("wide", cpu=8)), state(hold("narrow", cpu=4)), state(hold("same", cpu=4))
    second, first = state(hold("second", cpu=9, order=7)), state(hold("first", cpu=9, order=2))
    tried = preferred({"cpu": 4}, (wide, second, same, first, narrow))
    assert names(tried) == ["first", "second", "narrow", "same", "wide"]


@pytest.mark.parametrize(
    ("amount", "requests", "expected"),
    [
        ({"cpu": 4}, {"cpu": 4}, 100),
        ({"cpu": 4, "memory": 4}, {"cpu": 1, "memory": 2}, 37),
        ({"cpu": 4, "memory": 4}, {"cpu": 5, "memory": 2}, 25),  # a resource that exceeds the hold counts 0
        ({}, {"cpu": 1}, 0),
    ],
)
def test_the_score_is_the_fullness_of_the_hold(
    amount: dict[str, int], requests: dict[str, int], expected: int
) -> None:
    assert score(requests, state(hold(amount=amount))) == expected
