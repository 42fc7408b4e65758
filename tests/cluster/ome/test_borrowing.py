"""Slots of a reservation: for its owner, lent to its cohort while idle, and reclaimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod, ResourceQuota
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object, condition
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.commands.dry_run import DryRun
from broker.commands.explain import claims
from broker.controllers import instances
from broker.controllers.launch import launcher
from broker.kube.client import Request
from broker.text import format_time
from broker.webpage.live import live_state
from broker.wiring import launch, provisioning
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, PDB, RESERVED
from tests.cluster.ome.bought import P5
from tests.cluster.ome.reserved import GPU, reserve, spec
from tests.cluster.stack import Stack

OWNER, BORROWER = "default/training", "default/research"


def owned(stack: Stack, count: int, owner: str = OWNER) -> str:
    """An EC2 reservation, made by Terraform for an OME reservation."""
    tags = [{"Key": names.TAG_RESERVATION, "Value": owner}]
    specifications = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    return stack.aws.odcr(P5, A, count, TagSpecifications=specifications)


def teams(stack: Stack, slots: int, *, borrow: str = "16", **rule: str) -> None:
    """One team owns slots; another has none and may borrow."""
    preemption: Mapping[str, Any] = {"preemptionRule": {"reclaimWithinCohort": "Any", **rule}}
    reserve(stack, "training", flavor=P5, quotas={GPU: str(8 * slots)}, cohort="ml", **preemption)
    more: Mapping[str, Any] = {"cohort": "ml", "allowBorrowing": True} if borrow else {"cohort": "ml"}
    reserve(stack, "research", flavor=P5, quotas={GPU: "0"}, borrow=borrow, **more)


def lending(stack: Stack, slots: int, *, borrow: str = "16", **rule: str) -> str:
    """This many slots of one team, a second team that may borrow them, and a broker. Returns EC2's
    reservation."""
    odcr = owned(stack, slots)
    teams(stack, slots, borrow=borrow, **rule)
    stack.node_class(id_=odcr)
    stack.start()
    return odcr


def claim(
    stack: Stack, name: str, draws: str, *capacity: str, also: Mapping[str, str] | None = None, **more: Any
) -> str:
    noted = ({names.DRAWS_FROM: draws} if draws else {}) | dict(also or {})
    return stack.claim(name, types=(P5,), capacity=capacity or (RESERVED,), annotations=noted, **more)


def explained(stack: Stack, name: str) -> Sequence[Mapping[str, Any]]:
    """The options of a waiting claim, as `explain claim` shows them."""
    forecast = claims.Forecaster(
        client=stack.client,
        provider=stack.provider,
        now=stack.clock.now(),
        entitle=lambda provider: DryRun(stack.client, provider, stack.settings, stack.clock).entitlements,
    ).of(stack.get(NodeClaim, name))
    assert forecast is not None
    return forecast.rows


def cluster(stack: Stack, name: str, instances: int, draws: str, *, node_class: str = "gpu") -> None:
    """A dedicated cluster, of whole instances."""
    spec = {"capacityReservationId": draws, "resources": {"requests": {GPU: 8 * instances}}}
    metadata = {"name": name, "annotations": {names.NODE_CLASS: node_class}}
    stack.client.create(DedicatedAICluster.KIND, {"metadata": metadata, "spec": spec})


def until_cluster(stack: Stack, name: str, state: str) -> DedicatedAICluster:
    def reached() -> DedicatedAICluster | None:
        cluster = stack.find(DedicatedAICluster, name)
        return cluster if cluster and cluster.status.dac_lifecycle_state == state else None

    cluster = stack.until(reached, f"cluster {name} {state}")
    assert cluster is not None
    return cluster


def guarded(stack: Stack, *claims: str) -> None:
    """A drain of these claims waits for a PodDisruptionBudget."""
    for name in claims:
        node = stack.get(NodeClaim, name).status.node_name
        stack.pod(f"on-{name}", node=node, labels={"app": "train"})
    stack.budget("hold", app="train")


def let_go(stack: Stack) -> None:
    """The budget allows the eviction of one pod."""
    allowed = {"status": {"disruptionsAllowed": 1}}
    stack.client.patch(PDB, "hold", allowed, namespace="default", subresource="status")


def terminating_claims(stack: Stack) -> list[str]:
    return [claim.name for claim in stack.all(NodeClaim) if claim.deleting]


@pytest.mark.covers("CAP-09", "OME-032", "OME-034", "OME-035", "OME-054", "OME-055", "USR-02")
def test_idle_slots_are_lent_and_drained_when_their_owner_comes_back(stack: Stack) -> None:
    odcr = lending(stack, 2)
    claim(stack, "stranger", "")
    condition = stack.until_waiting("stranger", "NoUsableReservation")
    belongs = f"reservation {odcr} belongs to {OWNER}, and the claim draws from no reservation"
    assert belongs in condition.message
    assert [(row["reason"], belongs in row["message"]) for row in explained(stack, "stranger")] == [
        ("ReservedForOthers", True)
    ]

    claim(stack, "important", BORROWER, priority=5)
    claim(stack, "spare", BORROWER)
    stack.until_ready("important", "spare")
    stack.until_shown("important", "spare")
    assert stack.aws.free(odcr) == 0
    broker = stack.broker
    assert broker is not None
    (loan,) = stack.until(lambda: live_state(broker).loans, "a loan", step=1.0)
    assert (loan.owner, loan.borrower, loan.slots, loan.claims) == (
        OWNER,
        BORROWER,
        2,
        ["important", "spare"],
    )
    # The claim may fall back, but waits for the slot that its reservation is entitled to.
    claim(stack, "owner", OWNER, RESERVED, ON_DEMAND)
    stack.until_ready("owner")
    assert stack.reservation_of("owner") == odcr
    stack.until_gone(NodeClaim, "spare")
    assert stack.reservation_of("important") == odcr
    assert not terminating_claims(stack)
    event = stack.until_event("spare", "Preempted")
    assert "(InCohortReclamation)" in event.message
    assert "NodeClaim owner" in event.message
    assert "preemptor path: /ml/default--training; preemptee path: /ml/default--research" in event.message
    assert "NodeClaim spare" in stack.until_event("owner", "Reclaiming").message
    stack.until(lambda: not stack.is_true("owner", names.RECLAIMING), "the owner reclaims nothing more")
    cleared = stack.condition(NodeClaim, "owner", names.RECLAIMING)
    assert cleared is not None and cleared.message == f"it has a slot of {odcr}"


@pytest.mark.covers("OME-036", "OME-037", "OME-040")
@pytest.mark.parametrize(("limit", "lent"), [("8", 1), ("", 0)])
def test_no_reservation_borrows_beyond_its_limit(stack: Stack, limit: str, lent: int) -> None:
    odcr = lending(stack, 2, borrow=limit)
    for number in range(2):
        claim(stack, f"c-{number}", BORROWER, RESERVED, ON_DEMAND)
    stack.until_ready("c-0", "c-1")
    assert [stack.reservation_of(f"c-{number}") for number in range(2)].count(odcr) == lent
    claim(stack, "more", BORROWER)
    condition = stack.until_waiting("more")
    assert ("may borrow no more" if lent else "may not borrow") in condition.message
    if lent:  # it may borrow more, but the same amount is lent
        lends = spec(P5, quotas={GPU: "16"}, lends="8")
        stack.client.patch(CapacityReservation.KIND, "training", {"spec": lends}, namespace="default")
        borrows = spec(P5, quotas={GPU: "0"}, borrow="16")
        stack.client.patch(CapacityReservation.KIND, "research", {"spec": borrows}, namespace="default")
        stack.until(
            lambda: "default/training lends no more" in stack.until_waiting("more").message, "no more is lent"
        )
    assert stack.aws.free(odcr) == 2 - lent


def test_a_changed_limit_is_planned_at_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, provisioning):
        monkeypatch.setattr(module, "EVERY", 1e9)
    monkeypatch.setattr(launcher, "LONGEST_WAIT", 1e9)
    monkeypatch.setattr(instances, "FRESH", timedelta(days=1))
    lending(stack, 1, borrow="0")
    claim(stack, "waits", BORROWER)
    stack.until_waiting("waits")
    more = spec(P5, quotas={GPU: "0"}, borrow="8")
    stack.client.patch(CapacityReservation.KIND, "research", {"spec": more}, namespace="default")
    stack.until_ready("waits")


def test_reclaim_survives_restarts_and_evicts_no_second_claim(stack: Stack) -> None:
    odcr = lending(stack, 2)
    for number in range(2):
        claim(stack, f"b-{number}", BORROWER)
    stack.until_ready("b-0", "b-1")
    stack.until_shown("b-0", "b-1")
    guarded(stack, "b-0", "b-1")
    claim(stack, "owner", OWNER)
    (victim,) = stack.until(lambda: terminating_claims(stack), "one claim is evicted")
    for _ in range(2):
        stack.stop()
        stack.start()
        stack.passes()
        assert terminating_claims(stack) == [victim]
        condition = stack.claim_condition(victim, names.PREEMPTED)
        assert condition is not None and "NodeClaim owner" in condition.message
    let_go(stack)
    stack.until_ready("owner")
    assert stack.reservation_of("owner") == odcr
    stack.passes()
    assert not terminating_claims(stack)
    assert len([claim for claim in stack.all(NodeClaim) if claim.name.startswith("b-")]) == 1


@pytest.mark.covers("FLT-70")
def test_claim_that_may_fall_back_does_so_when_the_drain_takes_too_long(stack: Stack) -> None:
    odcr = lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    guarded(stack, "borrower")
    claim(stack, "owner", OWNER, RESERVED, ON_DEMAND)
    stack.until(lambda: terminating_claims(stack), "the borrower drains")
    stack.advance(9 * 60)
    stack.passes()
    assert not stack.is_true("owner", names.LAUNCHED)
    stack.advance(2 * 60)
    stack.until_launched("owner")
    assert stack.reservation_of("owner") == ""
    assert terminating_claims(stack) == ["borrower"] and stack.aws.free(odcr) == 0


@pytest.mark.covers("FLT-64")
def test_reservations_deleted_with_their_namespace_drain_no_claim_and_leave_their_slots(stack: Stack) -> None:
    odcr = lending(stack, 2)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    claim(stack, "anybody", "")
    stack.until_waiting("anybody", "NoUsableReservation")
    for name in ("training", "research"):
        stack.delete(CapacityReservation, name, namespace="default")
    # For a time the slots are kept for an owner that is replaced.
    stack.until_event("anybody", "NoUsableReservation", text="training, which does not exist, and")
    stack.passes()
    assert stack.aws.free(odcr) == 1
    stack.until(lambda: stack.is_true("anybody", names.LAUNCHED), "the slots are open", step=60.0)
    assert stack.reservation_of("anybody") == odcr
    assert stack.is_true("borrower", names.READY)
    assert not terminating_claims(stack)


def test_do_not_disrupt_claim_is_passed_over_unless_a_grace_period_bounds_it(stack: Stack) -> None:
    odcr = lending(stack, 2)
    stays = {names.DO_NOT_DISRUPT: "true"}
    claim(stack, "stays", BORROWER, also=stays)
    claim(stack, "bounded", BORROWER, also=stays, priority=5, terminationGracePeriod="30s")
    stack.until_ready("stays", "bounded")
    stack.until_shown("stays", "bounded")
    for number in range(2):
        claim(stack, f"owner-{number}", OWNER, RESERVED, ON_DEMAND)
    stack.until_ready("owner-0", "owner-1")
    assert sorted(stack.reservation_of(f"owner-{number}") for number in range(2)) == ["", odcr]
    stack.until_gone(NodeClaim, "bounded")
    assert stack.reservation_of("stays") == odcr
    assert not terminating_claims(stack)


@pytest.mark.covers("FLT-22", "FLT-54")
def test_owner_is_told_of_a_slot_that_its_borrower_does_not_give_back(stack: Stack) -> None:
    """Neither a pod nor an explanation asks for quota, which would not help, or promises the slot."""
    lending(stack, 1)
    claim(stack, "training", BORROWER)
    stack.until_ready("training")
    stack.until_shown("training")
    stack.pod("epoch", node=stack.get(NodeClaim, "training").status.node_name)
    protected = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
    stack.client.patch(Pod.KIND, "epoch", protected, namespace="default")
    stack.passes()
    claim(stack, "owner", OWNER)
    lends = "default/training lends slots of flavor p5.48xlarge that do not come back now"
    assert lends in stack.until_waiting("owner", "AllReservationsFull").message
    ((reason, lent, message),) = (
        (row["reason"], row["lent"], row["message"]) for row in explained(stack, "owner")
    )
    assert (reason, lent) == ("QuotaReached", 0) and lends in message


def test_claim_with_a_pod_that_may_not_be_disrupted_for_hours_is_passed_over_as_long(stack: Stack) -> None:
    odcr = lending(stack, 2)
    claim(stack, "training", BORROWER)
    claim(stack, "spare", BORROWER, also={names.PRIORITY: "5"})
    stack.until_ready("training", "spare")
    stack.until_shown("training", "spare")
    stack.pod("epoch", node=stack.get(NodeClaim, "training").status.node_name)
    protected = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "4h"}}}
    status = {"status": {"startTime": format_time(stack.clock.now())}}
    stack.client.patch(Pod.KIND, "epoch", protected, namespace="default")
    stack.client.patch(Pod.KIND, "epoch", status, namespace="default", subresource="status")
    stack.passes()
    claim(stack, "owner-0", OWNER)
    stack.until_ready("owner-0")
    assert stack.find(NodeClaim, "spare") is None and stack.reservation_of("training") == odcr
    claim(stack, "owner-1", OWNER)
    stack.until_waiting("owner-1")
    stack.passes()
    assert not terminating_claims(stack)
    stack.advance(4 * 60 * 60)
    stack.until_ready("owner-1")
    stack.until_gone(NodeClaim, "training")


@pytest.mark.parametrize("held_by", [Pod, Node])
@pytest.mark.parametrize("by_cluster", [False, True])
def test_claim_that_is_protected_while_the_watch_is_late_is_passed_over(
    stack: Stack, held_by: type[Object], by_cluster: bool
) -> None:
    watch = stack.tap.slow(f"/api/v1/{held_by.KIND.plural}")
    odcr = lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    node = stack.get(NodeClaim, "borrower").status.node_name
    stack.pod("app", node=node)
    stack.passes()
    watch.clear()
    protected = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
    name, namespace = ("app", "default") if held_by is Pod else (node, None)
    stack.client.patch(held_by.KIND, name, protected, namespace=namespace)
    stack.tap.forget()
    if by_cluster:
        cluster(stack, "mine", 1, OWNER)
    else:
        claim(stack, "owner", OWNER)
    stack.until(lambda: ("GET", "/api/v1/nodes") in stack.tap.log, "its Node is read once more")
    stack.passes()
    assert not terminating_claims(stack)
    assert stack.claim_condition("borrower", names.PREEMPTED) is None
    watch.set()
    stack.passes()
    assert not terminating_claims(stack)
    assert stack.reservation_of("borrower") == odcr


@pytest.mark.covers("CAP-09", "OME-032", "OME-046", "OME-054")
def test_cluster_gives_borrowed_slots_back_and_claims_on_own_slots_stay(stack: Stack) -> None:
    odcr = lending(stack, 3)
    claim(stack, "home", OWNER)
    stack.until_ready("home")
    cluster(stack, "guest", 2, BORROWER)
    until_cluster(stack, "guest", "ACTIVE")
    stack.until_shown(*(claim.name for claim in stack.all(NodeClaim)))
    assert stack.aws.free(odcr) == 0
    claim(stack, "owner", OWNER, RESERVED, ON_DEMAND)
    stack.until_ready("owner")
    assert stack.reservation_of("owner") == odcr
    guest = until_cluster(stack, "guest", "CREATING")
    preempted = condition(guest.status.conditions, names.PREEMPTED)
    assert preempted is not None and preempted.reason == "InCohortReclamation"
    assert preempted.message.startswith("preempted for NodeClaim owner, ")
    assert guest.status.admission is None
    # One of the two returned slots is needed: the owner's next cluster takes it, and no claim is evicted.
    cluster(stack, "mine", 1, OWNER)
    until_cluster(stack, "mine", "ACTIVE")
    stack.passes()
    assert not terminating_claims(stack)
    assert sorted(claim.name for claim in stack.all(NodeClaim))[0] == "home"
    assert stack.aws.free(odcr) == 0


def test_claim_drained_for_a_cluster_does_not_return_to_the_slot_first(stack: Stack) -> None:
    odcr = lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    # Its instance ends and the claim stays for a while: EC2 shows the slot free, and the claim still has its
    # quota.
    held = [*stack.get(NodeClaim, "borrower").metadata.finalizers, "example.com/looks-after-it"]
    stack.edit(NodeClaim, "borrower", {"metadata": {"finalizers": held}})
    cluster(stack, "mine", 1, OWNER)
    stack.until(lambda: stack.aws.free(odcr) == 1, "its instance has ended")
    stack.wait_for_ec2()
    claim(stack, "again", BORROWER)
    stack.polls(2)
    stack.passes()
    assert (
        "is kept for a dedicated cluster for which others are evicted" in stack.until_waiting("again").message
    )
    assert terminating_claims(stack) == ["borrower"]
    stack.edit(NodeClaim, "borrower", {"metadata": {"finalizers": None}})
    until_cluster(stack, "mine", "ACTIVE")
    stack.passes()
    assert not stack.get(NodeClaim, "again").status.provider_id
    assert not terminating_claims(stack)


@pytest.mark.covers("KRP-29", "ONC-01")
def test_claim_that_waited_for_a_lent_slot_of_a_block_reports_that_the_block_ends(stack: Stack) -> None:
    block = stack.aws.capacity_block(ends=timedelta(hours=3))
    stack.aws.ec2.create_tags(Resources=[block], Tags=[{"Key": names.TAG_RESERVATION, "Value": OWNER}])
    teams(stack, 1)
    stack.node_class(id_=block)
    stack.start()
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    guarded(stack, "borrower")
    claim(stack, "owner", OWNER)

    def reserved(text: str) -> bool:
        state = stack.claim_condition("owner", names.CAPACITY_RESERVATION)
        return state is not None and text in state.message

    stack.until(lambda: reserved("waits until it is given back"), "it waits for the borrower")
    stack.advance(145 * 60)
    stack.until(lambda: reserved(f"capacity block {block} ends"), "its condition names the end", step=1.0)
    state = stack.claim_condition("owner", names.CAPACITY_RESERVATION)
    assert state is not None and (state.status, state.reason) == ("False", "CapacityBlockEnding")


@pytest.mark.both_servers
def test_claim_that_can_no_longer_be_launched_waits_for_no_slot(stack: Stack) -> None:
    lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    guarded(stack, "borrower")
    claim(stack, "owner", OWNER)

    def reclaims(status: str) -> bool:
        reclaiming = condition(stack.get(NodeClaim, "owner").status.conditions, names.RECLAIMING)
        return reclaiming is not None and reclaiming.status == status

    stack.until(lambda: reclaims("True"), "it waits for the borrower")
    terms = [{"id": "subnet-0123456789abcdef0"}]
    stack.edit(EC2NodeClass, "gpu", {"spec": {"subnetSelectorTerms": terms}})
    stack.until(lambda: reclaims("False"), "it waits no longer")


def test_slots_of_an_admitted_cluster_are_not_lent_before_it_has_claims(stack: Stack) -> None:
    odcr = owned(stack, 2)
    teams(stack, 2, reclaimWithinCohort="Never")
    stack.node_class(id_=odcr)

    def creates_claim(request: Request) -> bool:
        return request.method == "POST" and request.path.endswith("/nodeclaims")

    stack.tap.lose(creates_claim)
    stack.start()
    cluster(stack, "mine", 2, OWNER)
    stack.until(
        lambda: (cluster := stack.find(DedicatedAICluster, "mine")) and cluster.status.admission,
        "it is admitted",
    )
    claim(stack, "borrower", BORROWER)
    claim(stack, "plain", OWNER)
    assert "that default/training has quota for are taken" in stack.until_waiting("borrower").message
    assert "has no quota left" in stack.until_waiting("plain").message
    assert stack.aws.free(odcr) == 2
    stack.tap.heal()
    until_cluster(stack, "mine", "ACTIVE")
    assert stack.aws.free(odcr) == 0
    assert not terminating_claims(stack)


@pytest.mark.covers("OME-047", "OME-048", "OME-049", "OME-055")
def test_higher_priority_preempts_by_each_rule(stack: Stack) -> None:
    odcr = owned(stack, 2)
    shares: Mapping[str, Any] = {"flavor": P5, "cohort": "ml"}
    rule: Mapping[str, Any] = {"reclaimWithinCohort": "LowerPriority"}
    reserve(stack, "training", quotas={GPU: "16"}, preemptionRule=rule, **shares)
    rule = {**rule, "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 3}}
    for name in ("research", "third"):
        reserve(stack, name, quotas={GPU: "0"}, allowBorrowing=True, preemptionRule=rule, **shares)
    stack.node_class(id_=odcr)
    stack.start()
    claim(stack, "own", OWNER)
    claim(stack, "lent", "default/third", priority=2)
    stack.until_ready("own", "lent")
    stack.until_shown("own", "lent")

    def goes(name: str, for_: str, draws: str, priority: int, why: str) -> None:
        claim(stack, for_, draws, priority=priority)
        stack.until_ready(for_)
        stack.until_shown(for_)
        stack.until_gone(NodeClaim, name)
        assert stack.reservation_of(for_) == odcr
        message = stack.until_event(name, "Preempted").message
        assert f"NodeClaim {for_} (UID: " in message and f"({why})" in message
        assert not terminating_claims(stack)

    # The claim borrows, and preempts borrowers below the threshold; it cannot preempt the owner's claims.
    goes("lent", "vip", BORROWER, 5, "InCohortReclaimWhileBorrowing")
    claim(stack, "late", "default/third", priority=9)
    # The owner's quota is lent to a claim of higher priority, which stays: a claim of the same reservation
    # leaves.
    goes("own", "peer", OWNER, 4, "InClusterQueue")
    goes("vip", "boss", OWNER, 6, "InCohortReclamation")
    assert stack.is_true("peer", names.READY)
    # A claim that may fall back does so, and preempts no claim.
    claim(stack, "falls-back", OWNER, RESERVED, ON_DEMAND, priority=9)
    stack.until_ready("falls-back")
    assert stack.reservation_of("falls-back") == ""
    stack.until_waiting("late")
    assert not terminating_claims(stack)


@pytest.mark.covers("OME-089")
def test_reservation_that_a_resource_quota_refuses_gives_nothing_new(stack: Stack) -> None:
    def allows(gpus: int) -> None:
        spec = {"spec": {"hard": {GPU: str(gpus)}}}
        stack.client.patch(ResourceQuota.KIND, "few", spec, namespace="default")

    quota = {"metadata": {"name": "few", "namespace": "default"}, "spec": {"hard": {GPU: "8"}}}
    stack.client.create(ResourceQuota.KIND, quota)
    lending(stack, 2)
    cluster(stack, "one", 1, OWNER)
    claim(stack, "own", OWNER)
    claim(stack, "lent", BORROWER)
    refused = "ResourceQuota few allows nvidia.com/gpu 8"
    assert refused in until_cluster(stack, "one", "FAILED").status.lifecycle_detail
    stack.until(lambda: refused in stack.until_waiting("own").message, "the claim has the condition")
    assert any(refused in str(row) for row in explained(stack, "own"))
    stack.passes()
    assert not stack.aws.instances()
    allows(16)
    until_cluster(stack, "one", "ACTIVE")
    stack.until_launched("own")
    allows(8)
    assert refused in until_cluster(stack, "one", "UPDATING").status.lifecycle_detail
    assert len(stack.aws.instances()) == 2 and not terminating_claims(stack)


@pytest.mark.covers("FLT-30")
def test_gang_of_one_zone_borrows_slots_of_one_zone(stack: Stack) -> None:
    tags = [{"Key": names.TAG_RESERVATION, "Value": OWNER}]
    specifications = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    alone, together = (
        stack.aws.odcr(P5, zone, count, TagSpecifications=specifications) for zone, count in ((A, 1), (B, 2))
    )
    teams(stack, 3)
    stack.node_class(group=stack.aws.group(alone, together))
    stack.start()
    gang = {names.GANG_SIZE: "2", names.GANG_DOMAIN: names.ZONE}
    lent = [claim(stack, f"r-{n}", BORROWER, also={names.GANG: "research", **gang}) for n in range(2)]
    stack.until_launched(*lent)
    assert (stack.aws.free(alone), stack.aws.free(together)) == (1, 0)


@pytest.mark.covers("FLT-22", "FLT-30")
@pytest.mark.parametrize(
    ("domain", "kinds"),
    [("", (RESERVED,)), (names.ZONE, (RESERVED,)), (names.ZONE, (RESERVED, ON_DEMAND))],
    ids=["anywhere", "zone", "zone-with-fallback"],
)
def test_gang_of_the_owner_gets_all_its_lent_slots_back(
    stack: Stack, domain: str, kinds: tuple[str, ...]
) -> None:
    odcr = lending(stack, 2)
    for name in ("b-0", "b-1"):
        claim(stack, name, BORROWER)
    stack.until_ready("b-0", "b-1")
    stack.until_shown("b-0", "b-1")
    gang = {names.GANG: "training", names.GANG_SIZE: "2", **({names.GANG_DOMAIN: domain} if domain else {})}
    owners = [claim(stack, f"o-{n}", OWNER, *kinds, also=gang) for n in range(2)]
    stack.until_ready(*owners)
    assert [stack.reservation_of(name) for name in owners] == [odcr, odcr]
    stack.until_gone(NodeClaim, "b-0")
    stack.until_gone(NodeClaim, "b-1")
