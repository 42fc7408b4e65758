"""Pods that are spread over zones stay so when their nodes end or are replaced, as under Karpenter."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, pods, pool, start
from tests.cluster.test_spread_pools import WEB, ZONE, in_zones, spread

COUNT = 2
PODS: dict[str, Any] = {"cpu": "400m", "labels": WEB, "spec": spread(ZONE)}


def in_two_zones(stack: Stack) -> list[str]:
    """A node in each of two zones, with a pod; one node would hold both. Returns the claims."""
    stack.node_class(preference="none")
    zones = in_zones(A, B)
    disruption = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "30s",
        "budgets": [{"nodes": "1"}],
    }
    requirements = [*required(["m5.large"], [ON_DEMAND]), zones]
    pool(stack, disruption=disruption, template={"requirements": requirements})
    waiting = pods(stack, COUNT, **PODS)
    start(stack)
    # The first node alone would take both pods.
    stack.until(lambda: len(stack.all(NodeClaim)) == COUNT, "a claim for each pod")
    stack.until_ready(*(claim.name for claim in stack.all(NodeClaim)))
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    assert zones_of(stack) == [A, B]
    seen = lambda: all(claim.status.last_pod_event_time for claim in stack.all(NodeClaim))  # noqa: E731
    stack.until(seen, "the broker has seen that they run", step=0.2)
    return [claim.name for claim in stack.all(NodeClaim)]


def zones_of(stack: Stack) -> list[str]:
    """The zones of the pods that run."""
    zone = {node.name: node.labels[ZONE] for node in stack.all(Node)}
    return sorted(zone[name] for pod in live(stack) if (name := pod.spec.node_name) in zone)


def live(stack: Stack) -> list[Pod]:
    return [pod for pod in stack.all(Pod) if not pod.deleting and pod.labels.get("app") == WEB["app"]]


def play(stack: Stack) -> None:
    """What the Deployment's controller and the scheduler do now, and time."""
    at = f"{stack.clock.now().timestamp():.0f}"
    pods(stack, COUNT - len(live(stack)), f"p-{at}", **PODS)
    stack.advance(STEP)
    stack.passes(1)


@pytest.mark.covers("FUL-40")
def test_nodes_in_two_zones_are_not_consolidated_into_one(stack: Stack) -> None:
    claims = in_two_zones(stack)
    for _ in range(int(120 // STEP)):
        play(stack)
    assert [claim.name for claim in stack.all(NodeClaim)] == claims
    assert zones_of(stack) == [A, B]


@pytest.mark.parametrize(("zones", "left"), [([A, B], [A, B]), ([A], [A, A])])
def test_drifted_node_is_replaced_in_its_zone_as_long_as_its_pool_has_it(
    stack: Stack, zones: list[str], left: list[str]
) -> None:
    claims = in_two_zones(stack)
    requirements = [*required(["m5.large"], [ON_DEMAND]), in_zones(*zones)]
    template = {"metadata": {"labels": {"version": "2"}}, "spec": {"requirements": requirements}}
    stack.edit(NodePool, "team", {"spec": {"template": template}})

    def replaced() -> bool:
        play(stack)
        names = {claim.name for claim in stack.all(NodeClaim)}
        return names.isdisjoint(claims) and zones_of(stack) == left

    stack.until(replaced, "both nodes are replaced", step=0.2)
