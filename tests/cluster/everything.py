"""One valid object of every kind that the broker reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.coordination import Lease
from broker.apis.core import Node, Pod, ResourceQuota
from broker.apis.crds import KIND as CRD
from broker.apis.godel import GodelDeployment, GodelReplicaSet, GodelReservation
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    Namespace,
    PriorityClass,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from broker.apis.limits import LimitRange
from broker.apis.meta import Kind, Object
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.apis.policy import PodDisruptionBudget
from broker.apis.storage import CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass
from broker.apis.workloads import DaemonSet, NativePodGroup, NativeWorkload, SchedulingPodGroup
from broker.kube.errors import NotFound
from tests.cluster import objects
from tests.cluster.stack import Stack
from tests.support.definitions import group_definition

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
POD_GROUPS: tuple[type[Object], ...] = (SchedulingPodGroup, NativePodGroup, NativeWorkload)
# Written by the broker itself, one for each EC2 reservation.
WATCHED_ALONE: frozenset[type[Object]] = frozenset({OnDemandCapacityReservation})


def _named(spec: Json | None = None, **more: Any) -> Json:
    return {"metadata": {}, **({} if spec is None else {"spec": spec}), **more}


def bodies(stack: Stack) -> dict[type[Object], Json]:
    """Bodies without names, by kind."""
    quotas = [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": "8", "lendingLimit": "8"}]}]
    groups = [{"coveredResources": [GPU], "flavors": quotas}]
    reservation = {"resourceGroups": groups, "cohort": "all", "allowBorrowing": True}
    queue = {
        "resourceGroups": [
            {
                "coveredResources": [GPU],
                "flavors": [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": "8"}]}],
            }
        ],
        "namespaceSelector": {},
    }
    job = {
        "queueName": "training",
        "podSets": [
            {
                "name": "main",
                "count": 1,
                "template": {
                    "spec": {
                        "containers": [{"name": "c", "image": "pause", "resources": {"requests": {GPU: "8"}}}]
                    }
                },
            }
        ],
    }
    node_class = objects.node_class(
        "",
        image=stack.aws.image,
        subnets=[*stack.aws.subnets.values()],
        security_group=stack.aws.security_group,
        spec={"capacityReservationPreference": "open"},
        kubelet={"maxPods": 110, "evictionHard": {"memory.available": "5%"}},
    )
    claim = objects.claim(
        "", node_class="good", types=("g6.12xlarge",), capacity=(objects.RESERVED,), priority=1
    )
    claim["metadata"]["annotations"][names.DRAWS_FROM] = "default/training"
    return {
        NodeClaim: claim,
        EC2NodeClass: node_class,
        NodePool: objects.node_pool("", node_class="good"),
        Node: _named({"providerID": "aws:///us-east-1a/i-0123456789abcdef0"}),
        Pod: objects.pod("", node="some-node"),
        Lease: _named({"holderIdentity": "karpenter-1", "leaseDurationSeconds": 15}),
        CapacityReservation: _named(reservation),
        ClusterCapacityReservation: _named(reservation),
        DedicatedAICluster: _named(
            {"capacityReservationId": "training", "resources": {"requests": {GPU: 8}}}
        ),
        DedicatedAIClusterProfile: _named({"resources": {"requests": {GPU: 8}}}),
        ResourceFlavor: _named({"nodeLabels": {names.INSTANCE_TYPE: "p5.48xlarge"}}),
        ClusterQueue: _named(queue),
        LocalQueue: _named({"clusterQueue": "default--training"}),
        Cohort: _named({"parentName": "root"}),
        Workload: _named(job),
        AdmissionCheck: _named({"controllerName": "capacity-broker.io/slots"}),
        WorkloadPriorityClass: _named(value=5),
        PriorityClass: _named(value=5),
        Namespace: _named(),
        ResourceQuota: _named({"hard": {"requests.cpu": "4"}}),
        OnDemandCapacityReservation: _named(),
        **_rooms(),
        **_workloads(),
    }


def _rooms() -> dict[type[Object], Json]:
    """The kinds of room on nodes, and of elastic quota."""
    pod = objects.pod("", node="")["spec"]
    return {
        KoordinatorReservation: _named(
            {
                "template": {"spec": {**pod, "schedulerName": "koord-scheduler"}},
                "owners": [{"labelSelector": {"matchLabels": {"app": "demo"}}}],
                "ttl": "1h",
            }
        ),
        GodelReservation: _named({"nodename": "elsewhere", "ttl": 3600}),
        ElasticQuota: _named({"min": {"cpu": "1"}, "max": {"cpu": "2"}}),
        CompositeElasticQuota: _named({"namespaces": ["other"], "min": {"cpu": "1"}, "max": {"cpu": "2"}}),
    }


def _workloads() -> dict[type[Object], Json]:
    """The kinds that pods come from, and those that limit them."""
    labels = {"app": "demo"}
    template = {"metadata": {"labels": labels}, "spec": objects.pod("", node="")["spec"]}
    workload = {"selector": {"matchLabels": labels}, "template": template}
    disk = {"capacity": {"storage": "1Gi"}, "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}
    request = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "gp3"}
    return {
        DaemonSet: _named(workload),
        GodelDeployment: _named(workload),
        GodelReplicaSet: _named(workload),
        LimitRange: _named({"limits": [{"type": "Container"}]}),
        PodDisruptionBudget: _named({"selector": {"matchLabels": labels}}),
        PersistentVolumeClaim: _named({"accessModes": ["ReadWriteOnce"], **request}),
        PersistentVolume: _named({"accessModes": ["ReadWriteOnce"], **disk}),
        StorageClass: _named(provisioner="ebs.csi.aws.com"),
        CsiNode: _named({"drivers": []}),
        SchedulingPodGroup: _named({"minMember": 2}),
        NativePodGroup: _named({"schedulingPolicy": {"gang": {"minCount": 2}}}),
        NativeWorkload: _named({"podGroups": [{"name": "a", "policy": {"gang": {"minCount": 2}}}]}),
    }


@contextmanager
def pod_groups(stack: Stack) -> Iterator[None]:
    """With the definitions of the groups of pods, which provisioning reads.

    A real API server serves Kubernetes' own groups in the versions that it has, whatever is defined.
    """
    kinds = [model.KIND for model in POD_GROUPS if served(stack, model) is None]
    for kind in kinds:
        stack.client.create(CRD, group_definition(kind))
    try:
        yield
    finally:
        for kind in kinds:
            stack.client.delete(CRD, kind.resource)


def served(stack: Stack, model: type[Object]) -> Kind | None:
    """The kind in the first version that the API server has."""
    for version in model.KIND.versions or (model.KIND.version,):
        kind = replace(model.KIND, version=version)
        with suppress(NotFound):
            stack.client.list(kind)
            return kind
    return None


def unserved(stack: Stack) -> set[type[Object]]:
    """The groups of pods that the API server has in no version, although they are defined."""
    return {model for model in POD_GROUPS if served(stack, model) is None}


def put(stack: Stack, model: type[Object], body: Json, name: str) -> Json:
    """Creates the object, with its status if it has one."""
    namespace = "default" if model.KIND.namespaced else None
    if model is GodelReservation:
        _let_rooms_stay(stack)
    meta = {**body["metadata"], "name": name} | ({"namespace": namespace} if namespace else {})
    status = body.get("status")
    stored = stack.client.create(served(stack, model) or model.KIND, {**body, "metadata": meta})
    if isinstance(status, dict):
        stored = stack.client.patch(
            model.KIND, name, {"status": status}, namespace=namespace, subresource="status"
        )
    return dict(stored)


def _let_rooms_stay(stack: Stack) -> None:
    """Rooms of deleted pods end at once in a namespace that may keep none."""
    meta = {"name": "default", "annotations": {names.KEPT_ROOM: "true"}}
    try:
        stack.client.patch(Namespace.KIND, "default", {"metadata": meta})
    except NotFound:
        stack.client.create(Namespace.KIND, {"metadata": meta})
