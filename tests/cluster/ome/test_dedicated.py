"""Dedicated clusters, end to end: quota, then instances; instances gone, then quota."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import units
from broker.kube.client import Request
from broker.kube.errors import Unavailable
from tests.cluster.ome.dedicated import World
from tests.cluster.ome.reserved import GPU, printed, raw_condition, reservation_status, reserve
from tests.cluster.poison import leave_out
from tests.cluster.stack import Stack
from tests.cluster.taps import status_of
from tests.cluster.test_rest import tick, until_at_rest
from tests.kueue.played import Kueue


@pytest.mark.covers("OME-058", "OME-061", "OME-071", "OME-072", "OME-073", "OME-076", "OME-078")
def test_from_quota_to_instances_and_back(stack: Stack) -> None:
    world = World(stack, 2, training=2)
    world.reserve("training")
    world.cluster("one", 2, "training", labels={"team": "x"})
    stack.start()
    cluster = world.until("one", "ACTIVE")
    assert (cluster.status.allocated_gpu, cluster.status.available_gpu) == (16, 16)
    assert cluster.status.lifecycle_detail == "ACTIVE"
    assert cluster.labels == {"team": "x", names.RESERVATION_LABEL: "training"}
    claims = world.claims("one")
    assert [claim.annotations[names.DRAWS_FROM] for claim in claims] == ["default/training"] * 2
    assert {stack.reservation_of(claim.name) for claim in claims} == {world.odcr}
    for node in stack.all(Node):
        assert node.labels[names.DEDICATED] == "one"
        assert (names.DEDICATED, "one", "NoSchedule") in [
            (t.key, t.value, t.effect) for t in node.spec.taints
        ]

    def using() -> list[tuple[str, dict[str, str]]]:
        return [
            (usage["name"], {r["name"]: r["total"] for f in usage["usage"] for r in f["resources"]})
            for usage in reservation_status(stack, "training").get("associationUsages", ())
        ]

    stack.until(lambda: using() == [("one", {GPU: "16"})], "its usage is reported")

    world.cluster("next", 1, "training")
    world.until(
        "next", "CREATING", text="waits for quota of default/training: 8 of nvidia.com/gpu requested, 0"
    )
    world.cluster("huge", 3, "training")
    huge = world.until("huge", "FAILED", text="24 of nvidia.com/gpu requested, 16 available in h100")
    assert [
        condition.reason for condition in huge.status.conditions if condition.type == "QuotaReserved"
    ] == ["NotEnoughResources"]
    assert world.running() == 2

    stack.delete(DedicatedAICluster, "one")
    stack.until_gone(DedicatedAICluster, "one")
    world.until("next", "ACTIVE")
    stack.until(lambda: using() == [("next", {GPU: "8"})], "the usage of the one that is gone is gone")
    assert len(world.claims("next")) == 1
    assert len(stack.all(NodeClaim)) == 1


@pytest.mark.covers("OME-071", "OME-074", "OME-075", "OME-077")
def test_impossible_cluster_is_reported_and_starts_once_it_is_possible(stack: Stack) -> None:
    world = World(stack, 1, training=1)
    world.cluster("lost", 1, "nowhere/gpu")
    world.cluster("bare", 0, "training", count=4)
    world.cluster("sized", 0, "training", profile="whole", count=1)
    stack.edit(DedicatedAICluster, "sized", {"metadata": {"annotations": {names.NODE_CLASS: "defualt"}}})
    stack.start()
    world.until("lost", "FAILED", text="there is no CapacityReservation gpu in namespace 'nowhere'")
    world.until("bare", "FAILED", text="spec.count (a count alone has no unit)")
    world.until("sized", "FAILED", text="there is no DedicatedAIClusterProfile whole")
    world.profile("whole", 8)
    world.until("sized", "FAILED", text="no CapacityReservation named training")
    world.reserve("training")
    world.until("sized", "CREATING", text="capacity-broker.io/node-class of the cluster")
    (unlaunched,) = world.claims("sized")
    stack.edit(DedicatedAICluster, "sized", {"metadata": {"annotations": {names.NODE_CLASS: "default"}}})
    world.until("sized", "ACTIVE")
    assert unlaunched.uid not in {claim.uid for claim in world.claims("sized")}
    status = reservation_status(stack, "training")
    assert raw_condition(status, "DACAssociationsHealthy")["status"] == "False"  # of `bare`, which names it
    stack.delete(DedicatedAICluster, "bare")
    stack.until(
        lambda: (
            raw_condition(reservation_status(stack, "training"), "DACAssociationsHealthy")["status"] == "True"
        ),
        "the lost instance belongs to no claim",
    )


def test_it_grows_shrinks_and_is_made_whole_across_restarts(stack: Stack) -> None:
    world = World(stack, 3, training=3)
    world.reserve("training")
    world.cluster("one", 1, "default/training")
    stack.start()
    world.until("one", "ACTIVE")
    (first,) = world.claims("one")

    stack.stop()
    world.resize("one", 3)
    stack.start()
    stack.until(lambda: len(world.claims("one")) == 3, "three claims")
    cluster = world.until("one", "ACTIVE")
    assert cluster.status.allocated_gpu == 24
    assert first.uid in {claim.uid for claim in world.claims("one")}

    lost = world.claims("one")[0]
    stack.aws.ec2.terminate_instances(InstanceIds=[lost.instance_id])
    stack.until(
        lambda: lost.uid not in {claim.uid for claim in world.claims("one")}, "the lost one is gone", step=5
    )
    stack.until(lambda: len(world.claims("one")) == 3, "it is replaced")
    world.until("one", "ACTIVE")

    world.resize("one", 1)
    stack.until(lambda: world.find("one").status.allocated_gpu == 8, "it holds less")  # type: ignore[union-attr]
    assert world.running() == 1
    world.until("one", "ACTIVE")


@pytest.mark.both_servers
def test_lost_replies_and_a_new_broker_make_nothing_twice(stack: Stack) -> None:
    world = World(stack, 3, training=3)
    world.reserve("training")
    world.cluster("one", 3, "training")

    def arrives(request: Request) -> None:
        """The requests arrive and are carried out, but their replies are lost."""
        stack.tap.inner.request(request, timeout=30)
        raise Unavailable(0, "Lost", "the reply was lost, as ordered by the test")

    def creates_claim(request: Request) -> bool:
        return request.method == "POST" and request.path.endswith("/nodeclaims")

    stack.tap.on(creates_claim, arrives, times=2)
    stack.tap.on(status_of("dedicatedaiclusters"), arrives, times=1)
    stack.start()
    stack.until(lambda: world.claims("one"), "the first claim")
    stack.stop()
    stack.start()
    world.until("one", "ACTIVE")
    assert [claim.name.rpartition("-")[2] for claim in world.claims("one")] == ["0", "1", "2"]
    assert world.running() == 3

    stack.delete(DedicatedAICluster, "one")
    stack.until_gone(DedicatedAICluster, "one")
    assert stack.all(NodeClaim) == []
    assert world.running() == 0


@pytest.mark.covers("OME-097")
@pytest.mark.both_servers
def test_clusters_at_rest_are_not_written(stack: Stack) -> None:
    world = World(stack, 1, training=1)
    world.reserve("training")
    world.cluster("one", 1, "training")
    stack.start(poll_seconds=30.0, dedicated_wait_seconds=3600.0)
    world.until("one", "ACTIVE")
    world.cluster("theirs", 1, "training", labels={names.RESERVATION_LABEL: "of-a-user"})
    world.cluster("lost", 1, "nowhere")
    world.until("lost", "FAILED")
    waits = world.until("theirs", "CREATING")
    assert waits.labels == {names.RESERVATION_LABEL: "of-a-user"}
    stack.advance(3600)
    late = world.until("theirs", "FAILED")
    until_at_rest(stack)
    assert "8 of nvidia.com/gpu requested, 0 available" in late.status.lifecycle_detail
    stack.tap.forget()
    for _ in range(5):
        tick(stack)
    assert not stack.tap.writes()


@pytest.mark.covers("OME-032", "OME-035", "OME-046", "OME-055")
def test_owner_gets_its_quota_back_from_the_borrower(stack: Stack) -> None:
    world = World(stack, 2, owner=2, guest=0)
    sharing = {"cohort": "shared", "allowBorrowing": True}
    world.reserve("owner", preemptionRule={"reclaimWithinCohort": "Any"}, **sharing)
    world.reserve("guest", **sharing)
    world.cluster("borrower", 2, "guest")
    stack.start()
    world.until("borrower", "ACTIVE")
    instances = {instance["InstanceId"] for instance in stack.aws.instances()}

    world.cluster("mine", 2, "owner")
    world.until("mine", "ACTIVE")
    preempted = world.condition("borrower", "Preempted")
    assert preempted is not None
    assert (preempted.status, preempted.reason) == ("True", "InCohortReclamation")
    assert (
        "preemptor path: /shared/default--owner; preemptee path: /shared/default--guest" in preempted.message
    )
    world.until("borrower", "CREATING", text="16 of nvidia.com/gpu requested, 0 available")
    assert world.claims("borrower") == []
    assert not instances & {instance["InstanceId"] for instance in stack.aws.instances()}

    stack.delete(DedicatedAICluster, "mine")
    world.until("borrower", "ACTIVE")
    again = world.condition("borrower", "Preempted")
    assert again is not None and again.status == "False"


def alike(stack: Stack, kueue: Kueue) -> bool:
    """Whether the usage in the reservation's status equals the usage in Kueue's status of its queue."""
    total: Counter[tuple[str, str]] = Counter()
    for usage in reservation_status(stack, "training").get("associationUsages", ()):
        for used in usage["usage"]:
            for resource in used["resources"]:
                total[used["name"], resource["name"]] += units(resource["name"], resource["total"])
    return total == kueue.counts("default--training")


@pytest.mark.covers("SAF-72", "OME-060")
def test_a_cluster_that_shrinks_in_another_ratio_gives_back_all_of_it_in_kueue_too(stack: Stack) -> None:
    world = World(stack, 3, kueue=True, training=3)
    kueue = Kueue(stack.tap.inner, now=stack.clock.now)
    reserve(stack, "training", quotas={GPU: "24", "memory": "3Ti", "cpu": "300"})
    world.cluster("one", 0, "training", resources={"requests": {GPU: 24, "memory": "3Ti", "cpu": "300"}})
    stack.start()

    def held() -> dict[str, int]:
        kueue.turns()
        return {
            resource: value for (_, resource), value in kueue.counts("default--training").items() if value
        }

    def until(gpus: int, memory: str, cpu: str) -> None:
        expected = {GPU: gpus, "memory": units("memory", memory), "cpu": units("cpu", cpu)}
        stack.until(lambda: held() == expected and alike(stack, kueue), f"both count {expected}")
        world.until("one", "ACTIVE")
        assert world.running() == gpus // 8

    stack.until(lambda: kueue.queue("default--training"), "the reservation has its queue")
    until(24, "3Ti", "300")
    for gpus, memory, cpu in (
        (16, "2560Gi", "300"),  # fewer instances, and almost the same memory
        (16, "1000Mi", "100"),  # memory and cores alone
        (8, "1000Mi", "99500m"),
        (16, "2Ti", "100"),  # it grows by another Workload
        (8, "1Ti", "10"),  # it shrinks in both
    ):
        requests = {GPU: gpus, "memory": memory, "cpu": cpu}
        stack.edit(DedicatedAICluster, "one", {"spec": {"resources": {"requests": requests}}})
        until(gpus, memory, cpu)
    stack.delete(DedicatedAICluster, "one")
    stack.until_gone(DedicatedAICluster, "one")
    stack.until(lambda: not kueue.counts("default--training"), "Kueue has all of it back")


@pytest.mark.covers("OME-060", "OME-081")
@pytest.mark.both_servers
def test_with_kueue_a_cluster_is_a_workload_that_kueue_admits_and_evicts(stack: Stack) -> None:
    world = World(stack, 3, kueue=True, training=3)
    kueue = Kueue(stack.tap.inner, now=stack.clock.now)
    world.reserve("training")
    world.cluster("one", 2, "training")
    stack.start()

    def workloads() -> list[Workload]:
        return sorted(stack.all(Workload), key=lambda workload: workload.name)

    def admits(gpus: int, at: int) -> Workload:
        (workload,) = stack.until(lambda: [w for w in workloads() if w.name.endswith(f"-{at}")], "a Workload")
        usage = {"h100": {GPU: str(gpus)}}
        kueue.reserves(workload.name, "default--training", usage, pods=gpus)
        stack.until(lambda: kueue.decides(workload.name) == "admitted", "Kueue admits it")
        return workload

    def agree() -> bool:
        return alike(stack, kueue)

    stack.until(lambda: kueue.queue("default--training"), "the queue is there")
    first = stack.until(workloads, "its Workload")[0]
    assert (first.spec.queue_name, [pod_set.count for pod_set in first.spec.pod_sets]) == ("training", [16])
    world.until("one", "CREATING", text="Kueue has not decided yet")
    assert world.claims("one") == []
    admits(16, 0)
    row = printed(stack, Workload.KIND)
    assert (row["Queue"], row["Reserved in"]) == ("training", "default--training")
    cluster = world.until("one", "ACTIVE")
    assert cluster.status.allocated_gpu == 16
    stack.until(agree, "as much is reserved as is used")

    # A growth that is evicted before it has an instance leaves alone.
    claims = {claim.uid for claim in world.claims("one")}
    stack.tap.lose(lambda r: r.method == "POST" and r.path.endswith("/nodeclaims"))
    world.resize("one", 3)
    growth = admits(8, 1)
    stack.until(lambda: world.find("one").status.allocated_gpu == 24, "it is admitted")  # type: ignore[union-attr]
    kueue.evicts(growth.name, "InCohortReclamation", "Preempted to accommodate a workload")
    stack.until(lambda: growth.uid not in {workload.uid for workload in workloads()}, "the growth is gone")
    stack.tap.heal()
    assert {claim.uid for claim in world.claims("one")} == claims
    assert {workload.uid for workload in workloads()} >= {first.uid}

    second = admits(8, 1)
    stack.until(lambda: world.find("one").status.available_gpu == 24, "a third instance")  # type: ignore[union-attr]

    world.resize("one", 2)

    def given_back() -> int:
        return sum(pods.count for pods in kueue.workload(second.name).status.reclaimable_pods)

    assert stack.until(given_back, "an instance's quota is given back") == 8
    stack.until(agree, "as much is reserved as is used, less the returned amount")
    assert world.running() == 2

    kueue.evicts(first.name, "InCohortReclamation", "Preempted to accommodate a workload")
    stack.until(lambda: first.uid not in {workload.uid for workload in workloads()}, "its Workload is gone")
    assert world.running() == 0
    preempted = world.condition("one", "Preempted")
    assert preempted is not None
    assert (preempted.status, preempted.reason) == ("True", "InCohortReclamation")
    before = {first.uid, second.uid}  # the second may be deleted a little later
    again = stack.until(lambda: [w for w in workloads() if w.uid not in before], "it has a new Workload")
    assert [pod_set.count for pod_set in again[0].spec.pod_sets] == [16]
    stack.delete(DedicatedAICluster, "one")
    stack.until_gone(DedicatedAICluster, "one")
    stack.until(lambda: not workloads(), "nothing is left in Kueue")


def test_claim_that_is_left_out_is_not_replaced_and_keeps_the_quota(stack: Stack) -> None:
    world = World(stack, 3, training=3)
    world.reserve("training")
    world.cluster("one", 2, "training")
    broker = stack.start()
    world.until("one", "ACTIVE")
    launched = stack.calls("CreateFleet")
    first = world.claims("one")[0]
    # The broker's last write to the claim would take it back.
    stack.until(lambda: stack.is_true(first.name, "Initialized"), "its last condition", step=0.2)
    leave_out(stack, broker.read.claims.cache, NodeClaim, first.name)
    world.until("one", "UPDATING", text=f"{first.name} is left out")
    stack.delete(DedicatedAICluster, "one")
    world.until("one", "DELETING", text="1 instance left")
    assert [claim.name for claim in world.claims("one")] == [first.name] and world.running() == 1
    stack.edit(NodeClaim, first.name, {"metadata": {"annotations": {"test": "mended"}}})
    stack.until_gone(DedicatedAICluster, "one")
    stack.until(lambda: not world.running(), "nothing is left")
    assert stack.calls("CreateFleet") == launched
