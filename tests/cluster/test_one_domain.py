"""Pods that must be together get a zone or a machine that has room for all of them."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from tests.cluster import cases
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, claims, start

pytestmark = pytest.mark.covers("FLT-30")


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
