"""Pods that must be together get a zone or a machine that has room for all of them."""

from __future__ import annotations

import pytest

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
