"""Koordinator reservations on a cluster: reserve, own, end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import orjson
import pytest
import yaml

from broker.apis.core import Node, Pod
from broker.apis.koordinator import (
    AFFINITY,
    ALLOCATED,
    EXACT_MATCH,
    ORDER,
    RESTRICTED_OPTIONS,
    KoordinatorReservation,
)
from broker.controllers.nodereservation import node_holds
from broker.controllers.scheduler import loop
from broker.kube.client import Request
from broker.kube.errors import Invalid, Unavailable
from broker.kube.manager import REASON
from broker.text import format_time
from tests.cluster.rooms import Rooms, rooms
from tests.cluster.taps import status_of

QUICK_START = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: Reservation
metadata:
  name: reservation-demo
spec:
  template: # set resource requirements
    metadata:
      namespace: default
    spec:
      containers:
        - args:
            - '-c'
            - '1'
          command:
            - stress
          image: polinux/stress
          imagePullPolicy: Always
          name: stress
          resources: # reserve 500m cpu and 800Mi memory
            requests:
              cpu: 500m
              memory: 800Mi
      schedulerName: koord-scheduler # use koord-scheduler
  owners: # set the owner specifications
    - object: # owner pods whose name is `default/pod-demo-0`
        name: pod-demo-0
        namespace: default
  ttl: 1h # set the TTL, the reservation will get expired 1 hour later
"""
OWNER = """
apiVersion: v1
kind: Pod
metadata:
  name: pod-demo-0 # match the owner spec of `reservation-demo`
spec:
  containers:
    - args:
        - '-c'
        - '1'
      command:
        - stress
      image: polinux/stress
      imagePullPolicy: Always
      name: stress
      resources:
        limits:
          cpu: '1'
          memory: 1Gi
        requests:
          cpu: 200m
          memory: 400Mi
  restartPolicy: Always
  schedulerName: koord-scheduler # use koord-scheduler
"""
BIG = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: Reservation
metadata:
  name: reservation-demo-big
spec:
  allocateOnce: false # allow the reservation to be allocated by multiple owners
  template:
    metadata:
      namespace: default
    spec:
      containers:
        - args:
            - '-c'
            - '1'
          command:
            - stress
          image: polinux/stress
          imagePullPolicy: Always
          name: stress
          resources: # reserve 6 cpu and 20Gi memory
            requests:
              cpu: 6
              memory: 20Gi
      nodeName: node-1 # set the expected node name to schedule at
      schedulerName: koord-scheduler
  owners: # set multiple owners
    - object: # owner pods whose name is `default/pod-demo-0`
        name: pod-demo-1
        namespace: default
    - labelSelector: # owner pods who have label `app=app-demo` can allocate the reserved resources
        matchLabels:
          app: app-demo
  ttl: 1h
