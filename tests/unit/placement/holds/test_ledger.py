"""The ledger of a cluster: rebuilt from pods and reservations, and never oversubscribed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.placement.holds import Consumption, Hold, HoldOwner
from broker.placement.holds_fit import NodeRoom, lacks
from broker.placement.holds_ledger import HoldLedger, HoldLink
from broker.placement.holds_match import IndexMatcher, NamingPod
from broker.placement.model import NodeInfo
from broker.placement.snapshot import PlacementSnapshot
from tests.support.examples import examples
from tests.unit.placement.builders import filters
from tests.unit.placement.holds.builders import NOW, hold, ledger, link, names, occupied, owner, request

LATER = NOW + timedelta(hours=1)


def test_a_ledger_is_rebuilt_from_holds_and_pods() -> None:
    kept = hold(cpu=4, consumption=Consumption.SHARED)
    rebuilt = ledger(kept, links=(link(kept, owner("a", cpu=1)), link(kept, owner("b", cpu=2))))
    assumed = ledger(kept).assume(kept.id, owner("a", cpu=1)).assume(kept.id, owner("b", cpu=2))
    assert rebuilt == assumed
    assert rebuilt.states[kept.id].idle == {"cpu": 1}


def test_a_pod_of_another_node_is_no_owner() -> None:
    kept = hold(cpu=4)
    assert not ledger(kept, links=(link(kept, owner("a", cpu=1), node="other"),)).states[kept.id].owners


@pytest.mark.covers("FLT-62")
@pytest.mark.parametrize(
    ("naming", "owns"),
    [
        (NamingPod("red", "a", "a", {"app": "demo"}), True),
        (NamingPod("red", "a", "a", {}), False),
        (NamingPod("red", "recorded", "recorded", {}), True),
        (NamingPod("red", "a", "a", {"app": "demo"}, owners=False), False),
    ],
)
def test_a_pod_that_names_a_hold_owns_it_only_if_the_hold_is_for_it(naming: NamingPod, owns: bool) -> None:
    kept = hold(cpu=4, consumption=Consumption.SHARED, recorded=frozenset({"recorded"}))
    named = HoldLink(kept.id, "n", owner(naming.uid, cpu=1), naming)
    assert [*ledger(kept, links=(named,)).states[kept.id].owners] == ([naming.uid] if owns else [])


@pytest.mark.covers("FLT-62")
@pytest.mark.parametrize(("namespace", "consumed"), [("team", True), ("red", False)])
def test_a_pod_of_another_namespace_takes_no_godel_room(namespace: str, consumed: bool) -> None:
    kept = hold(cpu=4, consumption=Consumption.WHOLE, matcher=IndexMatcher("team", "web-1"))
    named = HoldLink(kept.id, "n", owner("a", cpu=1), NamingPod(namespace, "a", "a", {}))
    assert (kept.id not in ledger(kept, links=(named,)).states) is consumed


def test_a_hold_counts_until_its_deadline() -> None:
    kept = hold(cpu=4, deadline=LATER)
    assert names(tuple(ledger(kept).states.values())) == ["r"]
    assert not ledger(kept, now=LATER).states


def test_a_consumed_hold_gives_its_surplus_back() -> None:
    kept = hold(cpu=4)
    assert not ledger(kept, links=(link(kept, owner("a", cpu=1)),)).states


def test_other_pods_do_not_fit_into_held_room() -> None:
    kept = hold(cpu=3)
    node = NodeInfo(name="n", allocatable={"cpu": 4, "pods": 2})
    snapshot = PlacementSnapshot.of([node], ledger(kept).placeholders())
    assert not filters(request("small", requests={"cpu": 1}).pod, "n", snapshot)
    rejected = filters(request("large", requests={"cpu": 2}).pod, "n", snapshot)
    assert [*rejected] == ["Insufficient cpu"]


# ---- any events, in any order


@dataclass
class OneNode:
    """A node with holds and pods, where each arrival is placed as the arithmetic allows."""

    capacity: dict[str, int] = field(default_factory=lambda: {"cpu": 10, "gpu": 3, "pods": 6})
    holds: dict[str, Hold] = field(default_factory=dict)
    pods: dict[str, dict[str, int]] = field(default_factory=dict)
    links: dict[str, HoldLink] = field(default_factory=dict)
    number: int = 0

    def ledger(self) -> HoldLedger:
        return ledger(*self.holds.values(), links=tuple(self.links.values()))

    def occupied(self) -> dict[str, int]:
        return occupied(self.pods.values(), self.ledger().states.values())

    def free(self, requests: dict[str, int]) -> bool:
        taken = self.occupied()
        room = all(
            amount <= self.capacity[name] - taken.get(name, 0) for name, amount in requests.items() if amount
        )
        return room and taken["pods"] < self.capacity["pods"]

    def reserve(self, amount: dict[str, int], consumption: Consumption, restricted: bool) -> None:
        self.number += 1
        names_ = frozenset(amount) if restricted and consumption is not Consumption.WHOLE else frozenset()
        kept = hold(f"r{self.number}", amount=amount, consumption=consumption, restricted=names_)
        if self.free(amount):
            self.holds[kept.id] = kept

    def unmatched_pod(self, requests: dict[str, int]) -> None:
        self.number += 1
        if self.free(requests):
            self.pods[f"p{self.number}"] = requests

    def owner(self, requests: dict[str, int], choice: int) -> None:
        open_ = self.ledger().matching(request(requests=requests))
        if not open_:
            return
        kept = open_[choice % len(open_)]
        if not lacks(requests, kept, NodeRoom(capacity=self.capacity, occupied=self.occupied())):
            self.number += 1
            uid = f"p{self.number}"
            self.pods[uid] = requests
            self.links[uid] = HoldLink(kept.hold.id, "n", HoldOwner(uid, requests, True))

    def bound(self, choice: int) -> None:
        if self.links:
            uid = sorted(self.links)[choice % len(self.links)]
            link = self.links[uid]
            self.links[uid] = link._replace(owner=link.owner._replace(assumed=False))

    def failed(self, choice: int) -> None:
        assumed = sorted(uid for uid, item in self.links.items() if item.owner.assumed)
        if assumed:
            uid = assumed[choice % len(assumed)]
            del self.links[uid], self.pods[uid]

    def ended(self, choice: int) -> None:
        bound = sorted(uid for uid in self.pods if uid not in self.links or not self.links[uid].owner.assumed)
        if bound:
            uid = bound[choice % len(bound)]
            # The controller marks a consumed reservation Succeeded before its owner can end.
            taken = self.links.pop(uid, None)
            kept = self.holds.get(taken.hold) if taken else None
            if kept is not None and kept.consumption is not Consumption.SHARED:
                del self.holds[kept.id]
            del self.pods[uid]

    def released(self, choice: int) -> None:
        """A deadline, or a deletion: a hold with an assumed owner may end as well."""
        if self.holds:
            del self.holds[sorted(self.holds)[choice % len(self.holds)]]


AMOUNTS = st.fixed_dictionaries({"cpu": st.integers(0, 6)}, optional={"gpu": st.integers(0, 3)})
CHOICE = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), AMOUNTS, st.sampled_from([*Consumption]), st.booleans()),
        st.tuples(st.just("unmatched_pod"), AMOUNTS),
        st.tuples(st.just("owner"), AMOUNTS, CHOICE),
        *(st.tuples(st.just(step), CHOICE) for step in ("bound", "failed", "ended", "released")),
    ),
    max_size=30,
)


@examples(60)
@given(STEPS)
def test_a_node_is_never_oversubscribed(steps: list[tuple[Any, ...]]) -> None:
    node = OneNode()
    for step, *arguments in steps:
        getattr(node, step)(*arguments)
        taken = node.occupied()
        assert all(amount <= node.capacity[name] for name, amount in taken.items()), (step, taken)
        state = PlacementSnapshot.of(
            [NodeInfo(name="n", allocatable=node.capacity)],
            (
                *(replace(request(uid, requests=pod).pod, node_name="n") for uid, pod in node.pods.items()),
                *node.ledger().placeholders(),
            ),
        ).states["n"]
        # Filters of other pods see the same numbers.
        assert {**dict.fromkeys(taken, 0), **state.requested, "pods": state.places} == taken
