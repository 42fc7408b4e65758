"""Before an eviction EC2 and the rules are read once more; of what has begun, nothing is asked again."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumedSlots
from broker.controllers.slots.controller import overtaken, parted
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from broker.kube.errors import Unavailable
from broker.quota.joint import JointDecision
from broker.quota.model import Reason
from broker.quota.slot_model import CLAIM, SlotHolder, SlotRequest, Victim
from broker.quota.usage import ReservationKey
from providers.errors import ErrorClass, ProviderError
from providers.model import Odcr

OWNER = ReservationKey("team", "training")
VICTIM = Victim(
    holder=SlotHolder(name="borrower", queue="team--research", odcr_id="cr-1"),
    request=SlotRequest(name="owner", queue=OWNER.queue, odcr_ids=("cr-1",)),
    reason=Reason.RECLAIM,
    preemptor_path=f"/ml/{OWNER.queue}",
    preemptee_path="/ml/team--research",
)
DECIDED = JointDecision(victims=[VICTIM])


def rule(generation: int = 1) -> dict[str, Any]:
    metadata = {"name": OWNER.name, "namespace": OWNER.namespace, "uid": "r", "generation": generation}
    return {"metadata": metadata | {"resourceVersion": "1"}, "spec": {}}


def cluster(generation: int = 1) -> dict[str, Any]:
    """One that draws from the owner's reservation, and is neither preemptor nor victim."""
    metadata = {"name": "beside", "uid": "c", "generation": generation, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"capacityReservationId": str(OWNER)}}


def inventory(available: int) -> Inventory:
    odcr = Odcr(id="cr-1", instance_type="p5.48xlarge", zone="us-east-1a", total=4, available=available)
    return Inventory(odcrs={"cr-1": odcr})


class Now:
    """What EC2 and the API server have now."""

    def __init__(
        self,
        *,
        available: int = 1,
        generation: int = 1,
        size: int = 1,
        error: Exception | None = None,
    ) -> None:
        self.available, self.generation, self.size = available, generation, size
        self.error, self.described = error, 0

    def refresh(self) -> None:
        self.described += 1
        if isinstance(self.error, ProviderError):
            raise self.error

    def snapshot(self) -> Inventory:
        return inventory(self.available)

    def list(self, kind: Kind, **_: Any) -> tuple[list[dict[str, Any]], str]:
        if isinstance(self.error, Unavailable):
            raise self.error
        return [cluster(self.size) if kind == DedicatedAICluster.KIND else rule(self.generation)], ""


def judged(now: Now, **known: Any) -> bool:
    caches = SimpleNamespace(claims=Cache(NodeClaim))
    shared: Any = SimpleNamespace(inventory=now, client=now, caches=caches)
    reservations = {OWNER: CapacityReservation.decode(rule())}
    clusters = [DedicatedAICluster.decode(cluster())]
    snapshot = Snapshot(version=1, reservations=reservations, clusters=clusters, inventory=inventory(1))
    return overtaken(shared, replace(snapshot, **known), DECIDED)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Now(), False),
        (Now(available=0), False),
        (Now(available=2), True),
        (Now(generation=2), True),
        (Now(size=2), True),
        (Now(error=Unavailable(0, "Lost", "no answer")), True),
        (Now(error=ProviderError("RequestLimitExceeded", "slow", class_=ErrorClass.THROTTLING)), True),
    ],
    ids=[
        "as decided",
        "one slot fewer",
        "a free slot",
        "another rule",
        "another size",
        "no API server",
        "no EC2",
    ],
)
def test_eviction_stands_only_by_the_slots_and_rules_of_now(now: Now, expected: bool) -> None:
    assert judged(now) == expected


def test_slot_that_is_kept_for_a_successor_is_no_new_one() -> None:
    assert not judged(Now(), inventory=replace(inventory(1), kept={"successor": "cr-1"}))


def test_eviction_that_has_begun_is_apart_from_new_ones() -> None:
    evicted_for = {f"{CLAIM}borrower": f"{CLAIM}owner"}
    snapshot = Snapshot(version=1, reservations={}, assumed=AssumedSlots(evicted_for=evicted_for))
    none = JointDecision(victims=[])
    assert parted(snapshot, DECIDED) == (DECIDED, none)
    assert parted(replace(snapshot, assumed=AssumedSlots()), DECIDED) == (none, DECIDED)
