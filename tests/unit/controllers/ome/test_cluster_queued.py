"""A dedicated cluster as Workloads in Kueue: what it asks for, holds, gives back, and is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.kueue import Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.ome.clusters import queued
from broker.controllers.ome.clusters.wanted import Wanted
from broker.quota.entitled import Standing, Verdict
from broker.quota.model import FlavorResource

Json = dict[str, Any]
GPU, CPU, MEMORY = "nvidia.com/gpu", "cpu", "memory"
KEY = FlavorResource("h100", GPU)
CLUSTER = DedicatedAICluster.decode({"metadata": {"name": "c", "uid": "12345678-a"}})
NEVER = Verdict(standing=Standing.NEVER)


def workload(
    gpus: int, *, at: int = 0, holds: bool = False, evicted: str = "", back: int = 0, why: str = ""
) -> Workload:
    made = queued.body(
        CLUSTER, at, {GPU: gpus}, namespace="team", queue="gpu", wanted=wanted(gpus), priority=0
    )
    conditions = []
    if holds:
        conditions.append({"type": "Admitted", "status": "True"})
    if evicted:
        conditions.append({"type": "Evicted", "status": "True", "reason": evicted, "message": "so"})
    if why:
        conditions.append({"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": why})
    status: Json = {"conditions": conditions}
    if holds or evicted:
        assigned = {"name": "main", "flavors": {GPU: "h100"}, "resourceUsage": {GPU: gpus}, "count": gpus}
        status["admission"] = {"clusterQueue": "team--gpu", "podSetAssignments": [assigned]}
    if back:
        status["reclaimablePods"] = [{"name": "main", "count": back}]
    return Workload.decode({**made, "status": status})


def wanted(gpus: int) -> Wanted:
    return Wanted(requests={GPU: gpus})


@given(
    st.dictionaries(
        st.sampled_from((GPU, CPU, MEMORY, "example.com/licence")), st.integers(1, 1 << 50), min_size=1
    ).map(lambda found: {name: value % 5000 + 1 if name == GPU else value for name, value in found.items()})
)
def test_pieces_come_to_exactly_what_is_asked(amounts: dict[str, int]) -> None:
    made = queued.pieces(amounts)
    total = {name: sum(count * each.get(name, 0) for _, count, each in made) for name in amounts}
    assert total == amounts
    assert all(count > 0 for _, count, _ in made)
    assert all(each[GPU] == 1 for _, _, each in made if GPU in amounts)


@pytest.mark.parametrize(
    ("amounts", "made"),
    [
        ({GPU: 32, MEMORY: 8 << 40, CPU: 512000}, (("main", 32, {GPU: 1, MEMORY: 256 << 30, CPU: 16000}),)),
        ({GPU: 1}, (("main", 1, {GPU: 1}),)),
        ({CPU: 4000}, (("main", 4, {CPU: 1000}),)),
        ({GPU: 3, CPU: 10}, (("main", 2, {GPU: 1, CPU: 3}), ("rest", 1, {GPU: 1, CPU: 4}))),
        ({MEMORY: 100}, (("main", 1, {MEMORY: 100}),)),
    ],
)
def test_pieces_are_a_gpu_or_a_core(amounts: dict[str, int], made: object) -> None:
    assert queued.pieces(amounts) == made


def test_it_has_quota_once_kueue_has_admitted_all_of_it() -> None:
    assert queued.verdict([workload(16, holds=True)], wanted(16), None, None) == Verdict(
        standing=Standing.ADMITTED, usage={KEY: 16}
    )
    waits = queued.verdict([workload(16, why="insufficient quota")], wanted(16), None, None)
    assert waits == Verdict(
        standing=Standing.WAITING, why="Kueue says of Workload team/c-12345678-0: insufficient quota"
    )
    both = [workload(8, holds=True), workload(8, at=1)]
    grows = queued.verdict(both, wanted(16), {KEY: 8}, None)
    assert grows is not None
    assert grows.standing is Standing.WAITING
    assert queued.verdict(both, wanted(16), {KEY: 8}, NEVER) == NEVER
    assert queued.verdict(both, wanted(8), {KEY: 8}, None) is None
    assert queued.verdict([], wanted(8), {KEY: 8}, None) is None  # from before Kueue came


def test_growth_asks_for_the_rest_and_what_was_given_back_is_asked_for_anew() -> None:
    assert queued.lacking([], wanted(16)) == {GPU: 16}
    assert queued.lacking([workload(8, holds=True)], wanted(16)) == {GPU: 8}
    assert queued.lacking([workload(16, holds=True, back=8)], wanted(16)) == {GPU: 8}
    assert queued.lacking([workload(8, holds=True), workload(8, at=1)], wanted(16)) == {}


def test_what_waits_for_more_than_is_wanted_is_made_otherwise() -> None:
    held, waits = workload(8, holds=True), workload(8, at=1)
    assert queued.outdated([held, waits], wanted(16)) == []
    assert queued.outdated([held, waits], wanted(12)) == [waits]
    assert queued.outdated([workload(16, holds=True)], wanted(8)) == []


def test_what_the_cluster_does_not_hold_any_more_is_given_back_the_last_first() -> None:
    one, two = workload(16, holds=True), workload(8, at=1, holds=True)
    assert [*queued.given_back([one, two], {KEY: 24})] == []
    assert [*queued.given_back([one, two], {KEY: 16})] == [(two, 8)]
    assert [*queued.given_back([one, two], {KEY: 8})] == [(two, 8), (one, 8)]
    again = workload(16, holds=True, back=4)
    assert [*queued.given_back([again], {KEY: 8})] == [(again, 8)]


def test_an_eviction_is_told_in_kueues_words() -> None:
    assert queued.eviction([workload(8, holds=True)]) is None
    found = queued.eviction([workload(8, holds=True), workload(8, at=1, holds=True, evicted="Deactivated")])
    assert found is not None
    assert (found.reason, found.message) == (
        "Deactivated",
        "Workload team/c-12345678-1 is evicted: so",
    )
    assert found.keeps == {KEY: 8}  # what the other is admitted to
    alone = queued.eviction([workload(8, holds=True, evicted="Deactivated"), workload(8, at=1)])
    assert alone is not None and alone.keeps is None
    assert not queued.admitted(workload(8, holds=True, evicted="Preempted"))


def test_an_eviction_of_what_was_never_admitted_is_not_the_clusters() -> None:
    growth = workload(8, at=1, evicted="AdmissionCheck")
    assert growth.status.admission is not None  # who has no job keeps it
    assert queued.evicted(growth)
    assert queued.eviction([workload(8, holds=True), growth]) is None


def test_a_word_that_somebody_broke_by_hand_asks_for_nothing() -> None:
    body = queued.body(CLUSTER, 0, {GPU: 8}, namespace="t", queue="q", wanted=wanted(8), priority=3)
    for broken in ("", "[]", '{"nvidia.com/gpu": "many"}'):
        body["metadata"]["annotations"] = {"capacity-broker.io/asked": broken}
        assert queued.left(Workload.decode(body)) == {}
