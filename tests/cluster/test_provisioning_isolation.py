"""One object that provisioning fails on stops no other: it is left out and says so, and pods get machines."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import UNSCHEDULABLE, Event, Pod
from broker.apis.godel import GodelReservation
from broker.apis.karpenter import NodeClaim, NodeClaimSpec, NodePool
from broker.apis.koordinator import AVAILABLE, SCHEDULED, KoordinatorReservation
from broker.apis.limits import LimitRange
from broker.apis.meta import Object
from broker.apis.nos import ElasticQuota
from broker.apis.storage import PersistentVolumeClaim
from broker.apis.workloads import DaemonSet
from broker.controllers.nodereservation import node_holds
from broker.controllers.provisioning import existing, other_pools, pending, provisioner, reads, usage
from broker.kube.manager import REASON
from broker.oncall.pod_reports import FAILED
from broker.placement import storage
from broker.text import format_time
from tests.cluster.everything import bodies, put
from tests.cluster.objects import node_pool
from tests.cluster.poison import POISON, leave_out
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, claims, pods, pool, start

CODE = "InsufficientInstanceCapacity"
PLACED = {"phase": AVAILABLE, "nodeName": "elsewhere", "allocatable": {"cpu": "1"}}


def poisoned(item: object) -> bool:
    """Whether this is the object, the spec of the claim, or labels of the pool."""
    if isinstance(item, list):
        return any(map(poisoned, item))
    if isinstance(item, NodeClaimSpec):
        return item.node_class_ref.name == POISON
    return (isinstance(item, Object) and item.name == POISON) or (
        isinstance(item, Mapping) and item.get(names.NODEPOOL) == POISON
    )


def timed(**condition: str) -> dict[str, str]:
    at = format_time(datetime.now(UTC))
    return {"reason": "Test", "message": "", "lastTransitionTime": at, "lastProbeTime": at, **condition}


def put_poison(stack: Stack, model: type[Object], where: object) -> None:
    body = bodies(stack)[model]
    if where is other_pools:
        body = node_pool("", node_class=POISON)
        body["spec"]["template"]["spec"]["nodeClassRef"]["group"] = names.KARPENTER_AWS
        body["status"] = {"conditions": [timed(type=names.READY, status="True")]}
    if model is NodeClaim:
        body["spec"]["nodeClassRef"]["name"] = POISON
    if model is KoordinatorReservation:
        unplaced = {"conditions": [timed(type=SCHEDULED, status="False", reason=UNSCHEDULABLE)]}
        body["status"] = PLACED if where is node_holds else unplaced
    put(stack, model, body, POISON)


@pytest.mark.covers("SAF-50")
@pytest.mark.parametrize(
    ("where", "name", "model"),
    [
        (provisioner, "served", NodePool),
        (other_pools, "pool_node", NodePool),
        (pending, "provisionable", Pod),
        (pending, "priority", KoordinatorReservation),
        (existing, "claim_info", NodeClaim),
        (usage, "requirements_of", NodeClaim),
        (node_holds, "koordinator_hold", KoordinatorReservation),
        (node_holds, "_godel_hold", GodelReservation),
        (reads, "declaration", ElasticQuota),
        (reads, "pod_info", DaemonSet),
        (reads, "default_requests", LimitRange),
        (storage, "_claim", PersistentVolumeClaim),
    ],
)
def test_an_object_that_fails_in_provisioning_is_left_out_and_pods_get_machines(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, model: type[Object]
) -> None:
    translate = getattr(where, name)

    def translated(*args: Any) -> Any:
        if any(map(poisoned, args)):
            raise RuntimeError(POISON)
        return translate(*args)

    monkeypatch.setattr(where, name, translated)
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    put_poison(stack, model, where)
    waiting = pods(stack, 1)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "the pod is bound", step=0.2)
    stack.until(
        lambda: any(
            event.reason == REASON and event.involved_object.name == POISON for event in stack.all(Event)
        ),
        "the object is reported",
    )


def waiting_claim(stack: Stack) -> NodeClaim:
    """The claim of a pod that waits for a slot."""
    stack.node_class(preference="none")
    stack.control.fault(action="CreateFleet", stage="launch", code=CODE, message="none left", times=-1)
    pool(stack)
    pods(stack, 1)
    start(stack)
    (claim,) = stack.until(lambda: claims(stack), "the claim")
    stack.until_waiting(claim.name, "InsufficientCapacity")
    return claim


def test_claim_waits_on_while_its_pod_is_left_out(stack: Stack) -> None:
    claim = waiting_claim(stack)
    assert stack.broker is not None
    cache = stack.broker.read.pods.cache
    leave_out(stack, cache, Pod, "p-0", namespace="default")
    stack.advance(30.0)
    stack.passes()
    assert [item.uid for item in claims(stack)] == [claim.uid] and not claims(stack)[0].deleting


def test_pod_gets_no_second_claim_while_its_claim_is_left_out(stack: Stack) -> None:
    claim = waiting_claim(stack)
    assert stack.broker is not None
    cache = stack.broker.read.claims.cache
    leave_out(stack, cache, NodeClaim, claim.name)
    stack.until_event("p-0", FAILED, kind="Pod", text=f"NodeClaim {claim.name} is for it, and is left out")
    stack.advance(30.0)
    stack.passes()
    assert [item.uid for item in claims(stack)] == [claim.uid]
    (report,) = stack.broker.pod_reports().values()
    assert report.held and f"NodeClaim {claim.name} is for it, and is left out" in report.message
