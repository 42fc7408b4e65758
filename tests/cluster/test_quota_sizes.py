"""No machine is bought for a pod whose elastic quota refuses the GPUs of that machine."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.nos import ElasticQuota
from broker.quota.elastic_gpu import GPU, GPU_MEMORY
from local.demo.scheduling import schedule
from tests.cluster import objects
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import claims, pool, start

SMALL, BIG = "g6.12xlarge", "p5.48xlarge"


@pytest.fixture
def quota(stack: Stack) -> Any:
    """Sets the quota of the namespace, in GB, and serves both types; BIG has a free reserved slot."""
    stack.node_class(id_=stack.aws.odcr(BIG, count=2))

    def put(gigabytes: int, *types: str) -> None:
        pool(stack, template={"requirements": [_one_of(types or (SMALL, BIG))]})
        amounts = {GPU_MEMORY: str(gigabytes)}
        body = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"min": amounts, "max": amounts}}
        stack.client.create(ElasticQuota.KIND, body)
        start(stack)
        stack.start_scheduler()

    return put


def _one_of(types: tuple[str, ...]) -> dict[str, Any]:
    return {"key": names.INSTANCE_TYPE, "operator": "In", "values": [*types]}


def gpus(stack: Stack, name: str, scheduler: str = "nos-scheduler", **spec: Any) -> None:
    container = {
        "name": "main",
        "image": "pause",
        "resources": {"requests": {GPU: "1"}, "limits": {GPU: "1"}},
    }
    body = objects.pod(name, containers=[container])
    body["spec"] |= {"schedulerName": scheduler, **spec}
    stack.client.create(Pod.KIND, body)


def types_of(stack: Stack) -> list[set[str]]:
    return [
        {
            value
            for item in claim.spec.requirements
            if item.key == names.INSTANCE_TYPE
            for value in item.values
        }
        for claim in claims(stack)
    ]


@pytest.mark.covers("FLT-68")
@pytest.mark.parametrize(("gigabytes", "expected"), [(79, {SMALL}), (80, {BIG})])
def test_a_machine_is_bought_whose_gpus_the_quota_allows(
    stack: Stack, quota: Any, gigabytes: int, expected: set[str]
) -> None:
    quota(gigabytes)
    gpus(stack, "p")
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    assert expected <= types_of(stack)[0] <= {SMALL, *expected}


@pytest.mark.covers("FLT-68")
def test_no_machine_is_bought_that_the_quota_refuses(stack: Stack, quota: Any) -> None:
    quota(79, BIG)
    gpus(stack, "p")

    def reason() -> bool:
        return any(
            "with GPUs of 80 GB or more" in event.message and "exceed its max" in event.message
            for event in stack.events("p", kind="Pod")
        )

    stack.until(reason, "the reason", step=0.2)
    assert claims(stack) == []


@pytest.mark.covers("FLT-68")
def test_two_pods_get_no_more_machines_than_their_quota_allows(stack: Stack, quota: Any) -> None:
    quota(80, BIG)
    for name in ("a", "b"):
        gpus(stack, name)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    stack.advance(30)
    stack.passes()
    assert len(claims(stack)) == 1


@pytest.mark.covers("FLT-68")
def test_a_quota_that_no_scheduler_of_the_pod_applies_limits_no_machine(stack: Stack, quota: Any) -> None:
    quota(79, BIG)
    gpus(stack, "p", scheduler="default-scheduler")
    schedule(stack.client)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
