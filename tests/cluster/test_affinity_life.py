"""Pods on a node that drains count in the rules of pods that wait, as kube-scheduler counts them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.oncall.pod_reports import FAILED
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, pods, pool, start
from tests.cluster.test_spread_pools import ZONE, in_zones

DB = {"app": "db"}
TERM = {"labelSelector": {"matchLabels": DB}, "topologyKey": ZONE}


def beside_a_draining_node(stack: Stack, rule: str, zones: list[str]) -> str:
    """A node in zone A that a budget keeps from draining, and a pod with this rule about its pod, which
    waits. Returns its name."""
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [*required(["m5.large"], [ON_DEMAND]), in_zones(*zones)]})
    first = pods(stack, 1, "db", labels=DB, spec={"nodeSelector": {ZONE: A}})
    start(stack)
    stack.until(lambda: bound(stack, first), "the first pod runs", step=0.2)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    stack.client.patch(Pod.KIND, first[0], {"status": ready}, namespace="default", subresource="status")
    stack.budget("db", app="db")
    (claim,) = stack.all(NodeClaim)
    stack.delete(NodeClaim, claim.name)
    stack.until_event(claim.name, "EvictionBlocked")
    affinity: dict[str, Any] = {rule: {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}
    return pods(stack, 1, "web", spec={"affinity": affinity})[0]


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize(("rule", "zone"), [("podAntiAffinity", B), ("podAffinity", A)])
def test_waiting_pod_gets_a_machine_in_the_zone_that_a_pod_of_a_draining_node_leaves_it(
    stack: Stack, rule: str, zone: str
) -> None:
    waiting = beside_a_draining_node(stack, rule, [A, B])
    stack.until(lambda: bound(stack, [waiting]), "the pod runs", step=0.2)
    (_, bought) = sorted(stack.aws.instances(), key=lambda item: item["LaunchTime"])
    assert bought["Placement"]["AvailabilityZone"] == zone


@pytest.mark.covers("KRP-35", "FLT-05")
def test_no_machine_is_bought_beside_a_pod_that_keeps_the_waiting_pod_off(stack: Stack) -> None:
    waiting = beside_a_draining_node(stack, "podAntiAffinity", [A])
    stack.until_event(waiting, FAILED, kind="Pod", text="its rules about other pods")
    stack.advance(60)
    stack.passes()
    assert len([fleet for fleet in stack.aws.fleets() if not fleet.get("DryRun")]) == 1
