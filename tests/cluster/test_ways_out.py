"""What helps a pod that waits: the edit of the object that keeps it from a slot or from a bought machine."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.commands.explain.pod import UNFIT
from broker.oncall.pod_reports import FAILED
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.pods import gpu_pod, gpu_pool
from tests.cluster.ome.reserved import GPU
from tests.cluster.ome.test_borrowing import BORROWER, OWNER, claim, lending
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import pods, pool, start
from tests.cluster.test_waiting_pods import explained


def advice(stack: Stack, name: str) -> dict[str, Any]:
    (row,) = explained(stack, name)["do"]
    return dict(row)


@pytest.mark.covers("ONC-01", "FLT-54")
@pytest.mark.parametrize(
    ("preference", "request_"),
    [
        ("open", "takes open reservations only, and this one is targeted"),
        ("none", "requests no reservation"),
    ],
    ids=["open", "none"],
)
def test_class_without_a_target_is_not_said_to_have_another(
    stack: Stack, preference: str, request_: str
) -> None:
    odcr = stack.aws.odcr("m5.large")
    stack.node_class(preference=preference)
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    start(stack)
    pods(stack, 1)
    stack.until_event("p-0", FAILED, kind="Pod", text="no reservation that the claim can use")
    row = advice(stack, "p-0")
    assert row["command"] == "kubectl edit ec2nodeclass gpu"
    assert f"slot of {odcr}" in row["why"] and f"its class gpu {request_}" in row["why"]
    if preference == "open":
        resolved = stack.until_class(names.RESERVATIONS_RESOLVED, "False")
        assert resolved.message == "preference open finds no open reservation in this region"


@pytest.mark.covers("ONC-01")
def test_class_that_forbids_the_fallback_of_its_pool_is_what_to_edit(stack: Stack) -> None:
    full = stack.aws.odcr("m5.large", criteria="open")
    stack.aws.rival(full)
    stack.node_class(preference="capacity-reservations-only")
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED, ON_DEMAND])})
    start(stack)
    pods(stack, 1)
    stack.until_event("p-0", FAILED, kind="Pod", text=f"{full} 0 of 1")
    row = advice(stack, "p-0")
    assert row["command"] == "kubectl edit ec2nodeclass gpu"
    assert "capacity-reservations-only: with open the pod falls back" in row["why"]


@pytest.mark.covers("ONC-01", "FLT-51", "FLT-22")
def test_pod_of_the_owner_waits_for_no_lent_slot_while_its_pool_is_at_its_limit(stack: Stack) -> None:
    lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    gpu_pod(stack, "work")
    gpu_pool(stack, draws=OWNER)
    stack.edit(NodePool, "gpus", {"spec": {"limits": {GPU: "0"}}})
    gpu_pod(stack, "own")
    stack.until_event("own", FAILED, kind="Pod", text=f"its limit of {GPU} is 0")
    page = explained(stack, "own")
    assert page["next"] == [UNFIT]
    assert page["do"][0]["command"] == "kubectl edit nodepool gpus"
