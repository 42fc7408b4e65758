"""nos's own tables of elastic quota, as data; each rule that differs by default has a twin."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker.quota.elastic import ElasticShare, ElasticTotals
from broker.quota.elastic_gpu import GPU, GPU_MEMORY, gpu_memory, with_gpu_memory
from broker.quota.elastic_labels import ElasticPod, in_order, labels, used_amounts
from tests.cases import Case, cases

NAMES = {"cpu_m": "cpu", "mem": "memory", "gpumem": GPU_MEMORY, "gpu": GPU, "es": "ephemeral-storage"}
# The size of a GPU in nos's tables.
GB = 8
OLD = datetime(1995, 1, 1, tzinfo=UTC)


def amounts(row: Case) -> dict[str, int]:
    return {NAMES.get(name, name): value for name, value in row.items() if name not in ("n", "t", "p", "ns")}


def share(name: str, row: Case) -> ElasticShare:
    return ElasticShare(
        id=name,
        namespaces=frozenset({name}),
        min=amounts(row["min"]),
        max=amounts(row["max"]) if "max" in row else None,
        used=amounts(row.get("used", {})),
    )


def totals(row: Case, *, absent_is_zero: bool = False) -> ElasticTotals:
    shares = [share(name, quota) for name, quota in row["q"].items()]
    return ElasticTotals.of(shares, absent_is_zero=absent_is_zero)


def by_id(project: str, table: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", cases(project, table), ids=lambda row: row["id"])


@pytest.mark.parametrize("absent_is_zero", [True, False])
@by_id("nos", "prefilter")
def test_admission(row: Case, absent_is_zero: bool) -> None:
    """No row requests CPU or memory that a quota leaves out, so that both rules agree."""
    requests = with_gpu_memory(amounts(row["pod"]), GB)
    refusal = totals(row, absent_is_zero=absent_is_zero).refusal(row["pod"]["ns"], requests)
    assert (refusal.value if refusal else "ok") == row["want"]


@by_id("nos", "guaranteed")
def test_guaranteed_overquota(row: Case) -> None:
    assert totals(row).guaranteed_overquota(row["of"]) == amounts(row["want"])


@by_id("nos", "aggregated_overquota")
def test_unused_min(row: Case) -> None:
    assert totals(row).unused_min() == amounts(row["want"])


@by_id("nos", "gpumem")
def test_gpu_memory(row: Case) -> None:
    assert gpu_memory(row["req"], row["gb"]) == row["want"]


def elastic_pod(row: Case) -> ElasticPod:
    created = OLD.replace(year=row.get("t", 1995))
    return ElasticPod(
        uid=row["n"],
        namespace="ns",
        name=row["n"],
        created=created,
        requests=amounts(row),
        priority=row.get("p", 0),
    )


@by_id("nos", "sort")
def test_order(row: Case) -> None:
    assert [pod.name for pod in in_order(map(elastic_pod, row["pods"]))] == row["want"]


@by_id("nos", "labels")
def test_labels(row: Case) -> None:
    pods = [elastic_pod(item) for item in row["running"]]
    assert labels(pods, amounts(row["min"])) == row["want"]
    assert used_amounts(pods, amounts(row["min"]), None) == amounts(row["want_used"])
