"""Manifests as a user writes them, one builder for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.apis import names
from broker.apis.meta import Kind

PROFILE = "blue-node"  # the instance profile of all classes

Json = dict[str, Any]
RESERVED, ON_DEMAND, SPOT = "reserved", "on-demand", "spot"
PDB = Kind(
    group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", namespaced=True
)


def reservation_spec(*, id_: str = "", group: str = "", preference: str = "") -> Json | None:
    """A capacityReservationSpec; None if it would be empty."""
    spec: Json = {}
    if preference:
        spec["capacityReservationPreference"] = preference
    target = {"capacityReservationId": id_, "capacityReservationResourceGroupArn": group}
    if given := {key: value for key, value in target.items() if value}:
        spec["capacityReservationTarget"] = given
    return spec or None


def node_class(
    name: str,
    *,
    image: str,
    subnets: Sequence[str],
    security_group: str,
    spec: Json | None,
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> Json:
    """`more` are fields of the spec in their manifest form; None omits a field."""
    body: Json = {
        "amiFamily": "AL2023",
        "amiSelectorTerms": [{"id": image}],
        "subnetSelectorTerms": [{"id": subnet} for subnet in subnets],
        "securityGroupSelectorTerms": [{"id": security_group}],
        "instanceProfile": PROFILE,
        "capacityReservationSpec": spec,
        **more,
    }
    return {
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {key: value for key, value in body.items() if value is not None},
    }


def claim(
    name: str,
    *,
    node_class: str,
    types: Sequence[str],
    capacity: Sequence[str],
    zones: Sequence[str] = (),
    requests: Mapping[str, str] | None = None,
    requirements: Sequence[Json] = (),
    priority: int | None = None,
    pods: Sequence[str] = (),
    pool: str = "",
    group: str = names.BROKER,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> Json:
    all_requirements = [
        *([_in(names.INSTANCE_TYPE, types)] if types else []),
        *([_in(names.CAPACITY_TYPE, capacity)] if capacity else []),
        *([_in(names.ZONE, zones)] if zones else []),
        *requirements,
    ]
    noted = dict(annotations or {})
    if priority is not None:
        noted[names.PRIORITY] = str(priority)
    if pods:
        noted[names.PODS] = ",".join(pods)
    return {
        "metadata": {
            "name": name,
            "labels": {**({names.NODEPOOL: pool} if pool else {}), **(labels or {})},
            "annotations": noted,
        },
        "spec": {
            "nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": node_class},
            "requirements": all_requirements,
            "resources": {"requests": dict(requests or {"cpu": "100m"})},
            **more,
        },
    }


def node_pool(name: str, *, node_class: str) -> Json:
    """A pool that keeps its nodes, also without pods."""
    return {
        "metadata": {"name": name},
        "spec": {
            "disruption": {"consolidateAfter": "Never"},
            "template": {
                "spec": {
                    "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": node_class},
                    "requirements": [_in(names.CAPACITY_TYPE, [RESERVED, ON_DEMAND])],
                }
            },
        },
    }


def pod(name: str, *, node: str = "", labels: Mapping[str, str] | None = None, **spec: Any) -> Json:
    """A pod in `default`; with `node` it is bound to that node."""
    body: Json = {
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }
    if node:
        body["spec"]["nodeName"] = node
    return body


def budget(name: str, *, app: str, allowed: int) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"maxUnavailable": allowed, "selector": {"matchLabels": {"app": app}}},
    }


def _in(key: str, values: Sequence[str]) -> Json:
    return {"key": key, "operator": "In", "values": [*values]}
