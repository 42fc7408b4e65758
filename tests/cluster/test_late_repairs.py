"""A broken node that is healthy by now is not repaired, nor one whose repair is off: watches may be late.

Without late watches, `test_repair.py` and `test_repair_stops.py` show the same.
"""

from __future__ import annotations

import threading

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.kube.client import Request
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, later, replacement
from tests.cluster.test_late_watches import NODECLAIMS, NODEPOOLS, NODES
from tests.cluster.test_repair import GPU, XID48, XID79, Machines, full, node_of, sign, tainted
from tests.cluster.test_repair_stops import withdrawn


def end_repair(stack: Stack, how: str) -> None:
    """The accelerator of r-0 recovers, or its pool switches repair off."""
    if how == "healthy":
        sign(stack, "r-0", GPU, "True", "Healthy")
    else:
        stack.edit(NodePool, "web", {"metadata": {"annotations": {names.REPAIR: "off"}}})


def stays(stack: Stack) -> bool:
    return not stack.get(NodeClaim, "r-0").deleting and replacement(stack, "r-0") is None


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(("how", "path"), [("healthy", NODES), ("off", NODEPOOLS)])
def test_reboot_that_is_no_more_due_is_not_requested(stack: Stack, how: str, path: str) -> None:
    watch = stack.tap.slow(path)
    full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0", "r-1")
    stack.budget("web", app="web", allowed=0)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: tainted(stack, "r-0"), "it is closed", step=STEP)
    watch.clear()
    end_repair(stack, how)
    stack.advance(330)  # the bound of the drain
    later(stack, 30)
    id_ = stack.get(NodeClaim, "r-0").instance_id
    assert stack.control.reboots(id_) == 0
    watch.set()
    withdrawn(stack, id_)


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(("how", "path"), [("healthy", NODES), ("off", NODEPOOLS)])
def test_reboot_that_ec2_refused_is_not_requested_again_once_it_is_not_due(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, how: str, path: str
) -> None:
    watch = stack.tap.slow(path)
    full(stack, "r-0", "r-1")
    Machines(stack).boot("r-0", "r-1")
    call, reboot = threading.Lock(), stack.current.reboot  # type: ignore[union-attr]

    def slow(id_: str) -> None:
        with call:
            reboot(id_)

    monkeypatch.setattr(stack.current, "reboot", slow)
    stack.control.fault(action="RebootInstances", code="RequestLimitExceeded", times=-1)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID48, age=700)
    stack.until(lambda: stack.calls("RebootInstances"), "EC2 is called", step=STEP)
    later(stack, 10)
    watch.clear()
    end_repair(stack, how)
    later(stack, 20)
    with call:  # one that was under way has ended
        stack.control.clear_faults()
    later(stack, 60)
    id_ = stack.get(NodeClaim, "r-0").instance_id
    assert stack.control.reboots(id_) == 0
    watch.set()
    withdrawn(stack, id_)


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    ("how", "path", "pods"),
    [("healthy", NODES, "move"), ("healthy", NODES, "none"), ("off", NODEPOOLS, "none")],
)
def test_node_of_which_no_repair_is_due_any_more_does_not_end(
    stack: Stack, how: str, path: str, pods: str
) -> None:
    watch = stack.tap.slow(path)
    full(stack, "r-0", "r-1")
    if pods == "none":  # its end needs no successor
        stack.client.delete(Pod.KIND, "app-r-0", namespace="default", grace_period=0)
    stack.advance(1000)
    sign(stack, "r-0", GPU, reason=XID79)
    stack.until_event("r-0", "NodeUnhealthy", text=XID79)
    watch.clear()
    end_repair(stack, how)
    stack.advance(700)  # its toleration
    later(stack, 30)
    assert stays(stack)
    watch.set()
    later(stack, 30)
    assert stays(stack) and not stack.get(Node, node_of(stack, "r-0")).disrupted


@pytest.mark.covers("FUL-21")
def test_node_stays_if_repair_is_off_before_its_successor_takes_its_slot(stack: Stack) -> None:
    pools = stack.tap.slow(NODEPOOLS)
    full(stack, "r-0", "r-1")

    def off(_: Request) -> None:
        pools.clear()
        end_repair(stack, "off")

    stack.tap.on(lambda request: request.method == "POST" and request.path == NODECLAIMS, off)
    # The answer to a write has the annotation.
    stack.tap.lose(lambda request: not pools.is_set() and request.path.startswith(f"{NODEPOOLS}/web"))
    stack.control.schedule_event(stack.get(NodeClaim, "r-0").instance_id, "instance-retirement")
    stack.until(lambda: replacement(stack, "r-0"), "a successor", step=STEP)
    later(stack, 30)
    assert not stack.get(NodeClaim, "r-0").deleting
    pools.set()
    stack.until(lambda: replacement(stack, "r-0") is None, "it is given up", step=STEP)
    assert not stack.get(NodeClaim, "r-0").deleting
