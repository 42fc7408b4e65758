"""Nodes of full reservations are replaced in their slots: no slot idles, and nothing is bought."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.oncall.metrics import REGISTRY
from providers.names import TAG_CLUSTER
from tests.cluster.account import CLUSTER, A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.reserved import reserve
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, replacement, run
from tests.cluster.test_standing import WEB, live, nodes, replicas

KINDS = pytest.mark.parametrize(
    "kinds", [(RESERVED,), (RESERVED, ON_DEMAND)], ids=["reserved", "with-fallback"]
)


BESIDE = pytest.mark.parametrize("target", ["group", "open"])
TYPE = "m5.large"


def reservation(stack: Stack, target: str, count: int) -> tuple[str, dict[str, Any]]:
    """A reservation that a class reaches by its id, by a group or openly, and the class's field."""
    odcr = stack.aws.odcr(count=count, criteria="open" if target == "open" else "targeted")
    group = stack.aws.group(odcr)
    targets: dict[str, Any] = {"id": {"id_": odcr}, "group": {"group": group}, "open": {"preference": "open"}}
    return odcr, targets[target]


def pool(
    stack: Stack,
    *kinds: str,
    annotations: dict[str, str] | None = None,
    consolidate_after: str = "Never",
    **reservation: Any,
) -> None:
    stack.node_class("web", zones=(A,), **reservation)
    stack.node_pool("web", node_class="web")
    required = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*kinds]}
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [TYPE]}
    block = {"consolidateAfter": consolidate_after, "budgets": [{"nodes": "100%"}]}
    template = {"spec": {"requirements": [required, types]}}
    body: dict[str, Any] = {"spec": {"disruption": block, "template": template}}
    stack.edit(NodePool, "web", {**body, "metadata": {"annotations": annotations or {}}})


def drift(stack: Stack, *claims: str) -> int:
    """Changes the pool. Returns how many instances there were before: a rollout may begin at once."""
    for name in claims:
        stack.until(
            lambda n=name: names.NODEPOOL_HASH in stack.get(NodeClaim, n).annotations,  # type: ignore[misc]
            "a hash",
            step=STEP,
        )
    before = launched(stack)
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": {"expireAfter": "100h"}}}})
    return before


def launched(stack: Stack) -> int:
    """The instances of the cluster that EC2 ever had."""
    pages = stack.aws.ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": f"tag:{TAG_CLUSTER}", "Values": [CLUSTER]}]
    )
    return sum(len(reservation["Instances"]) for page in pages for reservation in page["Reservations"])


def rolled(stack: Stack, count: int, before: int) -> tuple[int, int]:
    """Lets a rollout go on until all nodes are new. Returns the launches after `before`, and the most nodes
    away at once.
    """
    away = 0

    def done() -> bool:
        nonlocal away
        replicas(stack, count)
        claims = stack.all(NodeClaim)
        ready = [claim for claim in claims if not claim.deleting and stack.is_true(claim.name, names.READY)]
        away = max(away, count - len(ready))
        new = [claim for claim in ready if not claim.name.startswith("r-")]
        bound = [pod for pod in stack.all(Pod) if pod.spec.node_name and not pod.deleting]
        return len(new) == count and len(claims) == count and len(bound) == count

    stack.until(done, "the rollout is over", step=STEP)
    return launched(stack) - before, away


