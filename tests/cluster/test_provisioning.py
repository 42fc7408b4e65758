"""Pods to reserved instances: pending pods of a NodePool of the broker's group get claims, then nodes."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.koordinator import KoordinatorReservation
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.controllers.provisioning.other_pools import GROUP_UNKNOWN, KARPENTER_NOT_RUNNING
from broker.controllers.provisioning.pool_status import WITHIN_LIMITS
from broker.kube.client import Request
from broker.kube.conditions import owner_reference
from broker.kube.errors import ApiError, Forbidden, from_status
from broker.oncall.metrics import REGISTRY
from broker.oncall.pod_reports import FAILED, NOMINATED
from broker.placement.pool_choice import SERVED
from local.demo import kubelets
from local.demo.scheduling import schedule
from tests.cluster import objects
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

POOL = "team"


def pool(
    stack: Stack, name: str = POOL, *, node_class: str = "gpu", group: str = names.BROKER, **spec: Any
) -> None:
    """A NodePool; `spec` are fields of the pool's, `template` those of its template's spec."""
    template = {
        "nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": node_class},
        "requirements": [
            {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND]},
            {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large", "m5.xlarge"]},
        ],
        **spec.pop("template", {}),
    }
    metadata = spec.pop("metadata", {})
    body = {
        "metadata": {"name": name},
        "spec": {"template": {"metadata": metadata, "spec": template}, **spec},
    }
    stack.client.create(NodePool.KIND, body)


def pods(stack: Stack, count: int, prefix: str = "p", *, cpu: str = "1", **more: Any) -> list[str]:
    names_ = [f"{prefix}-{n}" for n in range(count)]
    for name in names_:
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
        annotations = more.get("annotations", {})
        body = objects.pod(name, labels=more.get("labels"), containers=[container])
        body["metadata"]["annotations"] = annotations
        body["spec"] |= more.get("spec", {})
        stack.client.create(Pod.KIND, body)
    schedule(stack.client)
    return names_


def start(stack: Stack, **settings: Any) -> None:
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0, **settings)


def claims(stack: Stack) -> list[NodeClaim]:
    return stack.all(NodeClaim)


def bound(stack: Stack, names_: list[str]) -> bool:
    schedule(stack.client)
    return all(stack.get(Pod, name, namespace="default").spec.node_name for name in names_)


@pytest.mark.covers("KRP-35")
def test_pods_run_in_reserved_slots_first_and_get_no_second_claim(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", count=1)
    stack.node_class(id_=odcr)
    pool(stack)
    waiting = pods(stack, 3, cpu="1500m")  # before the start, so that they are one batch
    start(stack)
    stack.until(lambda: bound(stack, waiting), "all pods bound", step=0.2)
    created = claims(stack)
    assert len(created) == 3
    placed = sorted(stack.reservation_of(claim.name) for claim in created)
    assert placed == ["", "", odcr]
    for claim in created:
        assert claim.labels[names.NODEPOOL] == POOL
        assert [owner.kind for owner in claim.metadata.owner_references] == ["NodePool"]
    stack.advance(60)
    stack.passes()
    assert len(claims(stack)) == 3


@pytest.mark.covers("KRP-35")
def test_claims_that_are_created_slowly_are_still_planned_together(stack: Stack) -> None:
    """The first claims could use the slots that only the last ones fit."""
    small = stack.aws.odcr("c5.large", count=2)
    large = stack.aws.odcr("m5.large", count=2)
    stack.node_class(group=stack.aws.group(small, large))
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["c5.large", "m5.large"]}
    # A pod that takes the node made for another one leaves its own empty for a moment.
    pool(stack, template={"requirements": [types]}, disruption={"consolidateAfter": "Never"})
    stack.priority_class("high", 100)
    # Long enough for the launch loop to begin between two of them.
    never = threading.Event()

    def slow(_: Request) -> None:
        never.wait(0.2)

    stack.tap.on(
        lambda request: request.method == "POST" and request.path.endswith("/nodeclaims"), slow, times=-1
    )
    waiting = pods(stack, 2, "wide", cpu="1500m", spec={"priorityClassName": "high"})
    waiting += pods(stack, 2, "narrow", cpu="1500m", spec={"nodeSelector": {names.INSTANCE_TYPE: "c5.large"}})
    start(stack)
    stack.until(lambda: bound(stack, waiting), "all pods bound", step=0.2)
    assert sorted(stack.reservation_of(claim.name) for claim in claims(stack)) == sorted([small, large] * 2)


@pytest.mark.covers("KRP-35")
@pytest.mark.both_servers
def test_the_claim_is_as_karpenter_writes_it(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.xlarge"))
    taint = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}
    pool(
        stack,
        metadata={"labels": {"example.com/team": "a"}, "annotations": {"example.com/note": "n"}},
        template={"taints": [taint], "expireAfter": "24h", "terminationGracePeriod": "1h"},
    )
    # Before the start: pods that appear in more than one batch get more than one claim.
    pods(stack, 3, spec={"tolerations": [{"operator": "Exists"}], "nodeSelector": {names.ZONE: A}})
    start(stack)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    (claim,) = claims(stack)
    requirements = {item.key: set(item.values) for item in claim.spec.requirements}
    assert requirements == {
        names.CAPACITY_TYPE: {RESERVED, ON_DEMAND},
        names.INSTANCE_TYPE: {"m5.xlarge"},  # three pods do not fit on the smaller type
        names.ZONE: {A},
        "example.com/team": {"a"},
    }
    assert claim.labels == claim.labels | {names.NODEPOOL: POOL, "example.com/team": "a"}
    assert claim.annotations == claim.annotations | {
        "example.com/note": "n",
        names.PODS: "default/p-0,default/p-1,default/p-2",
    }
    assert names.NODEPOOL_HASH in claim.annotations
    assert claim.spec.resources.requests["cpu"] == "3000m" and claim.spec.resources.requests["pods"] == "3"
    assert [(t.key, t.value, t.effect) for t in claim.spec.taints] == [tuple(taint.values())]
    assert (claim.spec.expire_after, claim.spec.termination_grace_period) == ("24h", "1h")
    assert claim.spec.node_class_ref.group == names.BROKER
    event = stack.until_event("p-0", NOMINATED, kind="Pod")
    assert event.message == f"Pod should schedule on: nodeclaim/{claim.name}"


@pytest.mark.covers("KRP-35")
def test_pod_that_more_room_would_not_help_gets_no_claim_and_an_event_with_the_reason(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    start(stack)
    pods(stack, 1, cpu="64")
    pods(stack, 1, "s", spec={"nodeSelector": {"disk": "ssd"}})
    large = stack.until_event("p-0", FAILED, kind="Pod", text="NodePool team").message
    assert "the largest type that it allows has " in large and "the pod requests 64 CPU" in large
    stack.until_event(
        "s-0", FAILED, kind="Pod", text="its nodes have no label disk, which the pod selects by"
    )
    assert claims(stack) == []


@pytest.mark.covers("KRP-35")
def test_a_broker_that_stops_between_two_claims_makes_none_twice(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    waiting = pods(stack, 3, cpu="1500m")
    creations: list[str] = []

    def after_the_first(request: Any) -> bool:
        creates = request.method == "POST" and request.path.endswith("/nodeclaims")
        creations.extend(["claim"] if creates else [])
        return creates and len(creations) > 1

    stack.tap.lose(after_the_first)
    start(stack)
    stack.until(lambda: len(creations) > 1, "the second claim is refused", step=0.2)
    stack.stop()
    stack.tap.heal()
    assert len(claims(stack)) == 1
    start(stack)
    stack.until(lambda: bound(stack, waiting), "all pods bound", step=0.2)
    named = sorted(key for claim in claims(stack) for key in claim.annotations[names.PODS].split(","))
    assert named == [f"default/{name}" for name in waiting]


@pytest.mark.covers("KRP-35")
def test_a_gang_gets_claims_of_one_gang_once_all_its_pods_exist(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr(count=2))
    pool(stack)
    start(stack)
    gang = {names.GANG: "train", names.GANG_SIZE: "2"}
    pods(stack, 1, "first", cpu="1500m", annotations=gang)
    stack.until_event("first-0", FAILED, kind="Pod", text="has 1 of 2 pods")
    assert claims(stack) == []
    pods(stack, 1, "second", cpu="1500m", annotations=gang)
    stack.until(lambda: len(claims(stack)) == 2, "two claims", step=0.5)
    marks = {(c.annotations[names.GANG], c.annotations[names.GANG_SIZE]) for c in claims(stack)}
    assert marks == {("default/train", "2")}
    stack.until_launched(*(claim.name for claim in claims(stack)))


@pytest.mark.covers("KRP-35")
def test_a_gang_of_which_one_pod_has_an_unreadable_size_gets_nothing_until_it_is_corrected(
    stack: Stack,
) -> None:
    stack.node_class(id_=stack.aws.odcr(count=2))
    pool(stack)
    for name, size in (("a", "two"), ("b", "2")):
        pods(stack, 1, name, cpu="1500m", annotations={names.GANG: "train", names.GANG_SIZE: size})
    start(stack)
    for name in ("a-0", "b-0"):
        stack.until_event(name, FAILED, kind="Pod", text=f"metadata.annotations[{names.GANG_SIZE}] is 'two'")
    assert claims(stack) == []
    stack.client.patch(
        Pod.KIND, "a-0", {"metadata": {"annotations": {names.GANG_SIZE: "2"}}}, namespace="default"
    )
    stack.until_launched(*stack.until(lambda: [c.name for c in claims(stack)], "claims", step=0.5))
    assert len(claims(stack)) == 2


@pytest.mark.covers("KRP-35")
def test_pods_that_karpenter_serves_are_left_to_it(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr())
    pool(stack)
    pool(stack, "theirs", group=names.KARPENTER_AWS)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    stack.edit(NodePool, "theirs", {"status": {"conditions": [ready]}}, subresource="status")
    start(stack)
    pods(stack, 1, "either")
    pods(stack, 1, "ours", spec={"nodeSelector": {names.NODEPOOL: POOL}})
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    assert [claim.annotations[names.PODS] for claim in claims(stack)] == ["default/ours-0"]


@pytest.mark.covers("KRP-35")
def test_existing_nodes_and_claims_in_flight_take_pods_first(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    start(stack)
    first = pods(stack, 1, cpu="1500m")
    stack.until(lambda: bound(stack, first), "the first pod is bound", step=0.2)
    stack.until(lambda: all(node.labels.get(names.INITIALIZED) for node in stack.all(Node)), "initialized")
    pods(stack, 1, "small", cpu="300m")
    stack.until(lambda: bound(stack, ["small-0"]), "the second pod is bound", step=0.2)
    assert len(claims(stack)) == 1


def capacity(kind: str) -> dict[str, Any]:
    return {"key": names.CAPACITY_TYPE, "operator": "In", "values": [kind]}


def arch(value: str) -> dict[str, Any]:
    return {"key": names.ARCH, "operator": "In", "values": [value]}


@pytest.mark.covers("KRP-35", "USR-20")
@pytest.mark.parametrize(
    ("spec", "reason", "field"),
    [
        ({"node_class": "nowhere"}, "NodeClassNotFound", "nowhere"),
        (
            {
                "template": {
                    "requirements": [
                        {"key": names.ARCH, "operator": "In", "values": [v]} for v in ("arm64", "amd64")
                    ]
                }
            },
            "InvalidRequirements",
            names.ARCH,
        ),
        (
            {
                "template": {
                    "requirements": [
                        {"key": names.PLACEMENT_GROUP_PARTITION, "operator": "In", "values": ["1", "2"]}
                    ]
                }
            },
            "UnknownRequirement",
            names.PLACEMENT_GROUP_PARTITION,
        ),
    ],
    ids=["class", "requirements", "partition"],
)
def test_pool_that_is_not_served_reports_the_reason(
    stack: Stack, spec: dict[str, Any], reason: str, field: str
) -> None:
    stack.node_class(preference="none")
    pool(stack, **spec)
    pool(stack, "good")
    start(stack)
    stack.until(
        lambda: (c := stack.condition(NodePool, "good", names.READY)) and c.status == "True", "good is Ready"
    )
    condition = stack.until(lambda: stack.condition(NodePool, POOL, names.READY), "a condition")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", reason) and field in condition.message


@pytest.mark.covers("USR-20")
def test_pool_of_a_group_without_a_controller_reports_it(stack: Stack) -> None:
    pool(stack, "karpenters", group=names.KARPENTER_AWS)
    pool(stack, "wrong", group="capacity-broker.example")
    start(stack)

    def served(name: str) -> str:
        condition = stack.condition(NodePool, name, SERVED)
        return f"{condition.status} {condition.reason}" if condition else ""

    stack.until(lambda: served("wrong") == f"False {GROUP_UNKNOWN}", "the wrong group is reported", step=1.0)
    stack.until(
        lambda: served("karpenters") == f"False {KARPENTER_NOT_RUNNING}", "Karpenter is missed", step=2.0
    )


@pytest.mark.covers("KRP-35")
def test_a_reserved_pool_makes_no_more_claims_than_slots(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    start(stack)
    waiting = pods(stack, 2, cpu="1500m")
    stack.until(lambda: bound(stack, waiting[:1]) or bound(stack, waiting[1:]), "one pod is bound", step=0.2)
    assert len(claims(stack)) == 1  # the other pod gets none: the reservation is full
    stack.until_event(next(n for n in waiting if not bound(stack, [n])), FAILED, kind="Pod", text="slots")


@pytest.mark.covers("KRP-35")
def test_a_claim_without_an_instance_is_deleted_with_its_last_pod(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    stack.tap.lose(lambda request: request.method == "PATCH" and "/nodeclaims/" in request.path)  # no launch
    start(stack)
    (only,) = pods(stack, 1)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    stack.delete(Pod, only, namespace="default")
    stack.tap.heal()
    stack.until(lambda: not claims(stack), "no claim", step=0.5)
    assert not [i for i in stack.aws.instances() if i["State"]["Name"] == "running"]


@pytest.mark.covers("KRP-35")
def test_a_claim_whose_launch_begins_unseen_is_not_released_by_its_older_state(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    stack.tap.lose(lambda request: request.method == "PATCH" and "/nodeclaims/" in request.path)  # no launch
    watch = stack.tap.slow("/apis/karpenter.sh/v1/nodeclaims")
    start(stack)
    (only,) = pods(stack, 1)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    (claim,) = claims(stack)
    watch.clear()
    stack.client.patch(NodeClaim.KIND, claim.name, {"metadata": {"annotations": {names.LAUNCH: "1"}}})
    stack.tap.forget()
    stack.delete(Pod, only, namespace="default")
    path = f"/apis/karpenter.sh/v1/nodeclaims/{claim.name}"
    stack.until(lambda: ("DELETE", path) in stack.tap.log, "the older claim is released", step=0.5)
    assert claims(stack)
    watch.set()
    stack.tap.heal()
    stack.until(lambda: not claims(stack), "no claim", step=0.5)


@pytest.mark.covers("FLT-70")
def test_pod_that_is_being_deleted_gets_no_machine_and_keeps_none(stack: Stack) -> None:
    """A finalizer keeps the pod: it will never run."""
    stack.node_class(preference="none")
    pool(stack)
    stack.tap.lose(lambda request: request.method == "PATCH" and "/nodeclaims/" in request.path)  # no launch
    start(stack)
    before, later = pods(stack, 1, "before"), pods(stack, 1, "later", cpu="1500m")
    for name in (*before, *later):
        kept = {"metadata": {"finalizers": ["example.com/kept"]}}
        stack.client.patch(Pod.KIND, name, kept, namespace="default")
    stack.delete(Pod, before[0], namespace="default")
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    stack.delete(Pod, later[0], namespace="default")
    stack.until(lambda: _seen_deleting(stack, later[0]), "the broker sees that it is deleted")
    stack.until(lambda: not any(claim.waits for claim in claims(stack)), "its claim ends", step=0.5)
    stack.tap.heal()
    stack.until(lambda: not claims(stack), "no claim", step=0.5)
    stack.passes()
    assert not claims(stack) and stack.calls("CreateFleet") == 0


@pytest.mark.covers("KRP-35")
def test_pod_that_lost_its_machine_to_another_pod_gets_another_claim(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    start(stack)
    (first,) = pods(stack, 1, cpu="1500m")
    stack.until(lambda: any(stack.is_true(c.name, "Initialized") for c in claims(stack)), "ready", step=0.2)
    (claim,) = claims(stack)
    pods(stack, 1, "thief", cpu="1500m", spec={"nodeName": claim.status.node_name})
    stack.until(lambda: bound(stack, [first]), "the first pod is bound", step=0.5)
    assert len(claims(stack)) == 2
    stack.advance(60)
    stack.passes()
    assert len(claims(stack)) == 2


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", "a policy denied it"),
        from_status(
            {
                "code": 500,
                "reason": "InternalError",
                "message": 'failed calling webhook "w": a policy denied it',
            }
        ),
    ],
    ids=["denied", "webhook down"],
)
def test_a_claim_that_is_refused_stops_no_other(stack: Stack, error: ApiError) -> None:
    stack.node_class(preference="none")
    pool(stack)
    refused: list[str] = []

    def first_claim(request: Any) -> bool:
        if request.method != "POST" or not request.path.endswith("/nodeclaims"):
            return False
        name = json.loads(request.body)["metadata"]["name"]
        refused[:] = refused or [name]
        return bool(name == refused[0])

    def refuse(_: Any) -> None:
        raise error

    stack.tap.on(first_claim, refuse, times=-1)
    start(stack)
    waiting = pods(stack, 3, cpu="1500m")
    stack.until(lambda: len(claims(stack)) == 2, "the other claims", step=0.2)
    served_pods = {
        key.split("/")[1] for claim in claims(stack) for key in claim.annotations[names.PODS].split(",")
    }
    (left,) = {*waiting} - served_pods
    stack.until_event(left, FAILED, kind="Pod", text=f"NodeClaim {refused[0]} was refused: {error}")
    stack.tap.heal()
    stack.until(lambda: bound(stack, waiting), "all pods bound", step=0.5)


@pytest.mark.covers("KRP-35")
@pytest.mark.both_servers
def test_a_claim_that_cannot_be_released_stops_no_other_pod(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)

    def deletes(request: Any) -> bool:
        return request.method == "DELETE" and "/nodeclaims/" in request.path

    def refuse(_: Any) -> None:
        raise Forbidden(403, "Forbidden", "a policy denied it")

    stack.tap.lose(lambda request: request.method == "PATCH" and "/nodeclaims/" in request.path)  # no launch
    stack.tap.on(deletes, refuse, times=-1)
    start(stack)
    (gone,) = pods(stack, 1, "gone")
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    (kept,) = claims(stack)
    stack.delete(Pod, gone, namespace="default")
    pods(stack, 1, "next", cpu="1900m", spec={"nodeSelector": {names.ZONE: A}})
    stack.until(lambda: len(claims(stack)) == 2, "a claim of the next pod", step=0.5)
    stack.tap.heal()
    stack.until(lambda: kept.name not in {claim.name for claim in claims(stack)}, "released", step=0.5)


@pytest.mark.covers("KRP-35")
@pytest.mark.both_servers
def test_reserved_room_of_a_node_is_no_room_for_other_pods(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    start(stack)
    stack.start_scheduler()
    first = pods(stack, 1, cpu="300m")
    stack.until(lambda: bound(stack, first), "the first pod is bound", step=0.2)
    template = {"spec": {"schedulerName": "koord-scheduler", "containers": [_container("1200m")]}}
    owners = [{"labelSelector": {"matchLabels": {"app": "later"}}}]
    body = {"metadata": {"name": "kept"}, "spec": {"template": template, "owners": owners}}
    stack.client.create(KoordinatorReservation.KIND, body)

    def placed() -> bool:
        return stack.get(KoordinatorReservation, "kept").status.phase == "Available"

    stack.until(placed, "the reservation has its node", step=0.2)
    stranger = objects.pod("stranger", containers=[_container("1")])
    stranger["spec"]["schedulerName"] = "koord-scheduler"
    stack.client.create(Pod.KIND, stranger)
    stack.until(lambda: stack.get(Pod, "stranger", namespace="default").spec.node_name, "bound", step=0.2)
    assert len(claims(stack)) == 2


def _container(cpu: str) -> dict[str, Any]:
    return {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}


@pytest.mark.covers("KRP-35")
def test_a_pool_shows_its_nodes_and_their_resources_as_karpenter_does(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large", count=2))
    pool(stack, limits={"nodes": "2"})
    start(stack)
    stack.until(lambda: stack.get(NodePool, POOL).status.resources, "the status", step=0.2)
    assert stack.get(NodePool, POOL).status.resources == dict.fromkeys(
        ("cpu", "memory", "pods", "ephemeral-storage", "nodes"), "0"
    )
    small = {"nodeSelector": {names.INSTANCE_TYPE: "m5.large"}}
    waiting = pods(stack, 3, cpu="1500m", spec=small)
    stack.until(lambda: sum(bound(stack, [name]) for name in waiting) == 2, "two pods bound", step=0.2)
    stack.until(lambda: stack.get(NodePool, POOL).status.nodes == 2, "two nodes", step=0.2)
    status = stack.get(NodePool, POOL).status
    assert (status.resources["cpu"], status.resources["nodes"]) == ("4", "2")
    assert status.resources["memory"].endswith("Mi")
    assert status.node_class_observed_generation == 1

    def healthy() -> bool:
        shown = stack.condition(NodePool, POOL, "NodeRegistrationHealthy")
        return shown is not None and shown.status == "True"

    stack.until(healthy, "a healthy pool", step=0.2)
    stack.client.delete(NodeClaim.KIND, claims(stack)[0].name)
    stack.until(lambda: len(claims(stack)) == 2, "the third pod has a claim", step=0.2)


@pytest.mark.covers("KRP-35")
def test_a_class_that_is_not_resolved_holds_up_no_other_pool_for_long(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = NodeClassController.ready

    def not_yet(self: NodeClassController, name: str) -> LaunchClass:
        if name == "slow":
            raise Unresolved("NodeClassNotReady", "EC2NodeClass slow has not been resolved yet", passing=True)
        return ready(self, name)

    monkeypatch.setattr(NodeClassController, "ready", not_yet)
    stack.node_class(preference="none")
    pool(stack)
    pool(stack, "slow", node_class="slow", weight=10)
    start(stack)
    pods(stack, 1)
    stack.until(lambda: claims(stack), "a claim of the other pool", step=0.5)
    assert claims(stack)[0].labels[names.NODEPOOL] == POOL


@pytest.mark.covers("KRP-35")
def test_a_gang_of_an_interrupted_run_needs_no_more_claims_than_its_pods(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    gang = {names.GANG: "train", names.GANG_SIZE: "2"}
    waiting = pods(stack, 2, cpu="1500m", annotations=gang)
    body = objects.claim("made", pool=POOL, node_class="gpu", types=("m5.large",), capacity=(ON_DEMAND,))
    body["metadata"] |= {
        "annotations": {names.GANG: "default/train", names.GANG_SIZE: "3", names.PODS: "default/p-0"},
        "ownerReferences": [owner_reference(stack.get(NodePool, POOL), controller=False)],
    }
    body["spec"]["resources"] = {"requests": {"cpu": "1500m", "pods": "1"}}
    stack.client.create(NodeClaim.KIND, body)  # one of three, then the process was stopped
    start(stack)
    stack.until(lambda: bound(stack, waiting), "all pods bound", step=0.5)
    assert {claim.annotations[names.GANG_SIZE] for claim in claims(stack)} == {"2"}
    assert "made" in {claim.name for claim in claims(stack)}  # it did not wait until others took its place


@pytest.mark.covers("KRP-35")
def test_fewer_types_than_min_values_still_make_a_machine(stack: Stack) -> None:
    """Karpenter's policy BestEffort: the pod fits one of the two types only."""
    types = {
        "key": names.INSTANCE_TYPE,
        "operator": "In",
        "values": ["m5.large", "m5.xlarge"],
        "minValues": 2,
    }
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [capacity(ON_DEMAND), types]})
    start(stack)
    waiting = pods(stack, 1, cpu="3")
    stack.until(lambda: bound(stack, waiting), "the pod is bound", step=1.0)
    (claim,) = claims(stack)
    assert claim.labels[names.INSTANCE_TYPE] == "m5.xlarge"
    assert claim.annotations[names.MIN_VALUES_RELAXED] == "true"
    pods(stack, 1, "small", cpu="1500m")
    stack.until(lambda: len(claims(stack)) == 2, "another claim", step=1.0)
    (small,) = [item for item in claims(stack) if item.name != claim.name]
    assert small.annotations[names.MIN_VALUES_RELAXED] == "false"  # it fits both types


