"""Static NodePools: a fixed number of nodes, and as many as usable slots, beside all claims that wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.policy import PodDisruptionBudget
from broker.apis.static_pools import REPLICAS_MET
from broker.apis.workloads import DaemonSet
from broker.controllers.disruption.candidates import PODS_ARRIVE_WITHIN
from broker.controllers.staticpools.controller import SCALED_IN
from broker.kube.client import Request
from broker.oncall.pod_reports import FAILED
from broker.text import format_time
from providers.aws.groups import AwsGroups
from providers.model import ReservationGroup
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_daemon_sets import daemon_set
from tests.cluster.test_disruption import STEP, run
from tests.cluster.test_full_reservation import drift
from tests.cluster.test_provisioning import bound, pods
from tests.cluster.test_repair import GPU, XID79, sign
from tests.cluster.test_waiting_pods import explained

SCALE = "/apis/karpenter.sh/v1/nodepools/web/scale"
FOLLOWS = {names.REPLICAS: "all-reserved"}


def static_pool(
    stack: Stack,
    count: int | None = None,
    *,
    kinds: tuple[str, ...] = (RESERVED,),
    annotations: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    types: tuple[str, ...] = ("m5.large",),
    template: Mapping[str, str] | None = None,
    **reservation: Any,
) -> None:
    """A pool `web` of its class, with nodes that never go by themselves."""
    if reservation:
        stack.node_class("web", zones=(A,), **reservation)
    body = objects.node_pool("web", node_class="web")
    body["metadata"]["annotations"] = {**(annotations or {})}
    spec = body["spec"]
    spec["disruption"] = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    spec["template"]["metadata"] = {"annotations": {**(template or {})}}
    spec["template"]["spec"]["requirements"] = [
        {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*kinds]},
        {"key": names.INSTANCE_TYPE, "operator": "In", "values": [*types]},
    ]
    spec |= {"replicas": count} if count is not None else {}
    spec |= {"limits": {**limits}} if limits else {}
    stack.client.create(NodePool.KIND, body)


def own(stack: Stack) -> list[NodeClaim]:
    """The pool's claims that do not end."""
    claims = stack.all(NodeClaim)
    return [claim for claim in claims if claim.labels.get(names.NODEPOOL) == "web" and not claim.deleting]


def settled(stack: Stack, count: int) -> list[str]:
    """The reservation of each node, once the pool has so many that are Ready and no other claim."""

    def ready() -> bool:
        every = [claim for claim in stack.all(NodeClaim) if claim.labels.get(names.NODEPOOL) == "web"]
        shown = [claim for claim in every if claim.labels.get(names.CAPACITY_TYPE)]
        return len(every) == len(shown) == count and all(stack.is_true(c.name, names.READY) for c in every)

    stack.until(ready, f"{count} nodes", step=STEP)
    return sorted(stack.reservation_of(claim.name) for claim in own(stack))


def launched(stack: Stack) -> int:
    """The instances that were asked for so far, without launches that are only tried."""
    fleets = (fleet for fleet in stack.aws.fleets() if str(fleet.get("DryRun")).lower() != "true")
    return sum(int(fleet["TargetCapacitySpecification"]["TotalTargetCapacity"]) for fleet in fleets)


def scale(stack: Stack, count: int) -> None:
    stack.client.patch(NodePool.KIND, "web", {"spec": {"replicas": count}}, subresource="scale")


def resize(stack: Stack, odcr: str, **change: Any) -> None:
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, **change)


def met(stack: Stack, status: str, text: str = "") -> None:
    def shown() -> bool:
        current = stack.condition(NodePool, "web", REPLICAS_MET)
        return current is not None and current.status == status and text in current.message

    stack.until(shown, f"{REPLICAS_MET} is {status} with {text!r}", step=1.0)


