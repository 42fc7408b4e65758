"""A thousand teams with a reservation each, twenty workloads a team, and the nodes that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from broker.apis import names
from broker.apis.core import Node
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load as load_crds
from broker.apis.kueue import (
    ACTIVE,
    QUOTA_RESERVED,
    ClusterQueue,
    Namespace,
    ResourceFlavor,
    Workload,
)
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation
from broker.kube.client import Client
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_objects import mark, queue_name
from local.kube import Cluster
from tests.kueue.definitions import definitions

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
SORT = "example.com/sort"
FLAVORS = 10
GPUS = 24  # of each reservation, three nodes' worth
BEGAN = "2026-01-01T00:00:00Z"


def flavor_of(team: int) -> str:
    return f"sort-{team % FLAVORS}"


def reserved(team: int) -> ReservationKey:
    return ReservationKey(f"team-{team:04}", "gpus")


def install(client: Client) -> None:
    for crd in (*load_crds(), *definitions(("v1beta2",))):
        client.create(CRD, crd)


def fill(cluster: Cluster, teams: int, users: int) -> None:
    """Objects go into the store without its checks, as if they had been there for long."""
    with cluster.state.store.lock:
        for model, obj in _objects(teams, users):
            kind = model.KIND
            meta = obj["metadata"]
            path = f"{kind.plural}/{meta.get('namespace', '')}/{meta['name']}"
            meta |= {"uid": str(uuid5(NAMESPACE_URL, path)), "creationTimestamp": BEGAN, "generation": 1}
            whole = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
            resource = f"{kind.plural}.{kind.group}"
            cluster.state.store.put(
                resource, (meta.get("namespace", ""), meta["name"]), whole, bare=not kind.group
            )


def _objects(teams: int, users: int) -> Iterator[tuple[type[Object], Json]]:
    for number in range(FLAVORS):
        name = f"sort-{number}"
        yield ResourceFlavor, {"metadata": {"name": name}, "spec": {"nodeLabels": {SORT: name}}}
    for number in range(teams * GPUS // 8):
        yield Node, node(number)
    for team in range(teams):
        yield Namespace, {"metadata": {"name": reserved(team).namespace}, "status": {"phase": "Active"}}
        yield CapacityReservation, reservation(team)
        yield ClusterQueue, queue(team)
        for number in range(users):
            yield Workload, workload(team, number)


def node(number: int) -> Json:
    resources = {GPU: "8", "cpu": "192", "memory": "2Ti"}
    return {
        "metadata": {"name": f"node-{number:05}", "labels": {SORT: flavor_of(number), names.ARCH: "amd64"}},
        "spec": {"providerID": f"aws:///us-east-1a/i-{number:017x}"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def reservation(team: int) -> Json:
    quotas = [{"name": GPU, "nominalQuota": GPUS}, {"name": "cpu", "nominalQuota": GPUS * 20}]
    flavors = [{"name": flavor_of(team), "resources": quotas}]
    owner = reserved(team)
    return {
        "metadata": {"name": owner.name, "namespace": owner.namespace},
        "spec": {
            "resourceGroups": [{"coveredResources": [GPU, "cpu"], "flavors": flavors}],
            "cohort": flavor_of(team),
        },
    }


def queue(team: int) -> Json:
    active = {"type": ACTIVE, "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": BEGAN}
    return {
        "metadata": {"name": queue_name(reserved(team)), **mark(reserved(team))},
        "spec": {"namespaceSelector": {}},
        "status": {"conditions": [active]},
    }


def workload(team: int, number: int) -> Json:
    held = {
        "type": QUOTA_RESERVED,
        "status": "True",
        "reason": "QuotaReserved",
        "message": "",
        "lastTransitionTime": BEGAN,
    }
    assigned = {
        "name": "main",
        "flavors": {GPU: flavor_of(team), "cpu": flavor_of(team)},
        "resourceUsage": {GPU: "1", "cpu": "8"},
        "count": 1,
    }
    return {
        "metadata": {"name": f"job-{number:03}", "namespace": reserved(team).namespace},
        "spec": {"queueName": "gpus", "podSets": []},
        "status": {
            "conditions": [held],
            "admission": {"clusterQueue": queue_name(reserved(team)), "podSetAssignments": [assigned]},
        },
    }
