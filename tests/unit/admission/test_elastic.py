"""Reviews of elastic quotas: one quota a namespace, and no max below its min."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from tests.unit.admission.reviews import FakeReads, Json, response_to

TEAM_A = ElasticQuota.decode({"metadata": {"name": "first", "namespace": "team-a"}})
BOTH = CompositeElasticQuota.decode(
    {"metadata": {"name": "both", "namespace": "team-x"}, "spec": {"namespaces": ["team-b", "team-c"]}}
)
READS = FakeReads(elastic=(TEAM_A, BOTH))


def quota(namespace: str, name: str = "new", *, namespaces: tuple[str, ...] = (), **spec: Any) -> Json:
    kind = "CompositeElasticQuota" if namespaces else "ElasticQuota"
    spec |= {"namespaces": [*namespaces]} if namespaces else {}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "nos.nebuly.com/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


@pytest.mark.covers("NOS-02")
@pytest.mark.parametrize(
    ("new", "words"),
    [
        (quota("team-a"), "namespace team-a has ElasticQuota team-a/first already"),
        (quota("team-b"), "namespace team-b has CompositeElasticQuota team-x/both already"),
        (quota("team-y", namespaces=("team-y", "team-a")), "namespace team-a has ElasticQuota"),
        (quota("team-y", namespaces=("team-c",)), "namespace team-c has CompositeElasticQuota"),
        (quota("team-d", min={"cpu": "2"}, max={"cpu": "1500m"}), "spec.max: cpu is below spec.min"),
        (quota("team-y", namespaces=("team-d",), min={"cpu": 2}, max={"cpu": 1}), "cpu is below spec.min"),
    ],
)
def test_quotas_that_cannot_take_effect_are_refused(new: Json, words: str) -> None:
    response = response_to(new, reads=READS)
    assert not response["allowed"]
    assert words in response["status"]["message"]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (quota("team-d", min={"cpu": 2, "memory": "1Gi"}, max={"cpu": 2}), None),
        (quota("team-a", "first", min={"cpu": 2}), quota("team-a", "first")),
        (quota("team-x", "both", namespaces=("team-b",)), None),
        # An update is rejected only for a problem that it adds.
        (quota("team-a", min={"cpu": 2}), quota("team-a")),
    ],
)
def test_other_quotas_are_admitted(new: Json, old: Json | None) -> None:
    assert response_to(new, old, reads=READS)["allowed"]


@pytest.mark.covers("NOS-02")
def test_an_update_that_lowers_max_below_min_is_refused() -> None:
    old = quota("team-d", min={"cpu": 2}, max={"cpu": 2})
    assert not response_to(quota("team-d", min={"cpu": 2}, max={"cpu": 1}), old, reads=READS)["allowed"]


def test_quotas_that_cannot_be_read_give_a_warning() -> None:
    response = response_to(quota("team-a"), reads=FakeReads(broken="the API server is down"))
    assert response["allowed"]
    assert "could not be read: the API server is down" in response["warnings"][0]