def quiet(stack: Stack, seconds: float = 120) -> None:
    """Lets time pass in which nothing may change."""
    for _ in range(int(seconds // STEP)):
        stack.advance(STEP)
        stack.passes(1)


@pytest.mark.covers("FUL-30")
def test_a_pool_of_three_fills_a_reservation_and_scales_by_the_subresource(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, 3, kinds=(RESERVED, ON_DEMAND), id_=odcr)
    stack.start()
    assert settled(stack, 3) == [odcr] * 3
    met(stack, "True", "spec.replicas is 3: 3 of 3 nodes")
    stack.until(lambda: stack.client.raw("GET", SCALE)["status"]["replicas"] == 3, "status.nodes", step=STEP)
    quiet(stack)  # empty nodes stay
    assert launched(stack) == 3

    scale(stack, 5)
    assert settled(stack, 5) == ["", "", odcr, odcr, odcr]
    stack.until(lambda: stack.client.raw("GET", SCALE)["status"]["replicas"] == 5, "status.nodes", step=STEP)
    bought = [claim.name for claim in own(stack) if not stack.reservation_of(claim.name)]

    scale(stack, 3)
    assert settled(stack, 3) == [odcr] * 3  # bought nodes end first
    stack.until_event(bought[0], SCALED_IN, text="has 5 nodes, and spec.replicas is 3")
    assert stack.aws.free(odcr) == 0 and launched(stack) == 5

    scale(stack, 0)
    assert settled(stack, 0) == []
    met(stack, "True", "spec.replicas is 0: 0 of 0 nodes")


@pytest.mark.covers("FUL-30")
def test_nodes_with_pods_end_last(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, 3, id_=odcr)
    stack.start()
    settled(stack, 3)
    _, second, third = own(stack)
    run(stack, "kept", second.status.node_name)
    stack.edit(NodeClaim, third.name, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}})
    run(stack, "also", third.status.node_name)
    scale(stack, 2)
    settled(stack, 2)
    assert {claim.name for claim in own(stack)} == {second.name, third.name}
    scale(stack, 1)
    settled(stack, 1)
    assert [claim.name for claim in own(stack)] == [third.name]


@pytest.mark.covers("FUL-30", "FUL-32")
def test_no_claim_is_made_beyond_the_slots_of_a_reserved_pool(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 4, id_=odcr)
    stack.start()
    assert settled(stack, 2) == [odcr] * 2
    met(stack, "False", "2 of 4 nodes")
    assert len(own(stack)) == 2
    resize(stack, odcr, InstanceCount=4)
    assert settled(stack, 4) == [odcr] * 4
    met(stack, "True")


@pytest.mark.covers("FUL-30")
def test_limits_bound_the_nodes_also_those_that_end(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=4)
    static_pool(stack, 4, limits={"nodes": "2"}, id_=odcr)
    stack.start()
    assert settled(stack, 2) == [odcr] * 2
    met(stack, "False", "spec.limits.nodes is 2, and 2 nodes exist")
    stack.edit(NodePool, "web", {"spec": {"limits": {"nodes": "3"}}})
    assert settled(stack, 3) == [odcr] * 3


@pytest.mark.covers("FUL-30")
def test_a_pool_that_is_not_ready_gets_no_node_and_gives_nodes_up(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 2)
    stack.start()
    met(stack, "False", "the pool is not Ready")
    assert not own(stack)
    stack.node_class("web", zones=(A,), id_=odcr)
    assert settled(stack, 2) == [odcr] * 2
    stack.edit(EC2NodeClass, "web", {"spec": {"amiSelectorTerms": [{"id": "ami-00000000000000000"}]}})
    stack.until(
        lambda: (c := stack.condition(NodePool, "web", names.READY)) and c.status == "False",
        "it is not Ready",
        step=STEP,
    )
    scale(stack, 1)
    assert settled(stack, 1) == [odcr]


@pytest.mark.covers("FUL-30", "FUL-04")
@pytest.mark.parametrize("kinds", [(RESERVED,), (RESERVED, ON_DEMAND)], ids=["reserved", "with-fallback"])
def test_the_slot_of_a_deleted_node_is_kept_for_its_successor(stack: Stack, kinds: tuple[str, ...]) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 2, kinds=kinds, limits={"nodes": "2"}, id_=odcr)
    stack.start()
    settled(stack, 2)
    rival = stack.claim("rival", node_class="web", priority="1000")
    stack.until_waiting(rival, "AllReservationsFull")
    old = own(stack)[0].name
    stack.delete(NodeClaim, old)
    stack.until(lambda: stack.find(NodeClaim, old) is None, "it ends", step=STEP)
    assert settled(stack, 2) == [odcr] * 2
    assert not stack.get(NodeClaim, rival).status.provider_id
    assert launched(stack) == 3


