"""What a person takes back is taken back, also while the watch of its kind is late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.apis.core import Node, Pod
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from tests.cluster.objects import ON_DEMAND
from tests.cluster.rooms import Rooms, rooms
from tests.cluster.stack import Stack
from tests.cluster.taps import deletions_of
from tests.cluster.test_disruption import later
from tests.cluster.test_late_watches import NODEPOOLS
from tests.cluster.test_rooms_reclaim import borrow, pod, tried_again
from tests.cluster.test_static_pools import launched, own, scale, settled, static_pool


@pytest.mark.covers("FUL-30")
def test_static_pool_that_gets_its_replicas_back_ends_no_node(stack: Stack) -> None:
    static_pool(stack, 2, kinds=(ON_DEMAND,), preference="none")
    pools = stack.tap.slow(NODEPOOLS)
    stack.start()
    settled(stack, 2)
    before = {claim.name for claim in own(stack)}
    stack.tap.lose(deletions_of("nodeclaims"))
    scale(stack, 1)
    stack.until(lambda: stack.tap.lost, "the broker tries to end a node", step=1.0)
    pools.clear()
    scale(stack, 2)
    stack.tap.heal()
    later(stack, 30)
    assert {claim.name for claim in own(stack)} == before
    pools.set()
    later(stack, 30)
    assert {claim.name for claim in own(stack)} == before and launched(stack) == 2


def test_pod_is_not_evicted_for_a_guarantee_that_its_namespace_got_meanwhile() -> None:
    with rooms() as cluster:
        quotas = [cluster.tap.slow(model.KIND.path()) for model in (ElasticQuota, CompositeElasticQuota)]
        cluster.start()
        cluster.node("n0", room={"cpu": "4"})
        cluster.quota("a", min={"cpu": 0})
        cluster.quota("b", min={"cpu": 4})
        cluster.pod("runs", namespace="a", cpu="4", scheduler="nos-scheduler")
        cluster.started("runs", namespace="a")
        for watch in quotas:
            watch.clear()
        raised = {"spec": {"min": {"cpu": 4}}}
        cluster.client.patch(ElasticQuota.KIND, "quota", raised, namespace="a")
        cluster.tap.forget()
        cluster.pod("owner", namespace="b", cpu="4", scheduler="nos-scheduler")
        cluster.until_rejected("owner", namespace="b")
        tried_again(cluster, "owner", "b")
        assert cluster.evicted() == []
        for watch in quotas:
            watch.set()
        tried_again(cluster, "owner", "b")
        assert cluster.evicted() == []


def borrower_ends(cluster: Rooms) -> None:
    cluster.delete_pod("lent-0", "a")


def node_comes(cluster: Rooms) -> None:
    cluster.node("n1", room={"cpu": "4"})


def reservation_goes(cluster: Rooms) -> None:
    cluster.client.delete(KoordinatorReservation.KIND, "r")


@pytest.mark.covers("FLT-20")
@pytest.mark.parametrize("happens", [borrower_ends, node_comes, reservation_goes])
def test_no_pod_is_evicted_for_room_that_is_not_missing_any_more(happens: Callable[[Rooms], None]) -> None:
    """The watch that would tell is late; that of the quotas is not."""
    with rooms() as cluster:
        kinds = (Pod.KIND, Node.KIND, KoordinatorReservation.KIND)
        watches = [cluster.tap.slow(kind.path()) for kind in kinds]
        cluster.start()
        cluster.node("n0", room={"cpu": "6"})
        cluster.reservation("r", cpu="2", memory="0", allocateOnce=False)
        cluster.until_phase("Available", "r")
        cluster.quota("c", min={"cpu": "4"})
        borrow(cluster, ("lent-0", "2", "n0"), ("lent-1", "2", "n0"), owner="0")
        pod(cluster, "owner", "b")
        cluster.until_rejected("owner", namespace="b")
        for watch in watches:
            watch.clear()
        happens(cluster)
        raised = {"spec": {"min": {"cpu": "2"}}}
        cluster.tap.forget()
        cluster.client.patch(ElasticQuota.KIND, "quota", raised, namespace="b")
        looked = ("GET", Pod.KIND.path())
        cluster.until(lambda: looked in cluster.tap.log, "an eviction is considered")
        cluster.clock.advance(70)
        cluster.client.patch(ElasticQuota.KIND, "quota", {"spec": {"min": {"cpu": "3"}}}, namespace="c")
        cluster.until(lambda: cluster.tap.log.count(looked) > 1, "again")
        assert cluster.evicted() == []
        for watch in watches:
            watch.set()


@pytest.mark.covers("FLT-20")
def test_no_pod_is_evicted_for_one_that_is_gone() -> None:
    with rooms() as cluster:
        pods = cluster.tap.slow(Pod.KIND.path())
        cluster.start()
        cluster.node("n0", room={"cpu": "2"})
        cluster.quota("a", min={"cpu": "2"})
        cluster.quota("b", min={"cpu": "0"})
        pod(cluster, "lent", "a")
        cluster.started("lent", namespace="a")
        pod(cluster, "owner", "b")
        cluster.until_rejected("owner", namespace="b")
        cluster.pod("probe")
        cluster.until_bound("probe")
        pods.clear()
        cluster.delete_pod("owner", "b")
        cluster.tap.forget()
        for namespace, cpu in (("a", "0"), ("b", "2")):
            changed = {"spec": {"min": {"cpu": cpu}}}
            cluster.client.patch(ElasticQuota.KIND, "quota", changed, namespace=namespace)
        looked = ("GET", Pod.KIND.path())
        cluster.until(lambda: looked in cluster.tap.log, "an eviction is considered")
        assert cluster.evicted() == []
        pods.set()
        cluster.pod("next")
        cluster.until_bound("next")
        assert cluster.evicted() == []
