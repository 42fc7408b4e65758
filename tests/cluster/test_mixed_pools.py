"""A NodePool of unlike types: a pod gets the machine that it needs, beside cheaper types of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.nodeclass.controller import RECHECK
from tests.cluster import objects
from tests.cluster import test_disruption as disruption
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT
from tests.cluster.stack import Provider, Stack
from tests.cluster.test_drift import daemon_set, drift, requesting
from tests.cluster.test_provisioning import bound, pods, pool, start
from tests.cluster.test_waiting_pods import explained

GPU = {"nvidia.com/gpu": "1"}
HOUR = timedelta(hours=1)


def required(types: Sequence[str], capacity: Sequence[str]) -> list[dict[str, Any]]:
    listed = {names.INSTANCE_TYPE: types, names.CAPACITY_TYPE: capacity}
    return [{"key": key, "operator": "In", "values": [*values]} for key, values in listed.items()]


def mixed(stack: Stack, types: Sequence[str], capacity: Sequence[str], **spec: Any) -> None:
    pool(stack, template={"requirements": required(types, capacity)}, **spec)


def gpu_pod(stack: Stack) -> str:
    container = {"name": "main", "image": "pause", "resources": {"requests": GPU, "limits": GPU}}
    stack.client.create(Pod.KIND, objects.pod("gpu", containers=[container]))
    return "gpu"


@pytest.mark.covers("KRP-35", "FLT-35")
@pytest.mark.parametrize("how", ["on-demand", "group", "open"])
def test_pod_with_gpus_gets_one_from_a_pool_of_plain_types_too(stack: Stack, how: str) -> None:
    if how == "on-demand":
        odcr = ""
        stack.node_class(preference="none")
    else:
        odcr = stack.aws.odcr("g5.12xlarge", criteria="open" if how == "open" else "targeted")
        stack.node_class(group=stack.aws.group(odcr)) if how == "group" else stack.node_class(
            preference="open"
        )
    mixed(stack, ["m5.large", "g5.12xlarge"], [RESERVED, ON_DEMAND])
    gpu_pod(stack)
    plain = pods(stack, 2 if odcr else 0, cpu="1500m")  # on demand they would share the machine
    stack.start(kubelets=False, pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    stack.until(lambda: len(stack.aws.instances()) == 1 + len(plain), "each pod gets a machine", step=0.2)
    launched = [
        (item["InstanceType"], item.get("CapacityReservationId", "")) for item in stack.aws.instances()
    ]
    assert sorted(launched) == [("g5.12xlarge", odcr), *(("m5.large", "") for _ in plain)]


@pytest.mark.covers("KRP-16", "KRP-37")
@pytest.mark.parametrize("capacity", [[SPOT, ON_DEMAND], [ON_DEMAND]])
def test_large_pod_gets_a_machine_that_is_dear_beside_the_smallest(
    stack: Stack, capacity: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    types = stack.provider().instance_types()
    priced = {
        name: replace(type_, spot_prices={A: 0.4 * (type_.on_demand_price or 0)})
        for name, type_ in types.items()
    }
    monkeypatch.setattr(Provider, "known", priced)
    stack.node_class(preference="none")
    mixed(stack, ["m5.large", "m5.2xlarge"], capacity)
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0, price_ceiling=2.0)
    waiting = pods(stack, 1, cpu="6")
    stack.until(lambda: bound(stack, waiting), "the pod runs", step=0.2)
    (instance,) = stack.aws.instances()
    assert instance["InstanceType"] == "m5.2xlarge"
    assert instance.get("InstanceLifecycle", ON_DEMAND) == capacity[0]


@pytest.mark.covers("KRP-16")
def test_pods_get_a_free_slot_however_dear_its_type_is(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {"m5.large": 0.001, "m5.2xlarge": 50.0}
    types = stack.provider().instance_types()
    priced = {name: replace(types[name], on_demand_price=price) for name, price in prices.items()}
    monkeypatch.setattr(Provider, "known", {**types, **priced})
    odcr = stack.aws.odcr("m5.2xlarge")
    stack.node_class(group=stack.aws.group(odcr))
    mixed(stack, [*prices], [RESERVED, ON_DEMAND])
    start(stack)
    waiting = pods(stack, 3)
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    (instance,) = stack.aws.instances()
    assert instance["CapacityReservationId"] == odcr


@pytest.mark.covers("FLT-35")
def test_full_reservation_of_the_type_that_a_pod_needs_is_its_reason_beside_plain_types(stack: Stack) -> None:
    full, plain = stack.aws.odcr("g5.12xlarge"), stack.aws.odcr("m5.large")
    stack.aws.rival(full)
    stack.node_class(group=stack.aws.group(full, plain))
    mixed(stack, ["m5.large", "g5.12xlarge"], [RESERVED])
    gpu_pod(stack)
    start(stack)
    pods(stack, 0)
    event = stack.until_event("gpu", "FailedScheduling", kind="Pod", text="NodePool")
    assert f"no free slot is left for it in {full} (g5.12xlarge, {A})" in event.message


def with_block(stack: Stack, **block: Any) -> str:
    """A pod that needs a block, in a pool with a free slot of a plain type too. Returns the block."""
    plain, id_ = stack.aws.odcr("m5.large"), stack.aws.capacity_block(**block)
    stack.node_class(group=stack.aws.group(plain, id_))
    mixed(stack, ["m5.large", "p5.48xlarge"], [RESERVED])
    gpu_pod(stack)
    start(stack)
    pods(stack, 0)
    return id_


@pytest.mark.covers("FLT-35")
def test_block_that_begins_is_the_reason_of_a_pod_that_needs_it_beside_plain_types(stack: Stack) -> None:
    block = with_block(stack, state="scheduled", starts=HOUR)
    event = stack.until_event("gpu", "FailedScheduling", kind="Pod", text=block)
    assert f"{block} (p5.48xlarge, {A}) is scheduled, starts at 20" in event.message


@pytest.mark.covers("FLT-35", "FLT-54", "FLT-66")
def test_block_that_drains_is_the_reason_everywhere_and_no_target_is_to_be_edited(stack: Stack) -> None:
    block = with_block(stack, ends=HOUR / 2)
    ends = f"capacity block {block} ends at 20"
    stack.until_event("gpu", "FailedScheduling", kind="Pod", text=f"NodePool team: {ends}")
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    (advice,) = explained(stack, "gpu")["do"]
    assert ends in advice["why"] and "edit" not in advice["command"]
    version = stack.get(EC2NodeClass, "gpu").metadata.resource_version
    for _ in range(2):
        stack.advance(RECHECK)
        stack.polls(2)
        stack.passes(1)
    assert stack.get(EC2NodeClass, "gpu").metadata.resource_version == version


@pytest.mark.covers("FLT-35")
def test_limit_of_gpus_is_the_reason_in_a_pool_of_plain_types_too(stack: Stack) -> None:
    stack.node_class(preference="none")
    mixed(stack, ["m5.large", "g5.12xlarge"], [ON_DEMAND], limits={"nvidia.com/gpu": "2"})
    gpu_pod(stack)
    start(stack)
    pods(stack, 0)
    stack.until_event(
        "gpu",
        "FailedScheduling",
        kind="Pod",
        text="its limit of nvidia.com/gpu is 2, its nodes and claims use 0",
    )


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize("how", ["selector", "terms", "terms of unlike labels"])
def test_drifted_node_of_a_pod_that_selects_a_dear_type_is_replaced(stack: Stack, how: str) -> None:
    disruption.pool(stack)
    spec = {"requirements": required(["m5.large", "m5.2xlarge"], [ON_DEMAND])}
    disruption.change(stack, "web", template={"spec": spec})
    stack.start(price_ceiling=2.0)
    old = disruption.node(stack, "old", types=("m5.2xlarge",))
    selects: dict[str, Any] = {"nodeSelector": {names.INSTANCE_TYPE: "m5.2xlarge"}}
    if how != "selector":
        other = (names.INSTANCE_TYPE, "NotIn", "m5.large") if how == "terms" else (names.ZONE, "In", B)
        terms = [
            {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}
            for key, operator, value in [(names.INSTANCE_TYPE, "In", "m5.2xlarge"), other]
        ]
        required_terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        selects = {"affinity": {"nodeAffinity": required_terms}}
    disruption.run(stack, "app", old, **selects)
    drift(stack, "old")
    disruption.gone(stack, "old")
    (instance,) = stack.aws.instances()
    assert instance["InstanceType"] == "m5.2xlarge"


@pytest.mark.covers("FLT-35", "KRP-35")
def test_machines_that_hold_the_pods_are_compared_with_each_other_only(stack: Stack) -> None:
    """The smallest type holds them beside no DaemonSet: it makes no other too dear, and no slot theirs."""
    gpus = stack.aws.odcr("g5.12xlarge")
    stack.node_class("web", group=stack.aws.group(gpus), zones=(A,))
    stack.node_pool("web", node_class="web")
    requirements = required(["m5.large", "m5.2xlarge", "g5.12xlarge"], [RESERVED, ON_DEMAND])
    never = {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
    disruption.change(stack, "web", disruption=never, template={"spec": {"requirements": requirements}})
    daemon_set(stack)
    stack.start(price_ceiling=2.0)
    old = disruption.node(stack, "old", types=("m5.2xlarge",))
    stack.pod("app", node=old, containers=[requesting("5Gi")])
    drift(stack, "old")
    stack.until_event("old", "DisruptionLaunching", text="launched first (on-demand us-east-1a)")
    disruption.gone(stack, "old")
    (instance,) = stack.aws.instances()
    assert (instance["InstanceType"], instance.get("CapacityReservationId")) == ("m5.2xlarge", None)