@pytest.mark.covers("FLT-61", "FUL-30")
def test_a_successor_is_not_launched_beside_its_node_if_that_is_beyond_the_limit(stack: Stack) -> None:
    """A person deletes one, whose pod may not be evicted yet, beside a free slot."""
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, 2, limits={"nodes": "2"}, id_=odcr)
    stack.start()
    settled(stack, 2)
    old = own(stack)[0]
    run(stack, "app", old.status.node_name, labels={"app": "app"})
    stack.budget("app", app="app")
    stack.delete(NodeClaim, old.name)
    stack.until(lambda: old.name not in {claim.name for claim in own(stack)}, "it ends")
    quiet(stack)
    assert stack.aws.free(odcr) == 1 and launched(stack) == 2
    met(stack, "False", "spec.limits.nodes is 2, and 2 nodes exist")
    stack.client.delete(PodDisruptionBudget.KIND, "app", namespace="default")
    stack.until(lambda: stack.find(NodeClaim, old.name) is None, "it is gone", step=STEP)
    assert settled(stack, 2) == [odcr] * 2 and launched(stack) == 3


@pytest.mark.covers("FUL-30", "FUL-01")
def test_drifted_nodes_are_replaced_one_for_one(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 2, id_=odcr)
    stack.start()
    settled(stack, 2)
    before = {claim.name for claim in own(stack)}
    drift(stack, *before)

    def replaced() -> bool:
        return len(own(stack)) == 2 and before.isdisjoint(claim.name for claim in own(stack))

    stack.until(replaced, "both are replaced", step=STEP)
    assert settled(stack, 2) == [odcr] * 2
    assert launched(stack) == 4


@pytest.mark.covers("FUL-30", "FUL-01")
@pytest.mark.parametrize("pods", [0, 1], ids=["empty", "with-pods"])
def test_rollout_waits_for_pods_only_where_the_old_node_had_some(stack: Stack, pods: int) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 2, id_=odcr)
    stack.start()
    settled(stack, 2)
    for number, claim in enumerate(own(stack)[: 2 * pods]):
        run(stack, f"app-{number}", claim.status.node_name)
    before = {claim.name for claim in own(stack)}
    began = stack.clock.now()
    drift(stack, *before)
    stack.until(lambda: before.isdisjoint(claim.name for claim in own(stack)), "both end", step=STEP)
    assert (stack.clock.now() - began < PODS_ARRIVE_WITHIN) is (not pods)
    assert settled(stack, 2) == [odcr] * 2 and launched(stack) == 4


@pytest.mark.covers("FUL-20", "FUL-30")
@pytest.mark.parametrize("slots", [0, 3], ids=["outside", "free-slot"])
def test_broken_node_of_a_pool_at_its_limit_ends_and_is_replaced_once_it_is_gone(
    stack: Stack, slots: int
) -> None:
    """Nothing may run beside it, and its slot, if it has one, is not the only one."""
    where: dict[str, Any] = {"id_": stack.aws.odcr(count=slots)} if slots else {"preference": "none"}
    kinds = (RESERVED,) if slots else (ON_DEMAND,)
    static_pool(stack, 2, kinds=kinds, limits={"nodes": "2"}, **where)
    stack.start()
    settled(stack, 2)
    broken = own(stack)[0].uid
    for claim in own(stack):
        run(stack, f"app-{claim.name}", claim.status.node_name)
    stack.control.impair(own(stack)[0].instance_id, "system")
    stack.until(lambda: broken not in {claim.uid for claim in stack.all(NodeClaim)}, "it is gone", step=STEP)
    assert len(set(settled(stack, 2))) == 1 and launched(stack) == 3


@pytest.mark.covers("FUL-20", "FUL-30")
def test_node_with_a_broken_accelerator_ends_also_at_the_limit_of_its_pool(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, 2, limits={"nodes": "2"}, id_=odcr)
    stack.start()
    settled(stack, 2)
    broken = own(stack)[0].uid
    for claim in own(stack):
        run(stack, f"app-{claim.name}", claim.status.node_name)
    sign(stack, own(stack)[0].name, GPU, reason=XID79, age=3600)
    stack.until(lambda: broken not in {claim.uid for claim in stack.all(NodeClaim)}, "it is gone", step=STEP)
    assert settled(stack, 2) == [odcr] * 2 and launched(stack) == 3


@pytest.mark.covers("FUL-30")
def test_pods_add_no_claim_to_a_static_pool(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, 1, id_=odcr)
    stack.start()
    settled(stack, 1)
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1500m"}}}
    run(stack, "full", own(stack)[0].status.node_name, cpu="1500m")
    stack.pod("more", containers=[container])
    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [pending]}
    stack.client.patch(Pod.KIND, "more", {"status": status}, namespace="default", subresource="status")
    stack.until_event("more", FAILED, kind="Pod", text="its number of nodes is its own: spec.replicas is 1")
    assert len(own(stack)) == 1


