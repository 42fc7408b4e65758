"""No machine is bought for a pod that its elastic quota refuses beside the pods before it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.crds import KIND as CRD
from broker.apis.nos import ElasticQuota
from broker.apis.workloads import NativePodGroup
from tests.cluster import objects
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import claims, pool, start
from tests.support.definitions import group_definition

TWO_PODS = {"cpu": "3"}
GANGS = ("x-0", "y-0", "x-1", "y-1")


@pytest.fixture
def quota(stack: Stack) -> Any:
    """Starts the broker and its scheduler with a quota of two pods; EC2 has slots for six machines."""

    def put(**pool_spec: Any) -> None:
        stack.node_class(id_=stack.aws.odcr("m5.large", count=6))
        pool(stack, **pool_spec)
        body = {
            "metadata": {"name": "q", "namespace": "default"},
            "spec": {"min": TWO_PODS, "max": TWO_PODS},
        }
        stack.client.create(ElasticQuota.KIND, body)
        start(stack)
        stack.start_scheduler()

    return put


def pod(stack: Stack, name: str, size: int = 0, **spec: Any) -> None:
    """A pod that fills a machine; with `size` one of the gang before the dash."""
    gang = {names.GANG: name.partition("-")[0], names.GANG_SIZE: str(size)} if size else {}
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1500m"}}}
    body = objects.pod(name, containers=[container], annotations=gang)
    body["spec"] |= {"schedulerName": "nos-scheduler", **spec}
    stack.client.create(Pod.KIND, body)


def bound(stack: Stack) -> set[str]:
    return {pod.name for pod in stack.all(Pod) if pod.spec.node_name}


def settled(stack: Stack) -> None:
    stack.advance(30)
    stack.passes()


@pytest.mark.covers("FLT-42")
@pytest.mark.parametrize("size", [2, 0], ids=["gangs", "single pods"])
def test_pods_get_as_many_machines_as_their_quota_holds_together(stack: Stack, quota: Any, size: int) -> None:
    quota()
    for name in GANGS:
        pod(stack, name, size)
    stack.until(lambda: len(bound(stack)) == 2, "two pods run", step=0.2)
    settled(stack)
    assert len(claims(stack)) == 2
    first = bound(stack)
    if size:
        assert len({name[0] for name in first}) == 1
    for name in first:
        stack.delete(Pod, name, namespace="default")
    stack.until(lambda: bound(stack) == {*GANGS} - first, "the others run", step=0.2)
    assert len(claims(stack)) == 2


@pytest.mark.covers("FLT-42")
def test_a_native_pod_group_beyond_the_quota_gets_no_machine(stack: Stack, quota: Any) -> None:
    stack.client.create(CRD, group_definition(NativePodGroup.KIND))
    for group in ("x", "y"):
        body = {
            "metadata": {"name": group, "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
        stack.client.create(NativePodGroup.KIND, body)
    quota()
    for name in GANGS:
        pod(stack, name, schedulingGroup={"podGroupName": name[0]})
    stack.until(lambda: len(bound(stack)) == 2, "one gang runs", step=0.2)
    settled(stack)
    assert len(claims(stack)) == 2 and len({name[0] for name in bound(stack)}) == 1


@pytest.mark.covers("FLT-42")
def test_a_gang_gets_machines_for_as_many_pods_as_it_needs_and_the_quota_holds(
    stack: Stack, quota: Any
) -> None:
    quota()
    for name in ("x-0", "x-1", "x-2"):
        pod(stack, name, 2)
    stack.until(lambda: len(bound(stack)) == 2, "two pods run", step=0.2)
    settled(stack)
    assert len(claims(stack)) == 2


@pytest.mark.covers("FLT-42")
def test_a_pod_without_any_machine_holds_up_no_other_of_its_quota(stack: Stack, quota: Any) -> None:
    quota()
    for name in ("a", "b"):
        pod(stack, name, nodeSelector={"example.com/missing": "yes"})
    pod(stack, "c")
    stack.until(lambda: bound(stack) == {"c"}, "the other runs", step=0.2)
    assert len(claims(stack)) == 1


@pytest.mark.covers("FLT-42")
def test_a_pod_beyond_the_quota_says_so(stack: Stack, quota: Any) -> None:
    quota(limits={"cpu": "100"})
    stack.kubelets.stop()
    for name in ("a", "b", "c"):
        pod(stack, name)
    stack.until(lambda: len(claims(stack)) == 2, "two claims", step=0.2)

    def reasons() -> list[str]:
        return [
            event.message
            for name in ("a", "b", "c")
            for event in stack.events(name, kind="Pod")
            if "ElasticQuota/default/q would exceed its max" in event.message
        ]

    (reason,) = stack.until(reasons, "the reason", step=0.2)
    assert "beside the pods that come before it" in reason
    assert len(claims(stack)) == 2