"""


def binding(request: Request) -> bool:
    return request.path.endswith("/binding")


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        yield rooms_


@pytest.mark.covers("KOO-03")
def test_the_quick_start(cluster: Rooms) -> None:
    for name in ("node-0", "node-1", "node-2"):
        cluster.node(name)
    cluster.apply(QUICK_START)
    placed = cluster.until_phase("Available")
    assert placed.allocatable == {"cpu": "500m", "memory": "800Mi"}
    assert [(item.type, item.status, item.reason) for item in placed.conditions] == [
        ("Scheduled", "True", "Scheduled"),
        ("Ready", "True", "Available"),
    ]
    cluster.apply(OWNER)
    assert cluster.until_bound("pod-demo-0") == [placed.node_name]
    owned = cluster.until_phase("Succeeded")
    assert owned.allocated == {"cpu": "200m", "memory": "400Mi"}
    uid = cluster.client.get(KoordinatorReservation.KIND, "reservation-demo")["metadata"]["uid"]
    (owner,) = owned.current_owners
    assert (owner.namespace, owner.name) == ("default", "pod-demo-0")
    allocated = orjson.loads(cluster.annotations("pod-demo-0")[ALLOCATED])
    assert allocated == {"name": "reservation-demo", "uid": uid}
    cluster.client.delete(KoordinatorReservation.KIND, "reservation-demo")
    assert cluster.node_of("pod-demo-0") == placed.node_name


@pytest.mark.covers("SAF-50")
@pytest.mark.parametrize(
    ("where", "function", "phase"),
    [(loop, "reserve_pod", ""), (node_holds, "koordinator_hold", "Available")],
)
def test_reservation_on_which_the_scheduler_fails_is_left_out_and_pods_are_placed(
    cluster: Rooms, monkeypatch: pytest.MonkeyPatch, where: Any, function: str, phase: str
) -> None:
    cluster.node("node-0")
    translate = getattr(where, function)

    def failing(reservation: KoordinatorReservation, *args: Any) -> Any:
        if reservation.name == "bad":
            raise ZeroDivisionError
        return translate(reservation, *args)

    if phase:
        cluster.reservation("bad")
        cluster.until_phase(phase, "bad")
    monkeypatch.setattr(where, function, failing)
    if not phase:
        cluster.reservation("bad")
    cluster.reservation("good")
    cluster.until_phase("Available", "good")
    cluster.pod("beside", cpu="1")
    cluster.until_bound("beside")
    cluster.until(lambda: cluster.messages("bad", REASON), "it is reported")


@pytest.mark.covers("FLT-62")
def test_a_bound_pod_owns_no_reservation_by_its_own_annotation(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "2"})
    cluster.reservation(cpu="1", memory="0", allocateOnce=False)
    cluster.until_phase("Available")
    uid = cluster.client.get(KoordinatorReservation.KIND, "reservation-demo")["metadata"]["uid"]
    forged = {ALLOCATED: orjson.dumps({"name": "reservation-demo", "uid": uid}).decode()}
    cluster.pod("thief", cpu="1", scheduler="other", annotations=forged, nodeName="node-0")
    cluster.ran("thief")
    cluster.pod("owner", cpu="500m", labels=DEMO)
    assert cluster.until_bound("owner") == ["node-0"]
    cluster.until(lambda: cluster.status().allocated == {"cpu": "500m"}, "the owner alone counts")
    assert [owner.name for owner in cluster.status().current_owners] == ["owner"]
    # An owner stays one, since the status records it, whatever becomes of its labels.
    cluster.client.patch(Pod.KIND, "owner", {"metadata": {"labels": {"app": None}}}, namespace="default")
    cluster.pod("second", cpu="500m", labels=DEMO)
    cluster.until_bound("second")
    cluster.until(lambda: cluster.status().allocated == {"cpu": "1"}, "both count")
    cluster.pod("late", cpu="100m", labels=DEMO)
    assert "Insufficient cpu" in cluster.until_rejected("late")


ANY: tuple[Any, ...] = ({},)
DEMO = {"app": "demo"}


def named(pod: str) -> tuple[dict[str, Any], ...]:
    return ({"object": {"name": pod, "namespace": "default"}},)


@pytest.mark.covers("KOO-01")
def test_the_definition_and_both_manifests(cluster: Rooms) -> None:
    for manifest in (QUICK_START, BIG):
        cluster.apply(manifest)
    cluster.reservation("defaults")
    spec = cluster.client.get(KoordinatorReservation.KIND, "defaults")["spec"]
    assert (spec["ttl"], spec["allocateOnce"]) == ("24h", True)
    stored = cluster.client.get(KoordinatorReservation.KIND, "reservation-demo")["spec"]
    assert stored["template"] == yaml.safe_load(QUICK_START)["spec"]["template"]
    given: Any = {"expires": "2126-11-01T00:00:00Z", "preAllocation": True, "unschedulable": True}
    taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    cluster.reservation("all", allocateOnce=False, allocatePolicy="Restricted", taints=taints, **given)
    stored = cluster.client.get(KoordinatorReservation.KIND, "all")["spec"]
    assert {key: stored[key] for key in given} == given
    with pytest.raises(Invalid, match="allocatePolicy"):
        cluster.reservation("wrong", allocatePolicy="Whole")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    path = KoordinatorReservation.KIND.path(name="all")
    reply = cluster.tap.request(Request(method="GET", path=path, headers=accept), timeout=9)
    table = orjson.loads(reply.body)
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name",
        "Phase",
        "Age",
        "Node",
        "TTL",
        "Expires",
    ]
    cells = dict(zip((c["name"] for c in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    assert (cells["TTL"], cells["Expires"]) == ("24h", given["expires"])
    # Status is a subresource: a write to the object does not reach it.
    cluster.client.patch(KoordinatorReservation.KIND, "all", {"status": {"phase": "Failed"}})
    assert cluster.status("all").phase != "Failed"


@pytest.mark.covers("KOO-04")
def test_owners_by_object_controller_and_labels(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "40"})
    controller = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "u-1",
        "controller": True,
    }
    labels = {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}}
    both: Any = {**named("p-both")[0], "labelSelector": {"matchLabels": {"app": "x"}}}
    for name, owners in {
        "by-object": named("p-object"),
        "by-controller": ({"controller": {"name": "web", "kind": "ReplicaSet", "namespace": "default"}},),
        "by-labels": (*named("p-absent"), labels),
        "by-both": (both,),
        "for-no-pod": (),
    }.items():
        cluster.reservation(name, cpu="1", owners=owners)
        cluster.until_phase("Available", name)
    cluster.pod("p-object", cpu="1")
    cluster.pod("p-labels", cpu="1", labels={"app": "b"})
    cluster.pod("p-both", cpu="1", labels={"app": "y"})
    cluster.pod("p-neither", cpu="1", labels={"app": "x"})
    body = {
        "metadata": {"name": "p-controller", "namespace": "default", "ownerReferences": [controller]},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}],
        },
    }
    cluster.client.create(Pod.KIND, body)
    taken = {
        name: taken_by(cluster, f"p-{name}") for name in ("object", "labels", "both", "neither", "controller")
    }
    assert taken == {
        "object": "by-object",
        "labels": "by-labels",
        "both": "",
        "neither": "",
        "controller": "by-controller",
    }
    cluster.reservation("for-every-pod", cpu="1", owners=ANY)
    cluster.until_phase("Available", "for-every-pod")
    cluster.pod("p-any", cpu="1")
    assert taken_by(cluster, "p-any") == "for-every-pod"


@pytest.mark.covers("KOO-02")
def test_a_reservation_is_placed_like_a_pod(cluster: Rooms) -> None:
    for name in ("node-0", "node-1", "node-2"):
        cluster.node(name)
    cluster.node("tainted", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    node = "kubernetes.io/hostname"
    term = {"matchExpressions": [{"key": node, "operator": "In", "values": ["node-2"]}]}
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    }
    port = {"name": "main", "image": "pause", "ports": [{"containerPort": 80, "hostPort": 80}]}
    templates: Any = {
        "selector": ({"nodeSelector": {node: "node-1"}}, "node-1"),
        "affinity": ({"affinity": affinity}, "node-2"),
        "name": ({"nodeName": "node-1"}, "node-1"),
        "tolerates": (
            {"nodeSelector": {node: "tainted"}, "tolerations": [{"operator": "Exists"}]},
            "tainted",
        ),
    }
    for name, (template, expected) in templates.items():
        cluster.reservation(name, template=template)
        assert cluster.until_phase("Available", name).node_name == expected
    cluster.reservation("untolerated", template={"nodeSelector": {node: "tainted"}})
    ports = {"containers": [port], "nodeSelector": {node: "node-0"}}
    cluster.reservation("port-1", template=ports)
    cluster.until_phase("Available", "port-1")
    cluster.reservation("port-2", template=ports)
    cluster.reservation("large", cpu="9")
    for name, reason in (
        ("untolerated", "untolerated taint"),
        ("port-2", "didn't have free ports"),
        ("large", "Insufficient cpu"),
    ):
        condition = cluster.until(lambda n=name: cluster.status(n).conditions, f"{name} rejected")[0]  # type: ignore[misc]
        assert (condition.type, condition.status, condition.reason) == ("Scheduled", "False", "Unschedulable")
        assert condition.message.startswith("0/4 nodes are available: ")
        assert reason in condition.message
        assert cluster.status(name).phase == "Pending"
        cluster.until(lambda n=name: cluster.messages(n), f"event about {name}")  # type: ignore[misc]
    cluster.node("big", room={"cpu": "16"})
    assert cluster.until_phase("Available", "large").node_name == "big"


@pytest.mark.covers("KOO-05")
def test_the_first_owner_ends_a_reservation_that_is_allocated_once(cluster: Rooms) -> None:
    cluster.node("node-0")
    cluster.reservation("once", cpu="2")
    cluster.reservation(
        "shared", cpu="2", allocateOnce=False, owners=({"labelSelector": {"matchLabels": {"app": "s"}}},)
    )
    cluster.until_phase("Available", "once")
    cluster.until_phase("Available", "shared")
    # Both wait at once, so that one run of the scheduler decides on both.
    cluster.stop()
    for name in ("a", "b"):
        cluster.pod(name, cpu="1", labels=DEMO)
    for name in ("s-1", "s-2", "s-3"):
        cluster.pod(name, cpu="1", labels={"app": "s"})
    cluster.start()
    cluster.until_bound("a", "b", "s-1", "s-2", "s-3")
    assert [ALLOCATED in cluster.annotations(name) for name in ("a", "b")] == [True, False]
    (owner,) = cluster.until_phase("Succeeded", "once").current_owners
    assert owner.name == "a"
    owned = ALLOCATED in cluster.annotations("s-3")
    cluster.until(lambda: len(cluster.status("shared").current_owners) == 2 + owned, "owners of shared")
    assert cluster.status("shared").phase == "Available"


@pytest.mark.covers("KOO-06")
def test_restricted_owners_wait_and_aligned_owners_spill(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "8"})
    cluster.node("node-1", room={"cpu": "8"})
    own: Any = {"allocateOnce": False, "template": {"nodeName": "node-0"}, "memory": "1Gi"}
    cluster.reservation("restricted", cpu="2", allocatePolicy="Restricted", **own)
    owners = ({"labelSelector": {"matchLabels": {"app": "aligned"}}},)
    cluster.reservation("aligned-1", cpu="2", allocatePolicy="Aligned", owners=owners, **own)
    cluster.reservation("aligned-2", cpu="2", allocatePolicy="Aligned", owners=owners, **own)
    for name in ("restricted", "aligned-1", "aligned-2"):
        cluster.until_phase("Available", name)
    # Resources that are not reserved come from the node.
    cluster.pod("r-1", cpu="1", labels=DEMO, requests={"ephemeral-storage": "0"})
    cluster.pod("r-2", cpu="1", labels=DEMO)
    assert cluster.until_bound("r-1", "r-2") == ["node-0", "node-0"]
    cluster.pod("r-3", cpu="1", labels=DEMO)
    assert "Reservation(s) Insufficient cpu" in cluster.until_rejected("r-3")
    assert cluster.waiting_for("r-3") == "ReservationRequired"
    # 2 of the reservation, 2 of the node; a second reservation adds nothing to one pod.
    cluster.pod("a-1", cpu="4", labels={"app": "aligned"})
    assert cluster.until_bound("a-1") == ["node-0"]
    cluster.until(lambda: cluster.status("aligned-1").allocated == {"cpu": "4"}, "allocated")
    assert not cluster.status("aligned-2").current_owners
    cluster.delete_pod("r-1")
    assert cluster.until_bound("r-3") == ["node-0"]
    cluster.stop()
    cluster.start(restricted_node_fallback=True)
    cluster.pod("r-4", cpu="1", labels=DEMO)
    cluster.until_bound("r-4")
    assert ALLOCATED not in cluster.annotations("r-4")


@pytest.mark.covers("KOO-07")
def test_reserved_room_is_closed_to_others_and_counts_once(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4", "memory": "4Gi"})
    cluster.reservation(cpu="3", memory="1Gi", allocateOnce=False, owners=named("owner"))
    cluster.until_phase("Available")
    cluster.pod("stranger", cpu="2")
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    assert cluster.waiting_for("stranger") == ""  # another node would help it
    cluster.pod("owner", cpu="2", memory="2Gi")
    cluster.until_bound("owner")
    cluster.until(lambda: cluster.status().allocated == {"cpu": "2", "memory": "2Gi"}, "allocated")
    # The larger of reserved and used: CPU 3 of 4, memory 2 of 4.
    cluster.pod("fits", cpu="1", memory="2Gi")
    cluster.until_bound("fits")
    cluster.pod("full", memory="1Mi")
    assert "Insufficient memory" in cluster.until_rejected("full")
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    # As a pod of another scheduler, which knows no reservation, and ends.
    cluster.delete_pod("fits")
    cluster.client.delete(KoordinatorReservation.KIND, "reservation-demo")
    assert cluster.until_bound("stranger") == ["node-0"]


@pytest.mark.covers("KOO-08")
def test_a_reservation_ends_at_the_earlier_of_ttl_and_expires(cluster: Rooms) -> None:
    cluster.stop()
    cluster.start(longest_reservation_ttl=0)
    cluster.node("node-0")
    now = cluster.clock.now()

    def at(seconds: float) -> str:
        return format_time(now + timedelta(seconds=seconds))

    cluster.reservation("by-ttl", ttl="60s", expires=at(7200))
    cluster.reservation("by-expires", ttl="1h", expires=at(60))
    cluster.reservation("unplaced", cpu="99", ttl="60s")
    cluster.reservation("endless", ttl="0")
    cluster.reservation("default")
    placed = ("by-ttl", "by-expires", "endless", "default")
    for name in placed:
        cluster.until_phase("Available", name)
    cluster.clock.advance(45)
    cluster.reservation("later")
    cluster.until_phase("Available", "later")
    assert [cluster.status(name).phase for name in (*placed, "unplaced")] == ["Available"] * 4 + ["Pending"]
    cluster.clock.advance(30)
    for name in ("by-ttl", "by-expires", "unplaced"):
        (ready,) = [item for item in cluster.until_phase("Failed", name).conditions if item.type == "Ready"]
        assert (ready.status, ready.reason) == ("False", "Expired")
    cluster.clock.advance(3600 * 24 - 65)
    assert cluster.until_phase("Failed", "default")
    assert not cluster.gone(KoordinatorReservation, "by-ttl")
    cluster.clock.advance(180)
    for name in ("by-ttl", "by-expires", "unplaced"):
        cluster.until(lambda n=name: cluster.gone(KoordinatorReservation, n), f"{name} collected")  # type: ignore[misc]
    assert cluster.status("endless").phase == "Available"
    cluster.client.delete(Node.KIND, "node-0")
    cluster.until(lambda: cluster.gone(KoordinatorReservation, "endless"), "collected with its node")
    reason = ["node node-0 is gone: create the reservation again"]
    cluster.until(lambda: cluster.messages("endless", "RoomNotKept") == reason, "the reason of its end")


@pytest.mark.covers("KOO-09")
def test_the_end_of_a_reservation_leaves_its_pods_and_frees_the_rest(cluster: Rooms) -> None:
    for name in ("deleted", "expired"):
        cluster.node(name, room={"cpu": "4"})
        cluster.reservation(
            name,
            cpu="4",
            allocateOnce=False,
            ttl="60s",
            owners=named(f"in-{name}"),
            template={"nodeName": name},
        )
        cluster.until_phase("Available", name)
        cluster.pod(f"in-{name}", cpu="1")
        assert cluster.until_bound(f"in-{name}") == [name]
        cluster.pod(f"beside-{name}", cpu="3", nodeSelector={"kubernetes.io/hostname": name})
        cluster.until_rejected(f"beside-{name}", "Insufficient cpu")
    cluster.client.delete(KoordinatorReservation.KIND, "deleted")
    assert cluster.until_bound("beside-deleted") == ["deleted"]
    cluster.clock.advance(61)
    cluster.until_phase("Failed", "expired")
    assert cluster.until_bound("beside-expired") == ["expired"]
    assert [cluster.node_of(f"in-{name}") for name in ("deleted", "expired")] == ["deleted", "expired"]


@pytest.mark.covers("KOO-10")
def test_closed_and_tainted_reservations(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    cluster.reservation("closed", cpu="1", unschedulable=True, owners=ANY)
    cluster.reservation("tainted", cpu="2", allocateOnce=False, taints=[taint], owners=ANY)
    cluster.until_phase("Available", "closed")
    cluster.until_phase("Available", "tainted")
    toleration = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    # The pod's own tolerations are for nodes.
    cluster.pod("plain", cpu="1", tolerations=[toleration])
    cluster.until_bound("plain")
    assert ALLOCATED not in cluster.annotations("plain")
    cluster.pod("untolerated", cpu="1", annotations=affinity_of())
    assert "no reservations match reservation affinity" in cluster.until_rejected("untolerated")
    cluster.pod("tolerated", cpu="1", annotations=affinity_of(tolerations=[toleration]))
    cluster.until_bound("tolerated")
    assert orjson.loads(cluster.annotations("tolerated")[ALLOCATED])["name"] == "tainted"
    cluster.client.patch(KoordinatorReservation.KIND, "closed", {"spec": {"unschedulable": False}})
    cluster.until_bound("untolerated")
    assert orjson.loads(cluster.annotations("untolerated")[ALLOCATED])["name"] == "closed"


def affinity_of(**affinity: Any) -> dict[str, str]:
    return {AFFINITY: orjson.dumps(affinity).decode()}


def taken_by(cluster: Rooms, pod: str) -> str:
    cluster.until_bound(pod)
    text = cluster.annotations(pod).get(ALLOCATED)
    return str(orjson.loads(text)["name"]) if text else ""


@pytest.mark.covers("KOO-12")
def test_affinity_order_exact_match_and_restricted_options(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "40"})
    shared: Any = {"allocateOnce": False, "owners": ANY}
    cluster.reservation("gold", cpu="2", labels={"tier": "gold"}, **shared)
    cluster.reservation("second", cpu="2", labels={ORDER: "2"}, **shared)
    cluster.reservation("first", cpu="2", labels={ORDER: "1"}, **shared)
    cluster.reservation(
        "options",
        cpu="3",
        memory="1Gi",
        allocatePolicy="Restricted",
        annotations={RESTRICTED_OPTIONS: '{"resources": ["cpu"]}'},
        labels={"tier": "options"},
        **shared,
    )
    for name in ("gold", "second", "first", "options"):
        cluster.until_phase("Available", name)
    taint = {"key": "team", "effect": "NoSchedule"}
    cluster.reservation("tainted", cpu="2", labels={"tier": "gold"}, taints=[taint], **shared)
    cluster.until_phase("Available", "tainted")
    term = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]}
    required: Any = {"requiredDuringSchedulingIgnoredDuringExecution": {"reservationSelectorTerms": [term]}}
    cluster.pod("by-order", cpu="1")
    cluster.pod("by-name", cpu="1", annotations=affinity_of(name="second"))
    cluster.pod("by-selector", cpu="1", annotations=affinity_of(reservationSelector={"tier": "gold"}))
    cluster.pod("by-terms", cpu="1", annotations=affinity_of(**required))
    cluster.pod(
        "tolerating",
        cpu="2",
        annotations=affinity_of(reservationSelector={"tier": "gold"}, tolerations=[{"operator": "Exists"}]),
    )
    assert [
        taken_by(cluster, name) for name in ("by-order", "by-name", "by-selector", "by-terms", "tolerating")
    ] == [
        "first",
        "second",
        "gold",
        "gold",
        "tainted",
    ]
    # More memory than the reservation has: only CPU is restricted.
    cluster.pod("options", cpu="1", memory="2Gi", annotations=affinity_of(name="options"))
    assert taken_by(cluster, "options") == "options"
    cluster.pod("beyond", cpu="3", annotations=affinity_of(name="options"))
    assert "Reservation(s) Insufficient cpu, requested: 3000, used: 1000, capacity: 3000" in (
        cluster.until_rejected("beyond")
    )
    exact = {EXACT_MATCH: '{"resourceNames": ["nvidia.com/gpu", "cpu"]}'}
    cluster.pod("exact", cpu="3", annotations=affinity_of(reservationSelector={"tier": "options"}) | exact)
    cluster.until_rejected("exact", "Insufficient cpu")
    cluster.pod("unequal", cpu="1", annotations=affinity_of(reservationSelector={"tier": "options"}) | exact)
    cluster.until_rejected("unequal", "no reservations match")
    cluster.pod("unreadable", annotations={AFFINITY: "{"})
    assert AFFINITY in cluster.until_rejected("unreadable")
    reasons = [cluster.waiting_for(name) for name in ("beyond", "unequal", "unreadable")]
    assert reasons == ["ReservationRequired", "ReservationRequired", "InvalidAnnotation"]


@pytest.mark.covers("KOO-13")
def test_the_second_example(cluster: Rooms) -> None:
    cluster.node("node-0")
    cluster.node("node-1", room={"memory": "28629692Ki"})
    cluster.pod("system", cpu="780m", memory="1216Mi", nodeName="node-1")
    cluster.apply(BIG)
    assert cluster.until_phase("Available", "reservation-demo-big").node_name == "node-1"
    for name in ("app-demo-1", "app-demo-2"):
        cluster.pod(name, cpu="2", memory="10Gi", labels={"app": "app-demo"})
    assert cluster.until_bound("app-demo-1", "app-demo-2") == ["node-1", "node-1"]
    amounts = {"cpu": "4", "memory": "20Gi"}
    cluster.until(lambda: cluster.status("reservation-demo-big").allocated == amounts, "allocated")
    shown = cluster.status("reservation-demo-big")
    assert shown.allocatable == {"cpu": "6", "memory": "20Gi"}
    assert {owner.name for owner in shown.current_owners} == {"app-demo-1", "app-demo-2"}
    assert shown.phase == "Available"


@pytest.mark.covers("KOO-03")
@pytest.mark.parametrize("write", [b'"nodeName"', b'"Unschedulable"'], ids=["placed", "rejected"])
def test_owner_takes_no_room_beside_a_reservation_whose_status_changes_while_it_is(
    cluster: Rooms, write: bytes
) -> None:
    changes: list[bool] = []

    def placement(request: Request) -> bool:
        return request.path.endswith("/reservation-demo/status") and write in (request.body or b"")

    def changed(_: Request) -> None:
        lacks = {"type": "Checked", "status": "True", "reason": "Other", "message": "by another program"}
        cluster.client.patch(
            KoordinatorReservation.KIND,
            "reservation-demo",
            {"status": {"phase": "Pending", "conditions": [lacks]}},
            subresource="status",
        )
        changes.append(True)

    cluster.tap.on(placement, changed, times=1)
    cluster.pod("owner", cpu="1", labels=DEMO)
    cluster.reservation(cpu="2")
    if write != b'"nodeName"':
        cluster.until(lambda: changes, "a conflict")
    cluster.node("node-0", room={"cpu": "2500m"})
    assert cluster.until_bound("owner") == ["node-0"]
    assert "reservation-demo" in cluster.annotations("owner")[ALLOCATED]


@pytest.mark.covers("KOO-14")
def test_the_annotation_comes_with_the_node_and_not_if_the_bind_fails(cluster: Rooms) -> None:
    cluster.node("node-0")
    cluster.reservation(cpu="1")
    cluster.until_phase("Available")
    refusals: list[bool] = []

    def refused(_: Request) -> None:
        refusals.append(True)
        raise Unavailable(503, "ServiceUnavailable", "the API server is overloaded")

    cluster.tap.on(binding, refused, times=1)
    cluster.pod("owner", cpu="1", labels=DEMO)
    cluster.until(lambda: refusals, "a bind")
    assert ALLOCATED not in cluster.annotations("owner")
    assert not cluster.node_of("owner")
    cluster.clock.advance(2)
    cluster.until_bound("owner")
    assert "reservation-demo" in cluster.annotations("owner")[ALLOCATED]
    assert cluster.until_phase("Succeeded").current_owners[0].name == "owner"


@pytest.mark.covers("KOO-15")
def test_everything_is_rebuilt_after_a_restart(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation(cpu="3", allocateOnce=False)
    cluster.until_phase("Available")
    cluster.pod("owner", cpu="1", labels=DEMO)
    cluster.until_bound("owner")
    cluster.until(lambda: cluster.status().allocated == {"cpu": "1"}, "allocated")
    cluster.stop()
    cluster.pod("stranger", cpu="2")
    cluster.pod("back", cpu="2", labels=DEMO)
    cluster.pod("stale", cpu="2", labels=DEMO, annotations=cluster.annotations("owner"))
    cluster.start()
    cluster.until_bound("back")
    cluster.until(lambda: cluster.status().allocated == {"cpu": "3"}, "allocated after the restart")
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    # An annotation that the scheduler did not write makes no owner, neither without a node nor with one.
    cluster.until_rejected("stale")
    assert len(cluster.status().current_owners) == 2
    cluster.stop()  # a scheduler that runs might bind the pod before it knows of the deletion
    cluster.client.delete(KoordinatorReservation.KIND, "reservation-demo")
    cluster.delete_pod("back")
    cluster.delete_pod("stranger")
    cluster.start()
    cluster.until_bound("stale")
    assert not cluster.annotations("stale")[ALLOCATED]


def test_pod_with_a_reason_that_cannot_be_written_delays_no_other(cluster: Rooms) -> None:
    cluster.node("node-1")
    cluster.tap.lose(status_of("pods", "bad"))
    cluster.pod("bad", annotations={AFFINITY: "{"})
    for count in range(1, 6):  # until it is tried every ten seconds
        cluster.until(lambda n=count: cluster.tap.lost >= n, "its reason is lost")  # type: ignore[misc]
        cluster.clock.advance(10)
    cluster.until(lambda: cluster.tap.lost > 5, "its reason is lost")
    before = cluster.tap.lost
    cluster.pod("good", cpu="1")
    cluster.until_bound("good")
    assert cluster.tap.lost == before
