"""A cluster in which nothing changes: no write to Kubernetes, and the minimum of calls to EC2."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

READS = {
    "DescribeCapacityReservations",
    "DescribeInstances",
    "DescribeLaunchTemplates",
    "ListGroupResources",
    "DescribeSubnets",
    "DescribeSecurityGroups",
    "DescribeImages",
    "DescribePlacementGroups",
    "GetInstanceProfile",
    "GetCallerIdentity",
}


def tick(stack: Stack) -> None:
    """Moves time until the broker polls."""
    before = stack.calls("DescribeCapacityReservations")
    stack.until(lambda: stack.calls("DescribeCapacityReservations") > before, "a poll", step=10)


def until_at_rest(stack: Stack) -> None:
    """Returns when the work in progress is done: every launch described, every condition and event
    written."""
    stack.kubelets.stop()
    for _ in range(4):
        tick(stack)

    def quiet() -> bool:
        before = len(stack.tap.writes())
        tick(stack)
        tick(stack)
        return len(stack.tap.writes()) == before

    stack.until(quiet, "no writes")


@pytest.mark.covers("KRP-11")
@pytest.mark.both_servers
def test_a_steady_cluster_sees_no_write(stack: Stack) -> None:
    odcr, full = stack.aws.odcr(count=3), stack.aws.odcr("m5.xlarge")
    arn = stack.aws.group(odcr, name="team")
    stack.aws.rival(full)
    stack.node_class("gpu", group=arn)
    stack.node_class("full", id_=full)
    stack.node_class("broken", id_=odcr, subnetSelectorTerms=[{"id": "subnet-0123456789abcdef0"}])
    stack.node_pool("gpu")
    stack.start(poll_seconds=30.0)
    stack.claims(3, pool="gpu", capacity=(RESERVED, ON_DEMAND))
    stack.claim("waits", node_class="full", types=("m5.xlarge",))
    stack.claim("cannot", node_class="broken")
    stack.claim("nowhere", node_class="missing")
    stack.until_ready("c-0", "c-1", "c-2")
    stack.until_waiting("waits")
    stack.until_waiting("cannot")
    stack.until_waiting("nowhere")
    until_at_rest(stack)
    stack.tap.forget()
    for _ in range(10):
        tick(stack)
    assert not stack.tap.writes()


@pytest.mark.covers("KRP-11")
def test_the_calls_at_rest_do_not_grow_with_reservations_claims_or_time(stack: Stack) -> None:
    odcrs = [stack.aws.odcr(count=1) for _ in range(2)]
    stack.node_class(group=stack.aws.group(*odcrs))
    stack.start(poll_seconds=30.0)
    stack.claims(2)
    stack.until_ready("c-0", "c-1")
    until_at_rest(stack)

    def minutes() -> Counter[str]:
        stack.control.clear_calls()
        for _ in range(10):
            tick(stack)
        return Counter(stack.control.calls())

    few = minutes()
    assert {*few} <= READS
    more = [stack.aws.odcr(count=1) for _ in range(30)]
    stack.aws.join("team", *more)
    tick(stack)
    stack.claims(2, 12)
    stack.kubelets_again()
    stack.until_ready(*(f"c-{n}" for n in range(12)))
    until_at_rest(stack)
    many = minutes()
    assert {*many} <= READS
    # Sixteen times the reservations, six times the claims; a machine may be slower in one of the two.
    for calls in (few, many):
        assert all(calls[action] <= calls["DescribeCapacityReservations"] + 2 for action in calls), calls
