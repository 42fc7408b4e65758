"""The text of a pod that no node can have."""

from __future__ import annotations

from broker.placement.filters import Fits, fits
from broker.placement.message import message, own_rejection
from tests.unit.placement.builders import node, pod, world


def test_empty_cluster_has_no_nodes_available() -> None:
    assert message(fits(pod(), world([]))) == "no nodes available to schedule pods"


def test_reasons_are_counted_and_sorted_as_text() -> None:
    tainted = [node(f"t{i}", taints=[{"key": "k", "effect": "NoSchedule"}]) for i in range(10)]
    cluster = world(
        [*tainted, node("cordoned", unschedulable=True), node("small"), node("full", room={"pods": "0"})]
    )
    assert message(fits(pod(requests={"cpu": "9"}), cluster)) == (
        "0/13 nodes are available: 1 Too many pods, 1 node(s) were unschedulable, "
        "10 node(s) had untolerated taint(s), 2 Insufficient cpu."
    )


def test_only_the_first_filter_that_rejects_a_node_is_counted() -> None:
    both = node(unschedulable=True, taints=[{"key": "k", "effect": "NoSchedule"}])
    assert message(fits(pod(), world([both]))) == "0/1 nodes are available: 1 node(s) were unschedulable."


def test_fitting_nodes_are_counted_in_front() -> None:
    assert message(fits(pod(), world([node("a"), node("b", unschedulable=True)]))) == (
        "1/2 nodes are available: 1 node(s) were unschedulable."
    )
    assert message(fits(pod(), world([node()]))) == "1/1 nodes are available"


def test_a_rejection_is_named_in_an_empty_cluster() -> None:
    refusal = "pod is over its quota"
    assert own_rejection(message(Fits((), {}, refusal))) == refusal
    assert not own_rejection(message(fits(pod(), world([node("b", unschedulable=True)]))))
    assert not own_rejection(message(fits(pod(), world([])))) and not own_rejection("")
    assert message(Fits((), {}, refusal)) == "0/0 nodes are available: pod is over its quota."
