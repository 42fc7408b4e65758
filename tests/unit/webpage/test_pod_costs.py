"""The pods of a node pay at most its price, by namespace and by owner; the rest is its unused part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodePool
from broker.apis.ome import CapacityReservation
from broker.oncall.waiting_pods import WaitingPod
from broker.placement.node_prices import Cost, total
from broker.reservations.drawing import DrawRights
from broker.reservations.spec import reserved_of
from broker.webpage.nodes import PodAmounts, node_rows, pod_rows

GPU: Final = "nvidia.com/gpu"
NUMBERS: Final = count()
ROOM: Final = {"cpu": "8", "memory": "32Gi", GPU: "4"}
Prices = Mapping[str, float | None]


def node(name: str) -> Node:
    return Node.decode({"metadata": {"name": name}, "status": {"allocatable": ROOM}})


def pod(team: str, requests: Mapping[str, Any], node: str = "n1", *, phase: str = "Running") -> Pod:
    """A pod of namespace `team`; of a DaemonSet in `daemons`."""
    name = f"p-{next(NUMBERS)}"
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u"}
    metadata: dict[str, Any] = {"name": name, "namespace": team, "uid": name, "resourceVersion": "1"}
    if team == "daemons":
        metadata["ownerReferences"] = [owner]
    asked = {"requests": {resource: str(amount) for resource, amount in requests.items()}}
    spec = {"containers": [{"name": "c", "resources": asked}]} | ({"nodeName": node} if node else {})
    return Pod.decode({"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def costs(pods: Sequence[Pod], prices: Prices) -> tuple[dict[str, Cost], float]:
    """The cost of the pods of each namespace, by its view, and the unused part of all nodes."""
    nodes = [node(name) for name in prices]
    rights, amounts = DrawRights({}), PodAmounts()

    def rows(namespace: str) -> list[Any]:
        return pod_rows(nodes, (), pods, rights, lambda item: prices[item.name], amounts, namespace=namespace)

    teams = sorted({pod.namespace for pod in pods})
    assert [row for team in teams for row in rows(team)] == rows("")
    unused = node_rows(nodes, (), pods, {}, lambda item: prices[item.name], amounts)
    return {team: total(row.usd_hour for row in rows(team)) for team in teams}, sum(n.unused for n in unused)


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize(
    ("pods", "prices", "paid", "unused"),
    [
        ([pod("a", {"cpu": 2})], {"n1": 8.0}, {"a": (2, 0)}, 6),
        ([pod("a", {})], {"n1": 8.0}, {"a": (0, 0)}, 8),
        ([pod("a", {"cpu": 16})], {"n1": 8.0}, {"a": (8, 0)}, 0),
        ([pod("a", {"cpu": 4}), pod("b", {GPU: 1})], {"n1": 8.0}, {"a": (4, 0), "b": (2, 0)}, 2),
        ([pod("a", {"cpu": 8}), pod("b", {GPU: 4})], {"n1": 8.0}, {"a": (4, 0), "b": (4, 0)}, 0),
        (
            [pod("a", {"cpu": 8}), pod("a", {GPU: 4}), pod("b", {"memory": "32Gi"}), pod("b", {})],
            {"n1": 9.0},
            {"a": (6, 0), "b": (3, 0)},
            0,
        ),
        (
            [pod("a", {"cpu": 4}), pod("b", {GPU: 4}), pod("daemons", {"cpu": 4})],
            {"n1": 8.0},
            {"a": (2, 0), "b": (4, 0), "daemons": (0, 0)},
            0,
        ),
        ([pod("a", {"cpu": 2}), pod("b", {"cpu": 8}, phase="Succeeded")], {"n1": 8.0}, {"a": (2, 0)}, 6),
        ([pod("a", {"cpu": 8}), pod("a", {GPU: 4})], {"n1": None}, {"a": (0, 2)}, 0),
        ([pod("a", {"cpu": 8}), pod("a", {GPU: 4})], {"n1": 0.0}, {"a": (0, 0)}, 0),
        (
            [pod("a", {"cpu": 8}), pod("b", {GPU: 4}), pod("a", {"cpu": 4}, "n2")],
            {"n1": 8.0, "n2": 2.0},
            {"a": (5, 0), "b": (4, 0)},
            1,
        ),
        ([pod("a", {"cpu": 8}, "", phase="Pending")], {"n1": 8.0}, {"a": (0, 0)}, 8),
        ([pod("a", {"cpu": 8}, "gone")], {"n1": 8.0}, {"a": (0, 1)}, 8),
    ],
    ids=[
        *(
            "part",
            "no requests",
            "more than the node",
            "two resources",
            "whole node twice",
            "three resources",
        ),
        *("DaemonSet", "finished", "unknown price", "block", "two nodes", "waits", "node is gone"),
    ],
)
def test_pods_of_a_node_pay_at_most_its_price(
    pods: Sequence[Pod], prices: Prices, paid: Mapping[str, Cost], unused: float
) -> None:
    by_team, rest = costs(pods, prices)
    assert {team: cost for team, cost in by_team.items() if team in paid} == paid
    assert rest == unused


AMOUNTS: Final = st.fixed_dictionaries(
    {}, optional={"cpu": st.integers(0, 12), "memory": st.integers(0, 2**36), GPU: st.integers(0, 5)}
)
PODS: Final = st.lists(
    st.tuples(st.sampled_from(["a", "b", "daemons"]), AMOUNTS, st.sampled_from(["n1", "n2"])), max_size=8
)


@pytest.mark.covers("ONC-05")
@given(PODS, st.floats(0, 1000), st.floats(0, 1000))
def test_namespaces_and_the_unused_part_are_the_price_of_the_nodes(
    drawn: Sequence[tuple[str, Mapping[str, int], str]], first: float, second: float
) -> None:
    prices = {"n1": first, "n2": second}
    by_team, unused = costs([pod(*given) for given in drawn], prices)
    dollars = [cost for cost, _ in by_team.values()]
    assert unused >= 0 and all(cost >= 0 for cost in dollars)
    for team, cost in by_team.items():
        most = sum(prices[name] for name in {name for namespace, _, name in drawn if namespace == team})
        assert cost[0] <= most + 1e-9
    price, together = first + second, sum(dollars) + unused
    if "daemons" in by_team:  # their part is in no view
        assert together <= price + 1e-9
    else:
        assert together == pytest.approx(price, abs=1e-9)


@pytest.mark.covers("ONC-05")
def test_waiting_pod_of_a_pool_that_draws_is_with_the_owner_s_pods() -> None:
    gpus = CapacityReservation.decode({"metadata": {"name": "gpus", "namespace": "ml"}})
    drawing = {"metadata": {"annotations": {names.DRAWS_FROM: "ml/gpus"}}}
    pools = [
        NodePool.decode({"metadata": {"name": name}, "spec": {"template": template}})
        for name, template in (("draws", drawing), ("open", {}))
    ]
    waits, open_ = (pod("ml", {"cpu": 1}, "") for _ in pools)
    rows = pod_rows(
        (),
        (),
        [waits, open_],
        DrawRights({reserved_of(gpus): gpus}),
        lambda _: None,
        PodAmounts(),
        waiting=[
            WaitingPod(
                namespace="ml",
                name=item.name,
                owner="",
                node_pool=pool.name,
                reason="",
                message="",
                since=None,
            )
            for item, pool in zip((waits, open_), pools, strict=True)
        ],
        pools=pools,
        owner="ml/gpus",
    )
    assert [(row.name, row.owner) for row in rows] == [(waits.name, "ml/gpus")]