@pytest.mark.covers("FUL-30", "FUL-32")
def test_a_broker_that_is_killed_between_two_creations_makes_no_claim_twice(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, 3, kinds=(RESERVED, ON_DEMAND), id_=odcr)

    def creates(request: Request) -> bool:
        return request.method == "POST" and request.path.endswith("/nodeclaims")

    stack.tap.on(creates, lambda _: None, times=1)
    stack.tap.lose(creates)
    stack.start()
    stack.until(lambda: stack.tap.lost, "the second creation is lost", step=STEP)
    stack.stop()
    assert len(own(stack)) == 1
    stack.tap.heal()
    stack.start()
    assert settled(stack, 3) == [odcr] * 3
    quiet(stack)
    assert launched(stack) == 3


@pytest.mark.covers("FUL-32")
def test_a_claim_that_waits_gets_its_slot_before_a_static_pool(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 2, id_=odcr, template={names.PRIORITY: "1000"})
    stack.claim("first", node_class="web")
    stack.start()
    stack.until_ready("first")
    assert settled(stack, 1) == [odcr]
    assert stack.reservation_of("first") == odcr
    met(stack, "False", "1 of 2 nodes")
    assert launched(stack) == 2


@pytest.mark.covers("FUL-32")
def test_two_replacements_of_one_pass_do_not_count_on_one_free_slot(stack: Stack) -> None:
    """Each of two full reservations is replaced by itself, and the only free slot suits both."""
    first, second, spare = (stack.aws.odcr(count=1) for _ in range(3))
    [occupant] = stack.aws.rival(spare)
    static_pool(stack, 2, group=stack.aws.group(first, second, spare))
    stack.start()
    assert settled(stack, 2) == sorted([first, second])
    before = {claim.name for claim in own(stack)}
    stack.aws.ec2.terminate_instances(InstanceIds=[occupant])
    stack.until(lambda: stack.aws.free(spare) == 1, "a free slot", step=1.0)
    drift(stack, *before)
    waited: set[str] = set()

    def free() -> int:
        return sum(stack.aws.free(odcr) for odcr in (first, second, spare))

    def replaced() -> bool:
        earlier, claims = free(), own(stack)
        waiting = [claim for claim in claims if claim.waits and names.TAKES_SLOT not in claim.annotations]
        shown = sum(not claim.waits and claim.name not in before for claim in claims)
        # A claim that EC2 has just launched shows it a moment later, and its slot is not free any more.
        unlaunched = len(waiting) - (launched(stack) - len(before) - shown)
        if unlaunched > max(earlier, free()):
            waited.update(claim.name for claim in waiting)
        return len(claims) == 2 and before.isdisjoint(claim.name for claim in claims)

    stack.until(replaced, "both are replaced", step=STEP)
    assert not waited
    assert "" not in settled(stack, 2)
    assert launched(stack) == 4


# ---- following pools


@pytest.mark.covers("FUL-31")
@pytest.mark.parametrize("kinds", [(RESERVED,), (RESERVED, ON_DEMAND)], ids=["reserved", "with-fallback"])
def test_a_following_pool_has_a_node_in_each_slot_of_a_resized_reservation(
    stack: Stack, kinds: tuple[str, ...]
) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, kinds=kinds, annotations=FOLLOWS, id_=odcr)
    stack.start()
    assert settled(stack, 2) == [odcr] * 2
    resize(stack, odcr, InstanceCount=4)
    assert settled(stack, 4) == [odcr] * 4
    resize(stack, odcr, InstanceCount=1)
    assert settled(stack, 1) == [odcr]
    assert stack.aws.free(odcr) == 0 and len(stack.aws.instances()) == 1
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    assert settled(stack, 0) == []


@pytest.mark.covers("FUL-31")
def test_a_following_pool_at_its_limit_counts_the_slots_that_it_may_not_fill(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, annotations=FOLLOWS, limits={"nodes": "1"}, id_=odcr)
    stack.start()
    assert settled(stack, 1) == [odcr]
    met(stack, "False", "1 of 3 nodes: spec.limits.nodes is 1, and 1 node exists")
    stack.edit(NodePool, "web", {"spec": {"limits": {"nodes": "3"}}})
    assert settled(stack, 3) == [odcr] * 3
    met(stack, "True", "3 of 3 nodes")


