"""Return to reservations: a claim outside reservations moves into a slot that stays idle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import is_true
from broker.oncall.metrics import REGISTRY
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, gone, hashed, later, node, replacement, run

BOTH = (RESERVED, ON_DEMAND)
ASK = {names.RETURN_TO_RESERVATIONS: "true"}
FORBID = {names.RETURN_TO_RESERVATIONS: "false"}
# Of pods that share no node, so that none of them fits where another is.
TERM = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": "kubernetes.io/hostname"}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
APART: dict[str, Any] = {"labels": {"app": "apart"}, "affinity": {"podAntiAffinity": REQUIRED}}


def full(stack: Stack, *, slots: int = 1, return_enabled: bool = True, **disruption: Any) -> str:
    """A full reservation, a pool that uses it, and claim `low` beside it with a pod. Returns the ODCR."""
    odcr = stack.aws.odcr(count=slots)
    stack.node_class("web", id_=odcr, zones=(A,))
    stack.node_pool("web", node_class="web")
    block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}], **disruption}
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large", "m5.xlarge", "m5.2xlarge"]}
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*BOTH]}
    stack.edit(
        NodePool,
        "web",
        {
            "spec": {"disruption": block, "template": {"spec": {"requirements": [kinds, types]}}},
            "metadata": {"annotations": ASK if return_enabled else FORBID},
        },
    )
    return odcr


def fallback(stack: Stack, name: str, **more: Any) -> str:
    """A Ready claim of the pool with a pod, which found no slot. Returns its Node's name."""
    stack.claim(name, **{"node_class": "web", "pool": "web", "capacity": BOTH, **more})
    stack.until_ready(name)
    stack.until_shown(name)
    node_name = stack.get(NodeClaim, name).status.node_name
    run(stack, f"app-{name}", node_name, **APART)
    return node_name


def holder(stack: Stack, odcr: str, *claims: str) -> None:
    """Claims of no pool that hold the slots."""
    for name in claims:
        stack.claim(name, node_class="web", capacity=(RESERVED,))
        stack.until_ready(name)
        assert stack.reservation_of(name) == odcr


def disrupted() -> float:
    labels = {"reason": "ReturnToReservation", "nodepool": "web"}
    return REGISTRY.get_sample_value("capacity_broker_claims_disrupted_total", labels) or 0.0


def until_replaced(stack: Stack, name: str) -> NodeClaim:
    replaced_by = stack.until(lambda: replacement(stack, name), f"{name} is being replaced", step=STEP)
    assert replaced_by is not None
    return replaced_by


@pytest.mark.covers("FLT-10", "FUL-40")
@pytest.mark.parametrize(("minutes", "moves"), [(1440, True), (80, False)])
def test_node_of_a_block_that_drains_within_the_hour_gets_no_pods_and_is_not_replaced(
    stack: Stack, minutes: int, moves: bool
) -> None:
    full(stack)
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large", "p5.48xlarge"]}
    block = stack.aws.capacity_block(ends=timedelta(minutes=minutes))
    stack.node_class("blocks", group=stack.aws.group(block), zones=(A,))
    reference = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "blocks"}
    template = {"spec": {"requirements": [types], "nodeClassRef": reference}}
    stack.edit(NodePool, "web", {"spec": {"template": template}})
    stack.start()
    node(stack, "big", "gpu", node_class="blocks", types=("p5.48xlarge",), capacity=(RESERVED,))
    node(stack, "small", "app", node_class="blocks")
    assert stack.reservation_of("big") == block
    if moves:
        gone(stack, "small")
    else:
        later(stack, 180)
        assert not stack.get(NodeClaim, "small").deleting
    hashed(stack, "big")
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": {"expireAfter": "100h"}}}})
    if moves:
        until_replaced(stack, "big")
    else:
        later(stack, 120)
        assert not stack.get(NodeClaim, "big").deleting
        stack.until_event(
            "big", "DisruptionBlocked", text=f"Cannot replace it: {block} drains within an hour"
        )


