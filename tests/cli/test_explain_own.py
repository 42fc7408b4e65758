"""What a page of `explain` is about: a class's own pods, a pod's own selector, and lines that fit."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Event
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.apis.static_pools import REPLICAS_MET
from broker.text import format_time

from .kit import claim, node_class
from .town import QUOTA, SINCE, Town, condition

EDIT = "kubectl get pod -n ml train -o yaml"


def terms(*values: list[str]) -> dict[str, Any]:
    """Required node affinity to capacity types: any one of the terms."""
    expressions = [{"key": names.CAPACITY_TYPE, "operator": "In", "values": kinds} for kinds in values]
    required = {"nodeSelectorTerms": [{"matchExpressions": [item]} for item in expressions]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def with_id(town: Town) -> dict[str, Any]:
    return {"nodeSelector": {names.RESERVATION_ID: town.world.odcr}}


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("chosen", "command"),
    [
        ({"nodeSelector": {names.CAPACITY_TYPE: "reserved"}}, EDIT),
        (with_id, EDIT),
        (terms(["reserved"]), EDIT),
        (terms(["reserved"], ["on-demand"]), "capacity-broker watch"),
        ({}, "capacity-broker watch"),
    ],
    ids=["selector", "reservation id", "affinity", "one of two terms", "none"],
)
def test_only_a_pod_that_insists_on_a_slot_is_to_be_edited(town: Town, chosen: Any, command: str) -> None:
    town.fill()
    town.pool("gpu", kinds=["reserved", "on-demand"])
    town.pod("train", spec=chosen(town) if callable(chosen) else chosen)
    page = town.explain("pod", "train", "-n", "ml")
    (row,) = page["do"]
    assert row["command"] == command
    assert ("takes reservations only; NodePool gpu also buys" in row["why"]) == (command == EDIT)
    only_reserved = {option["capacity_type"] for option in page["options"]} == {"reserved"}
    assert only_reserved == (command == EDIT)


@pytest.mark.covers("ONC-02")
def test_class_shows_the_pods_of_its_own_nodepools_only(town: Town) -> None:
    other = node_class(town.world)
    other["metadata"]["name"] = "serving"
    town.client.create(EC2NodeClass.KIND, other)
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "serving"}
    town.pool("gpu")
    town.pool("web", template={"nodeClassRef": ref})
    town.pod("train", spec={"nodeSelector": {names.NODEPOOL: "gpu"}})
    town.pod("serve", spec={"nodeSelector": {names.NODEPOOL: "web"}})
    town.pod("lost", spec={"nodeSelector": {names.NODEPOOL: "none"}})  # to be corrected itself
    for name, own in (("training", "ml/train"), ("serving", "ml/serve")):
        page = town.explain("class", name)
        assert {row["pod"] for row in page["pods"]} == {own}
        assert page["headline"].count("1 pod waits") == 1


WORDS = "0/12 nodes are available: 4 Insufficient nvidia.com/gpu, 8 node(s) had untolerated taint(s). "


@pytest.mark.covers("ONC-06")
@pytest.mark.parametrize("launched", [False, True])
def test_lines_of_a_claim_fit_a_hundred_columns_without_broken_ids(town: Town, launched: bool) -> None:
    town.fill()
    body = claim("train-0", "reserved", "on-demand")
    keys = [f"ml/a-pod-with-a-long-name-{number:02}" for number in range(30)]
    body["metadata"]["annotations"] = {names.PODS: ",".join(keys)}
    status: dict[str, Any] = {"conditions": [condition("Launched", "Unknown", "Waits", WORDS * 4)]}
    if launched:
        status |= {"providerID": "aws:///us-east-1a/i-0123456789abcdef0", "nodeName": "ip-10-0-0-9"}
    town.put(NodeClaim, body, status)
    town.client.create(
        Event.KIND,
        {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "NodeClaim", "name": "train-0"},
            "type": "Warning",
            "reason": "AllReservationsFull",
            "message": WORDS * 3,
            "lastTimestamp": format_time(SINCE),
            "source": {"component": "capacity-broker"},
        },
    )
    shown = town.text("claim", "train-0")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) < 60
    assert lines[0] == "NodeClaim train-0, class training" and "\x1b" not in shown
    assert "Launched=Unknown Waits: 0/12 nodes are available" in shown and "AllReservationsFull" in shown
    assert shown.split().count("untolerated") == 7
    if launched:
        assert "(aws:///us-east-1a/i-0123456789abcdef0)," in shown
    else:
        assert keys[0] in shown and "and 22 more" in shown
        assert town.world.odcr in shown and "on-demand p5.48xlarge" in shown


def conditions(town: Town, pool: str, *given: dict[str, Any]) -> None:
    ready = (
        [] if any(item["type"] == names.READY for item in given) else [condition("Ready", "True", "Ready")]
    )
    every = [*ready, *given]
    town.client.patch(NodePool.KIND, pool, {"status": {"conditions": every}}, subresource="status")


@pytest.mark.covers("ONC-02")
def test_static_pool_that_lacks_nodes_is_on_the_pages_of_the_cluster_and_of_its_class(town: Town) -> None:
    """No pod and no claim waits for such a node."""
    town.pool("always", replicas=3)
    why = "spec.replicas is 3: 2 of 3 nodes: no free slot"
    waiting = condition("MachinesOffered", "False", "NoMachineOffered", "shown with the pods")
    conditions(town, "always", condition(REPLICAS_MET, "False", "NodesMissing", why), waiting)
    for page in (("cluster",), ("class", "training")):
        explained = town.explain(*page)
        (row,) = [row for row in explained["state"] if row["kind"] == "NodePool"]
        assert (row["object"], row["state"]) == ("always", f"{REPLICAS_MET}=False NodesMissing")
        assert row["message"] == why
        assert "kubectl describe nodepool always" in [row["command"] for row in explained["do"]]
        assert "NodePool always" in town.text(*page)
    other = node_class(town.world)
    other["metadata"]["name"] = "serving"
    town.client.create(EC2NodeClass.KIND, other)
    assert "always" not in str(town.explain("class", "serving"))


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize("of_class", [True, False])
def test_failure_of_a_class_is_one_row_however_many_pools_name_it(town: Town, of_class: bool) -> None:
    why = "spec.amiSelectorTerms selects nothing"
    broken = {"conditions": [condition(names.LAUNCHABLE, "False", "AMINotFound", why)]} if of_class else {}
    town.client.patch(EC2NodeClass.KIND, "training", {"status": broken}, subresource="status")
    for pool in ("gpu", "web"):
        town.pool(pool)
        not_ready = condition(names.READY, "False", "AMINotFound", f"no pod gets a node: {why}")
        conditions(town, pool, condition("NodeClassReady", "False", "AMINotFound", why), not_ready)
    for page in (("cluster",), ("class", "training")):
        explained = town.explain(*page)
        rows = [row["object"] for row in explained["state"] if "AMINotFound" in row["state"]]
        edits = [row["command"] for row in explained["do"] if "AMINotFound" in row["why"]]
        if of_class:
            assert (rows, edits) == (["training"], ["kubectl edit ec2nodeclass training"])
        else:  # the class does not show it yet
            assert rows == ["gpu", "web"]


@pytest.mark.covers("ONC-02")
def test_cause_that_two_conditions_of_a_reservation_have_is_one_row_of_the_cluster(town: Town) -> None:
    why = "its ClusterQueue is not active"
    inactive = [
        condition(type_, "False", "ClusterQueueInactive", why) for type_ in ("Ready", "ResourcesProvisioned")
    ]
    lacks = condition("ResourcesSufficient", "False", "HardwareUnavailable", "can be used now 0 of 8")
    document = {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"resourceGroups": [QUOTA]}}
    town.put(CapacityReservation, document, {"conditions": [*inactive, lacks]})

    def shown(*page: str) -> list[str]:
        return [row["state"] for row in town.explain(*page)["state"] if "=" in row["state"]]

    cause, other = "Ready=False ClusterQueueInactive", "ResourcesSufficient=False HardwareUnavailable"
    assert shown("cluster") == [cause, other]
    assert shown("reservation", "ml/gpus") == [
        cause,
        "ResourcesProvisioned=False ClusterQueueInactive",
        other,
    ]


@pytest.mark.covers("ONC-01")
def test_pod_of_a_reserved_pool_whose_class_uses_no_reservation_is_told_the_field(town: Town) -> None:
    none = node_class(town.world, capacityReservationSpec={"capacityReservationPreference": "none"})
    none["metadata"]["name"] = "none"
    town.client.create(EC2NodeClass.KIND, none)
    town.pool(
        "gpu", template={"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "none"}}
    )
    conditions(town, "gpu", condition("MachinesOffered", "False", "NoMachineOffered", "no reservation"))
    town.pod("train")
    page = town.explain("pod", "train", "-n", "ml")
    assert (page["why"][0]["reason"], page["options"]) == ("NoMachineOffered", [])
    (row,) = page["do"]
    assert row["command"] == "kubectl edit nodepool gpu"
    assert f"with on-demand in {names.CAPACITY_TYPE}" in row["why"]