@pytest.mark.covers("KRP-35")
def test_a_claim_that_ec2_refuses_gives_way_to_the_next_pool_and_stays_with_the_last(stack: Stack) -> None:
    for type_ in ("m5.large", "c5.large"):
        for zone in stack.aws.subnets:
            stack.control.pool(instance_type=type_, zone=zone, size=0)
    stack.node_class(preference="none")
    for weight, type_ in ((50, "m5.large"), (10, "c5.large")):
        requirement = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [type_]}
        pool(
            stack, f"w{weight}", weight=weight, template={"requirements": [requirement, capacity(ON_DEMAND)]}
        )
    start(stack)
    (only,) = pods(stack, 1)

    def pools_of() -> list[str]:
        return [claim.labels[names.NODEPOOL] for claim in claims(stack) if not claim.deleting]

    stack.until(lambda: pools_of() == ["w10"], "the pool of less weight is tried", step=0.5)
    stack.until_event(only, "InsufficientCapacity", kind="Pod", text="m5.large")
    stack.until_event(only, "InsufficientCapacity", kind="Pod", text="c5.large")
    (kept,) = claims(stack)
    assert names.WAITING_SINCE in kept.annotations  # of the claim before, for the alert and a gang's hold
    calls = stack.calls("CreateFleet")
    for _ in range(6):
        stack.advance(10)
        stack.passes()
    assert [claim.uid for claim in claims(stack)] == [kept.uid]
    assert stack.calls("CreateFleet") == calls  # no pool is tried before its time
    stack.control.clear_pools()
    stack.until(lambda: bound(stack, [only]), "bound", step=30)
    assert len(claims(stack)) == 1


