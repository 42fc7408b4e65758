"""A pod without a machine learns why from its own pool first, with the way out."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.controllers.provisioning.report import FAILED, OFFERING
from tests.cluster import cases
from tests.cluster.account import B
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_node_labels import OLD_ZONE, WITH_VOLUME, volume
from tests.cluster.test_provisioning import capacity, pods, pool, start


@pytest.mark.covers("FLT-35")
def test_dedicated_reservation_names_the_requirement_to_add(stack: Stack) -> None:
    ids = cases.apply(stack, "ec2-08-no-machine-reason")
    start(stack)
    event = stack.until_event("p", FAILED, kind="Pod", text=ids["A"])
    assert "NodePool team" in event.message and "tenancy" in event.message
    assert names.INSTANCE_TENANCY in event.message
    offering = stack.until(lambda: stack.condition(NodePool, "team", OFFERING), "a condition")
    assert offering is not None and offering.status == "False"
    assert ids["A"] in offering.message and names.INSTANCE_TENANCY in offering.message


@pytest.mark.covers("FLT-35")
def test_pool_that_the_pod_selects_comes_first_and_others_are_a_count(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large"))
    windows = {"key": names.OS, "operator": "In", "values": ["windows"]}
    pool(stack, "a-first")
    pool(stack, "windows", template={"requirements": [windows]})
    start(stack)
    pods(stack, 1, spec={"nodeSelector": {names.NODEPOOL: "windows"}})
    event = stack.until_event("p-0", FAILED, kind="Pod", text="NodePool windows")
    assert names.OS in event.message and "a-first" not in event.message
    assert "1 other NodePool" in event.message


@pytest.mark.covers("FLT-35")
def test_volume_in_a_zone_without_a_slot_is_named_with_the_reservations_zone(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large")
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    volume(stack, OLD_ZONE, B)
    pods(stack, 1, spec=WITH_VOLUME)
    start(stack)
    event = stack.until_event("p-0", FAILED, kind="Pod", text="volume pv")
    assert all(text in event.message for text in (B, odcr, "us-east-1a"))


@pytest.mark.covers("FLT-35")
def test_limit_names_pool_resource_and_numbers(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack, limits={"cpu": "1"})
    start(stack)
    pods(stack, 1)
    event = stack.until_event("p-0", FAILED, kind="Pod", text="limit of cpu")
    assert "NodePool team" in event.message and "has 1 left" in event.message
    assert "(m5.large) has 2" in event.message