@pytest.mark.covers("FUL-31")
def test_a_following_pool_keeps_its_nodes_as_long_as_none_could_be_launched(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, annotations=FOLLOWS, id_=odcr)
    stack.start()
    assert settled(stack, 2) == [odcr] * 2
    before, asked = {claim.name for claim in own(stack)}, launched(stack)
    daemon_set(stack, resources={"requests": {"cpu": "200"}})
    quiet(stack)
    resize(stack, odcr, InstanceCount=3)
    quiet(stack)
    assert {claim.name for claim in own(stack)} == before  # no node is made, and none ends
    stack.delete(DaemonSet, "d", namespace="default")
    assert settled(stack, 3) == [odcr] * 3
    assert before < {claim.name for claim in own(stack)} and launched(stack) == asked + 1


@pytest.mark.covers("FUL-31")
def test_a_following_pool_leaves_a_reservation_before_its_end(stack: Stack) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    short = stack.aws.odcr(count=1, EndDateType="limited", EndDate=end)
    long = stack.aws.odcr(count=1)
    static_pool(stack, annotations=FOLLOWS, group=stack.aws.group(short, long))
    stack.start()
    assert settled(stack, 2) == sorted([short, long])
    (leaving,) = [claim.name for claim in own(stack) if stack.reservation_of(claim.name) == short]
    stack.advance((end - stack.clock.now()).total_seconds() - 9 * 60)
    assert settled(stack, 1) == [long]
    stack.until_event(leaving, SCALED_IN, text=f"leaves {short}, which ends at {format_time(end)}")
    assert stack.aws.reservation(short)["State"] == "active"
    quiet(stack, 60)
    assert len(own(stack)) == 1


@pytest.mark.covers("FUL-31", "FLT-35")
def test_a_pod_of_a_following_pool_without_slots_is_told_which_reservation_ended(stack: Stack) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    odcr = stack.aws.odcr(count=1, EndDateType="limited", EndDate=end)
    static_pool(stack, annotations=FOLLOWS, id_=odcr)
    stack.start()
    assert settled(stack, 1) == [odcr]
    stack.advance((end - stack.clock.now()).total_seconds() - 9 * 60)
    assert settled(stack, 0) == []
    ends = f"0 of 0 nodes: reservation {odcr} ends at {format_time(end)}"
    met(stack, "True", ends)
    pods(stack, 1, "late")
    stack.until_event("late-0", FAILED, kind="Pod", text=ends)


@pytest.mark.covers("FUL-31", "FUL-01")
def test_a_node_of_a_following_pool_is_replaced_in_its_usable_slots_only(stack: Stack) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    short = stack.aws.odcr(count=1, EndDateType="limited", EndDate=end)
    long = stack.aws.odcr(count=1)
    static_pool(stack, annotations=FOLLOWS, group=stack.aws.group(short, long))
    stack.start()
    assert settled(stack, 2) == sorted([short, long])
    stack.advance((end - stack.clock.now()).total_seconds() - 9 * 60)
    assert settled(stack, 1) == [long]
    [before] = [claim.name for claim in own(stack)]
    drift(stack, before)
    stack.until(lambda: stack.find(NodeClaim, before) is None, "it is replaced", step=STEP)
    assert settled(stack, 1) == [long]
    assert launched(stack) == 3 and stack.aws.free(short) == 1


@pytest.mark.covers("FUL-31")
def test_one_odd_answer_of_ec2_ends_no_node(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, annotations=FOLLOWS, group=stack.aws.group(odcr))
    stack.start()
    assert settled(stack, 2) == [odcr] * 2
    before, odd = {claim.name for claim in own(stack)}, [True]
    read = AwsGroups.group

    def group(provider: AwsGroups, arn: str) -> ReservationGroup:
        known = read(provider, arn)
        return replace(known, member_ids=()) if odd and odd.pop() else known

    monkeypatch.setattr(AwsGroups, "group", group)
    stack.until(lambda: not odd, "the group is read without its member", step=STEP)
    quiet(stack)
    assert {claim.name for claim in own(stack)} == before and launched(stack) == 2


