"""The pods of drifted nodes: those that fit on other nodes, and the replacements of the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import Namespace
from broker.apis.storage import PersistentVolume
from broker.apis.workloads import DaemonSet
from tests.cluster.account import A, B
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, change, gone, hashed, later, node, pool, replacement, run
from tests.cluster.test_late_watches import PODS
from tests.cluster.test_node_labels import storage_claim, volume
from tests.cluster.test_provisioning import half_memory


def drift(stack: Stack, *claims: str) -> None:
    """The claims drift, once they have the hash of the present template."""
    hashed(stack, *claims)
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})


def other_pool(stack: Stack) -> None:
    """A pool with nodes that do not drift."""
    stack.node_pool("other", node_class="web")
    change(stack, "other", disruption={"consolidateAfter": "Never"})


def test_room_for_one_pod_is_given_to_the_pod_of_one_drifted_node_only(stack: Stack) -> None:
    pool(stack)
    other_pool(stack)
    pods = stack.tap.slow(PODS)
    stack.start()
    for name in ("a", "b"):
        run(stack, f"app-{name}", node(stack, name), cpu="900m")
    run(stack, "present", node(stack, "spare", pool="other"), cpu="900m")
    hashed(stack, "a", "b")
    pods.clear()  # otherwise the first pod may be gone before the second node is decided
    drift(stack, "a", "b")
    stack.until(lambda: replacement(stack, "a") or replacement(stack, "b"), "a replacement", step=STEP)
    pods.set()
    gone(stack, "a", "b")
    assert [replacement(stack, name) is None for name in ("a", "b")].count(True) == 1
    assert not stack.get(NodeClaim, "spare").deleting


def test_anti_affinity_by_namespace_labels_keeps_a_pod_off_other_nodes(stack: Stack) -> None:
    pool(stack)
    other_pool(stack)
    stack.start()
    stack.edit(Namespace, "default", {"metadata": {"labels": {"tier": "data"}}})
    run(stack, "data", node(stack, "spare", pool="other"), labels={"app": "db"})
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": {"tier": "data"}},
    }
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    run(stack, "app", node(stack, "old"), affinity=apart)
    drift(stack, "old")
    gone(stack, "old")
    assert replacement(stack, "old") is not None


def test_an_empty_drifted_node_ends_by_the_budgets_for_drift_although_pods_left_it_lately(
    stack: Stack,
) -> None:
    pool(stack, consolidateAfter="1h", budgets=[{"nodes": "0", "reasons": ["Drifted"]}, {"nodes": "1"}])
    stack.start()
    node(stack, "old")
    drift(stack, "old")
    stack.until_event("web", "DisruptionBlocked", kind="NodePool", text="disruption reason Drifted")
    later(stack, 30)
    assert not stack.get(NodeClaim, "old").deleting
    change(stack, "web", disruption={"budgets": [{"nodes": "1"}]})
    gone(stack, "old")
    stack.until_event("old", "DisruptionTerminating", text="Disrupting NodeClaim: Drifted")
    assert not stack.all(NodeClaim)


def listed(claim: NodeClaim, key: str) -> set[str]:
    """The values that the claim's requirements list for the label."""
    return {value for item in claim.spec.requirements if item.key == key for value in item.values}


def replaced(stack: Stack, name: str = "old") -> NodeClaim:
    new = stack.until(lambda: replacement(stack, name), "replacement", step=STEP)
    assert new is not None
    return new


def requesting(memory: str) -> dict[str, Any]:
    return {"name": "main", "image": "x", "resources": {"requests": {"memory": memory}}}


@pytest.mark.parametrize("label", [{names.CAPACITY_TYPE: "on-demand"}, {"topology.ebs.csi.aws.com/zone": A}])
def test_pods_that_select_labels_of_the_instance_are_replaced(stack: Stack, label: dict[str, str]) -> None:
    pool(stack)
    stack.start()
    run(stack, "app", node(stack, "old"), nodeSelector=label)
    drift(stack, "old")
    assert listed(replaced(stack), names.CAPACITY_TYPE) == {"on-demand"}
    gone(stack, "old")


