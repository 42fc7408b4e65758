"""The objects of a user of both: Karpenter's NodePools and classes, pods, and claims for the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from broker.apis import names
from tests.cluster.account import Account
from tests.cluster.objects import PROFILE

Json = dict[str, Any]
RESERVED, ON_DEMAND = "reserved", "on-demand"
NEVER = "Never"


def node_class(
    name: str,
    account: Account,
    *,
    terms: Sequence[Json] = (),
    spec: Json | None = None,
) -> Json:
    """An EC2NodeClass that both Karpenter and the broker can launch from.

    `terms` are Karpenter's; `spec` is the broker's, in the annotation: Karpenter's CRD lacks the field."""
    return {
        "kind": "EC2NodeClass",
        "metadata": {"name": name, "annotations": {names.RESERVATION_SPEC: json.dumps(spec)} if spec else {}},
        "spec": {
            "amiFamily": "AL2023",
            "amiSelectorTerms": [{"id": account.image}],
            "subnetSelectorTerms": [{"id": id_} for id_ in account.subnets.values()],
            "securityGroupSelectorTerms": [{"id": account.security_group}],
            "instanceProfile": PROFILE,
            **({"capacityReservationSelectorTerms": [*terms]} if terms else {}),
        },
    }


def node_pool(
    name: str,
    *,
    node_class: str,
    types: Sequence[str],
    capacity: Sequence[str] = (RESERVED, ON_DEMAND),
    requirements: Sequence[Json] = (),
    group: str = names.KARPENTER_AWS,
) -> Json:
    """A NodePool with lasting nodes: no disruption, no expiry. `group`: of its controller."""
    return {
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": {
                        "group": group,
                        "kind": "EC2NodeClass",
                        "name": node_class,
                    },
                    "requirements": [
                        one_of(names.INSTANCE_TYPE, types),
                        one_of(names.CAPACITY_TYPE, capacity),
                        *requirements,
                    ],
                    "expireAfter": NEVER,
                }
            },
            "disruption": {"consolidateAfter": NEVER, "budgets": [{"nodes": "0"}]},
        },
    }


def pod(name: str, *, pool: str, requests: Mapping[str, str], types: Sequence[str] = ()) -> Json:
    """A pod that waits for a node of one NodePool, of one of `types` where they are named."""
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [one_of(names.INSTANCE_TYPE, types)]}]
            }
        }
    }
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"pool": pool}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {"requests": dict(requests)},
                }
            ],
            "nodeSelector": {names.NODEPOOL: pool},
            **({"affinity": affinity} if types else {}),
        },
    }


def claim(
    name: str,
    *,
    node_class: str,
    types: Sequence[str],
    capacity: Sequence[str] = (RESERVED, ON_DEMAND),
    requests: Mapping[str, str] | None = None,
) -> Json:
    """A NodeClaim for the broker: its group is not Karpenter's."""
    return {
        "kind": "NodeClaim",
        "metadata": {"name": name},
        "spec": {
            "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": node_class},
            "requirements": [one_of(names.INSTANCE_TYPE, types), one_of(names.CAPACITY_TYPE, capacity)],
            "resources": {"requests": dict(requests or {"cpu": "1"})},
        },
    }


def one_of(key: str, values: Sequence[str]) -> Json:
    return {"key": key, "operator": "In", "values": [*values]}