@pytest.mark.covers("FUL-30")
def test_claims_of_karpenter_in_a_pool_of_the_same_name_are_left_alone(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.claim("other", node_class="web", pool="web", group="karpenter.k8s.aws")
    static_pool(stack, 2, id_=odcr)
    stack.start()
    stack.until(lambda: len(own(stack)) == 3, "two claims are made beside it", step=STEP)
    scale(stack, 0)
    stack.until(lambda: [claim.name for claim in own(stack)] == ["other"], "they end", step=STEP)


@pytest.mark.covers("FUL-31")
def test_a_following_pool_has_the_nodes_of_a_block_while_it_runs(stack: Stack) -> None:
    block = stack.aws.capacity_block(
        state="scheduled", starts=timedelta(minutes=30), ends=timedelta(hours=25)
    )
    static_pool(stack, annotations=FOLLOWS, types=("p5.48xlarge",), id_=block)
    stack.start()
    met(stack, "True", "0 of 0 nodes")
    stack.advance(31 * 60)
    assert settled(stack, 1) == [block]
    left = stack.aws.reservation(block)["EndDate"] - stack.clock.now()
    stack.advance(left.total_seconds() - 39 * 60)
    assert settled(stack, 0) == []


@pytest.mark.covers("FUL-31")
def test_slots_of_another_owner_do_not_count(stack: Stack) -> None:
    tags = [{"Key": names.TAG_RESERVATION, "Value": "default/training"}]
    specification = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    free = stack.aws.odcr(count=1)
    foreign = stack.aws.odcr(count=2, TagSpecifications=specification)
    static_pool(stack, annotations=FOLLOWS, group=stack.aws.group(free, foreign))
    stack.start()
    assert settled(stack, 1) == [free]
    quiet(stack, 60)
    assert len(own(stack)) == 1 and stack.aws.free(foreign) == 2


@pytest.mark.covers("FUL-31")
def test_a_value_that_cannot_be_read_makes_and_ends_nothing(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, annotations=FOLLOWS, id_=odcr)
    stack.start()
    settled(stack, 2)
    stack.edit(NodePool, "web", {"metadata": {"annotations": {names.REPLICAS: "all-resrved"}}})

    def reported() -> bool:
        current = stack.condition(NodePool, "web", names.READY)
        return current is not None and (current.status, current.reason) == ("False", "InvalidReplicas")

    stack.until(reported, "it is reported", step=STEP)
    stack.until_event("web", "InvalidReplicas", kind="NodePool", text="write all-reserved, or remove it")
    resize(stack, odcr, InstanceCount=3)
    quiet(stack, 60)
    assert len(own(stack)) == 2 and stack.condition(NodePool, "web", REPLICAS_MET) is None
    stack.edit(NodePool, "web", {"metadata": {"annotations": FOLLOWS}})
    assert settled(stack, 3) == [odcr] * 3
    met(stack, "True", "3 of 3 nodes")
    stack.edit(NodePool, "web", {"metadata": {"annotations": {names.REPLICAS: None}}})
    stack.until(lambda: stack.condition(NodePool, "web", REPLICAS_MET) is None, "it is static no more")


@pytest.mark.covers("FUL-31")
def test_replicas_and_the_annotation_exclude_each_other(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    static_pool(stack, 1, annotations=FOLLOWS, id_=odcr)
    stack.start()
    stack.until_event("web", "InvalidReplicas", kind="NodePool", text="spec.replicas is 1: remove")
    assert not own(stack)


@pytest.mark.covers("FUL-31", "FUL-32")
def test_a_following_pool_leaves_the_slots_that_pods_were_promised(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, annotations=FOLLOWS, id_=odcr)
    stack.claim("first", node_class="web", capacity=(RESERVED,))
    stack.start()
    stack.until_ready("first")
    assert settled(stack, 2) == [odcr] * 2
    stack.delete(NodeClaim, "first")
    assert settled(stack, 3) == [odcr] * 3  # the slot is free again


@pytest.mark.covers("FUL-31")
def test_a_following_pool_shows_why_its_slots_are_idle(stack: Stack) -> None:
    static_pool(stack, annotations=FOLLOWS, id_=stack.aws.odcr(count=2))
    code = "InsufficientInstanceCapacity"
    match = {"AvailabilityZone": A}
    stack.control.fault(
        action="CreateFleet", stage="launch", code=code, message="none", match=match, times=-1
    )
    stack.start()

    def missing() -> bool:
        shown = stack.condition(NodePool, "web", "ReplicasMet")
        return shown is not None and shown.reason == "NodesMissing" and code in shown.message

    stack.until(missing, "the reason", step=STEP)
    stack.edit(EC2NodeClass, "web", {"spec": {"subnetSelectorTerms": [{"id": "subnet-0123456789abcdef0"}]}})

    def not_ready() -> bool:
        shown = stack.condition(NodePool, "web", "ReplicasMet")
        return shown is not None and "not Ready" in shown.message

    stack.until(not_ready, "the pool is not Ready", step=STEP)


def test_nodes_that_ec2_does_not_show_yet_keep_their_slots_when_a_pool_shrinks(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    static_pool(stack, kinds=(RESERVED, ON_DEMAND), id_=odcr, count=0)
    stack.start()
    stack.until_class("Launchable", "True", name="web")
    stack.advance(4000)
    stack.control.lag(3600)
    scale(stack, 6)
    stack.until(
        lambda: len(own(stack)) == 6 and all(stack.is_true(claim.name, names.READY) for claim in own(stack)),
        "six nodes",
        step=STEP,
    )
    assert not any(names.CAPACITY_TYPE in claim.labels for claim in own(stack))
    scale(stack, 3)
    stack.until(lambda: len(own(stack)) == 3, "three end", step=STEP)
    stack.control.lag(0)
    assert settled(stack, 3) == [odcr] * 3


@pytest.mark.covers("ONC-01")
def test_pod_of_a_static_pool_that_lacks_nodes_has_the_reason_why_they_are_missing(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large")
    static_pool(stack, 2, id_=odcr)
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    met(stack, "False", "1 of 2 nodes")
    waiting = pods(stack, 2, cpu="1500m")
    stack.until(lambda: any(bound(stack, [name]) for name in waiting), "one runs", step=0.5)
    (left,) = [name for name in waiting if not bound(stack, [name])]
    event = stack.until_event(left, FAILED, kind="Pod", text="spec.replicas is 2: 1 of 2 nodes: no free slot")
    assert odcr in event.message


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("count", "limit", "command", "why"),
    [
        (
            None,
            "1",
            "kubectl edit nodepool web",
            "spec.limits.nodes is 1, and it has as many: raise it, and add",
        ),
        (None, "2", "capacity-broker inventory", "it has a node in each of its slots: add slots to its res"),
        (1, "1", "kubectl edit nodepool web", "it has as many: raise it, and spec.replicas, which is 1"),
        (2, "1", "kubectl edit nodepool web", "spec.limits.nodes is 1, and it has as many: raise it"),
        (1, "2", "kubectl edit nodepool web", "spec.replicas is 1, and it has as many: raise it"),
        (2, "2", "kubectl describe nodepool web", f"its condition {REPLICAS_MET} has the cause"),
    ],
)
def test_page_of_a_pod_without_room_on_a_static_pool_names_what_adds_nodes(
    stack: Stack, count: int | None, limit: str, command: str, why: str
) -> None:
    """The pool is Ready, and its only reservation is full."""
    follows = {names.REPLICAS: "all-reserved"} if count is None else None
    static_pool(stack, count, annotations=follows, limits={"nodes": limit}, id_=stack.aws.odcr("m5.large"))
    stack.start(pod_batch_idle_seconds=0.2, pod_batch_max_seconds=1.0)
    settled(stack, 1)
    met(stack, "False" if count == 2 else "True", "1 of ")
    waiting = pods(stack, 2, cpu="1500m")
    stack.until(lambda: any(bound(stack, [name]) for name in waiting), "one runs", step=0.5)
    (left,) = [name for name in waiting if not bound(stack, [name])]
    event = stack.until_event(left, FAILED, kind="Pod", text="its number of nodes is its own")
    page = explained(stack, left)
    (reason,) = page["why"]
    assert reason["reason"] == "StaticNodePool" and reason["message"] in event.message
    (help_,) = page["do"]
    assert help_["command"] == command and why in help_["why"]
    assert "Ready" not in page["next"][0]


@pytest.mark.covers("FUL-30")
def test_nodes_that_lack_a_slot_and_those_beyond_the_limit_are_both_reported(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large")
    stack.node_class(id_=odcr)
    stack.claim("other")
    static_pool(stack, 3, limits={"nodes": "2"}, id_=odcr)
    stack.start()
    stack.until_ready("other")
    met(stack, "False", "no free slot")
    met(stack, "False", "spec.limits.nodes is 2, and 0 nodes exist")
