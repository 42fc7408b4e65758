"""The time for which a slot was idle, as returns to reservations count it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodePool
from broker.capacity.inventory import Inventory
from broker.controllers.disruption.methods import DisruptionMethods
from broker.controllers.disruption.snapshot import DisruptionSnapshot
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from providers.model import Odcr
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock

NOW = datetime(2026, 11, 23, tzinfo=UTC)
POOL = NodePool.decode({"metadata": {"name": "any", "annotations": {names.RETURN_TO_RESERVATIONS: "true"}}})


def pending(at: datetime) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "lastTransitionTime": at.isoformat()}
    meta = {"name": "new", "namespace": "team", "uid": "p", "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": {"phase": "Pending", "conditions": [condition]}}


def described(free: int) -> Inventory:
    odcr = Odcr(id="cr-1", instance_type="m5.large", zone="us-east-1a", total=1, available=free)
    return Inventory(odcrs={"cr-1": odcr}, described=NOW)


def test_slot_taken_while_pods_wait_is_not_idle_from_before() -> None:
    inventories = iter([described(1), described(0), described(1)])
    pods = Cache(Pod)
    pods.apply("ADDED", pending(NOW))
    recorder = SimpleNamespace(ended=lambda *_: None)
    unused: Any = SimpleNamespace(client=None, clock=FakeClock(), recorder=recorder)
    caches = claim_caches(pods=pods)
    slots = SimpleNamespace(
        snapshot=lambda: Snapshot(version=1, reservations={}, inventory=next(inventories))
    )
    sources: Any = SimpleNamespace(slots=slots, health=None)
    methods = DisruptionMethods(unused, caches, sources, unused, unused, unused)
    for seconds in (0, 30, 45):
        methods.run(DisruptionSnapshot(now=NOW + timedelta(seconds=seconds), pools={"any": POOL}))
    assert methods.returns.idle(NOW + timedelta(seconds=100)) == {}
    assert methods.returns.idle(NOW + timedelta(seconds=105)) == {"cr-1": 1}


def test_slot_taken_while_the_broker_has_no_pool_is_not_idle_from_before() -> None:
    """As while Karpenter launches the claims of all pools."""
    free = [1]
    recorder = SimpleNamespace(ended=lambda *_: None)
    unused: Any = SimpleNamespace(client=None, clock=FakeClock(), recorder=recorder)
    caches = claim_caches()
    slots = SimpleNamespace(
        snapshot=lambda: Snapshot(version=1, reservations={}, inventory=described(free[0]))
    )
    sources: Any = SimpleNamespace(slots=slots, health=None)
    methods = DisruptionMethods(unused, caches, sources, unused, unused, unused)
    for seconds, count, pools in ((0, 1, {"any": POOL}), (30, 0, {}), (3600, 1, {"any": POOL})):
        free[0] = count
        methods.run(DisruptionSnapshot(now=NOW + timedelta(seconds=seconds), pools=pools))
    assert methods.returns.idle(NOW + timedelta(seconds=3600)) == {}
