"""Pods that must be together get a zone or a machine that has room for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.commands.dry_run import DryRun
from broker.commands.plan import drafts
from broker.commands.plan.pods import planned_pods
from broker.kube.client import Client
from tests.cluster import cases, objects
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, change, hashed, replacement, run
from tests.cluster.test_provisioning import bound, claims, pods, pool, start

pytestmark = pytest.mark.covers("FLT-30")

TAINTED = {"spec": {"taints": [{"key": "example.com/new", "effect": "PreferNoSchedule"}]}}


def job_pods(stack: Stack, ids: dict[str, str]) -> list[str]:
    """Creates the case's class and pool, and the pods of its job."""
    *others, job = cases.objects_of(stack, "ec2-01-one-zone", ids)
    cases.create(stack, others)
    template = job["spec"]["template"]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"train-{index}", "namespace": "default", **template["metadata"]},
            "spec": template["spec"],
        }
        for index in range(job["spec"]["completions"])
    ]
    cases.create(stack, pods)
    return [pod["metadata"]["name"] for pod in pods]


def test_a_job_of_one_zone_launches_where_the_slots_for_all_its_pods_are(stack: Stack) -> None:
    ids = cases.reservations(stack, "ec2-01-one-zone")
    waiting = job_pods(stack, ids)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "both pods are bound", step=0.2)
    assert (stack.aws.free(ids["A"]), stack.aws.free(ids["B"])) == (1, 0)
    assert len(claims(stack)) == 2


@pytest.mark.both_servers
@pytest.mark.parametrize("domain", [names.ZONE, names.RESERVATION_ID])
def test_claims_of_a_gang_launch_in_one_domain(stack: Stack, domain: str) -> None:
    """Once all are there, where the slots for all are; a claim that comes back follows the others."""
    alone, together = stack.aws.odcr(zone="us-east-1a"), stack.aws.odcr(zone="us-east-1b", count=2)
    stack.node_class(group=stack.aws.group(alone, together))
    gang = {names.GANG: "train", names.GANG_SIZE: "2", names.GANG_DOMAIN: domain}
    for name in ("train-0", "train-1"):
        stack.claim(name, annotations=gang)
    stack.start()
    stack.until_launched("train-0", "train-1")
    assert (stack.aws.free(alone), stack.aws.free(together)) == (1, 0)
    stack.delete(NodeClaim, "train-1")
    stack.until(lambda: stack.find(NodeClaim, "train-1") is None, "the claim is gone", step=2.0)
    stack.until(lambda: stack.aws.free(together), "the slot is free", step=2.0)
    stack.aws.rival(together)
    stack.claim("train-2", annotations=gang)
    stack.until_waiting("train-2")
    stack.passes()
    assert stack.aws.free(alone) == 1


def test_replacements_of_a_gang_of_one_zone_are_in_one_zone(stack: Stack) -> None:
    """Free slots are in two zones: they are left for a zone that can have both."""
    stack.node_class("web", group=stack.aws.group(stack.aws.odcr(zone=A), stack.aws.odcr(zone=B, count=3)))
    stack.node_pool("web", node_class="web")
    budgets = {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
    change(stack, "web", disruption=budgets)
    stack.start()
    gang = {names.GANG: "train", names.GANG_SIZE: "2", names.GANG_DOMAIN: names.ZONE}
    for name in ("g-0", "g-1"):
        stack.claim(name, node_class="web", pool="web", annotations=gang)
    stack.until_ready("g-0", "g-1")
    for name in ("g-0", "g-1"):
        run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name)
    hashed(stack, "g-0", "g-1")
    change(
        stack,
        "web",
        template={"spec": {"taints": [{"key": "example.com/new", "effect": "PreferNoSchedule"}]}},
    )
    stack.until(lambda: all(replacement(stack, name) for name in ("g-0", "g-1")), "replacements", step=STEP)
    new = [claim.name for name in ("g-0", "g-1") if (claim := replacement(stack, name))]
    stack.until_launched(*new)
    assert len({stack.get(NodeClaim, name).labels[names.ZONE] for name in new}) == 1


def near(**more: Any) -> dict[str, Any]:
    """Labels and affinity that keep pods in one zone."""
    term = {"topologyKey": names.ZONE, "labelSelector": {"matchLabels": {"app": "train"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"labels": {"app": "train"}, "spec": {"affinity": affinity}, "cpu": "1500m", **more}


def limited(capacity_type: str) -> dict[str, Any]:
    return {
        "requirements": [
            {"key": names.CAPACITY_TYPE, "operator": "In", "values": [capacity_type]},
            {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]},
        ]
    }


def test_pods_that_must_be_together_leave_a_node_to_come_where_not_all_have_room(stack: Stack) -> None:
    only, both = stack.aws.odcr("m5.large", "us-east-1c", 1), stack.aws.odcr("m5.large", A, 2)
    stack.node_class(group=stack.aws.group(only, both))
    pool(stack, template=limited(RESERVED))
    pods(stack, 1, "first", cpu="300m", spec={"nodeSelector": {names.ZONE: "us-east-1c"}})
    start(stack)
    stack.kubelets.stop()
    stack.until(lambda: claims(stack), "the first claim")
    pods(stack, 2, "train", **near())
    stack.until(lambda: len(stack.aws.instances()) == 3, "two more machines", step=0.5)
    assert stack.aws.free(both) == 0


def test_a_gang_that_ec2_refuses_in_one_zone_launches_whole_in_another(stack: Stack) -> None:
    stack.node_class(preference="none", zones=(A, B))
    for zone, size in ((A, 1), (B, 2)):
        stack.control.pool(instance_type="m5.large", zone=zone, size=size)
    pool(stack, template=limited(ON_DEMAND))
    waiting = pods(stack, 2, "train", **near(annotations={names.GANG: "train", names.GANG_SIZE: "2"}))
    start(stack)
    stack.until(lambda: bound(stack, waiting), "both pods are bound", step=1.0)
    nodes = [stack.get(Node, node) for node in nodes_of(stack, waiting)]
    assert {node.labels[names.ZONE] for node in nodes} == {B}
    assert len(stack.aws.instances()) == 2


def nodes_of(stack: Stack, pods_: list[str]) -> list[str]:
    return [stack.get(Pod, name, namespace="default").spec.node_name for name in pods_]


def test_plan_of_files_puts_pods_that_must_be_together_into_one_zone(stack: Stack) -> None:
    alone, together = stack.aws.odcr("m5.large", A, 1), stack.aws.odcr("m5.large", B, 2)
    stack.node_class(group=stack.aws.group(alone, together))
    pool(stack, template=limited(RESERVED))
    documents = []
    for name in ("train-0", "train-1"):
        given = near()
        body = objects.pod(name, labels=given["labels"], **given["spec"])
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": given["cpu"]}}
        documents.append({"apiVersion": "v1", "kind": "Pod", **body})
    start(stack)
    stack.until_class("ReservationsResolved", "True")
    client, _ = drafts.drafted(documents, lambda: Client(stack.tap))
    provider = stack.provider()
    planned = planned_pods(
        documents,
        client,
        provider,
        stack.settings,
        stack.clock,
        dry_run=lambda: DryRun(client, provider, stack.settings, stack.clock),
    )
    zones = {
        tuple(item["values"])
        for claim in planned.claims
        for item in claim["spec"]["requirements"]
        if item["key"] == names.ZONE
    }
    assert len(planned.claims) == 2 and zones == {(B,)} and not planned.unserved
