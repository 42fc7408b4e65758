"""Reservations as queues of the quota tree: the limits and the rules from their specs."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.ome import ReservationSpec
from broker.apis.ome_rules import judge
from broker.quota.model import FlavorResource, Preemption, Queue, Quota
from broker.quota.tree import Tree
from broker.quota.usage import ReservationKey
from broker.reservations.queues import queues

Json = dict[str, Any]
GPU, MEMORY = FlavorResource("h100", "nvidia.com/gpu"), FlavorResource("h100", "memory")


def quotas(*, limit: str | None = None, lend: str | None = None, memory: str | None = None) -> Json:
    gpu = {"name": "nvidia.com/gpu", "nominalQuota": "64", "borrowingLimit": limit, "lendingLimit": lend}
    more = {"name": "memory", "nominalQuota": "16Ti", "borrowingLimit": memory}
    return {
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu", "memory"],
                "flavors": [{"name": "h100", "resources": [gpu, more]}],
            }
        ]
    }


def queue(spec: Json, namespace: str = "team") -> Queue:
    judged = judge(ReservationSpec.model_validate(spec))
    assert not judged.problems
    (cluster_queue,) = queues({ReservationKey(namespace, "gpu"): judged.spec})
    return cluster_queue


@pytest.mark.covers("OME-034", "OME-036", "OME-042")
def test_each_resource_of_each_flavor_has_its_limits() -> None:
    cluster_queue = queue(
        {**quotas(limit="32", lend="8", memory="1Ti"), "cohort": "c", "allowBorrowing": True}
    )
    assert (cluster_queue.name, cluster_queue.cohort) == ("team--gpu", "c")
    assert cluster_queue.quotas == {
        GPU: Quota(nominal=64, borrowing_limit=32, lending_limit=8),
        MEMORY: Quota(nominal=16 << 40, borrowing_limit=1 << 40),
    }
    assert queue(quotas(), namespace="").name == "gpu"


@pytest.mark.covers("OME-042")
def test_groups_and_flavors_keep_their_order() -> None:
    def flavor(name: str, **quota: str) -> Json:
        return {"name": name, "resources": [{"name": n, "nominalQuota": v} for n, v in quota.items()]}

    groups = [
        {"coveredResources": ["gpu"], "flavors": [flavor("h100", gpu="500m"), flavor("a100", gpu="1e1")]},
        {"coveredResources": ["cpu", "memory"], "flavors": [flavor("plain", cpu="500m", memory="1Ki")]},
    ]
    cluster_queue = queue({"resourceGroups": groups})
    assert [({*group.resources}, group.flavors) for group in cluster_queue.groups] == [
        ({"gpu"}, ("h100", "a100")),
        ({"cpu", "memory"}, ("plain",)),
    ]
    assert {str(key): quota.nominal for key, quota in cluster_queue.quotas.items()} == {
        "h100/gpu": 1,  # part of one is a whole one
        "a100/gpu": 10,
        "plain/cpu": 500,
        "plain/memory": 1024,
    }


@pytest.mark.covers("OME-037", "OME-038", "OME-041")
@pytest.mark.parametrize(("allowed", "limit"), [(True, None), (False, 0), (None, 0)])
def test_without_allow_borrowing_the_borrowing_limit_is_zero(allowed: bool | None, limit: int | None) -> None:
    spec = {} if allowed is None else {"allowBorrowing": allowed}
    cluster_queue = queue({**quotas(), "cohort": "c", **spec})
    assert {quota.borrowing_limit for quota in cluster_queue.quotas.values()} == {limit}


@pytest.mark.covers("OME-046", "OME-047", "OME-048", "OME-049", "OME-050")
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, Preemption(within="LowerPriority", reclaim="Never")),
        ({"reclaimWithinCohort": "Any"}, Preemption(within="LowerPriority", reclaim="Any")),
        (
            {"reclaimWithinCohort": "LowerPriority", "withinClusterQueue": "Never"},
            Preemption(within="Never", reclaim="LowerPriority"),
        ),
        (
            {
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
                "withinClusterQueue": "LowerPriority",
            },
            Preemption(within="LowerPriority", reclaim="Any", borrow="LowerPriority", threshold=100),
        ),
        (
            {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "Any"}},
            Preemption(within="LowerPriority", reclaim="Any", borrow="LowerPriority"),
        ),
    ],
)
def test_the_preemption_rule_has_kueues_policies_and_defaults(
    rule: Json | None, expected: Preemption
) -> None:
    assert queue({**quotas(), **({"preemptionRule": rule} if rule else {})}).preemption == expected


@pytest.mark.covers("OME-043")
def test_a_cluster_wide_reservation_of_a_cohort_is_its_members_pool() -> None:
    pool = judge(ReservationSpec.model_validate({**quotas(), "cohort": "c", "allowBorrowing": True})).spec
    team = judge(ReservationSpec.model_validate({**quotas(), "cohort": "c", "allowBorrowing": True})).spec
    tree = Tree(queues({ReservationKey("", "pool"): pool, ReservationKey("team", "gpu"): team}))
    assert tree.queues["team--gpu"].potential(GPU) == 128
