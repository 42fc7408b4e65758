"""What a person takes back is taken back, also while the watch of its kind is late."""

from __future__ import annotations

import pytest

from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from tests.cluster.objects import ON_DEMAND
from tests.cluster.rooms import rooms
from tests.cluster.stack import Stack
from tests.cluster.taps import deletions_of
from tests.cluster.test_disruption import later
from tests.cluster.test_late_watches import NODEPOOLS
from tests.cluster.test_rooms_reclaim import tried_again
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