@pytest.mark.covers("KRP-36", "FLT-10")
@pytest.mark.parametrize(("minutes", "moves"), [(1440, True), (80, False)])
def test_claim_moves_into_no_capacity_block_that_drains_within_the_hour(
    stack: Stack, minutes: int, moves: bool
) -> None:
    odcr = full(stack)
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]}
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": {"requirements": [types]}}}})
    stack.node_class("blocks", group=stack.aws.group(odcr), zones=(A,))
    reference = {"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "blocks"}}
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": reference}}})
    stack.start()
    fallback(stack, "low", node_class="blocks", types=("p5.48xlarge",))
    block = stack.aws.capacity_block(ends=timedelta(minutes=minutes))
    stack.aws.join("team", block)
    if moves:
        stack.until_launched(new := until_replaced(stack, "low").name)
        assert stack.reservation_of(new) == block
    else:
        later(stack, 180)
        assert replacement(stack, "low") is None


@pytest.mark.covers("KRP-36", "FLT-10")
def test_claim_moves_into_no_slot_of_a_reservation_that_ends_within_the_hour(stack: Stack) -> None:
    odcr = full(stack)
    stack.start()
    holder(stack, odcr, "first")
    fallback(stack, "low")
    end = stack.clock.now().replace(microsecond=0) + timedelta(minutes=30)
    modify = partial(stack.aws.ec2.modify_capacity_reservation, CapacityReservationId=odcr)
    modify(EndDateType="limited", EndDate=end)
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    later(stack, 180)
    assert replacement(stack, "low") is None
    modify(EndDateType="unlimited")
    stack.until_launched(new := until_replaced(stack, "low").name)
    assert stack.reservation_of(new) == odcr


@pytest.mark.covers("KRP-36")
@pytest.mark.both_servers
def test_claim_moves_into_an_idle_slot_once_its_new_node_is_ready(stack: Stack) -> None:
    odcr = full(stack)
    stack.start()
    holder(stack, odcr, "first")
    old = fallback(stack, "low")
    assert not stack.reservation_of("low")
    later(stack, 60)
    assert replacement(stack, "low") is None  # no slot is idle
    before = disrupted()
    stack.kubelets.stop()
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    new = until_replaced(stack, "low")
    stack.until_launched(new.name)
    later(stack, 30)
    # Not Ready yet: the old node keeps its pods.
    assert not stack.get(NodeClaim, "low").deleting
    assert stack.find(Pod, "app-low", namespace="default") is not None
    why = stack.claim_condition("low", names.DISRUPTION_REASON)
    assert why is not None and (why.status, why.reason) == ("True", "Underutilized")
    assert odcr in why.message and "saves $0.0960 an hour" in why.message
    stack.until_event("low", "ReturnToReservation", text="saves $0.0960 an hour")
    assert names.DISRUPTED_TAINT in {taint.key for taint in stack.get(Node, old).spec.taints}
    stack.kubelets_again()
    gone(stack, "low")
    stack.until_event("low", "DisruptionTerminating", text="ReturnToReservation")
    assert stack.reservation_of(new.name) == odcr
    assert is_true(stack.get(NodeClaim, new.name), names.READY)
    assert disrupted() == before + 1
    assert len(stack.aws.instances()) == 1


def test_nothing_moves_if_the_pool_forbids_it(stack: Stack) -> None:
    odcr = full(stack, return_enabled=False)
    stack.start()
    holder(stack, odcr, "first")
    fallback(stack, "low")
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    later(stack, 150)
    assert replacement(stack, "low") is None
    # A policy that keeps nodes with pods keeps this one, and the pool reports it.
    block = {"consolidationPolicy": "WhenEmpty"}
    stack.edit(NodePool, "web", {"spec": {"disruption": block}, "metadata": {"annotations": ASK}})
    stack.until_event("web", "DisruptionBlocked", kind="NodePool", text="WhenEmpty")
    later(stack, 60)
    assert replacement(stack, "low") is None


@pytest.mark.covers("KRP-36", "FLT-70")
@pytest.mark.parametrize("held_by", ["budget", "pod", "pdb"])
def test_budgets_and_pods_hold_up_a_return(stack: Stack, held_by: str) -> None:
    """A grace period does not bound it: no one needs the move."""
    none: dict[str, Any] = {"budgets": [{"nodes": "0", "reasons": ["Underutilized"]}]}
    odcr = full(stack, **(none if held_by == "budget" else {}))
    stack.start()
    holder(stack, odcr, "first")
    fallback(stack, "low", terminationGracePeriod="1h")
    if held_by == "pod":
        body = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
        stack.client.patch(Pod.KIND, "app-low", body, namespace="default")
    if held_by == "pdb":
        labels = {"metadata": {"labels": {"app": "db"}}}
        stack.client.patch(Pod.KIND, "app-low", labels, namespace="default")
        stack.budget("db", app="db", allowed=0)
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    later(stack, 150)
    assert replacement(stack, "low") is None
    assert not stack.get(NodeClaim, "low").deleting


@pytest.mark.covers("FLT-70")
def test_pods_hold_up_the_end_of_a_return_that_has_begun(stack: Stack) -> None:
    odcr = full(stack)
    stack.start()
    holder(stack, odcr, "first")
    fallback(stack, "low", terminationGracePeriod="1h")
    labels = {"metadata": {"labels": {"app": "db"}}}
    stack.client.patch(Pod.KIND, "app-low", labels, namespace="default")
    stack.kubelets.stop()
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    new = until_replaced(stack, "low")
    stack.until_launched(new.name)
    stack.budget("db", app="db", allowed=0)
    stack.kubelets_again()
    stack.until(lambda: stack.is_true(new.name, names.INITIALIZED_CONDITION), "its node came", step=STEP)
    later(stack, 30)
    assert not stack.get(NodeClaim, "low").deleting
    stack.until_event("low", "DisruptionBlocked", text="Pdb prevents pod evictions")


@pytest.mark.covers("KRP-36")
def test_the_dearest_claim_moves_and_a_gang_moves_whole(stack: Stack) -> None:
    odcr = full(stack, slots=2, budgets=[{"nodes": "0"}])
    stack.start()
    holder(stack, odcr, "first", "second")
    fallback(stack, "low")
    fallback(stack, "dear", types=("m5.2xlarge",))
    gang = {names.GANG: "train", names.GANG_SIZE: "2"}
    for name in ("g-0", "g-1"):
        stack.claim(name, node_class="web", pool="web", capacity=BOTH, types=("m5.xlarge",), annotations=gang)
    stack.until_ready("g-0", "g-1")
    stack.until_shown("g-0", "g-1")
    for name in ("g-0", "g-1"):
        run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name, **APART)
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    stack.edit(NodePool, "web", {"spec": {"disruption": {"budgets": [{"nodes": "100%"}]}}})
    # One slot: the dearest single claim takes it, since half of the gang may not.
    new = until_replaced(stack, "dear")
    gone(stack, "dear")
    assert stack.reservation_of(new.name) == odcr
    later(stack, 30)
    assert replacement(stack, "g-0") is None and replacement(stack, "low") is None
    # Two slots: the gang moves, both of it.
    stack.delete(NodeClaim, new.name)
    stack.delete(NodeClaim, "second")
    stack.until_gone(NodeClaim, new.name)
    stack.until_gone(NodeClaim, "second")
    moved = [until_replaced(stack, name) for name in ("g-0", "g-1")]
    gone(stack, "g-0", "g-1")
    assert [stack.reservation_of(claim.name) for claim in moved] == [odcr, odcr]
    assert not stack.get(NodeClaim, "low").deleting