@pytest.mark.covers("FLT-70")
def test_a_refused_claim_that_changes_meanwhile_does_not_give_way_then(stack: Stack) -> None:
    """Its launch may be answered between the decision and the deletion."""
    for zone in stack.aws.subnets:
        stack.control.pool(instance_type="m5.large", zone=zone, size=0)
    stack.node_class(preference="none")
    for weight, type_ in ((50, "m5.large"), (10, "c5.large")):
        requirement = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [type_]}
        pool(
            stack, f"w{weight}", weight=weight, template={"requirements": [requirement, capacity(ON_DEMAND)]}
        )
    changed: list[str] = []

    def change(request: Request) -> None:
        changed.append(request.path)
        seen = {"metadata": {"annotations": {"example.com/seen": str(len(changed))}}}
        stack.edit(NodeClaim, request.path.rpartition("/")[2], seen)

    stack.tap.on(lambda r: r.method == "DELETE" and "/nodeclaims/" in r.path, change, times=2)
    start(stack)
    (only,) = pods(stack, 1)
    stack.until(lambda: bound(stack, [only]), "bound in the other pool", step=2)
    assert len(changed) == 2
    assert [claim.labels[names.NODEPOOL] for claim in claims(stack)] == ["w10"]


def panics() -> float:
    """The unexpected exceptions of this process so far."""
    metrics = (metric for metric in REGISTRY.collect() if metric.name == "capacity_broker_kube_panics")
    return sum(s.value for metric in metrics for s in metric.samples if s.name.endswith("_total"))


