"""The capabilities of people who only write pods: docs/operate/security.md names these tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodePool
from broker.apis.kueue import OF_POD_GROUP
from broker.controllers.lifecycle.drain import remaining
from broker.controllers.provisioning.claims import manifest
from broker.controllers.provisioning.pending import incomplete, pending_pod
from broker.controllers.provisioning.report import PodReporter
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from broker.oncall.pod_reports import FAILED
from broker.placement.gangs import (
    JOBSET,
    KUEUE_COUNT,
    POD_GROUP,
    GroupSize,
    gang_of,
    unknown_sizes,
)
from broker.placement.model import NodeInfo
from broker.placement.packing_model import Drawing, MachineOption, PackedBin
from broker.quota.resolve import UnresolvedName
from broker.reservations.drawing import NOT_ALLOWED
from tests.support.clock import FakeClock
from tests.support.kube_server import Server

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def pod(name: str = "p", space: str = "red", **more: Any) -> Pod:
    meta = {"name": name, "namespace": space, "uid": f"{space}-{name}", **more.pop("meta", {})}
    containers = [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}]
    return Pod.decode({"metadata": meta, "spec": {"containers": containers, **more}})


def claim_of(given: Pod) -> dict[str, Any]:
    """The metadata of the claim that provisioning makes for a pod."""
    template = {"spec": {"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}}}
    pool = NodePool.decode({"metadata": {"name": "team", "uid": "u"}, "spec": {"template": template}})
    option = MachineOption(
        pool="team",
        node=NodeInfo(name="n", labels={}),
        instance_type="m5.large",
        zone="us-east-1a",
        capacity_type="on-demand",
        cost=1.0,
    )
    waiting = pending_pod(given, lambda *_: Drawing(), unknown_sizes)
    served: Any = SimpleNamespace(pool=pool, requirements={})
    packed = PackedBin(option=option, pods=(waiting,), also=(option,))
    metadata: dict[str, Any] = manifest("c", packed, served, [option], gang_claims=1)["metadata"]
    return metadata


@pytest.mark.covers("FLT-62")
def test_annotations_and_labels_of_pods_do_not_reach_their_claim() -> None:
    keys = {key for kind in names.ANNOTATIONS.values() for key in kind}
    keys -= {names.GANG, names.GANG_SIZE, names.GANG_DOMAIN}  # marks of the pod itself
    keys |= {names.DO_NOT_DISRUPT, names.NODEPOOL_HASH}
    marks = dict.fromkeys(sorted(keys), "1")
    plain = claim_of(pod())
    marked = claim_of(pod(meta={"annotations": marks, "labels": {**marks, names.NODEPOOL: "other"}}))
    assert (marked["annotations"], marked["labels"]) == (plain["annotations"], plain["labels"])
    assert marked["annotations"][names.PODS] == "red/p"


@pytest.mark.covers("FLT-62")
def test_the_priority_of_a_claim_is_that_of_its_pods_specs() -> None:
    annotated = pod(meta={"annotations": {names.PRIORITY: "1000000"}}, priority=7)
    assert claim_of(annotated)["annotations"][names.PRIORITY] == "7"


@pytest.mark.covers("FLT-62")
@pytest.mark.parametrize(
    "marks",
    [
        {"annotations": {names.GANG: "team/train", names.GANG_SIZE: "2"}},
        {"labels": {POD_GROUP: "team/train"}},
        {"labels": {OF_POD_GROUP: "team/train"}, "annotations": {KUEUE_COUNT: "2"}},
        {"labels": {JOBSET: "team/train"}},
    ],
)
def test_a_gang_has_pods_of_one_namespace(marks: dict[str, Any]) -> None:
    """A name with a slash neither: the namespace of the pod stands first."""
    theirs, own = pod(space="red", meta=marks), pod("q", "team", meta=marks)
    assert gang_of(theirs, lambda _: GroupSize(size=2)).name == "red/team/train"
    assert gang_of(own, lambda _: GroupSize(size=2)).name == "team/team/train"
    waiting = [pending_pod(item, lambda *_: Drawing(), lambda _: GroupSize(size=2)) for item in (theirs, own)]
    assert (
        JOBSET in marks.get("labels", {})
        or len(incomplete(waiting, [theirs, own], lambda _: GroupSize(size=2), NOW)) == 2
    )


@pytest.mark.covers("FLT-62")
def test_a_finalizer_keeps_no_node_once_the_pod_has_ended() -> None:
    ends = {
        "deletionTimestamp": (NOW - timedelta(minutes=2)).isoformat(),
        "finalizers": ["red.example.com/keep"],
    }
    assert remaining([pod(meta=ends)], NOW) == []


@pytest.mark.covers("FLT-62", "FLT-66")
def test_a_refusal_of_a_pod_that_ended_and_recurs_is_reported_again() -> None:
    server, clock = Server(), FakeClock()
    recorder = Recorder(server.client, "capacity-broker", clock)
    reporter = PodReporter(ControllerContext(client=server.client, recorder=recorder, clock=clock))
    refusal = UnresolvedName(NOT_ALLOWED, "it does not serve pods of namespace red")
    for refused in ({}, {"red/p": refusal}, {"red/p": refusal}, {}, {"red/p": refusal}):
        reporter.refused({"red/p": pod()}, refused)
        reporter.kept_off({"red/p": pod()}, dict.fromkeys(refused, "a taint is not declared"))
    assert recorder.flush()
    events = [obj for path, obj in server.objects.items() if "/events/" in path]
    assert {(event["reason"], event["count"]) for event in events} == {(NOT_ALLOWED, 2), (FAILED, 2)}
