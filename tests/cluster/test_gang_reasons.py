"""A gang that some of its pods keep from machines: its pods name what is short, and the way out."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.capacity.reasons import OVER_LIMIT
from broker.kube.client import Request
from broker.oncall.pod_reports import FAILED
from tests.cluster import objects
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, claims, pods, pool, start
from tests.cluster.test_waiting_pods import explained

TRAIN = {names.GANG: "train", names.GANG_SIZE: "3"}
NEEDS = "the gang default/train needs machines for all its pods at once, and there are none for 1 of them"


@pytest.mark.covers("FLT-35", "ONC-01")
def test_gang_that_passes_a_limit_names_pool_resource_and_numbers(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large", count=3))
    types = required(["m5.large"], [RESERVED, ON_DEMAND])
    pool(stack, template={"requirements": types}, limits={"cpu": "5"})
    pods(stack, 3, cpu="1500m", annotations=TRAIN)
    start(stack)
    limit = "NodePool team: its limit of cpu is 5, its nodes and claims use 0"
    for name in ("p-0", "p-1", "p-2"):
        event = stack.until_event(name, FAILED, kind="Pod", text=f"{NEEDS}; {limit}")
        assert "(m5.large) has 2" in event.message
    page = explained(stack, "p-0")
    assert [row["command"] for row in page["do"]] == ["kubectl edit nodepool team"]
    assert {(row["verdict"], row["reason"]) for row in page["options"]} == {("unfit", OVER_LIMIT)}


@pytest.mark.covers("FLT-30", "ONC-01")
@pytest.mark.parametrize("gang", [TRAIN, {}], ids=["gang", "alone"])
def test_pods_with_the_domain_of_a_claims_gang_wait_until_it_is_removed(
    stack: Stack, gang: dict[str, str]
) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large", count=3))
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    start(stack)
    waiting = pods(stack, 3, cpu="1500m", annotations=gang | {names.GANG_DOMAIN: names.ZONE})
    field = f"metadata.annotations[{names.GANG_DOMAIN}] is {names.ZONE!r}"
    for name in waiting:
        event = stack.until_event(name, FAILED, kind="Pod", text=field)
        assert "leave it out, and require podAffinity with that topologyKey" in event.message
    assert any(field in line["message"] for line in explained(stack, "p-0")["why"])
    assert claims(stack) == []
    for name in waiting:
        removal = {"metadata": {"annotations": {names.GANG_DOMAIN: None}}}
        stack.client.patch(Pod.KIND, name, removal, namespace="default")
    stack.until(lambda: bound(stack, waiting), "all run", step=0.2)


@pytest.mark.covers("FLT-35", "CUR-04")
@pytest.mark.parametrize("how", ["id", "group"])
def test_gang_that_needs_more_slots_than_are_free_names_them(stack: Stack, how: str) -> None:
    large, c5 = stack.aws.odcr("m5.large"), stack.aws.odcr("c5.large")
    full = stack.aws.odcr("m5.large")
    stack.aws.rival(full)
    if how == "group":
        stack.node_class(group=stack.aws.group(large, c5, full))
    else:
        stack.node_class(id_=large)
    pool(stack, template={"requirements": required(["m5.large", "c5.large"], [RESERVED])})
    pods(stack, 3, cpu="1500m", annotations=TRAIN)
    start(stack)
    event = stack.until_event("p-0", FAILED, kind="Pod", text="too few free slots are left for all of them")
    assert f"1 in {large} (m5.large, us-east-1a)" in event.message
    if how == "group":
        assert f"1 in {c5} (c5.large, us-east-1a)" in event.message
        assert f"no free slot is left for it in {full} (m5.large, us-east-1a)" in event.message
    assert not stack.calls("CreateFleet")


@pytest.mark.covers("CUR-04")
@pytest.mark.parametrize("gates", [[{"name": "example.com/wait"}], []], ids=["gated", "new"])
def test_gang_gets_no_machine_before_each_pod_has_lost_its_gates_and_was_looked_at(
    stack: Stack, gates: list[dict[str, str]]
) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large", count=3))
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    waiting = pods(stack, 2, cpu="1500m", annotations=TRAIN)
    large = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1500m"}}}
    late = objects.pod("late", containers=[large], schedulingGates=gates)
    late["metadata"]["annotations"] = TRAIN
    stack.client.create(Pod.KIND, late)
    start(stack)
    for name in waiting:
        stack.until_event(name, FAILED, kind="Pod", text="2 of 3 pods are ready to be placed")
    assert not claims(stack)
    stack.client.patch(Pod.KIND, "late", {"spec": {"schedulingGates": []}}, namespace="default")
    stack.until(lambda: bound(stack, ["late", *waiting]), "all run", step=0.2)


def test_pod_that_its_scheduler_holds_back_by_itself_does_not_stop_its_gang(stack: Stack) -> None:
    """As one that waits at Permit for the others."""
    stack.node_class(id_=stack.aws.odcr("m5.large", count=3))
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    pods(stack, 2, cpu="1500m", annotations=TRAIN)
    held = objects.pod("held", schedulerName="example.com")
    held["metadata"]["annotations"] = TRAIN
    stack.client.create(Pod.KIND, held)
    start(stack)
    stack.until(lambda: len(claims(stack)) == 2, "its others have machines", step=1.0)


@pytest.mark.covers("CUR-04", "KRP-35")
def test_gang_of_more_pods_than_it_needs_starts_and_grows_with_its_reservation(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", count=3)
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    waiting = pods(stack, 5, cpu="1500m", annotations=TRAIN)
    start(stack)

    def running() -> int:
        return sum(bound(stack, [name]) for name in waiting)

    stack.until(lambda: running() == 3, "as many as it needs run", step=0.2)
    left = next(name for name in waiting if not bound(stack, [name]))
    stack.until_event(left, FAILED, kind="Pod", text=odcr)
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=4)
    stack.until(lambda: running() == 4, "one more runs", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [odcr] * 4


@pytest.mark.covers("CUR-04", "KRP-25")
def test_gang_of_an_interrupted_run_gets_no_more_claims_than_slots(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", count=3)
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": required(["m5.large"], [RESERVED])})
    waiting = pods(stack, 5, cpu="1500m", annotations=TRAIN)
    creations: list[str] = []

    def after_the_first(request: Request) -> bool:
        creates = request.method == "POST" and request.path.endswith("/nodeclaims")
        creations.extend(["claim"] if creates else [])
        return creates and len(creations) > 1

    stack.tap.lose(after_the_first)
    start(stack)
    stack.until(lambda: len(creations) > 1, "the second claim is refused", step=0.2)
    stack.stop()
    stack.tap.heal()
    assert len(claims(stack)) == 1
    start(stack)
    stack.until(lambda: sum(bound(stack, [name]) for name in waiting) == 3, "three run", step=0.2)
    assert [stack.reservation_of(claim.name) for claim in claims(stack)] == [odcr] * 3


@pytest.mark.covers("FLT-35")
def test_every_pod_of_a_gang_names_the_full_reservation_that_one_of_them_needs(stack: Stack) -> None:
    full, large = stack.aws.odcr("m5.xlarge"), stack.aws.odcr("m5.large", count=2)
    stack.aws.rival(full)
    stack.node_class(group=stack.aws.group(full, large))
    pool(stack, template={"requirements": required(["m5.large", "m5.xlarge"], [RESERVED])})
    pods(stack, 1, "leader", cpu="3", annotations=TRAIN)
    pods(stack, 2, "worker", cpu="1500m", annotations=TRAIN)
    start(stack)
    for name in ("leader-0", "worker-0", "worker-1"):
        stack.until_event(name, FAILED, kind="Pod", text=f"no free slot is left for it in {full}")


@pytest.mark.covers("CUR-04", "ONC-01")
def test_claim_whose_gang_needs_more_slots_than_are_free_names_the_gang(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr())
    stack.start()
    for name in ("c-0", "c-1"):
        stack.claim(name, annotations={names.GANG: "train", names.GANG_SIZE: "2"})
    lacking = stack.until_waiting("c-1", "AllReservationsFull")
    assert lacking.message.endswith("gang train needs machines for its 2 claims at once")
    assert "launches whole or not at all; nothing for c-1" in stack.until_waiting("c-0").message


@pytest.mark.covers("KRP-35")
def test_gang_takes_the_slots_of_one_pool_and_the_machines_of_another_if_neither_has_enough(
    stack: Stack,
) -> None:
    odcr = stack.aws.odcr("m5.large", count=2)
    stack.node_class(id_=odcr)
    pool(stack, "reserved", weight=50, template={"requirements": required(["m5.large"], [RESERVED])})
    bought = required(["m5.large"], [ON_DEMAND])
    pool(stack, "fallback", limits={"cpu": "2"}, template={"requirements": bought})
    waiting = pods(stack, 3, cpu="1500m", annotations=TRAIN)
    start(stack)
    stack.until(lambda: bound(stack, waiting), "all pods bound", step=0.2)
    placed = {claim.name: claim.labels[names.NODEPOOL] for claim in claims(stack)}
    assert sorted(placed.values()) == ["fallback", "reserved", "reserved"]
    assert sorted(map(stack.reservation_of, placed)) == ["", odcr, odcr]
