"""Nodes with room that reservations of Koordinator and Gödel keep are in use, though they have no pods."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.crds import KIND as CRD
from broker.apis.godel import GodelReservation
from broker.apis.karpenter import NodeClaim
from broker.apis.koordinator import AVAILABLE, KoordinatorReservation
from broker.apis.kueue import Namespace
from broker.apis.meta import condition, is_true
from broker.kube.client import Request
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import (
    STEP,
    change,
    gone,
    hashed,
    later,
    node,
    pool,
    replacement,
    run,
)
from tests.cluster.test_return import fallback, full, holder


def reserve(stack: Stack, on: str, *, cpu: str = "500m") -> None:
    """A Koordinator reservation that the scheduler places on the node."""
    stack.start_scheduler()
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    template = {
        "schedulerName": "koord-scheduler",
        "nodeSelector": {"kubernetes.io/hostname": on},
        "containers": [container],
    }
    owners = [{"labelSelector": {"matchLabels": {"app": "later"}}}]
    body: dict[str, Any] = {
        "metadata": {"name": "kept"},
        "spec": {"template": {"spec": template}, "owners": owners},
    }
    stack.client.create(KoordinatorReservation.KIND, body)

    def placed() -> bool:
        status = stack.get(KoordinatorReservation, "kept").status
        return (status.phase, status.node_name) == (AVAILABLE, on)

    stack.until(placed, "the reservation has room", step=1.0)


def quiet(stack: Stack, name: str) -> None:
    """The claim would end by now, if it were empty."""
    stack.until(lambda: is_true(stack.get(NodeClaim, name), names.CONSOLIDATABLE), "quiet", step=STEP)
    later(stack, 60)


def test_node_with_a_koordinator_reservation_stays_until_that_ends(stack: Stack) -> None:
    pool(stack)
    stack.start()
    reserve(stack, node(stack, "held"))
    quiet(stack, "held")
    assert not stack.get(NodeClaim, "held").deleting
    assert stack.get(KoordinatorReservation, "kept").status.phase == AVAILABLE
    stack.until_event("held", "DisruptionBlocked", text="(Reservation=kept)")
    stack.delete(KoordinatorReservation, "kept")
    gone(stack, "held")


def test_reservation_that_cannot_be_read_keeps_no_empty_node_of_others(stack: Stack) -> None:
    pool(stack)
    stack.start()
    spec = {
        "template": {"spec": {"priority": "high", "containers": []}},
        "owners": [{"labelSelector": {"matchLabels": {"a": "b"}}}],
    }
    stack.client.create(KoordinatorReservation.KIND, {"metadata": {"name": "bad"}, "spec": spec})
    node(stack, "empty")
    quiet(stack, "empty")
    gone(stack, "empty")


def test_node_with_a_kept_godel_place_stays_until_its_time_is_over(stack: Stack) -> None:
    pool(stack)
    meta = {"name": "default", "annotations": {names.KEPT_ROOM: "true"}}
    stack.client.apply(Namespace.KIND, {"metadata": meta})
    stack.start()
    on = node(stack, "held")
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "500m"}}}
    body: dict[str, Any] = {
        "metadata": {"name": "web-0", "namespace": "default"},
        "spec": {"nodename": on, "ttl": 600, "template": {"spec": {"containers": [container]}}},
    }
    stack.client.create(GodelReservation.KIND, body)
    quiet(stack, "held")
    assert not stack.get(NodeClaim, "held").deleting
    stack.advance(600)
    gone(stack, "held")


@pytest.mark.both_servers
def test_empty_nodes_end_where_reservations_are_not_installed(stack: Stack) -> None:
    for kind in (KoordinatorReservation.KIND, GodelReservation.KIND):
        stack.client.delete(CRD, f"{kind.plural}.{kind.group}")
    pool(stack)
    stack.start()
    node(stack, "empty")
    gone(stack, "empty")


def test_pods_of_a_drifted_node_do_not_count_on_kept_room(stack: Stack) -> None:
    pool(stack)
    stack.node_pool("other", node_class="web")
    change(stack, "other", disruption={"consolidateAfter": "Never"})
    stack.start()
    run(stack, "app", node(stack, "old"))
    stack.claim("spare", node_class="web", pool="other", capacity=("on-demand",))
    stack.until_ready("spare")
    reserve(stack, stack.get(NodeClaim, "spare").status.node_name, cpu="1700m")
    hashed(stack, "old")
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    new = stack.until(lambda: replacement(stack, "old"), "replacement", step=STEP)
    assert new is not None
    gone(stack, "old")
    assert not stack.get(NodeClaim, "spare").deleting


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.both_servers
def test_kept_room_holds_up_drift_unless_a_grace_period_bounds_it(stack: Stack, bounded: bool) -> None:
    pool(stack)
    stack.start()
    on = node(stack, "old", **({"terminationGracePeriod": "1h"} if bounded else {}))
    reserve(stack, on)
    hashed(stack, "old")
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})
    if bounded:
        gone(stack, "old")
        return
    stack.until_event("old", "DisruptionBlocked", text="(Reservation=kept)")
    later(stack, 60)
    assert is_true(stack.get(NodeClaim, "old"), names.DRIFTED)
    assert not stack.get(NodeClaim, "old").deleting


def test_kept_room_holds_up_a_return(stack: Stack) -> None:
    odcr = full(stack)
    stack.start()
    holder(stack, odcr, "first")
    reserve(stack, fallback(stack, "low"))
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    later(stack, 150)
    assert replacement(stack, "low") is None
    assert stack.get(NodeClaim, "low").labels[names.CAPACITY_TYPE] != RESERVED


@pytest.mark.parametrize("comes", ["pod", "reservation"])
def test_node_that_is_used_at_the_last_moment_stays(stack: Stack, comes: str) -> None:
    pool(stack)
    stack.start()
    on = node(stack, "late")
    tainted: list[bool] = []

    def last_read(request: Request) -> bool:
        if request.query.get("fieldSelector") == f"spec.nodeName={on}" and not tainted:
            taints = stack.get(Node, on).spec.taints
            tainted.append(any(taint.key == names.DISRUPTED_TAINT for taint in taints))
            if comes == "pod":
                run(stack, "app", on)
            else:
                body = {"metadata": {"name": "kept"}, "spec": {"template": {}, "owners": [{}], "ttl": "0s"}}
                stack.client.create(KoordinatorReservation.KIND, body)
                status = {"phase": AVAILABLE, "nodeName": on, "allocatable": {"cpu": "500m"}}
                stack.edit(KoordinatorReservation, "kept", {"status": status}, subresource="status")
        return False

    stack.tap.lose(last_read)
    stack.until(lambda: tainted, "the last look", step=STEP)
    later(stack, 30)
    assert tainted == [True]  # no pod was to come any more
    claim = stack.get(NodeClaim, "late")
    assert not claim.deleting and condition(claim.status.conditions, names.DISRUPTION_REASON) is None
    assert names.DISRUPTED_TAINT not in {taint.key for taint in stack.get(Node, on).spec.taints}