@pytest.mark.covers("FLT-60")
@pytest.mark.parametrize("by", ["a lower limit", "a replacement"])
def test_pool_over_its_limits_is_full_and_the_others_are_served_in_the_same_pass(
    stack: Stack, by: str
) -> None:
    stack.node_class(preference="none")
    types = [{"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}, capacity(ON_DEMAND)]
    pool(stack, "full", template={"requirements": types}, limits={"cpu": "4"}, weight=50)
    pool(stack, "other", template={"requirements": types})
    start(stack)
    in_a, in_b = ({"nodeSelector": {names.NODEPOOL: "full", names.ZONE: zone}} for zone in (A, B))
    first = pods(stack, 2, "first", cpu="1500m", spec=in_a)
    stack.until(lambda: bound(stack, first), "the pool is at its limit", step=0.2)
    before = panics()
    stack.kubelets.stop()
    if by == "a lower limit":
        stack.edit(NodePool, "full", {"spec": {"limits": {"cpu": "2"}}})
    else:
        types[0]["values"] = ["m5.xlarge"]  # each node drifts, and gets a larger one
        spec = {"template": {"spec": {"requirements": types}}, "limits": {"cpu": "6"}}
        stack.edit(NodePool, "full", {"spec": spec})
        stack.until(lambda: len(claims(stack)) > 2, "a replacement", step=5)
        stack.edit(NodePool, "full", {"spec": {"limits": {"cpu": "4"}}})
    (here,) = pods(stack, 1, "here", spec=in_b)
    anywhere = pods(stack, 2, "anywhere", cpu="1500m", spec={"nodeSelector": {names.ZONE: B}})
    stack.until_event(here, FAILED, kind="Pod", text="its limit of cpu is")
    for name in anywhere:
        stack.until_event(name, NOMINATED, kind="Pod", text="nodeclaim/other-")
    assert panics() == before


@pytest.mark.covers("FLT-61", "FLT-60")
def test_limits_hold_while_ec2_is_slow_and_a_lower_limit_is_a_condition(stack: Stack) -> None:
    """A claim in flight requests 1500m, and gets a machine of 2 cores."""
    stack.node_class(preference="none")
    pool(stack, limits={"cpu": "6"})
    start(stack)
    assert stack.current is not None
    answered = threading.Event()
    stack.current.on("before-call.ec2.CreateFleet", lambda: answered.wait(60))
    try:
        for number in range(6):  # each is a batch of its own
            (name,) = pods(stack, 1, f"p{number}", cpu="1500m")
            stack.until(
                lambda n=name: any(e.reason in (NOMINATED, FAILED) for e in stack.events(n, kind="Pod")),  # type: ignore[misc]
                "an answer",
            )
            if number == 3:
                answered.set()
                stack.stop()
                start(stack)
    finally:
        answered.set()
    stack.until(lambda: len([c for c in claims(stack) if c.status.provider_id]) == 3, "three nodes")
    stack.passes()
    assert sum({"m5.large": 2, "m5.xlarge": 4}[i["InstanceType"]] for i in stack.aws.instances()) == 6
    assert stack.condition(NodePool, POOL, WITHIN_LIMITS) is None
    stack.until(lambda: stack.get(NodePool, POOL).status.resources.get("cpu") == "6", "used", step=0.2)
    stack.edit(NodePool, POOL, {"spec": {"limits": {"cpu": "4"}}})

    def over() -> str:
        shown = stack.condition(NodePool, POOL, WITHIN_LIMITS)
        return shown.message if shown is not None and shown.status == "False" else ""

    assert "cpu 6 of 4" in stack.until(over, "the pool is over its limits", step=0.2)
    stack.edit(NodePool, POOL, {"spec": {"limits": {"cpu": "20"}}})
    stack.until(lambda: not over(), "within its limits", step=0.2)


@pytest.mark.covers("FLT-61")
def test_a_limit_of_a_misspelt_resource_is_reported(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack, limits={"nvidia.com/gpus": "4", "cpu": "6"})
    start(stack)
    shown = stack.until(lambda: stack.condition(NodePool, POOL, WITHIN_LIMITS), "the condition", step=0.2)
    assert shown is not None and (shown.status, shown.reason) == ("Unknown", "LimitUnknown")
    assert "nvidia.com/gpus, so its limit has no effect: write nvidia.com/gpu if" in shown.message
    stack.until_event(POOL, "LimitUnknown", kind="NodePool", text="nvidia.com/gpus")
    stack.edit(NodePool, POOL, {"spec": {"limits": {"nvidia.com/gpus": None, "nvidia.com/gpu": "4"}}})

    def corrected() -> bool:
        condition = stack.condition(NodePool, POOL, WITHIN_LIMITS)
        return condition is not None and condition.status == "True"

    stack.until(corrected, "the limit is known", step=0.2)


def half_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes have half of the memory of their types."""

    def half(name: str, instance: Any, type_: Any) -> dict[str, Any]:
        halved = node(name, instance, type_)
        halved["status"]["allocatable"]["memory"] = f"{type_.memory_mib // 2}Mi"
        return halved

    node = kubelets._node
    monkeypatch.setattr(kubelets, "_node", half)


@pytest.mark.covers("KRP-35")
def test_a_machine_that_turns_out_too_small_is_made_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_memory(monkeypatch)
    stack.node_class(preference="none")
    pool(stack, disruption={"consolidateAfter": "0s"})
    start(stack)

    def requesting(memory: str) -> dict[str, Any]:
        requests = {"requests": {"memory": memory}}
        return {"spec": {"containers": [{"name": "main", "image": "pause", "resources": requests}]}}

    def types() -> list[str]:
        return [claim.labels.get(names.INSTANCE_TYPE, "") for claim in claims(stack)]

    pods(stack, 1, **requesting("5Gi"))  # on m5.large by the estimate
    stack.until(lambda: bound(stack, ["p-0"]), "bound on the larger type", step=1.0)
    stack.until(lambda: types() == ["m5.xlarge"], "the empty machine is gone", step=2.0)
    pods(stack, 1, "big", **requesting("12Gi"))
    stack.until_event("big-0", FAILED, kind="Pod", text="m5.xlarge of NodePool team has 8Gi memory for pods")
    stack.advance(60)
    stack.passes()
    assert types() == ["m5.xlarge"]


@pytest.mark.covers("KRP-35")
def test_a_node_that_joins_is_nominated_for_the_pods_that_it_was_made_for(stack: Stack) -> None:
    """kube-scheduler keeps the room of a nominated pod from other pods."""
    stack.node_class(preference="none")
    pool(stack)
    (waiting,) = pods(stack, 1, cpu="1500m")
    start(stack)
    stack.until(lambda: nominated(stack, waiting), "nominated", step=0.2)
    (claim,) = claims(stack)
    (node,) = [item for item in stack.all(Node) if item.spec.provider_id == claim.status.provider_id]
    assert nominated(stack, waiting) == node.name
    stack.until(lambda: stack.is_true(claim.name, "Initialized"), "initialized", step=0.2)
    pods(stack, 1, "later", cpu="1500m", spec={"nodeName": node.name})  # in its place, by its node's name
    stack.until(lambda: len(claims(stack)) == 2, "another claim", step=0.2)
    assert nominated(stack, waiting) != node.name  # else Karpenter and other schedulers wait for this node
    stack.until(lambda: bound(stack, [waiting]), "bound", step=0.2)
    assert len(claims(stack)) == 2


@pytest.mark.covers("KRP-35")
def test_a_pod_for_which_others_are_evicted_gets_no_machine(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    stack.client.create(Node.KIND, {"metadata": {"name": "full"}})
    evicting, other = pods(stack, 2, cpu="1500m")
    nominate(stack, evicting, "full")
    start(stack)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    stack.passes()
    assert [claim.annotations[names.PODS] for claim in claims(stack)] == [f"default/{other}"]
    assert nominated(stack, evicting) == "full"
    stack.client.delete(Node.KIND, "full")  # nothing becomes free there any more
    stack.until(lambda: bound(stack, [evicting, other]), "both are bound", step=0.2)
    assert len(claims(stack)) == 2


def _seen_deleting(stack: Stack, name: str) -> bool:
    pod = stack.broker.read.pods.cache.find(f"default/{name}") if stack.broker else None
    return pod is not None and pod.deleting


def nominated(stack: Stack, name: str) -> str:
    return stack.get(Pod, name, namespace="default").status.nominated_node_name


def nominate(stack: Stack, name: str, node: str) -> None:
    status = {"status": {"nominatedNodeName": node}}
    stack.client.patch(Pod.KIND, name, status, namespace="default", subresource="status")
