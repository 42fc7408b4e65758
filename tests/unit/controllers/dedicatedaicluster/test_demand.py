"""The demand of a dedicated cluster: its own fields, and its profile's for those that it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError, cluster_demand

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
TERM = {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}


def cluster(*, holds: bool = False, **spec: Any) -> DedicatedAICluster:
    status = {"admission": {"reservation": "pool", "flavors": []}} if holds else {}
    return DedicatedAICluster.decode({"metadata": {"name": "c"}, "spec": spec, "status": status})


def profile(**spec: Any) -> DedicatedAIClusterProfile:
    spec.setdefault("resources", {"requests": {GPU: 8, "memory": "216Gi", "cpu": 128}})
    return DedicatedAIClusterProfile.decode({"metadata": {"name": "p"}, "spec": spec})


def demand_of(dac: DedicatedAICluster, of: DedicatedAIClusterProfile | None = None) -> ClusterDemand:
    demand = cluster_demand(dac, of)
    assert isinstance(demand, ClusterDemand)
    return demand


@pytest.mark.covers("OME-003", "OME-058")
def test_resources_override_count_and_profile() -> None:
    requests = {GPU: 32, "memory": "8Ti", "cpu": 512}
    demand = demand_of(cluster(profile="p", count=4, resources={"requests": requests}), profile())
    assert demand.requests == {GPU: 32, "memory": 8 << 40, "cpu": 512000}


@pytest.mark.covers("OME-077")
def test_without_resources_the_profile_is_multiplied_by_the_count() -> None:
    demand = demand_of(cluster(profile="p", count=4), profile())
    assert demand.requests == {GPU: 32, "memory": 4 * 216 << 30, "cpu": 512000}
    assert demand_of(cluster(profile="p"), profile(count=2)).requests[GPU] == 16
    assert demand_of(cluster(profile="p", count=0), profile(count=2)).requests[GPU] == 16
    assert demand_of(cluster(profile="p", count=3), profile(count=2)).requests[GPU] == 24
    assert demand_of(cluster(profile="p", count=3), profile(count=2)).requests[GPU] == 24


def test_a_limit_without_a_request_is_a_request() -> None:
    assert demand_of(cluster(resources={"limits": {GPU: 8}})).requests == {GPU: 8}


def test_a_field_of_the_cluster_replaces_the_profiles() -> None:
    defaults = profile(
        count=1,
        nodeSelector={"a": "1", "b": "2"},
        tolerations=[{"key": "x", "operator": "Exists"}],
        priorityClassName="low",
        affinity=AFFINITY,
    )
    inherited = demand_of(cluster(profile="p"), defaults)
    assert inherited.node_selector == {"a": "1", "b": "2"}
    assert [toleration.key for toleration in inherited.tolerations] == ["x"]
    assert inherited.priority_class == "low"
    assert [key.key for term in inherited.wants.affinity for key in term] == ["topology.kubernetes.io/zone"]
    own = demand_of(
        cluster(
            profile="p",
            nodeSelector={"b": "3"},
            tolerations=[{"key": "y", "operator": "Exists"}],
            priorityClassName="high",
            affinity={},
        ),
        defaults,
    )
    assert own.node_selector == {"b": "3"}
    assert [toleration.key for toleration in own.tolerations] == ["y"]
    assert own.priority_class == "high"
    assert own.wants.affinity == ()


@pytest.mark.covers("OME-077")
@pytest.mark.parametrize(
    ("spec", "of", "reason", "message"),
    [
        ({"count": 4}, None, "SizeUnknown", "set spec.resources.requests, or spec.profile and spec.count"),
        ({"profile": "p"}, {}, "SizeUnknown", "spec.count: neither the cluster nor"),
        ({"profile": "p", "count": 1}, None, "ProfileNotFound", "no DedicatedAIClusterProfile p"),
        ({"profile": "p", "count": 1}, {"disabled": True}, "ProfileDisabled", "spec.disabled to false"),
        ({"resources": {"requests": {GPU: "-1"}}}, None, "SizeInvalid", "nvidia.com/gpu is negative"),
        ({"resources": {"requests": {GPU: "many"}}}, None, "SizeInvalid", "not a quantity: 'many'"),
        ({"resources": {"requests": {GPU: "0"}}}, None, "SizeUnknown", "requests nothing"),
        (
            {"profile": "p", "count": 1},
            {"resources": {"requests": {}}},
            "SizeUnknown",
            "DedicatedAIClusterProfile p requests nothing",
        ),
    ],
)
def test_a_cluster_without_a_size_is_an_error(spec: Json, of: Json | None, reason: str, message: str) -> None:
    error = cluster_demand(cluster(**spec), None if of is None else profile(**of))
    assert isinstance(error, DemandError)
    assert error.reason == reason
    assert message in error.message


def test_a_cluster_with_quota_keeps_a_disabled_profile() -> None:
    assert demand_of(cluster(holds=True, profile="p", count=1), profile(disabled=True)).requests[GPU] == 8
