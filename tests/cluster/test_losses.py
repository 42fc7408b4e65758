"""An instance missing from EC2's list has not necessarily ended: healthy nodes stay, and so do many that
vanish at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.lifecycle.losses import too_many
from broker.oncall.metrics import REGISTRY
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack

MISSED = 130.0  # seconds after which an instance that EC2 does not list counts as missing
RELIST = 61.0
LATER = 1200.0


def ready(stack: Stack, count: int) -> list[str]:
    """Claims with Ready Nodes; from then on the played kubelets stop, since they would follow EC2."""
    stack.node_class(preference="none")
    stack.start()
    claims = stack.claims(count, capacity=(ON_DEMAND,))
    stack.until_ready(*claims)
    stack.until_shown(*claims)
    stack.kubelets.stop()
    return claims


def later(stack: Stack, count: int) -> list[str]:
    """More claims, young enough that EC2 can list the first ones without these."""
    stack.advance(LATER)
    first = len(stack.all(NodeClaim))
    claims = stack.claims(first, first + count, capacity=(ON_DEMAND,))
    stack.kubelets_again()
    stack.until_ready(*claims)
    stack.until_shown(*claims)
    stack.kubelets.stop()
    return claims


def vanish(stack: Stack) -> None:
    """EC2 lists no instances from now on."""
    stack.control.lag(7200.0)
    wait(stack)


def wait(stack: Stack) -> None:
    """The broker lists anew, before and after the missing instances count as missing."""
    stack.advance(RELIST)
    stack.passes(1)
    stack.advance(MISSED)
    stack.passes(1)
    stack.advance(RELIST)
    stack.passes()


def still_kept(stack: Stack, claims: Sequence[str]) -> None:
    """After another wait these claims remain, and no others."""
    wait(stack)
    for claim in claims:
        assert not stack.get(NodeClaim, claim).deleting
        condition = stack.claim_condition(claim, names.INSTANCE_LISTED)
        assert condition is not None and (condition.status, condition.reason) == ("False", "MassLoss")
    assert len(stack.all(NodeClaim)) == metric("MassLoss") == len(claims)


def no_heartbeat(stack: Stack, claims: Sequence[str]) -> None:
    lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no heartbeat"}
    for claim in claims:
        node = stack.get(NodeClaim, claim).status.node_name
        stack.edit(Node, node, {"status": {"conditions": [lost]}}, subresource="status")


def metric(reason: str) -> float:
    return REGISTRY.get_sample_value("capacity_broker_claims_unlisted", {"reason": reason}) or 0.0


@pytest.mark.covers("SAF-01")
@pytest.mark.both_servers
def test_claim_with_a_ready_node_survives_a_listing_without_its_instance(stack: Stack) -> None:
    (claim,) = ready(stack, 1)
    vanish(stack)
    assert not stack.get(NodeClaim, claim).deleting
    condition = stack.claim_condition(claim, names.INSTANCE_LISTED)
    assert condition is not None and (condition.status, condition.reason) == ("False", "NodeReady")
    assert stack.get(NodeClaim, claim).instance_id in condition.message
    stack.until_event(claim, "InstanceNotListed", text="Node is Ready")
    assert metric("NodeReady") == 1
    assert stack.calls("TerminateInstances") == 0
    # Once no kubelet reports for the node, the claim ends as before.
    id_ = stack.get(NodeClaim, claim).instance_id
    no_heartbeat(stack, [claim])
    with capture_logs() as logs:
        stack.advance(RELIST)
        stack.until_gone(NodeClaim, claim)
        line, *_ = stack.until(
            lambda: [entry for entry in [*logs] if entry["event"] == "claim ends: its instance is gone"],
            "it is logged",
        )
    message = stack.until_event(claim, "InstanceGone").message
    assert message == f"EC2 no longer lists instance {id_}: its claim ends with it"
    assert (line["log_level"], line["claim"], line["instance"]) == ("warning", claim, id_)
    assert "no longer lists it" in line["why"]


@pytest.mark.covers("SAF-01")
def test_claim_that_is_not_registered_has_its_registration_timeout(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start(kubelets=False)
    began = stack.clock.monotonic()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    vanish(stack)
    assert not stack.get(NodeClaim, "c-0").deleting
    assert stack.claim_condition("c-0", names.INSTANCE_LISTED) is None
    stack.control.lag(0.0)
    stack.until(lambda: stack.find(NodeClaim, "c-0") is None, "c-0 gone", step=60)
    assert stack.clock.monotonic() - began >= 15 * 60
    stack.until_event("c-0", "RegistrationTimeout")


@pytest.mark.covers("SAF-01")
def test_node_of_a_claim_that_was_forced_away_stays_while_it_is_ready(stack: Stack) -> None:
    (claim,) = ready(stack, 1)
    node = stack.get(NodeClaim, claim).status.node_name
    stack.control.lag(7200.0)
    stack.edit(NodeClaim, claim, {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, claim)
    before = stack.calls("DescribeInstances")
    stack.until(lambda: stack.calls("DescribeInstances") >= before + 2, "EC2 is called", step=5.0)
    stack.passes()
    assert not stack.get(Node, node).deleting


@pytest.mark.covers("SAF-03")
def test_claims_that_vanish_together_are_kept_until_a_listing_shows_them(stack: Stack) -> None:
    claims = ready(stack, 5)
    no_heartbeat(stack, claims)
    vanish(stack)
    for claim in claims:
        assert not stack.get(NodeClaim, claim).deleting
        condition = stack.claim_condition(claim, names.INSTANCE_LISTED)
        assert condition is not None and (condition.status, condition.reason) == ("False", "MassLoss")
        assert "5 of 5" in condition.message and "delete this NodeClaim" in condition.message
        stack.until_event(claim, "InstanceNotListed", text="5 of 5")
    assert metric("MassLoss") == 5
    assert len(stack.all(NodeClaim)) == 5
    # A person decides about some of them, and only these end, although few are left.
    decided = {stack.get(NodeClaim, claim).instance_id for claim in claims[:2]}
    for claim in claims[:2]:
        stack.delete(NodeClaim, claim)
        stack.until_gone(NodeClaim, claim)
    left = claims[2:]
    still_kept(stack, left)
    stack.stop()
    stack.start(kubelets=False)
    still_kept(stack, left)
    calls = [entry["params"]["InstanceIds"] for entry in stack.control.log("TerminateInstances")]
    assert {id_ for ids in calls for id_ in ids} == decided
    # A later listing decides about the others.
    stack.control.lag(0.0)
    stack.advance(RELIST)
    for claim in left:
        stack.until(
            lambda c=claim: (s := stack.claim_condition(c, names.INSTANCE_LISTED)) and s.status == "True",  # type: ignore[misc]
            f"{claim} is listed again",
        )
    assert metric("MassLoss") == 0
    assert len(stack.aws.instances()) == 3


@pytest.mark.covers("SAF-03")
def test_claims_that_vanish_from_one_listing_after_another_are_counted_together(stack: Stack) -> None:
    """Three are missing for two minutes when the other two have been missing for one."""
    claims = [*ready(stack, 2), *later(stack, 3)]
    no_heartbeat(stack, claims)
    stack.control.lag(LATER / 2)
    stack.advance(RELIST)
    stack.passes(1)
    assert all(stack.claim_condition(claim, names.INSTANCE_LISTED) is None for claim in claims)
    stack.control.lag(7200.0)
    stack.advance(RELIST)
    stack.passes(1)
    stack.advance(MISSED - RELIST)
    stack.passes()
    still_kept(stack, claims)
    assert stack.calls("TerminateInstances") == 0


@pytest.mark.covers("SAF-03")
def test_few_claims_that_vanish_end(stack: Stack) -> None:
    claims = ready(stack, 3)
    no_heartbeat(stack, claims)
    stack.control.lag(7200.0)
    stack.until(lambda: not stack.all(NodeClaim), "all three end", step=10.0)
    assert metric("MassLoss") == 0


@pytest.mark.covers("SAF-03")
@pytest.mark.parametrize(
    ("missing", "registered", "stops"),
    [(3, 3, False), (4, 4, True), (4, 39, True), (4, 40, False), (5, 40, True), (100, 1000, False)],
)
def test_over_three_and_over_a_tenth_are_too_many(missing: int, registered: int, stops: bool) -> None:
    assert too_many(missing, registered) is stops