def test_replacement_is_no_type_that_turned_out_too_small(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_memory(monkeypatch)
    pool(stack)
    stack.start()
    stack.pod("app", node=node(stack, "old"), containers=[requesting("5Gi")])
    drift(stack, "old")
    types = listed(replaced(stack), names.INSTANCE_TYPE)
    assert "m5.xlarge" in types and "m5.large" not in types  # which has room for it by the estimate
    gone(stack, "old")


def daemon_set(stack: Stack, **more: Any) -> None:
    """Each node has a pod of it, with 3 GiB."""
    labels = {"app": "agent"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [requesting("3Gi")], **more}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    stack.client.create(DaemonSet.KIND, {"metadata": {"name": "agent", "namespace": "default"}, "spec": spec})


def test_daemon_sets_for_one_capacity_type_count_for_that_type_only(stack: Stack) -> None:
    daemon_set(stack, nodeSelector={names.CAPACITY_TYPE: "reserved"})
    stack.node_class("web", id_=stack.aws.odcr("m5.large"), zones=(A,))
    stack.node_pool("web", node_class="web")
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    change(stack, "web", template={"spec": {"requirements": [types]}})
    change(stack, "web", disruption={"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]})
    stack.start()
    stack.pod("app", node=node(stack, "old"), containers=[requesting("5Gi")])
    drift(stack, "old")
    assert listed(replaced(stack), names.CAPACITY_TYPE) == {"on-demand"}
    gone(stack, "old")


@pytest.mark.covers("FLT-03")
def test_replacement_keeps_out_of_a_reservation_where_daemon_sets_leave_no_room(stack: Stack) -> None:
    first, second = stack.aws.odcr("m5.large"), stack.aws.odcr("m5.large")
    rule = {"key": names.RESERVATION_ID, "operator": "In", "values": [first]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    daemon_set(stack, affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}})
    stack.node_class("web", group=stack.aws.group(first, second), zones=(A,))
    stack.node_pool("web", node_class="web")
    change(stack, "web", disruption={"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]})
    stack.start()
    stack.pod("app", node=node(stack, "old"), containers=[requesting("5Gi")])
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": ["reserved"]}
    change(stack, "web", template={"spec": {"requirements": [types, kinds]}})
    new = replaced(stack)
    assert listed(new, names.RESERVATION_ID) == {first}
    gone(stack, "old")
    assert stack.reservation_of(new.name) == second


def beside_another_zone(stack: Stack) -> None:
    """An old node that drifts, with a pod that has a volume, and a node with room in another zone."""
    pool(stack)
    stack.node_class("far", preference="none", zones=(B,))
    stack.node_pool("other", node_class="far")
    change(stack, "other", disruption={"consolidateAfter": "Never"})
    stack.start()
    node(stack, "spare", pool="other", node_class="far")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    run(stack, "app", node(stack, "old"), volumes=volumes)
    drift(stack, "old")


@pytest.mark.parametrize("known", [True, False])
def test_pod_with_a_volume_stays_in_its_zone(stack: Stack, known: bool) -> None:
    if known:
        volume(stack, names.ZONE, A)
    beside_another_zone(stack)
    assert listed(replaced(stack), names.ZONE) == {A}
    gone(stack, "old")


def test_pod_with_a_volume_of_every_zone_may_leave_its_zone(stack: Stack) -> None:
    """Such as one of EFS."""
    storage_claim(stack, volumeName="pv", storageClassName="")
    shared = {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "csi": shared}
    stack.client.create(PersistentVolume.KIND, {"metadata": {"name": "pv"}, "spec": spec})
    beside_another_zone(stack)
    gone(stack, "old")
    assert [claim.name for claim in stack.all(NodeClaim)] == ["spare"]


def test_replacement_has_room_for_the_pods_of_daemon_sets(stack: Stack) -> None:
    daemon_set(stack)
    pool(stack)
    stack.start()
    stack.pod("app", node=node(stack, "old"), containers=[requesting("5Gi")])
    drift(stack, "old")
    new = replaced(stack)
    assert "m5.large" not in listed(new, names.INSTANCE_TYPE)
    assert new.spec.resources.requests["memory"] == str(8 * 2**30)
    gone(stack, "old")


def test_replacement_stays_within_the_limits_of_its_pool(stack: Stack) -> None:
    pool(stack)
    stack.start()
    run(stack, "app", node(stack, "old"))
    change(stack, "web", limits={"cpu": "1", "nvidia.com/gpu": "0"})
    drift(stack, "old")
    stack.until_event(
        "old", "DisruptionBlocked", text="a replacement would exceed the limits of NodePool web"
    )
    change(stack, "web", limits={"cpu": "2"})  # the old node does not count
    types = listed(replaced(stack), names.INSTANCE_TYPE)
    assert "m5.large" in types and types.isdisjoint({"m5.xlarge", "m5.2xlarge", "c5.xlarge"})
    gone(stack, "old")


@pytest.mark.covers("FLT-09")
def test_claim_without_labels_of_its_instance_gets_them_and_keeps_its_node(stack: Stack) -> None:
    """As after an update of the broker that knows new labels."""
    pool(stack)
    stack.start()
    run(stack, "app", node(stack, "old"))
    hashed(stack, "old")
    lost = (names.INSTANCE_TENANCY, names.INSTANCE_CAPABILITY_FLEX, names.ZONE_ID, names.NODECLASS_LABEL)
    before = {key: stack.get(NodeClaim, "old").labels[key] for key in lost}
    stack.edit(NodeClaim, "old", {"metadata": {"labels": dict.fromkeys(lost)}})
    tenancy = {"key": names.INSTANCE_TENANCY, "operator": "In", "values": ["default"]}
    change(stack, "web", template={"spec": {"requirements": [tenancy]}})
    stack.until(
        lambda: stack.get(NodeClaim, "old").labels.items() >= before.items(), "labels are back", step=STEP
    )
    stack.advance(60)
    stack.passes()
    assert stack.claim_condition("old", names.DRIFTED) is None
    assert [claim.name for claim in stack.all(NodeClaim)] == ["old"]
    dedicated = {**tenancy, "values": ["dedicated"]}
    change(stack, "web", template={"spec": {"requirements": [dedicated]}})
    stack.until(lambda: stack.claim_condition("old", names.DRIFTED), "its instance differs", step=STEP)


def reserved_only(stack: Stack, annotations: Mapping[str, str] | None = None) -> None:
    """A drifted node in the one slot of its pool's class, which launches nowhere else."""
    odcr = stack.aws.odcr(count=1)
    stack.node_class("web", id_=odcr, zones=(A,))
    stack.node_pool("web", node_class="web")
    stack.edit(NodePool, "web", {"metadata": {"annotations": dict(annotations or {})}})
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED]}
    block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    change(stack, "web", disruption=block, template={"spec": {"requirements": [kinds]}})
    stack.start()
    run(stack, "app", node(stack, "old", capacity=(RESERVED,)))
    hashed(stack, "old")
    change(stack, "web", template={"spec": {"requirements": [kinds], "expireAfter": "100h"}})


def test_a_full_reservation_is_named_if_it_keeps_a_drifted_node(stack: Stack) -> None:
    """The pool allows no node to end before its successor is ready."""
    reserved_only(stack, {names.REPLACE: "launch-first"})
    stack.until_event("old", "DisruptionBlocked", text="NodePool web has no machine for its pods now")
    stack.until_event("old", "DisruptionBlocked", text="0 of 1")
    assert replacement(stack, "old") is None
    odcr = stack.reservation_of("old")
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    cancelled = f"Cannot replace it: .*reservation {odcr} is cancelled"

    def named() -> bool:
        return any(re.match(cancelled, event.message) for event in stack.events("old"))

    stack.until(named, "the end of the reservation is named", step=STEP)
    assert not any("holds its pods" in event.message for event in stack.events("old"))
