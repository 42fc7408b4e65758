"""A Namespace that is bound to a reservation, or is no longer: its claims count anew at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import Namespace
from broker.apis.meta import condition
from broker.apis.ome import ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from tests.cluster.ome.bought import P5
from tests.cluster.ome.pods import namespace
from tests.cluster.ome.reserved import GPU, spec
from tests.cluster.ome.test_borrowing import BORROWER, OWNER, claim, cluster, owned, teams, until_cluster
from tests.cluster.stack import Stack
from tests.cluster.test_rest import until_at_rest

POOL = "pool"


def bind(stack: Stack, reservation: str | None) -> None:
    stack.edit(Namespace, "green", {"metadata": {"annotations": {names.DRAWS_FROM: reservation}}})


@pytest.fixture
def bound(stack: Stack) -> Stack:
    """A cluster-wide reservation of one slot, which a claim of a bound Namespace has."""
    odcr = owned(stack, 1, POOL)
    body: dict[str, Any] = {"metadata": {"name": POOL}, "spec": spec(P5, quotas={GPU: "8"})}
    stack.client.create(ClusterCapacityReservation.KIND, body)
    namespace(stack, "green", **{names.DRAWS_FROM: POOL})
    stack.node_class(id_=odcr)
    stack.start(poll_seconds=30.0)
    claim(stack, "c", POOL, also={names.PODS: "green/p"})
    stack.until_ready("c")
    stack.until(lambda: allocated(stack) == 8, "the claim counts")
    until_at_rest(stack)
    return stack


def soon(stack: Stack, happened: Callable[[], object], goal: str) -> None:
    """It happens before a timer of the broker is due."""
    before = stack.clock.now()
    stack.until(happened, goal)
    assert stack.clock.now() - before < timedelta(seconds=15)


def allocated(stack: Stack) -> int:
    summary = stack.get(ClusterCapacityReservation, POOL).status.summary
    return summary.gpu_allocated if summary is not None else 0


def test_status_counts_no_claim_of_a_namespace_that_is_not_bound_any_more(bound: Stack) -> None:
    bind(bound, None)
    soon(bound, lambda: allocated(bound) == 0, "the claim does not count")
    bind(bound, POOL)
    soon(bound, lambda: allocated(bound) == 8, "the claim counts again")


def test_cluster_gets_the_quota_of_a_namespace_that_is_not_bound_any_more(bound: Stack) -> None:
    cluster(bound, "one", 1, POOL)

    def reserved(status: str) -> bool:
        conditions = bound.get(DedicatedAICluster, "one").status.conditions
        shown = condition(conditions, "QuotaReserved")
        return shown is not None and shown.status == status

    bound.until(lambda: reserved("False"), "the cluster waits for quota")
    until_at_rest(bound)
    bind(bound, None)
    soon(bound, lambda: reserved("True"), "the cluster has the quota")


def test_slot_of_a_cluster_that_is_gone_before_its_launch_is_lent_at_once(stack: Stack) -> None:
    odcr = owned(stack, 1)
    teams(stack, 1)
    stack.node_class(id_=odcr)
    stack.start(poll_seconds=30.0)
    cluster(stack, "one", 1, OWNER, node_class="missing")
    until_cluster(stack, "one", "CREATING")
    claim(stack, "c", BORROWER)
    stack.until_waiting("c", "AllReservationsFull")
    until_at_rest(stack)
    stack.delete(DedicatedAICluster, "one")
    soon(stack, lambda: stack.is_true("c", names.LAUNCHED), "the borrower is launched")
