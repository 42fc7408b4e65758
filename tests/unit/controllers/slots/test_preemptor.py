"""Victims are reported and deleted one by one, and a nomination ends with the slot that the claim got."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import crds, names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, condition
from broker.capacity.entitlement import NominatedSlot, SlotPool
from broker.capacity.model import Assignment, Claim, Option, Plan, Pool, Unplaced
from broker.capacity.requirements import Requirements
from broker.controllers.assumed import AssumptionStore
from broker.controllers.claim_caches import BY_SIGN, signs
from broker.controllers.claim_status import write
from broker.controllers.slots.preemptor import Preemptor
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import Forbidden
from broker.kube.events import Recorder
from broker.quota.entitled import Eviction
from broker.quota.joint import JointDecision
from broker.quota.model import Reason
from broker.quota.slot_model import CLAIM
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock

SPEC = {"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}, "requirements": []}


class Guarded(Client):
    """A cluster in which a policy forbids the deletion of claims with certain names."""

    def delete(self, kind: Any, name: str, **options: Any) -> dict[str, Any]:
        if name.startswith("guarded"):
            raise Forbidden(403, "Forbidden", f"{name} is not to be deleted")
        return super().delete(kind, name, **options)


def preemptor(client: Client, clock: FakeClock, claims: Cache[NodeClaim]) -> Preemptor:
    recorder = Recorder(client, "test", clock)
    store = AssumptionStore(clock)
    return Preemptor(
        client, claims, store, recorder=recorder, non_preemptible=lambda _: False, wake=lambda: None
    )


def test_a_claim_that_cannot_be_deleted_does_not_block_other_evictions() -> None:
    client, clock = Guarded(InProcessTransport(Cluster()), field_manager="test"), FakeClock()
    for body in crds.load():
        client.create(crds.KIND, body)
    claims: Cache[NodeClaim] = Cache(NodeClaim)
    for name in ("guarded-a", "leaves-b"):
        claims.observe(client.create(NodeClaim.KIND, {"metadata": {"name": name}, "spec": SPEC}))
    why = Eviction(reason=Reason.RECLAIM, preemptor="prod", preemptor_path="/ml/a", preemptee_path="/ml/b")
    decided = JointDecision(evictions={f"{CLAIM}guarded-a": why, f"{CLAIM}leaves-b": why})
    with pytest.raises(Forbidden, match="guarded-a is not to be deleted"):
        preemptor(client, clock, claims).evict(decided)
    remaining, _ = client.list(NodeClaim.KIND)
    assert [raw["metadata"]["name"] for raw in remaining] == ["guarded-a"]


class NominatedClaim:
    """A claim for which a victim was evicted, the plans about it, and its condition."""

    def __init__(self) -> None:
        self.client, self.clock = Client(InProcessTransport(Cluster()), field_manager="test"), FakeClock()
        for body in crds.load():
            self.client.create(crds.KIND, body)
        self.claims: Cache[NodeClaim] = Cache(NodeClaim, indexes={BY_SIGN: signs})
        self.claims.observe(self.client.create(NodeClaim.KIND, {"metadata": {"name": "owner"}, "spec": SPEC}))
        change = ConditionUpdate(type=names.RECLAIMING, status="True", reason="r", message="waits for b")
        write(self.client, self.claims, self.claim, change, now=self.clock.now())
        self.preemptor = preemptor(self.client, self.clock, self.claims)
        self.planned = Claim(uid=self.claim.uid, name="owner", node_class="gpu", requirements=Requirements())

    @property
    def claim(self) -> NodeClaim:
        owner = self.claims.get("owner")
        assert owner is not None
        return owner

    def waits(self) -> None:
        slot = NominatedSlot(slot_pool=SlotPool("a", "h100"), odcr_ids=("cr-1",), queue="a")
        unplaced = Unplaced(claim=self.planned, reason="ReclaimingSlots", message="")
        self.preemptor.planned(Plan(unplaced=(unplaced,), nominated={self.planned.uid: slot}))

    def launches(self) -> None:
        pool = Pool(
            capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation="cr-1"
        )
        option = Option(pool=pool, odcr_ids=("cr-1",))
        assignment = Assignment(claim=self.planned, option=option)
        self.preemptor.planned(Plan(assignments=(assignment,)))

    def nothing_waits(self) -> None:
        self.preemptor.planned(Plan())

    def falls_out(self) -> None:
        unplaced = Unplaced(claim=self.planned, reason="NoCapacity", message="")
        self.preemptor.planned(Plan(unplaced=(unplaced,)))

    def restarts(self) -> None:
        self.preemptor = preemptor(self.client, self.clock, self.claims)

    def has_instance(self) -> None:
        status = {"providerID": "aws:///us-east-1a/i-1"}
        body = {"status": status}
        self.claims.observe(self.client.patch(NodeClaim.KIND, "owner", body, subresource="status"))

    def runs_in_slot(self) -> None:
        self._label({names.CAPACITY_TYPE: "reserved", names.RESERVATION_ID: "cr-1"})

    def runs_on_demand(self) -> None:
        self._label({names.CAPACITY_TYPE: "on-demand"})

    def _label(self, labels: dict[str, str]) -> None:
        self.claims.observe(self.client.patch(NodeClaim.KIND, "owner", {"metadata": {"labels": labels}}))

    def condition(self) -> tuple[str, str]:
        """The reason and the message of the cleared condition; empty while the claim is nominated."""
        self.preemptor.clear()
        reclaiming = condition(self.claim.status.conditions, names.RECLAIMING)
        assert reclaiming is not None
        return (reclaiming.reason, reclaiming.message) if reclaiming.status == "False" else NOMINATED


NOMINATED = "", ""
HAS_SLOT = "HasSlot", "it has a slot of cr-1"
ELSEWHERE = "LaunchedElsewhere", "it runs in no reservation: its capacity type is on-demand"
NOT_WAITING = "NotWaiting", "it waits for no occupied slot any more"


@pytest.mark.covers("USR-02")
@pytest.mark.parametrize(
    ("steps", "cleared"),
    [
        ("waits launches runs_in_slot has_instance", HAS_SLOT),
        ("waits launches runs_in_slot nothing_waits has_instance nothing_waits", HAS_SLOT),
        ("waits launches nothing_waits has_instance runs_in_slot", HAS_SLOT),
        ("launches has_instance restarts runs_in_slot", HAS_SLOT),
        ("launches restarts runs_in_slot launches has_instance", HAS_SLOT),
        ("waits launches waits launches runs_in_slot has_instance", HAS_SLOT),
        ("waits launches has_instance runs_on_demand", ELSEWHERE),
        ("waits launches falls_out", NOT_WAITING),
        ("waits nothing_waits", NOT_WAITING),
    ],
)
def test_cleared_nomination_names_the_slot_in_every_order_of_writes(
    steps: str, cleared: tuple[str, str]
) -> None:
    nominated = NominatedClaim()
    seen = []
    for step in steps.split():
        getattr(nominated, step)()
        seen.append(nominated.condition())
    first = seen.index(cleared)
    assert seen == [NOMINATED] * first + [cleared] * (len(seen) - first)


@pytest.mark.covers("USR-02")
def test_the_slot_is_named_although_a_restart_lost_the_launch() -> None:
    nominated = NominatedClaim()
    nominated.launches()
    nominated.restarts()
    nominated.nothing_waits()  # a launch of the process before has an unknown result
    assert nominated.condition() == NOT_WAITING
    nominated.has_instance()
    nominated.runs_in_slot()
    assert nominated.condition() == HAS_SLOT
