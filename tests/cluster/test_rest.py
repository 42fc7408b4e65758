"""A cluster in which nothing changes: no write to Kubernetes, and the minimum of calls to EC2."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.apis.core import Event, Node
from broker.apis.godel import RESERVATION, TTL
from broker.apis.koordinator import AFFINITY
from broker.text import format_time
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.rooms import rooms
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import pods

ELSEWHERE = {"nodeSelector": {"kubernetes.io/arch": "none"}}
READS = {
    "DescribeCapacityReservations",
    "DescribeInstances",
    "DescribeInstanceStatus",
    "DescribeLaunchTemplates",
    "ListGroupResources",
    "DescribeSubnets",
    "DescribeSecurityGroups",
    "DescribeImages",
    "DescribePlacementGroups",
    "GetInstanceProfile",
    "GetCallerIdentity",
}
LISTINGS_OF_HEALTH = 3  # one for each kind of problem


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
        calls["DescribeInstanceStatus"] //= LISTINGS_OF_HEALTH
        assert all(calls[action] <= calls["DescribeCapacityReservations"] + 2 for action in calls), calls


@pytest.mark.covers("FLT-66")
def test_pods_that_no_pool_can_serve_cost_no_write(stack: Stack) -> None:
    stack.node_class(group=stack.aws.group(stack.aws.odcr(count=1)))
    stack.node_pool()
    stack.start(poll_seconds=30.0)
    large, small = pods(stack, 2, "large", cpu="5000"), pods(stack, 1, "elsewhere", spec=ELSEWHERE)
    for name in (*large, *small):
        stack.until(lambda n=name: stack.events(n, kind="Pod"), f"{name} reported")  # type: ignore[misc]
    until_at_rest(stack)
    stack.tap.forget()
    for _ in range(60):
        tick(stack)
    assert not stack.tap.writes()


@pytest.mark.covers("FLT-66")
def test_pods_that_no_node_can_have_cost_the_scheduler_no_write() -> None:
    with rooms() as cluster:
        cluster.start()
        cluster.node(room={"cpu": "4"})
        cluster.reservation(cpu="99")
        cluster.quota("team", min={"cpu": 1}, max={"cpu": 1})
        cluster.pod("large", cpu="99")
        cluster.pod("over", cpu="2", namespace="team", scheduler="nos-scheduler")
        cluster.pod("unread", annotations={AFFINITY: "[]"})
        kept = {RESERVATION: "true", TTL: "999999"}
        cluster.pod("kept", cpu="1", scheduler="godel-scheduler", annotations=kept)
        cluster.until_rejected("large")
        cluster.until_rejected("over", namespace="team")
        cluster.until_rejected("unread")
        cluster.until(lambda: cluster.messages("kept", "RoomBounded"), "the bound is reported")
        cluster.until(lambda: cluster.messages("reservation-demo"), "the reservation is reported")
        cluster.clock.advance(300)
        cluster.pod("marker", cpu="1")
        cluster.until_bound("marker")
        cluster.ran("marker", phase="Succeeded")
        cluster.clock.advance(300)
        began = format_time(cluster.clock.now())
        for number in range(12):  # something happens, which concerns no waiting pod
            cluster.clock.advance(300)
            cluster.pod(f"later-{number}", cpu="100m", nodeSelector={"no": "such"}, scheduler="other")
            cluster.client.patch(Node.KIND, "node-0", {"metadata": {"labels": {"turn": str(number)}}})
        cluster.clock.advance(300)
        cluster.node("node-1", room={"cpu": "100m"}, taints=[{"key": "a", "effect": "NoSchedule"}])
        cluster.until_rejected("large", "0/2")
        events, _ = cluster.client.list(Event.KIND)
        # The recorder writes an event some time after it happened.
        assert [e for e in events if e["firstTimestamp"] <= began < e["lastTimestamp"]] == []
