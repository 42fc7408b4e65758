"""Hashes for drift: the fields that change them and the fields that do not."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.hashes import class_hash, pool_hash
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass


def pool(spec: dict[str, Any] | None = None, **template: Any) -> NodePool:
    ref = {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "gpu"}
    return NodePool.decode(
        {
            "metadata": {"name": "p"},
            "spec": {"template": {"spec": {"nodeClassRef": ref, **template}}, **(spec or {})},
        }
    )


def node_class(**spec: Any) -> EC2NodeClass:
    return EC2NodeClass.decode({"metadata": {"name": "gpu"}, "spec": spec})


TAINTS = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    "changed",
    [
        pool(taints=TAINTS),
        pool(startupTaints=TAINTS),
        pool(expireAfter="24h"),
        pool(terminationGracePeriod="1h"),
    ],
)
def test_fields_of_the_template_change_the_hash(changed: NodePool) -> None:
    assert pool_hash(changed) != pool_hash(pool())


@pytest.mark.parametrize(
    "same",
    [
        pool(expireAfter="720h"),  # the default
        pool(taints=[]),
        pool(requirements=[{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["x"]}]),
        pool({"limits": {"cpu": "10"}, "weight": 10, "disruption": {"consolidateAfter": "1h"}}),
    ],
)
def test_requirements_limits_and_defaults_do_not(same: NodePool) -> None:
    assert pool_hash(same) == pool_hash(pool())


def test_order_does_not_count() -> None:
    assert pool_hash(pool(taints=TAINTS)) == pool_hash(pool(taints=TAINTS[::-1]))


@pytest.mark.parametrize(
    "changed",
    [
        {"userData": "#!/bin/sh"},
        {"tags": {"team": "a"}},
        {"role": "other"},
        {"detailedMonitoring": True},
        {"blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi"}}]},
        {"kubelet": {"maxPods": 20}},
        {"kubelet": {"topologyManagerPolicy": "restricted"}},
        {"enclaveOptions": {"enabled": True}},
        {"metadataOptions": {"httpTokens": "optional"}},
    ],
)
def test_static_fields_of_a_class_change_its_hash(changed: dict[str, Any]) -> None:
    assert class_hash(node_class(**changed)) != class_hash(node_class())


@pytest.mark.parametrize(
    "same",
    [
        {"amiSelectorTerms": [{"id": "ami-1"}]},
        {"subnetSelectorTerms": [{"id": "subnet-1"}]},
        {"capacityReservationSpec": {"capacityReservationPreference": "open"}},
        {"capacityReservationSelectorTerms": [{"id": "cr-0123456789abcdef0"}]},
    ],
)
def test_fields_that_the_instance_shows_do_not(same: dict[str, Any]) -> None:
    assert class_hash(node_class(**same)) == class_hash(node_class())
