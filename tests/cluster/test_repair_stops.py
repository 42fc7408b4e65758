"""Repair stops: a reboot before EC2 is called, and all repairs of a pool with too many broken nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.placement.reboots import reboots_of
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, later, replacement
from tests.cluster.test_full_reservation import pool
from tests.cluster.test_repair import (
    GPU,
    XID48,
    XID79,
    Machines,
    events,
    full,
    node_of,
    replaced,
    shown,
    sign,
    tainted,
)
from tests.cluster.test_standing import nodes


def stop_repair(stack: Stack, how: str) -> None:
    """Keeps r-0 from repair in one of the ways that there are."""
    annotated = {"metadata": {"annotations": {names.DO_NOT_REPAIR: "true"}}}
    if how == "node":
        stack.edit(Node, node_of(stack, "r-0"), annotated)
    elif how == "claim":
        stack.edit(NodeClaim, "r-0", annotated)
    elif how == "breaker":
        sign(stack, "r-1", GPU, reason=XID79)
    else:
        stack.edit(NodePool, "web", {"metadata": {"annotations": {names.REPAIR: how}}})


def withdrawn(stack: Stack, id_: str) -> None:
    """Returns when the reboot of r-0 is withdrawn; asserts that EC2 is not called later on."""
    stack.until(lambda: not tainted(stack, "r-0"), "it takes pods again", step=STEP)
    assert reboots_of(stack.get(NodeClaim, "r-0")).known == ()
    stack.until(lambda: events(stack, "r-0", "RebootWithdrawn"), "it is reported")
    stack.advance(330)  # the bound of the drain
    later(stack, 20)
    assert stack.control.reboots(id_) == 0 and not tainted(stack, "r-0")
    assert not stack.get(NodeClaim, "r-0").deleting and replacement(stack, "r-0") is None


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize("how", ["node", "claim", "breaker", "off", f"{GPU}=off", f"{GPU}=2h"])
def test_reboot_is_withdrawn_while_the_node_drains(stack: Stack, how: str) -> None:
    full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0", "r-1")
    stack.budget("web", app="web", allowed=0)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: tainted(stack, "r-0"), "it is closed", step=STEP)
    stop_repair(stack, how)
    withdrawn(stack, stack.get(NodeClaim, "r-0").instance_id)


@pytest.mark.covers("FUL-21")
def test_reboot_for_an_event_waits_for_the_drain_and_is_withdrawn(stack: Stack) -> None:
    full(stack, "r-0", "r-1", annotations={names.REPAIR: "EventScheduled=reboot"})
    Machines(stack).boot("r-0", "r-1")
    stack.budget("web", app="web", allowed=0)
    id_ = stack.get(NodeClaim, "r-0").instance_id
    stack.control.schedule_event(id_, "system-reboot", in_s=86400)
    stack.until(lambda: tainted(stack, "r-0"), "it is closed", step=STEP)
    stack.advance(900)
    later(stack, 20)
    assert tainted(stack, "r-0") and stack.control.reboots(id_) == 0
    stop_repair(stack, "claim")
    withdrawn(stack, id_)


@pytest.mark.covers("FUL-21")
def test_reboot_that_ec2_refuses_for_the_moment_is_withdrawn(stack: Stack) -> None:
    full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0", "r-1")
    stack.control.fault(action="RebootInstances", code="RequestLimitExceeded", times=-1)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)

    def requested() -> bool:
        current = reboots_of(stack.get(NodeClaim, "r-0")).current
        return current is not None and current.phase == "Requested"

    stack.until(requested, "EC2 is called", step=STEP)
    stop_repair(stack, "node")
    stack.until(lambda: not tainted(stack, "r-0"), "it is withdrawn", step=STEP)
    stack.control.clear_faults()
    withdrawn(stack, stack.get(NodeClaim, "r-0").instance_id)


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize("restarted", [False, True], ids=["same-broker", "restarted"])
def test_fault_that_spreads_slowly_ends_no_more_nodes_than_allowed(stack: Stack, restarted: bool) -> None:
    """At most one of three nodes may be broken, and the second breaks when the first has been replaced."""
    full(stack, "r-0", "r-1", "r-2")
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    replaced(stack, "r-0", 3)
    recent = stack.condition(NodePool, "web", names.RECENT_REPAIRS)
    assert recent is not None and "NodeClaim r-0 at" in recent.message
    if restarted:
        stack.stop()
        stack.start()
    sign(stack, "r-1", GPU, reason=XID79, age=3000)
    text = "1 of 3 nodes of NodePool web are broken and 1 node ended by repair lately, and at most 1 may be"
    stack.until_event("web", "NodeRepairBlocked", kind="NodePool", text=text)
    later(stack, 60)
    assert not stack.get(NodeClaim, "r-1").deleting and replacement(stack, "r-1") is None
    stack.advance(3600)
    replaced(stack, "r-1", 3)
    recent = stack.condition(NodePool, "web", names.RECENT_REPAIRS)
    assert recent is not None and "r-0" not in recent.message and "r-1" in recent.message
    stack.advance(3700)
    stack.until(lambda: not stack.condition(NodePool, "web", names.RECENT_REPAIRS), "it is over", step=STEP)


@pytest.mark.covers("FUL-21")
def test_replacement_for_an_event_to_come_is_no_recent_repair(stack: Stack) -> None:
    full(stack, "r-0", "r-1")
    stack.control.schedule_event(stack.get(NodeClaim, "r-0").instance_id, "instance-retirement")
    replaced(stack, "r-0", 2)
    assert stack.condition(NodePool, "web", names.RECENT_REPAIRS) is None


@pytest.mark.covers("FUL-21")
def test_replacement_is_given_up_while_its_successor_is_not_ready(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    pool(stack, RESERVED, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    stack.until(lambda: shown(stack, "r-0") == odcr, "its reservation is shown", step=1.0)
    stack.kubelets.stop()  # the successor, in the free slot, does not join
    stack.advance(3600)
    sign(stack, "r-0", GPU, reason=XID79, age=3000)
    stack.until(lambda: replacement(stack, "r-0"), "a successor", step=STEP)
    stop_repair(stack, "claim")
    stack.until(lambda: replacement(stack, "r-0") is None, "it is given up", step=STEP)
    stack.until_event("r-0", "DisruptionFailed", text=names.DO_NOT_REPAIR)
    later(stack, 20)
    assert not stack.get(NodeClaim, "r-0").deleting
    assert not stack.get(Node, node_of(stack, "r-0")).disrupted
    stack.kubelets_again()


@pytest.mark.covers("FUL-21")
def test_reboot_without_effect_is_withdrawn_once_the_node_is_well(stack: Stack) -> None:
    """EC2 took the call, and the node has never stopped."""
    full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0", "r-1")
    stack.advance(1000)
    id_ = stack.get(NodeClaim, "r-0").instance_id
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: stack.control.reboots(id_), "EC2 is called", step=STEP)
    sign(stack, "r-0", GPU, status="True")
    started = stack.clock.now()
    stack.until(lambda: not tainted(stack, "r-0"), "it takes pods again", step=STEP)
    assert stack.clock.now() - started < timedelta(minutes=10)
    stack.until_event("r-0", "RebootWithdrawn")
    assert stack.control.reboots(id_) == 1