def test_claim_of_a_pool_over_its_limits_leaves_the_slot_to_others(stack: Stack) -> None:
    odcr = full(stack)
    stack.node_pool("cheap", node_class="web")
    block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    stack.edit(NodePool, "cheap", {"spec": {"disruption": block}, "metadata": {"annotations": ASK}})
    stack.start()
    holder(stack, odcr, "first")
    fallback(stack, "dear", types=("m5.xlarge",))
    fallback(stack, "low", pool="cheap")
    stack.edit(NodePool, "web", {"spec": {"limits": {"cpu": "0"}}})
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    new = until_replaced(stack, "low")
    gone(stack, "low")
    assert stack.reservation_of(new.name) == odcr
    stack.until_event(
        "dear", "DisruptionBlocked", text="a replacement would exceed the limits of NodePool web"
    )


@pytest.mark.covers("KRP-36")
def test_no_claim_moves_into_a_slot_that_is_held_for_the_rest_of_a_gang(stack: Stack) -> None:
    odcr = full(stack, slots=3)
    first, second = stack.aws.rival(odcr, 2)
    stack.start(gang_hold_seconds=3600.0)
    gang = {names.GANG: "train", names.GANG_SIZE: "1"}
    stack.claim("g-0", node_class="web", capacity=(RESERVED,), annotations=gang)
    stack.until_ready("g-0")
    gang[names.GANG_SIZE] = "3"
    stack.edit(NodeClaim, "g-0", {"metadata": {"annotations": gang}})
    fallback(stack, "low")
    for name in ("g-1", "g-2"):
        stack.claim(name, node_class="web", capacity=(RESERVED,), annotations=gang)
    stack.until_waiting("g-2")
    stack.aws.ec2.terminate_instances(InstanceIds=[first])
    later(stack, 150)
    assert "are held until" in stack.until_waiting("g-1", "GangIncomplete").message
    assert replacement(stack, "low") is None
    stack.aws.ec2.terminate_instances(InstanceIds=[second])
    stack.until_launched("g-1", "g-2")
    assert replacement(stack, "low") is None


@pytest.mark.covers("KRP-36")
def test_failed_replacement_is_undone_and_not_repeated_at_once(stack: Stack) -> None:
    odcr = full(stack)
    stack.start()
    holder(stack, odcr, "first")
    old = fallback(stack, "low")
    stack.kubelets.stop()
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    new = until_replaced(stack, "low")
    stack.until_launched(new.name)
    # Its node never joins.
    stack.until(lambda: stack.find(NodeClaim, new.name) is None, "given up", step=10.0)
    stack.until_event("low", "DisruptionFailed", text="not ready within")
    claim = stack.get(NodeClaim, "low")
    assert not claim.deleting
    assert names.DISRUPTED_TAINT not in {taint.key for taint in stack.get(Node, old).spec.taints}
    launches = stack.calls("CreateFleet")
    later(stack, 120)
    assert replacement(stack, "low") is None
    assert stack.calls("CreateFleet") == launches


