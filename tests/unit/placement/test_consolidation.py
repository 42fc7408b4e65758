"""Which bought nodes end because others, or a cheaper machine, hold their pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.placement.consolidation import (
    LEAST_SCORE,
    Leaving,
    MachineOffer,
    NodeValue,
    PoolTotals,
    cheaper,
    plan_deletions,
    ranked,
)
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.quantities import CPU, PODS
from broker.placement.snapshot import PlacementSnapshot

OD, SPOT, RESERVED = "on-demand", "spot", "reserved"
PRICES: Mapping[str, float] = {"small": 1.0, "medium": 2.0, "large": 4.0}
ROOM: Mapping[str, int] = {"small": 2, "medium": 4, "large": 8}


def value(uid: str = "n", kind: str = OD, type_: str = "medium", **more: Any) -> NodeValue:
    price = 0.0 if kind == RESERVED else PRICES[type_]
    given_ = {"pool": "web", "price": price, "disruption": 2.0, **more}
    return NodeValue(uid=uid, instance_type=type_, capacity_type=kind, **given_)


def offer(type_: str, kind: str = OD, price: float | None = -1.0) -> MachineOffer:
    return MachineOffer(type_, "a", kind, PRICES[type_] if price == -1.0 else price)


ALL = [offer("small"), offer("medium"), offer("large"), offer("medium", SPOT, 0.5)]


@pytest.mark.covers("FUL-40")
@pytest.mark.parametrize(
    ("ending", "offers", "allowed", "expected"),
    [
        ([value()], ALL[:3], [OD], ["small"]),
        ([value(type_="small")], ALL[:3], [OD], []),  # not one as dear as the old one
        ([value(type_="large")], ALL[:3], [OD], ["small", "medium"]),
        ([value(type_="large")], ALL, [OD, SPOT], ["medium"]),  # spot alone, if any is cheaper
        ([value(kind=SPOT, price=0.9)], ALL, [OD, SPOT], []),  # spot to spot is off
        ([value(kind=SPOT, price=1.5)], ALL[:3], [OD], ["small"]),
        ([value(), value("m", SPOT, price=0.9)], ALL[:1], [OD, SPOT], ["small"]),
        ([value(), value("m", SPOT, price=0.9)], ALL[:3], [OD, SPOT], []),  # the second could stay
        ([value(kind=RESERVED)], ALL, [OD, SPOT], []),
        ([value(), value("m", RESERVED)], ALL, [OD, SPOT], []),
        ([value(price=0.0)], ALL, [OD, SPOT], []),  # its price is unknown
        ([value()], [offer("small", price=None)], [OD], []),
        ([value(), value("m")], ALL[:3], [OD], ["small"]),  # a medium one could stay as well
        ([value("a", type_="large"), value("m")], ALL[:3], [OD], ["small"]),
        ([value(), value("m"), value("o")], [offer("large")], [OD], ["large"]),
        ([value(kind=OD)], [offer("small", RESERVED, 0.0)], [OD], []),  # a slot is another way
    ],
)
def test_machine_in_the_place_of_bought_nodes_is_cheaper_than_all_of_them(
    ending: Sequence[NodeValue],
    offers: Sequence[MachineOffer],
    allowed: Sequence[str],
    expected: Sequence[str],
) -> None:
    assert [item.instance_type for item in cheaper(ending, offers, allowed)] == expected


@pytest.mark.covers("FUL-40")
@pytest.mark.parametrize(
    ("share", "disruption", "after", "rejected"),
    [
        (0.1, 0.1, 0.0, False),
        (0.1, 0.2, 0.0, False),  # a score of 0.5 is enough
        (0.1, 0.21, 0.0, True),
        (0.1, 0.1, 5.0, False),  # it saves half of its price
        (0.1, 0.1, 5.1, True),
        (0.1, 0.0, 9.9, False),
        (0.0, 0.1, 0.0, True),
    ],
)
def test_balanced_needs_savings_of_half_the_share_of_the_disruption(
    share: float, disruption: float, after: float, rejected: bool
) -> None:
    totals = PoolTotals({"web": 100.0}, {"web": 100.0})
    node = value(price=100 * share, disruption=100 * disruption, balanced=True)
    text = totals.rejection([node], after)
    assert bool(text) == rejected
    assert not rejected or (f"{LEAST_SCORE:.2f}" in text and "NodePool web" in text)
    assert not totals.rejection([value(price=100 * share, disruption=100 * disruption)], after)


@pytest.mark.covers("FUL-40")
def test_each_balanced_pool_has_its_share_of_the_savings() -> None:
    totals = PoolTotals({"a": 10.0, "b": 10.0}, {"a": 10.0, "b": 10.0})
    cheap = value("a", pool="a", price=1.0, disruption=4.0, balanced=True)
    dear = value("b", pool="b", price=9.0, disruption=1.0, balanced=True)
    assert "NodePool a" in totals.rejection([cheap, dear])
    assert not totals.rejection([value("a", pool="a", price=1.0, disruption=4.0), dear])


@pytest.mark.covers("FUL-40")
def test_totals_count_reserved_nodes_by_their_disruption_alone() -> None:
    totals = PoolTotals.of([value(), value("m", RESERVED, disruption=3.0)])
    assert (totals.cost["web"], totals.disruption["web"]) == (2.0, 5.0)


@pytest.mark.covers("FUL-40")
def test_nodes_that_save_the_most_for_the_least_disruption_come_first() -> None:
    nodes = [
        value("b"),
        value("a"),
        value("c", disruption=4.0),
        value("d", type_="large"),
        value("r", RESERVED),
    ]
    assert [node.uid for node in ranked(nodes)] == ["d", "a", "b", "c", "r"]


class World:
    """Nodes with pods of whole CPUs."""

    def __init__(self, nodes: Sequence[tuple[str, str, Sequence[int]]], balanced: bool = False) -> None:
        self.values, self.pods, infos = {}, {}, []
        for number, (kind, type_, pods) in enumerate(nodes):
            name = f"n{number}"
            kept, room = [], ROOM[type_]
            for size in pods:
                if size <= room:
                    room -= size
                    kept.append(size)
            self.values[name] = value(
                name, kind, type_, pool=f"p{number % 2}", disruption=1.0 + len(kept), balanced=balanced
            )
            self.pods[name] = [
                PodInfo(namespace="x", name=f"{name}-{n}", requests={CPU: size}, node_name=name)
                for n, size in enumerate(kept)
            ]
            infos.append(NodeInfo(name=name, allocatable={CPU: ROOM[type_], PODS: 10}))
        self.placement = PlacementSnapshot.of(infos, [pod for pods in self.pods.values() for pod in pods])
        self.totals = PoolTotals.of(self.values.values())

    def leaving(self) -> list[Leaving]:
        hosts = sorted(self.values, key=lambda name: self.values[name].capacity_type != RESERVED)
        return [
            Leaving(
                value=node,
                node=node.uid,
                pods=tuple(_moved(pod) for pod in self.pods[node.uid]),
                hosts=tuple(hosts),
            )
            for node in ranked(self.values.values())
        ]


def _moved(pod: PodInfo) -> PodInfo:
    return PodInfo(namespace=pod.namespace, name=pod.name, requests=pod.requests)


NODES = st.lists(
    st.tuples(
        st.sampled_from([OD, SPOT, RESERVED]),
        st.sampled_from([*PRICES]),
        st.lists(st.integers(1, 4), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.covers("FUL-40")
@given(nodes=NODES, budgets=st.tuples(st.integers(0, 3), st.integers(0, 3)), balanced=st.booleans())
def test_ends_save_money_and_leave_room_for_all_pods_within_budgets(
    nodes: Sequence[tuple[str, str, Sequence[int]]], budgets: tuple[int, int], balanced: bool
) -> None:
    world = World(nodes, balanced)
    limits = {"p0": budgets[0], "p1": budgets[1]}
    ends, after = plan_deletions(world.leaving(), world.placement, limits, world.totals, lambda _: True)
    ended = {item.leaving.node for item in ends}
    assert all(world.values[name].bought for name in ended)  # so the price falls with each
    assert all(sum(world.values[n].pool == pool for n in ended) <= most for pool, most in limits.items())
    assert after.states.keys() == world.values.keys() - ended
    before = sorted(pod.name for pods in world.pods.values() for pod in pods)
    assert sorted(pod.name for state in after.states.values() for pod in state.pods) == before
    for name, state in after.states.items():
        assert sum(pod.requests[CPU] for pod in state.pods) <= ROOM[world.values[name].instance_type]
    assert not any(host in ended for item in ends for host in item.hosts)
    if balanced:
        assert not any(world.totals.rejection([world.values[name]]) for name in ended)


@pytest.mark.covers("FUL-40")
@given(
    ending=st.lists(
        st.tuples(st.sampled_from([OD, SPOT, RESERVED]), st.sampled_from([*PRICES])), min_size=1, max_size=4
    ),
    allowed=st.sets(st.sampled_from([OD, SPOT, RESERVED])),
    prices=st.lists(st.tuples(st.sampled_from([*PRICES]), st.sampled_from([OD, SPOT]), st.floats(0.1, 9.0))),
)
def test_replacement_costs_less_and_takes_the_place_of_no_reserved_node(
    ending: Sequence[tuple[str, str]], allowed: set[str], prices: Sequence[tuple[str, str, float]]
) -> None:
    nodes = [value(f"n{n}", kind, type_) for n, (kind, type_) in enumerate(ending)]
    offers = [MachineOffer(type_, "a", kind, price) for type_, kind, price in prices]
    chosen = cheaper(nodes, offers, allowed)
    assert all(item.price is not None and item.price < sum(n.price for n in nodes) for item in chosen)
    assert not chosen or all(node.capacity_type != RESERVED for node in nodes)
    assert len({item.capacity_type for item in chosen}) <= 1 or SPOT not in {o.capacity_type for o in chosen}


@pytest.mark.covers("FUL-40")
def test_pods_go_to_reserved_nodes_first_and_a_node_that_gets_pods_stays() -> None:
    world = World([(OD, "medium", [1]), (OD, "medium", [1, 1]), (RESERVED, "small", [1])])
    ends, _ = plan_deletions(
        world.leaving(), world.placement, {"p0": 9, "p1": 9}, world.totals, lambda _: True
    )
    assert [(item.leaving.node, item.hosts) for item in ends] == [("n0", ("n2",))]


@pytest.mark.covers("FUL-40")
def test_node_that_something_keeps_stays() -> None:
    world = World([(OD, "medium", [1]), (RESERVED, "large", [1])])
    ends, after = plan_deletions(world.leaving(), world.placement, {"p0": 9}, world.totals, lambda _: False)
    assert not ends and after is world.placement
