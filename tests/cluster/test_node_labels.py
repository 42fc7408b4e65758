"""Pods and DaemonSets may select any label that a node of the broker will have, before the node exists."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.label_names import RENAMED
from broker.apis.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from broker.apis.workloads import DaemonSet
from tests.cluster import cases
from tests.cluster.account import A, B
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, claims, pods, pool, start

OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
LABELS = {
    "beta.kubernetes.io/os": "linux",
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/instance-type": "m5.large",
    OLD_ZONE: A,
    OLD_REGION: "us-east-1",
    "topology.ebs.csi.aws.com/zone": A,
    names.REGISTERED: "true",
    names.INITIALIZED: "true",
    names.NODECLASS_LABEL: "gpu",
}

EVERYWHERE = ("beta.kubernetes.io/os", OLD_REGION, names.REGISTERED, names.NODECLASS_LABEL)
WITH_VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}


def world(stack: Stack) -> list[str]:
    """A reservation in each of two zones, of different sizes, for one pool."""
    ids = [stack.aws.odcr("m5.large", A), stack.aws.odcr("m5.xlarge", B)]
    stack.node_class(group=stack.aws.group(*ids))
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED]}
    types = {"key": "beta.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large", "m5.xlarge"]}
    pool(stack, template={"requirements": [kinds, types]})
    return ids


def requests(**amounts: str) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "pause", "resources": {"requests": amounts}}]


@pytest.mark.covers("FLT-31")
def test_pod_that_selects_all_labels_of_its_node_to_come_gets_one_machine(stack: Stack) -> None:
    world(stack)
    waiting = pods(stack, 1, spec={"nodeSelector": LABELS})
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pod bound", step=0.2)
    assert len(claims(stack)) == len(stack.aws.instances()) == 1
    (node,) = stack.all(Node)
    assert node.labels == node.labels | LABELS


@pytest.mark.covers("FLT-31")
def test_reported_chart_gets_its_machine(stack: Stack) -> None:
    cases.apply(stack, "ec2-04-node-labels")
    start(stack)
    stack.until(lambda: bound(stack, ["p"]), "pod bound", step=0.2)


@pytest.mark.covers("FLT-31")
def test_every_older_name_of_a_label_is_on_nodes_to_come() -> None:
    assert RENAMED.keys() <= LABELS.keys()


@pytest.mark.covers("FLT-31")
def test_machine_is_in_the_zone_that_the_pods_volume_has_by_its_older_name(stack: Stack) -> None:
    ids = world(stack)
    volume(stack, OLD_ZONE, B)
    waiting = pods(
        stack, 1, spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    )
    start(stack)
    claim = stack.until(lambda: claims(stack), "a claim", step=0.2)[0]
    stack.until_launched(claim.name)
    assert stack.reservation_of(claim.name) == ids[1]
    assert claim.annotations[names.PODS] == f"default/{waiting[0]}"


@pytest.mark.covers("FLT-31")
def test_class_of_volumes_in_a_zone_by_its_older_name_decides_the_machine(stack: Stack) -> None:
    ids = world(stack)
    topology = {"matchLabelExpressions": [{"key": OLD_ZONE, "values": [B]}]}
    stack.client.create(
        StorageClass.KIND,
        {
            "metadata": {"name": "disk"},
            "provisioner": "ebs.csi.aws.com",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [topology],
        },
    )
    storage_claim(stack, storageClassName="disk")
    pods(stack, 1, spec=WITH_VOLUME)
    start(stack)
    claim = stack.until(lambda: claims(stack), "a claim", step=0.2)[0]
    stack.until_launched(claim.name)
    assert stack.reservation_of(claim.name) == ids[1]


@pytest.mark.covers("FLT-31")
def test_daemon_set_that_selects_labels_of_its_node_to_come_takes_room_there(stack: Stack) -> None:
    ids = world(stack)
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {"containers": requests(cpu="1"), "nodeSelector": {key: LABELS[key] for key in EVERYWHERE}},
    }
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template}
    stack.client.create(DaemonSet.KIND, {"metadata": {"name": "d", "namespace": "default"}, "spec": spec})
    waiting = pods(stack, 1, cpu="1500m")
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pod bound", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [ids[1]]


@pytest.mark.covers("FLT-31")
def test_pods_are_spread_over_zones_by_the_older_name(stack: Stack) -> None:
    ids = world(stack)
    term = {"topologyKey": OLD_ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    waiting = pods(stack, 2, cpu="500m", labels={"app": "a"}, spec=apart)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "pods bound", step=0.2)
    assert sorted(stack.reservation_of(claim.name) for claim in claims(stack)) == sorted(ids)


def storage_claim(stack: Stack, **spec: Any) -> None:
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    meta = {"name": "data", "namespace": "default"}
    stack.client.create(PersistentVolumeClaim.KIND, {"metadata": meta, "spec": body})


def volume(stack: Stack, key: str, zone: str) -> None:
    """A bound volume of the zone, as a driver that uses this label writes it."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [zone]}]}
    stack.client.create(
        PersistentVolume.KIND,
        {
            "metadata": {"name": "pv"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "claimRef": {"namespace": "default", "name": "data"},
            },
        },
    )
    storage_claim(stack, volumeName="pv", storageClassName="")
    status = {"status": {"phase": "Bound"}}
    stack.client.patch(PersistentVolumeClaim.KIND, "data", status, namespace="default", subresource="status")
    bound_ = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
    stack.client.patch(PersistentVolumeClaim.KIND, "data", bound_, namespace="default")