def _created(stack: Stack) -> bool:
    return replacement(stack, "low") is not None


def _tainted(stack: Stack) -> bool:
    nodes = stack.all(Node)
    return any(t.key == names.DISRUPTED_TAINT for node in nodes for t in node.spec.taints)


def _launched(stack: Stack) -> bool:
    new = replacement(stack, "low")
    return new is not None and is_true(new, names.LAUNCHED)


def _ending(stack: Stack) -> bool:
    old = stack.find(NodeClaim, "low")
    return old is None or old.deleting


@pytest.mark.covers("KRP-36")
@pytest.mark.parametrize("step", [_created, _tainted, _launched, _ending], ids=lambda step: step.__name__[1:])
def test_a_move_survives_a_kill_at_each_step(stack: Stack, step: Callable[[Stack], bool]) -> None:
    odcr = full(stack)
    stack.start()
    holder(stack, odcr, "first")
    fallback(stack, "low")
    stack.delete(NodeClaim, "first")
    stack.until_gone(NodeClaim, "first")
    stack.until(lambda: step(stack), f"step {step.__name__}", step=STEP)
    stack.stop()
    stack.start()
    gone(stack, "low")
    (left,) = stack.all(NodeClaim)
    assert left.annotations[names.REPLACES].startswith("low/")
    stack.until_ready(left.name)
    assert stack.reservation_of(left.name) == odcr
    assert len(stack.aws.instances()) == 1


@pytest.mark.covers("KRP-36")
def test_the_rest_of_a_move_that_lost_an_old_claim_stays_if_its_new_node_is_late(stack: Stack) -> None:
    odcr = full(stack, slots=2)
    stack.start()
    holder(stack, odcr, "first", "second")
    gang = {names.GANG: "train", names.GANG_SIZE: "2"}
    for name in ("g-0", "g-1"):
        stack.claim(name, node_class="web", pool="web", capacity=BOTH, annotations=gang)
    stack.until_ready("g-0", "g-1")
    for name in ("g-0", "g-1"):
        run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name)
    stack.kubelets.stop()
    for name in ("first", "second"):
        stack.delete(NodeClaim, name)
        stack.until_gone(NodeClaim, name)
    new = [until_replaced(stack, name).name for name in ("g-0", "g-1")]
    stack.until_launched(*new)
    stack.delete(NodeClaim, "g-0")  # by its user: the move can only be completed now
    stack.until(lambda: stack.find(NodeClaim, new[1]) is None, "given up", step=10.0)
    stack.until_event("g-1", "DisruptionFailed", text="not ready within")
    old = stack.get(NodeClaim, "g-1")
    assert not old.deleting
    taints = {taint.key for taint in stack.get(Node, old.status.node_name).spec.taints}
    assert names.DISRUPTED_TAINT not in taints


@pytest.mark.covers("FLT-10")
def test_pods_move_to_reserved_nodes_that_became_empty_before_these_end(stack: Stack) -> None:
    """Scale-in deletes the pods of two reserved nodes, and keeps those of two nodes beside them."""
    full(stack, slots=2)
    stack.start()
    for name in ("first", "second"):
        stack.claim(name, node_class="web", pool="web", capacity=(RESERVED,))
        stack.until_ready(name)
        run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name, cpu="1500m")
    for name in ("low", "lower"):
        run(stack, f"large-{name}", fallback(stack, name), cpu="1")  # beside a pod of 500m
    later(stack, 40)
    assert not any(stack.get(NodeClaim, name).deleting for name in ("low", "lower"))
    before, launches = disrupted(), stack.calls("CreateFleet")
    for name in ("app-first", "app-second"):
        stack.delete(Pod, name, namespace="default")
    for name, host in (("low", "first"), ("lower", "second")):
        ending = stack.until(
            lambda n=name: (c := stack.find(NodeClaim, n)) is None or c.deleting,  # type: ignore[misc]
            f"{name} ends",
            step=STEP,
        )
        assert ending and not replacement(stack, name)
        moves = f"large-{name}"
        stack.until(lambda pod=moves: stack.find(Pod, pod, namespace="default") is None, moves, step=STEP)  # type: ignore[misc]
        run(
            stack, f"moved-{host}", stack.get(NodeClaim, host).status.node_name
        )  # as a ReplicaSet's pod would
    gone(stack, "low", "lower")
    later(stack, 120)
    assert disrupted() == before + 2
    assert stack.calls("CreateFleet") == launches  # no slot was emptied and filled again
    assert all(not stack.get(NodeClaim, name).deleting for name in ("first", "second"))
