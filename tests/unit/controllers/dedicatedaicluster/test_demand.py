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


def good(one: DedicatedAICluster, of: DedicatedAIClusterProfile | None = None) -> ClusterDemand:
    found = cluster_demand(one, of)
    assert isinstance(found, ClusterDemand)
    return found


@pytest.mark.covers("OME-003", "OME-058")
def test_resources_are_the_total_whatever_count_and_profile_say() -> None:
    asked = {GPU: 32, "memory": "8Ti", "cpu": 512}
    found = good(cluster(profile="p", count=4, resources={"requests": asked}), profile())
    assert found.requests == {GPU: 32, "memory": 8 << 40, "cpu": 512000}


@pytest.mark.covers("OME-077")
def test_without_resources_it_is_the_profile_so_many_times() -> None:
    found = good(cluster(profile="p", count=4), profile())
    assert found.requests == {GPU: 32, "memory": 4 * 216 << 30, "cpu": 512000}
    assert good(cluster(profile="p"), profile(count=2)).requests[GPU] == 16
    assert good(cluster(profile="p", count=0), profile(count=2)).requests[GPU] == 16
    assert good(cluster(profile="p", count=3), profile(count=2)).requests[GPU] == 24
    assert good(cluster(profile="p", count=3), profile(count=2)).requests[GPU] == 24


def test_a_limit_without_a_request_is_a_request() -> None:
    assert good(cluster(resources={"limits": {GPU: 8}})).requests == {GPU: 8}


def test_each_field_is_the_clusters_or_the_profiles_as_a_whole() -> None:
    theirs = profile(
        count=1,
        nodeSelector={"a": "1", "b": "2"},
        tolerations=[{"key": "x", "operator": "Exists"}],
        priorityClassName="low",
        affinity=AFFINITY,
    )
    inherited = good(cluster(profile="p"), theirs)
    assert inherited.node_selector == {"a": "1", "b": "2"}
    assert [each.key for each in inherited.tolerations] == ["x"]
    assert inherited.priority_class == "low"
    assert [each.key for term in inherited.pods.affinity for each in term] == ["topology.kubernetes.io/zone"]
    mine = good(
        cluster(
            profile="p",
            nodeSelector={"b": "3"},
            tolerations=[{"key": "y", "operator": "Exists"}],
            priorityClassName="high",
            affinity={},
        ),
        theirs,
    )
    assert mine.node_selector == {"b": "3"}
    assert [each.key for each in mine.tolerations] == ["y"]
    assert mine.priority_class == "high"
    assert mine.pods.affinity == ()


@pytest.mark.covers("OME-077")
@pytest.mark.parametrize(
    ("spec", "of", "reason", "says"),
    [
        ({"count": 4}, None, "SizeUnknown", "set spec.resources.requests, or spec.profile and spec.count"),
        ({"profile": "p"}, {}, "SizeUnknown", "spec.count: neither the cluster nor"),
        ({"profile": "p", "count": 1}, None, "ProfileNotFound", "no DedicatedAIClusterProfile p"),
        ({"profile": "p", "count": 1}, {"disabled": True}, "ProfileDisabled", "spec.disabled to false"),
        ({"resources": {"requests": {GPU: "-1"}}}, None, "SizeInvalid", "nvidia.com/gpu is negative"),
        ({"resources": {"requests": {GPU: "many"}}}, None, "SizeInvalid", "not a quantity: 'many'"),
        ({"resources": {"requests": {GPU: "0"}}}, None, "SizeUnknown", "asks for nothing"),
        (
            {"profile": "p", "count": 1},
            {"resources": {"requests": {}}},
            "SizeUnknown",
            "DedicatedAIClusterProfile p asks for nothing",
        ),
    ],
)
def test_what_has_no_size_says_so(spec: Json, of: Json | None, reason: str, says: str) -> None:
    found = cluster_demand(cluster(**spec), None if of is None else profile(**of))
    assert isinstance(found, DemandError)
    assert found.reason == reason
    assert says in found.message


def test_who_holds_quota_keeps_a_profile_that_is_disabled_now() -> None:
    assert good(cluster(holds=True, profile="p", count=1), profile(disabled=True)).requests[GPU] == 8
