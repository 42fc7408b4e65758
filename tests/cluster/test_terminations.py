"""Many claims end with few calls, and one instance that EC2 refuses to end does not keep others alive."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack

MANY = 40


def protect(stack: Stack, id_: str, *, on: bool = True) -> None:
    stack.aws.ec2.modify_instance_attribute(InstanceId=id_, DisableApiTermination={"Value": on})


@pytest.mark.covers("SAF-06")
def test_forty_claims_end_with_a_handful_of_calls(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start(poll_seconds=600.0)
    claims = stack.claims(MANY, capacity=(ON_DEMAND,))
    stack.until_ready(*claims)
    stack.kubelets.stop()  # they describe instances too
    before = {action: stack.calls(action) for action in ("DescribeInstances", "TerminateInstances")}
    stack.stop()  # a deletion that came late would begin another call
    for claim in claims:
        stack.delete(NodeClaim, claim)
    stack.start(poll_seconds=600.0)
    stack.until(lambda: not stack.all(NodeClaim), "all have ended")
    calls = {action: stack.calls(action) - count for action, count in before.items()}
    assert not stack.aws.instances()
    assert calls["TerminateInstances"] <= 20
    assert calls["DescribeInstances"] <= 20


@pytest.mark.covers("SAF-05")
def test_protected_instance_is_named_and_the_others_end(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    claims = stack.claims(4, capacity=(ON_DEMAND,))
    stack.until_ready(*claims)
    kept = stack.get(NodeClaim, "c-1").instance_id
    protect(stack, kept)
    for claim in claims:
        stack.delete(NodeClaim, claim)
    for claim in ("c-0", "c-2", "c-3"):
        stack.until_gone(NodeClaim, claim)
    assert [i["InstanceId"] for i in stack.aws.instances()] == [kept]
    stack.until(
        lambda: (s := stack.claim_condition("c-1", names.INSTANCE_TERMINATING)) and s.status == "False",
        "the refusal is on the claim",
    )
    condition = stack.claim_condition("c-1", names.INSTANCE_TERMINATING)
    assert condition is not None and condition.reason == "TerminationRefused"
    assert kept in condition.message and "OperationNotPermitted" in condition.message
    event = stack.until_event("c-1", "TerminationRefused")
    assert kept in event.message and event.type == "Warning"
    protect(stack, kept, on=False)
    stack.until(lambda: stack.find(NodeClaim, "c-1") is None, "it ends at last", step=5.0)
    assert not stack.aws.instances()


@pytest.mark.covers("SAF-05")
@pytest.mark.both_servers
def test_protected_orphan_keeps_no_other_orphan_alive(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    claims = stack.claims(3, capacity=(ON_DEMAND,))
    stack.until_ready(*claims)
    kept = stack.get(NodeClaim, "c-1").instance_id
    protect(stack, kept)
    stack.stop()
    for claim in claims:
        stack.edit(NodeClaim, claim, {"metadata": {"finalizers": None}})
        stack.delete(NodeClaim, claim)
    stack.start(orphan_grace_seconds=0.0)
    stack.until(lambda: len(stack.aws.instances()) == 1, "the others end", step=10.0)
    assert [i["InstanceId"] for i in stack.aws.instances()] == [kept]