@KINDS
@pytest.mark.parametrize("target", ["id", "group", "open"])
@pytest.mark.covers("FUL-01", "FUL-02", "FUL-03", "FUL-05")
def test_a_rollout_of_a_full_reservation_launches_each_node_once_in_its_slot(
    stack: Stack, kinds: tuple[str, ...], target: str
) -> None:
    odcr, selects = reservation(stack, target, 3)
    pool(stack, *kinds, **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", "r-2")
    before = drift(stack, "r-0", "r-1", "r-2")
    beside = ON_DEMAND in kinds and target != "id"
    assert rolled(stack, 3, before) == (3, 0 if beside else 1)
    assert stack.aws.free(odcr) == 0
    assert places(stack) == [odcr] * 3
    way = f"beside {odcr}" if beside else f"takes over its slot of {odcr}"
    for name in ("r-0", "r-1", "r-2"):
        assert way in stack.until_event(name, "DisruptionLaunching").message


@pytest.mark.covers("FUL-02", "FUL-03")
def test_no_successor_runs_beside_a_reservation_of_a_placement_group_that_it_is_not_in(stack: Stack) -> None:
    """The class names a group of reservations, and no placement group: EC2 would never count it there."""
    stack.aws.ec2.create_placement_group(GroupName="rack", Strategy="cluster")
    (rack,) = stack.aws.ec2.describe_placement_groups(GroupNames=["rack"])["PlacementGroups"]
    odcr = stack.aws.odcr(count=2, PlacementGroupArn=rack["GroupArn"])
    pool(stack, RESERVED, ON_DEMAND, group=stack.aws.group(odcr))
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1")
    before = drift(stack, "r-0", "r-1")
    assert rolled(stack, 2, before) == (2, 1)
    assert places(stack) == [odcr] * 2
    assert [instance["Placement"]["GroupName"] for instance in stack.aws.instances()] == ["rack"] * 2


def places(stack: Stack) -> list[str]:
    """The reservation of each instance; empty outside."""
    return sorted(str(instance.get("CapacityReservationId", "")) for instance in stack.aws.instances())


@BESIDE
@pytest.mark.covers("FUL-02", "FUL-03", "FUL-11")
def test_successor_returns_to_the_slot_where_ec2_does_not_absorb_it(stack: Stack, target: str) -> None:
    stack.control.freed_slot_absorbs(False)
    odcr, selects = reservation(stack, target, 2)
    pool(stack, RESERVED, ON_DEMAND, consolidate_after="30s", **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1")
    before = drift(stack, "r-0", "r-1")

    def returned() -> bool:
        replicas(stack, 2)
        return places(stack) == [odcr, odcr] and not any(name.startswith("r-") for name in claims(stack))

    stack.until(returned, "all run in the reservation", step=STEP)
    assert launched(stack) - before == 3  # one beside, one in a free slot, and the return of the first
    assert stack.aws.free(odcr) == 0


def until_bound(stack: Stack, count: int) -> None:
    def bound() -> bool:
        replicas(stack, count)
        return len(live(stack)) == count and all(pod.spec.node_name for pod in live(stack))

    stack.until(bound, "all pods run", step=STEP)


def claims(stack: Stack) -> list[str]:
    return [claim.name for claim in stack.all(NodeClaim)]


@BESIDE
@pytest.mark.covers("FUL-02", "FUL-05")
def test_one_instance_at_a_time_runs_beside_a_full_reservation(stack: Stack, target: str) -> None:
    _, selects = reservation(stack, target, 3)
    pool(stack, RESERVED, ON_DEMAND, **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", "r-2")
    drift(stack, "r-0", "r-1", "r-2")
    most = 0

    def done() -> bool:
        nonlocal most
        replicas(stack, 3)
        most = max(most, len(stack.aws.instances()))
        return not any(name.startswith("r-") for name in claims(stack))

    stack.until(done, "all are new", step=STEP)
    assert most == 4


@BESIDE
@pytest.mark.covers("FUL-02")
def test_no_successor_runs_beside_where_ec2_could_count_it_in_a_slot_of_another_owner(
    stack: Stack, target: str
) -> None:
    odcr, selects = reservation(stack, target, 1)
    tags = [{"Key": names.TAG_RESERVATION, "Value": "default/training"}]
    specifications = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    criteria = "open" if target == "open" else "targeted"
    other = stack.aws.odcr(criteria=criteria, TagSpecifications=specifications)
    stack.aws.join("team", other)
    stack.aws.rival(other)
    reserve(stack, "training", flavor=TYPE, quotas={"cpu": "2"})
    pool(stack, RESERVED, ON_DEMAND, **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    before = drift(stack, "r-0")
    assert rolled(stack, 1, before) == (1, 1)
    assert places(stack) == [odcr]
    assert f"takes over its slot of {odcr}" in stack.until_event("r-0", "DisruptionLaunching").message


@BESIDE
@pytest.mark.covers("FUL-02", "FUL-04")
def test_no_successor_runs_beside_a_slot_that_a_waiting_claim_needs(stack: Stack, target: str) -> None:
    odcr, selects = reservation(stack, target, 1)
    pool(stack, RESERVED, ON_DEMAND, **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    rival = stack.claim("waits", node_class="web", priority="1000")
    stack.until_waiting(rival, "AllReservationsFull")
    drift(stack, "r-0")
    stack.until(lambda: "r-0" not in claims(stack), "r-0 ends", step=STEP)
    until_bound(stack, 1)
    assert places(stack) == [odcr]
    assert not stack.get(NodeClaim, rival).status.provider_id
    assert f"takes over its slot of {odcr}" in stack.until_event("r-0", "DisruptionLaunching").message


@BESIDE
@pytest.mark.covers("FUL-02", "FUL-05")
def test_successor_that_ec2_has_no_room_for_beside_takes_over_the_slot(stack: Stack, target: str) -> None:
    odcr, selects = reservation(stack, target, 2)
    pool(stack, RESERVED, ON_DEMAND, **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1")
    stack.control.pool(instance_type=TYPE, zone=A, size=0)
    calls = stack.calls("CreateFleet")
    before = drift(stack, "r-0", "r-1")
    assert rolled(stack, 2, before) == (2, 1)
    assert places(stack) == [odcr, odcr]
    assert stack.calls("CreateFleet") - calls == 3  # one refusal: the second node knows of it
    ways = sorted(stack.until_event(name, "DisruptionLaunching").message for name in ("r-0", "r-1"))
    assert f"beside {odcr}" in ways[1] and f"takes over its slot of {odcr}" in ways[0]


@pytest.mark.covers("FUL-02", "FUL-05")
def test_misspelt_way_to_replace_is_an_event_of_the_pool_before_any_rollout(stack: Stack) -> None:
    wrong = {names.REPLACE: "terminate_first", names.REPLACE_AT_ONCE: "all"}
    pool(stack, RESERVED, annotations=wrong, id_=stack.aws.odcr(TYPE, A))
    stack.start()
    nodes(stack, RESERVED, "r-0")
    for field, remedy in (
        (names.REPLACE, "terminate-first or auto"),
        (names.REPLACE_AT_ONCE, "a whole number"),
    ):
        event = stack.until_event("web", "DisruptionBlocked", kind="NodePool", text=f"[{field}]")
        assert remedy in event.message and event.type == "Warning"


@BESIDE
@pytest.mark.covers("FUL-02")
def test_pool_that_launches_first_waits_for_room_beside(stack: Stack, target: str) -> None:
    odcr, selects = reservation(stack, target, 1)
    pool(stack, RESERVED, ON_DEMAND, annotations={names.REPLACE: "launch-first"}, **selects)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    stack.control.pool(instance_type=TYPE, zone=A, size=0)
    calls = stack.calls("CreateFleet")
    drift(stack, "r-0")
    stack.until(lambda: stack.calls("CreateFleet") > calls, "a refusal", step=STEP)
    for _ in range(5):  # a replacement may be on its way for ten minutes
        stack.advance(30)
        stack.passes()
        replicas(stack, 1)
    assert not stack.get(NodeClaim, "r-0").deleting and stack.reservation_of("r-0") == odcr
    assert stack.calls("CreateFleet") - calls <= 3
    stack.control.pool(instance_type=TYPE, zone=A, size=None)
    assert rolled(stack, 1, launched(stack)) == (1, 0)
    assert places(stack) == [odcr]


def ended(stack: Stack, *claims: str) -> None:
    for name in claims:
        stack.until(lambda n=name: stack.find(NodeClaim, n) is None, f"{name} ends", step=STEP)  # type: ignore[misc]


def settled(stack: Stack, count: int) -> list[str]:
    """The reservation of each pod's node, once all pods have one."""

    def bound() -> bool:
        replicas(stack, count)
        claims = [
            claim for claim in stack.all(NodeClaim) if stack.is_true(claim.name, names.INITIALIZED_CONDITION)
        ]
        pods = [pod for pod in stack.all(Pod) if pod.spec.node_name and not pod.deleting]
        return len(pods) == count and len(claims) == count

    stack.until(bound, "all pods run", step=STEP)
    return sorted(stack.reservation_of(claim.name) for claim in stack.all(NodeClaim) if not claim.waits)


@KINDS
@pytest.mark.parametrize("end", ["delete", "expire"])
@pytest.mark.covers("FUL-01", "FUL-04")
def test_the_slot_of_a_node_that_ends_is_kept_for_its_successor(
    stack: Stack, kinds: tuple[str, ...], end: str
) -> None:
    odcr = stack.aws.odcr(count=2)
    pool(stack, *kinds, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0", expireAfter="Never")
    nodes(stack, RESERVED, "r-1", expireAfter="200s" if end == "expire" else "Never")
    rival = stack.claim("rival", node_class="web", priority="1000")  # waits for the slot, too
    stack.until_waiting(rival, "AllReservationsFull")
    for name in ("r-0", "r-1"):
        stack.until(
            lambda n=name: stack.get(NodeClaim, n).labels.get(names.RESERVATION_ID) == odcr,  # type: ignore[misc]
            "its label",
            step=STEP,
        )
    stack.passes()  # the broker has read the pods by then
    if end == "delete":
        stack.delete(NodeClaim, "r-1")
    else:
        while not stack.get(NodeClaim, "r-1").deleting:
            stack.advance(10)
            stack.passes(1)
    # On a slow machine, steps of minutes would outrun the pass that decides.
    stack.until(lambda: replacement(stack, "r-1"), "a successor of r-1")
    ended(stack, "r-1")
    assert settled(stack, 2) == [odcr, odcr]
    assert not stack.get(NodeClaim, rival).status.provider_id
    assert launched(stack) == 3


@pytest.mark.covers("FUL-05")
def test_a_failed_launch_stops_the_rollout_after_one_node(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    pool(stack, RESERVED, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", "r-2")
    stack.control.fault(action="CreateFleet", code="InternalError", status=500, times=-1)
    drift(stack, "r-0", "r-1", "r-2")

    def stopped() -> bool:
        replicas(stack, 3)
        shown = stack.condition(NodePool, "web", "NodesReplaced")
        return shown is not None and shown.status == "False"

    stack.until(stopped, "the condition", step=STEP)
    stack.until_event("web", "DisruptionFailed", kind="NodePool")
    for _ in range(10):
        stack.advance(120)
        stack.passes()
        replicas(stack, 3)
    left = [claim.name for claim in stack.all(NodeClaim) if not claim.deleting]
    assert len([name for name in left if name.startswith("r-")]) == 2
    shown = stack.condition(NodePool, "web", "NodesReplaced")
    assert shown is not None and shown.reason == "LaunchFailed"
    assert "no other node of its reservation is ended" in shown.message
    assert REGISTRY.get_sample_value("capacity_broker_rollout_stopped", {"nodepool": "web"}) == 1
    stack.control.clear_faults()
    stack.until(lambda: stack.aws.free(odcr) == 0, "its successor has the slot", step=STEP)
    rolled(stack, 3, launched(stack))
    shown = stack.condition(NodePool, "web", "NodesReplaced")
    assert shown is not None and shown.status == "True"
    assert REGISTRY.get_sample_value("capacity_broker_rollout_stopped", {"nodepool": "web"}) is None


@KINDS
@pytest.mark.covers("FUL-02", "FUL-10")
def test_a_drifted_node_does_not_end_for_a_slot_that_ec2_would_give_to_a_running_instance(
    stack: Stack, kinds: tuple[str, ...]
) -> None:
    odcr = stack.aws.odcr(criteria="open")
    pool(stack, *kinds, preference="open")
    stack.start()
    nodes(stack, RESERVED, "r-0")
    stack.claim("low", node_class="web", capacity=(RESERVED, ON_DEMAND))
    stack.until_ready("low")
    stack.until_shown("low")
    run(stack, "app-low", stack.get(NodeClaim, "low").status.node_name, cpu="1500m")
    taker = str(stack.instance("low")["InstanceId"])
    assert stack.reservation_of("low") == ""
    drift(stack, "r-0")
    if ON_DEMAND in kinds:  # its successor may run outside
        ended(stack, "r-0")
        until_bound(stack, 1)
        assert places(stack) == ["", odcr]
        return
    event = stack.until_event("r-0", "DisruptionBlocked", text=taker)
    assert odcr in event.message
    for _ in range(5):
        stack.advance(60)
        stack.passes()
        replicas(stack, 1)
    assert not stack.get(NodeClaim, "r-0").deleting and stack.reservation_of("r-0") == odcr
    stack.delete(NodeClaim, "low")
    stack.until_gone(NodeClaim, "low")
    assert rolled(stack, 1, launched(stack)) == (1, 1)
    assert stack.aws.free(odcr) == 0


def goes_on(stack: Stack, count: int, *, steps: int, seconds: float = 60) -> list[str]:
    """Lets time pass. Returns the nodes of the beginning that are left."""
    for _ in range(steps):
        stack.advance(seconds)
        stack.passes()
        replicas(stack, count)
    return [claim.name for claim in stack.all(NodeClaim) if claim.name.startswith("r-")]


def stopped_with(stack: Stack, count: int, reason: str) -> str:
    """Waits until the rollout has stopped for this reason. Returns the message."""

    def stopped() -> str:
        replicas(stack, count)
        shown = stack.condition(NodePool, "web", "NodesReplaced")
        return (
            shown.message if shown is not None and (shown.status, shown.reason) == ("False", reason) else ""
        )

    return stack.until(stopped, reason, step=STEP)


@pytest.mark.covers("FUL-04", "FUL-05")
@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "InsufficientFreeAddressesInSubnet"])
def test_a_slot_that_ec2_refuses_is_kept_and_not_asked_for_without_end(stack: Stack, code: str) -> None:
    odcr = stack.aws.odcr(count=3)
    pool(stack, RESERVED, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", "r-2")
    stack.control.fault(
        action="CreateFleet",
        stage="launch",
        code=code,
        message="refused",
        match={"AvailabilityZone": A},
        times=-1,
    )
    drift(stack, "r-0", "r-1", "r-2")
    assert code in stopped_with(stack, 3, "LaunchFailed")
    before = stack.calls("CreateFleet")
    rival = stack.claim("rival", node_class="web", capacity=(RESERVED,), priority="1000")
    assert len(goes_on(stack, 3, steps=8)) == 2
    assert stack.calls("CreateFleet") - before <= 3
    assert stack.claim_condition(rival) is not None and not stack.get(NodeClaim, rival).status.provider_id


@pytest.mark.covers("FUL-03", "FUL-05")
def test_a_successor_without_a_node_stops_the_rollout(stack: Stack) -> None:
    """Such as one of an image that does not start."""
    odcr = stack.aws.odcr(count=3)
    pool(stack, RESERVED, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", "r-2")
    drift(stack, "r-0", "r-1", "r-2")
    stack.kubelets.stop()
    assert "no node joined" in stopped_with(stack, 3, "NodeNotReady")
    assert len(goes_on(stack, 3, steps=20)) == 2
    stack.kubelets_again()
    assert rolled(stack, 3, launched(stack))[1] <= 1
    shown = stack.condition(NodePool, "web", "NodesReplaced")
    assert shown is not None and shown.status == "True"


@pytest.mark.covers("FUL-05")
def test_a_rollout_stops_while_others_take_the_slots_that_it_frees(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    pool(stack, RESERVED, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", "r-2")
    drift(stack, "r-0", "r-1", "r-2")
    stack.control.fault(action="CreateFleet", code="InternalError", status=500, times=-1)
    stack.until(lambda: stack.aws.free(odcr) == 1, "a slot is free", step=STEP)
    stack.aws.rival(odcr)
    stack.control.clear_faults()
    stopped_with(stack, 3, "LaunchFailed")
    assert len(goes_on(stack, 3, steps=20)) == 2


@pytest.mark.covers("FUL-03")
def test_nodes_whose_successors_are_not_there_yet_use_up_the_budget(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr()
    pool(stack, RESERVED, group=stack.aws.group(first, second))
    stack.edit(NodePool, "web", {"spec": {"disruption": {"budgets": [{"nodes": "1"}]}}})
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1")
    before = drift(stack, "r-0", "r-1")
    assert rolled(stack, 2, before) == (2, 1)
    assert stack.aws.free(first) == stack.aws.free(second) == 0


@pytest.mark.covers("FUL-01", "FUL-05")
def test_a_gang_with_a_member_outside_is_replaced_whole(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    pool(stack, RESERVED, ON_DEMAND, id_=odcr)
    stack.start()
    gang = {names.GANG: "train", names.GANG_SIZE: "3"}
    for name in ("r-0", "r-1", "r-2"):
        stack.claim(name, node_class="web", pool="web", capacity=(RESERVED, ON_DEMAND), annotations=gang)
    stack.until_ready("r-0", "r-1", "r-2")
    for name in ("r-0", "r-1", "r-2"):
        run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name, cpu="1500m", labels=WEB)
    before = drift(stack, "r-0", "r-1", "r-2")
    launches, _ = rolled(stack, 3, before)
    assert launches == 3 and stack.aws.free(odcr) == 0
