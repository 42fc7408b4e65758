"""A class that is deleted stays until the last claim that names it is gone, and says so."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack


@pytest.mark.covers("KRP-23")
def test_a_class_is_held_by_its_claims_and_goes_with_the_last(stack: Stack) -> None:
    stack.node_class(preference="none")
    made = stack.claims(2, capacity=(ON_DEMAND,))
    stack.start()
    stack.until_ready(*made)
    stack.delete(EC2NodeClass, "gpu")
    said = stack.until_class(names.LAUNCHABLE, "False", reason="NodeClassTerminating")
    assert said.message.endswith("now c-0, c-1")
    assert said.message == stack.until_event("gpu", "NodeClassTerminating", kind="EC2NodeClass").message
    stack.claim("late", capacity=(ON_DEMAND,))
    assert "being deleted" in stack.until_waiting("late", "NodeClassTerminating").message
    for name in (*made, "late"):
        assert stack.find(EC2NodeClass, "gpu")
        stack.delete(NodeClaim, name)
        stack.until_gone(NodeClaim, name)
    stack.until_gone(EC2NodeClass, "gpu")
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-26")
def test_a_class_that_no_claim_of_ours_names_is_not_held(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim("theirs", capacity=(ON_DEMAND,), group=names.KARPENTER_AWS)
    stack.passes()
    assert names.CLASS_FINALIZER not in stack.get(EC2NodeClass, "gpu").metadata.finalizers
    stack.delete(EC2NodeClass, "gpu")
    stack.until_gone(EC2NodeClass, "gpu")
