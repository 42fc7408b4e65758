"""What helps a pod that waits: the edit of the object that keeps it from a slot or from a bought machine."""

from __future__ import annotations

from typing import Any, Final

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.commands.explain.pod import UNFIT
from broker.commands.explain.reading import read
from broker.oncall.pod_reports import FAILED
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.pods import gpu_pod, gpu_pool
from tests.cluster.ome.reserved import GPU
from tests.cluster.ome.test_borrowing import BORROWER, OWNER, claim, lending
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import claims, pods, pool, start
from tests.cluster.test_waiting_pods import by_command, explained

CODE: Final = "InsufficientInstanceCapacity"
OVER: Final = (
    "its limit of cpu is 1, its nodes and claims use 0, and the smallest machine that fits (m5.large) has 2"
)


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


@pytest.mark.covers("ONC-01", "FLT-35")
@pytest.mark.parametrize("also", [[], [ON_DEMAND]], ids=["reserved", "on-demand"])
def test_pool_whose_limit_is_less_than_any_machine_is_not_said_to_want_a_slot_or_a_purchase(
    stack: Stack, also: list[str]
) -> None:
    stack.aws.rival(stack.aws.odcr("m5.large", criteria="open"))
    stack.node_class(preference="open")
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED, *also])}, limits={"cpu": "1"})
    start(stack)
    pods(stack, 1)
    assert OVER in stack.until_event("p-0", FAILED, kind="Pod", text="limit of cpu").message
    page = explained(stack, "p-0")
    assert [(row["verdict"], row["message"]) for row in page["nodepools"]] == [("no", OVER)]
    assert {(row["verdict"], row["message"]) for row in page["options"]} == {("unfit", OVER)}
    assert page["next"] == [UNFIT] and not page["slots"]
    assert page["do"] == [
        {
            "command": "kubectl edit nodepool team",
            "why": "its limit of cpu is reached: raise it in spec.limits",
        }
    ]


@pytest.mark.covers("ONC-01")
def test_first_pool_is_one_whose_limits_leave_a_machine_for_the_pod(stack: Stack) -> None:
    full = stack.aws.odcr("m5.large", criteria="open")
    stack.aws.rival(full)
    stack.node_class(preference="open")
    pool(stack, "small", template={"requirements": required(["m5.large"], [ON_DEMAND])}, limits={"cpu": "1"})
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])}, limits={"cpu": "2"})
    stack.edit(NodePool, "small", {"spec": {"weight": 10}})
    start(stack)
    pods(stack, 1)
    stack.until_event("p-0", FAILED, kind="Pod", text=f"{full} 0 of 1")
    page = explained(stack, "p-0")
    order = [("first", "team"), ("no", "small")]
    assert [(row["verdict"], row["nodepool"]) for row in page["nodepools"]] == order
    assert page["nodepools"][1]["message"] == OVER
    assert "NodePool team" in page["headline"] and [row.node_pool for row in by_command(stack)] == ["team"]
    assert full in page["next"][0] and [row["verdict"] for row in page["options"]] == ["skipped"]


@pytest.mark.covers("ONC-01")
def test_first_pool_is_that_of_the_claim(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.control.fault(action="CreateFleet", stage="launch", code=CODE, message="none left", times=-1)
    for name, cpu in (("few", "1"), ("own", "2"), ("rest", "200")):
        pool(stack, name, template={"requirements": required(["m5.large"], [ON_DEMAND])}, limits={"cpu": cpu})
    start(stack)
    pods(stack, 1)
    (claim_,) = stack.until(lambda: claims(stack), "the claim")
    stack.until_waiting(claim_.name, "InsufficientCapacity")
    page = explained(stack, "p-0")
    order = [("first", "own"), ("then", "rest"), ("no", "few")]
    assert [(row["verdict"], row["nodepool"]) for row in page["nodepools"]] == order


@pytest.mark.covers("ONC-01")
def test_next_option_is_one_within_the_limits(stack: Stack) -> None:
    """Of a pod that the broker has not reported on yet."""
    odcr = stack.aws.odcr("m5.xlarge")
    stack.node_class(id_=odcr)
    types = required(["m5.large", "m5.xlarge"], [RESERVED, ON_DEMAND])
    pool(stack, template={"requirements": types}, limits={"cpu": "2", "pods": "1"})
    start(stack)
    pods(stack, 1, "large", cpu="30")
    stack.until_event("large-0", FAILED, kind="Pod", text="30 CPU")
    stack.until(lambda: read(stack.client, stack.clock.now()).types, "the types are published", step=1.0)
    stack.stop()
    pods(stack, 1)
    page = explained(stack, "p-0")
    verdicts = {row["instance_type"]: row["verdict"] for row in page["options"] if row["verdict"] != "then"}
    assert verdicts == {"m5.large": "next", "m5.xlarge": "unfit"}
    assert "m5.large" in page["next"][0] and odcr not in page["next"][0]
