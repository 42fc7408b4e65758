"""Pods that are spread over labels of NodePools, as Karpenter spreads them over the values of all pools."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, SPOT
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, pods, pool, start

WEB = {"app": "web"}
SHARE = "capacity-spread"
ZONE = "topology.kubernetes.io/zone"


def spread(key: str) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": WEB}}]}


def in_zones(*zones: str) -> dict[str, Any]:
    return {"key": ZONE, "operator": "In", "values": [*zones]}


def shares(stack: Stack, name: str, capacity: list[str], values: list[str]) -> None:
    """A NodePool whose nodes have one of these values."""
    own = {"key": SHARE, "operator": "In", "values": values}
    pool(stack, name, template={"requirements": [*required(["m5.large"], capacity), own]})


@pytest.mark.covers("KRP-35")
def test_pods_are_split_by_the_number_of_label_values_of_each_pool(stack: Stack) -> None:
    stack.node_class(preference="none")
    shares(stack, "spot", [SPOT], ["2", "3", "4", "5"])
    shares(stack, "base", [ON_DEMAND], ["1"])
    waiting = pods(stack, 5, cpu="1500m", labels=WEB, spec=spread(SHARE))
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    assert sorted(node.labels[SHARE] for node in stack.all(Node)) == ["1", "2", "3", "4", "5"]
    bought = Counter(item.get("InstanceLifecycle", ON_DEMAND) for item in stack.aws.instances())
    assert bought == {SPOT: 4, ON_DEMAND: 1}


@pytest.mark.covers("KRP-35")
def test_pods_are_spread_over_the_capacity_types_that_their_pool_allows(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack, template={"requirements": required(["m5.large"], [SPOT, ON_DEMAND])})
    waiting = pods(stack, 4, cpu="1500m", labels=WEB, spec=spread(names.CAPACITY_TYPE))
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    bought = Counter(item.get("InstanceLifecycle", ON_DEMAND) for item in stack.aws.instances())
    assert bought == {SPOT: 2, ON_DEMAND: 2}


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize(
    ("own", "test", "value"),
    [
        ("In a b", "", "a"),
        ("In a b", "NotIn a", "b"),
        ("Exists", "", "0"),
        ("Exists", "Exists", "0"),
        ("Gt 3", "Gt 5", "6"),
        ("NotIn a", "Exists", "0"),
    ],
)
def test_node_has_a_value_of_each_label_of_its_pool_that_its_pods_allow(
    stack: Stack, own: str, test: str, value: str
) -> None:
    stack.node_class(preference="none")
    requirements = [*required(["m5.large"], [ON_DEMAND]), written(own)]
    pool(stack, template={"requirements": requirements})
    terms = {"nodeSelectorTerms": [{"matchExpressions": [written(test)]}]} if test else None
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    waiting = pods(stack, 1, spec={"affinity": affinity} if test else {})
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pod runs", step=0.2)
    assert [node.labels[SHARE] for node in stack.all(Node)] == [value]


def written(text: str) -> dict[str, Any]:
    """A requirement of the label."""
    operator, *values = text.split()
    return {"key": SHARE, "operator": operator, "values": values}


@pytest.mark.covers("FUL-30")
@pytest.mark.parametrize(("own", "value"), [("In b a", "a"), ("Exists", "0")])
def test_static_node_has_a_value_of_each_label_of_its_pool(stack: Stack, own: str, value: str) -> None:
    stack.node_class(preference="none")
    pool(stack, replicas=1, template={"requirements": [*required(["m5.large"], [ON_DEMAND]), written(own)]})
    start(stack)
    waiting = pods(stack, 1, spec={"nodeSelector": {SHARE: value}})
    stack.until(lambda: bound(stack, waiting), "the pod runs", step=0.2)


@pytest.mark.covers("KRP-35")
def test_pods_are_spread_over_the_zones_of_pools_of_every_weight(stack: Stack) -> None:
    stack.node_class(preference="none")
    machines = required(["m5.large"], [ON_DEMAND])
    pool(stack, "first", weight=10, template={"requirements": [*machines, in_zones(A)]})
    pool(stack, "second", template={"requirements": [*machines, in_zones(A, B)]})
    waiting = pods(stack, 4, cpu="1500m", labels=WEB, spec=spread(ZONE))
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    placed = Counter((node.labels[names.NODEPOOL], node.labels[ZONE]) for node in stack.all(Node))
    assert placed == {("first", A): 2, ("second", B): 2}


@pytest.mark.covers("KRP-35")
def test_pods_under_two_rules_are_spread_over_zones_that_have_no_node_yet(stack: Stack) -> None:
    stack.node_class(preference="none")
    machines = required(["m5.large"], [SPOT, ON_DEMAND])
    pool(stack, template={"requirements": [*machines, in_zones(A, B)]})
    rules = [rule for key in (names.CAPACITY_TYPE, ZONE) for rule in spread(key)["topologySpreadConstraints"]]
    waiting = pods(stack, 4, cpu="1500m", labels=WEB, spec={"topologySpreadConstraints": rules})
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    for key in (names.CAPACITY_TYPE, ZONE):
        assert [*Counter(node.labels[key] for node in stack.all(Node)).values()] == [2, 2]
