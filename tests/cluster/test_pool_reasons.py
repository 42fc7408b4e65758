"""A pod without a machine learns why from its own pool first, with the way out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_in, pods_of
from broker.commands.dry_run import DryRun
from broker.commands.explain.reading import read
from broker.commands.plan import drafts
from broker.commands.plan.pods import PodPlan, planned_pods
from broker.kube.client import Client
from broker.oncall.pod_reports import FAILED, NOMINATED
from broker.placement.pool_choice import OFFERING
from broker.placement.type_reasons import DRAWS_ELSEWHERE
from tests.cluster import cases, objects
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT, Json
from tests.cluster.stack import Stack
from tests.cluster.test_node_labels import OLD_ZONE, WITH_VOLUME, volume
from tests.cluster.test_provisioning import capacity, pods, pool, start


@pytest.mark.covers("FLT-35")
def test_dedicated_reservation_names_the_requirement_to_add(stack: Stack) -> None:
    ids = cases.apply(stack, "ec2-08-no-machine-reason")
    start(stack)
    event = stack.until_event("p", FAILED, kind="Pod", text=ids["A"])
    assert "NodePool team" in event.message and "tenancy" in event.message
    assert names.INSTANCE_TENANCY in event.message
    offering = stack.until(lambda: stack.condition(NodePool, "team", OFFERING), "a condition")
    assert offering is not None and offering.status == "False"
    assert ids["A"] in offering.message and names.INSTANCE_TENANCY in offering.message
    text = f"the slot's tenancy is dedicated, and no {names.INSTANCE_TENANCY} of the NodePool requires it"

    def offered() -> list[tuple[str, str]]:
        """What `explain cluster` names between the pod and the slot."""
        return [(match.command, match.why) for match in read(stack.client, stack.clock.now()).matches]

    stack.until(
        lambda: offered() == [("kubectl edit nodepool team", text)], "the requirement to add", step=1.0
    )


@pytest.mark.covers("FLT-35", "FUL-01")
@pytest.mark.parametrize("misfit", ["TenancyMismatch", "PlatformMismatch"])
def test_pool_of_dedicated_tenancy_shows_the_slots_that_its_nodes_have(stack: Stack, misfit: str) -> None:
    """The class says that claims without this requirement have no reservation, first for the smallest id."""
    odcrs = [stack.aws.odcr(Tenancy="dedicated")]
    while misfit == "PlatformMismatch" and min(odcrs) == odcrs[0]:
        odcrs = [stack.aws.odcr(Tenancy="dedicated"), stack.aws.odcr(platform="Windows")]
    stack.node_class(group=stack.aws.group(*odcrs))
    dedicated = {"key": names.INSTANCE_TENANCY, "operator": "In", "values": ["dedicated"]}
    pool(stack, template={"requirements": [capacity(RESERVED), dedicated]})
    pods(stack, 1)
    start(stack)
    stack.until(lambda: [claim for claim in stack.all(NodeClaim) if claim.status.provider_id], "a machine")
    stack.until_class(names.CAPACITY_RESERVATION, "False", reason=misfit)
    stack.until(lambda: reservation_condition(stack) == ("True", "Available"), "its slot", step=1.0)
    for _ in range(5):
        stack.advance(10)
        stack.passes(1)
        assert reservation_condition(stack) == ("True", "Available")


def reservation_condition(stack: Stack) -> tuple[str, str] | None:
    shown = stack.condition(NodePool, "team", names.CAPACITY_RESERVATION)
    return (shown.status, shown.reason) if shown is not None else None


@pytest.mark.covers("FLT-37")
def test_pod_that_asks_for_devices_by_a_resource_claim_gets_no_machine_and_the_reason(stack: Stack) -> None:
    """A machine of the least price would not have them, and the pool would back off for all other pods."""
    stack.node_class(preference="none")
    pool(stack, "team")
    start(stack)
    claims_ = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    pods(stack, 1, "dra", spec={"resourceClaims": claims_})
    stack.until_event("dra-0", FAILED, kind="Pod", text="spec.resourceClaims asks for devices")
    assert not stack.all(NodeClaim)
    stack.until(
        lambda: all(waiter.held for waiter in read(stack.client, stack.clock.now()).waiters),
        "no slot helps it",
    )
    pods(stack, 1)
    made_for = stack.until(lambda: [pods_of(c) for c in stack.all(NodeClaim)], "a machine for the other pod")
    assert made_for == [["default/p-0"]]
    plan = planned(stack, objects.pod("file", resourceClaims=claims_))
    assert (len(plan.claims), plan.unserved) == (0, 1), "plan -f promises no machine either"


def planned(stack: Stack, *bodies: Json) -> PodPlan:
    """What `plan -f` has for pods, and other objects, of a file."""
    documents = [{"apiVersion": "v1", "kind": "Pod", **body} for body in bodies]
    client, _ = drafts.drafted(documents, lambda: Client(stack.tap))
    provider = stack.provider()
    return planned_pods(
        documents,
        client,
        provider,
        stack.settings,
        stack.clock,
        dry_run=lambda: DryRun(client, provider, stack.settings, stack.clock),
    )


@pytest.mark.covers("FLT-62", "ONC-09")
def test_plan_reports_a_reservation_that_the_pod_may_not_draw_from_as_its_event_will(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    start(stack)
    body = objects.pod("file")
    body["metadata"]["annotations"] = {names.DRAWS_FROM: "gpu"}
    plan = planned(stack, body)
    pods(stack, 1, annotations={names.DRAWS_FROM: "gpu"})
    message = stack.until_event("p-0", "ReservationNotFound", kind="Pod").message
    assert len(plan.claims) == 1 and f"pod default/file: {message}" in plan.notes


@pytest.mark.covers("ONC-09")
def test_plan_has_a_line_for_an_unknown_priority_class_and_one_for_a_given_node(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    start(stack)
    stack.priority_class("high", 100)
    given = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "own"}}
    plan = planned(
        stack,
        given | {"value": 70},
        objects.pod("known", priorityClassName="high"),
        objects.pod("of-file", priorityClassName="own"),
        objects.pod("unknown", priorityClassName="hihg"),
        objects.pod("placed", nodeName="n-1"),
    )
    (unknown,) = [note for note in plan.notes if "priorityClassName" in note]
    assert unknown.startswith("pod default/unknown: spec.priorityClassName is 'hihg', and there is no Prio")
    assert unknown.endswith("; the nearest name is high")
    (placed,) = [note for note in plan.notes if "default/placed" in note]
    assert placed.startswith("pod default/placed: spec.nodeName is 'n-1'") and "nodeSelector" in placed
    made_for = {key for claim in plan.claims for key in pods_in(claim["metadata"]["annotations"])}
    assert made_for == {"default/known", "default/of-file", "default/unknown"}


@pytest.mark.covers("FLT-35")
def test_pool_that_the_pod_selects_comes_first_and_others_are_a_count(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large"))
    pool(stack, "a-first")
    pool(stack, "windows", template={"requirements": [requirement(names.OS, "windows")]})
    start(stack)
    pods(stack, 1, spec={"nodeSelector": {names.NODEPOOL: "windows"}})
    event = stack.until_event("p-0", FAILED, kind="Pod", text="NodePool windows")
    assert names.OS in event.message and "a-first" not in event.message
    assert "1 other NodePool" in event.message


@pytest.mark.covers("FLT-35")
def test_pool_that_offers_nothing_says_why_on_its_pod_and_in_its_condition(stack: Stack) -> None:
    starts = timedelta(hours=5)
    block = stack.aws.capacity_block(state="scheduled", starts=starts)
    stack.node_class(id_=block)
    stack.node_class("plain", preference="none")
    begins = stack.aws.ec2.describe_capacity_reservations()["CapacityReservations"][0]["StartDate"]
    kinds = capacity(RESERVED)
    reasons = {
        "block": ([kinds], (block, f"{begins:%Y-%m-%dT%H:%M}")),
        "zone": ([requirement(names.ZONE, "us-est-1a")], ("'us-est-1a'", "nearest name is us-east-1a")),
        "reserved-zone": ([kinds, requirement(OLD_ZONE, "us-est-1b")], ("nearest name is us-east-1b",)),
        "family": ([requirement(names.INSTANCE_FAMILY, "m55")], ("'m55'", "nearest name is m5")),
        "type": ([requirement(names.INSTANCE_TYPE, "m5.lagre")], ("nearest name is m5.large",)),
        "windows": ([requirement(names.OS, "windows")], ("windows",)),
    }
    for name, (required, _) in reasons.items():
        node_class = "gpu" if kinds in required else "plain"
        pool(stack, name, node_class=node_class, template={"requirements": required})
        pods(stack, 1, name, spec={"nodeSelector": {names.NODEPOOL: name}})
    start(stack)
    for name, (_, texts) in reasons.items():
        event = stack.until_event(f"{name}-0", FAILED, kind="Pod", text=f"NodePool {name}: ")
        offering = stack.until(lambda n=name: stack.condition(NodePool, n, OFFERING), name)  # type: ignore[misc]
        assert offering is not None and offering.status == "False"
        for text in texts:
            assert text in event.message and text in offering.message
    for name in reasons:
        stack.delete(Pod, f"{name}-0", namespace="default")
    stack.until(
        lambda: not any(stack.condition(NodePool, name, OFFERING) for name in reasons), "no condition"
    )


@pytest.mark.covers("FLT-35")
def test_full_pool_has_no_condition_because_of_a_pod_that_cannot_use_it(stack: Stack) -> None:
    """The pod waits for a pool of its own, and what the other one offers is of no use to it."""
    stack.node_class(id_=stack.aws.odcr("m5.xlarge"))
    stack.node_class("plain", preference="none")
    only = [
        capacity(RESERVED),
        requirement(names.INSTANCE_TYPE, "m5.large"),
    ]  # the reservation's is m5.xlarge
    pool(stack, "full", template={"requirements": only})
    pool(stack, "own", node_class="plain", template={"requirements": [requirement(names.ZONE, "us-est-1a")]})
    pods(stack, 1, "other", spec={"nodeSelector": {names.NODEPOOL: "own"}})
    start(stack)
    stack.until(lambda: stack.condition(NodePool, "own", OFFERING), "the condition of the pod's pool")
    assert stack.condition(NodePool, "full", OFFERING) is None
    pods(stack, 1, spec={"nodeSelector": {names.NODEPOOL: "full"}})
    stack.until(lambda: stack.condition(NodePool, "full", OFFERING), "the condition once a pod could use it")


def requirement(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}


@pytest.mark.covers("FLT-35")
def test_volume_in_a_zone_without_a_slot_is_named_with_the_reservations_zone(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large")
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": [capacity(RESERVED)]})
    volume(stack, OLD_ZONE, B)
    pods(stack, 1, spec=WITH_VOLUME)
    start(stack)
    event = stack.until_event("p-0", FAILED, kind="Pod", text="volume pv")
    assert all(text in event.message for text in (B, odcr, "us-east-1a"))


UNKNOWN = {
    "type": (
        names.INSTANCE_TYPE,
        "m5.lrage",
        "EC2 has no instance type 'm5.lrage' in this Region; the nearest name is m5.large",
    ),
    "gpu": (names.INSTANCE_GPU_NAME, "amdgpu", "EC2 has no GPU 'amdgpu' in this Region; there are "),
    "arch": (names.ARCH, "riscv64", "EC2 has no instance type of architecture 'riscv64' in this Region"),
    "zone": (names.ZONE, "us-east-1z", "this Region has no zone 'us-east-1z'; the nearest name is us-east-1"),
    "old-zone": (OLD_ZONE, "us-east-9", "this Region has no zone 'us-east-9'; the nearest name is us-east-1"),
}


@pytest.mark.covers("ONC-01", "FLT-35")
def test_label_value_that_nothing_has_is_the_reason_in_the_event_and_in_explain(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    pool(stack, "reserved", template={"requirements": [capacity(RESERVED)]})
    for name, (key, value, _) in UNKNOWN.items():
        pods(stack, 1, name, spec={"nodeSelector": {key: value}})
    start(stack)
    for name, (_, _, text) in UNKNOWN.items():
        event = stack.until_event(f"{name}-0", FAILED, kind="Pod", text=text)
        assert "node(s)" not in event.message and "NodePool" not in event.message

    def reasons() -> dict[str, tuple[str, str]]:
        rows = read(stack.client, stack.clock.now()).waiting_pods
        return {row.name: (row.reason, row.message) for row in rows}

    def same() -> bool:
        known = reasons()
        return all(
            known[f"{name}-0"][0] == "NoNodePool" and known[f"{name}-0"][1].startswith(text)
            for name, (_, _, text) in UNKNOWN.items()
        )

    stack.until(same, "explain has the reasons of the events", step=1.0)
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-16", "FLT-35")
def test_pool_without_capacity_types_has_no_spot_for_a_pod_that_selects_it(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack, template={"requirements": [requirement(names.INSTANCE_TYPE, "m5.large")]})
    pods(stack, 1, spec={"nodeSelector": {names.CAPACITY_TYPE: SPOT}})
    start(stack)
    text = f"{names.CAPACITY_TYPE}: no value satisfies In [{RESERVED}, {ON_DEMAND}] and In [{SPOT}]"
    stack.until_event("p-0", FAILED, kind="Pod", text=text)
    (row,) = read(stack.client, stack.clock.now()).waiting_pods
    assert row.reason == "NoNodePool" and text in row.message
    assert not stack.aws.instances()


@pytest.mark.covers("FLT-35")
def test_types_that_do_not_match_are_counted_and_the_test_is_named(stack: Stack) -> None:
    stack.node_class(preference="none")
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large", "m5.xlarge"]}
    pool(stack, template={"requirements": [types]})
    pods(stack, 1, spec={"nodeSelector": {names.CAPACITY_TYPE: RESERVED}})
    pods(stack, 1, "large", cpu="4")
    start(stack)
    event = stack.until_event("p-0", FAILED, kind="Pod", text="NodePool team")
    assert event.message.endswith(
        "NodePool team: 2 instance types do not match the pod's node selector "
        f"({names.CAPACITY_TYPE} In [{RESERVED}])"
    )
    event = stack.until_event("large-0", FAILED, kind="Pod", text="NodePool team")
    assert "2 instance types have too little cpu (3" in event.message and "requests 4)" in event.message


@pytest.mark.covers("FLT-35")
def test_limit_names_pool_resource_and_numbers(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack, limits={"cpu": "3"})
    pool(stack, "memory", limits={"memory": "4Gi", "nodes": "0"})
    start(stack)
    first = {names.NODEPOOL: "team", names.INSTANCE_TYPE: "m5.large"}
    pods(stack, 1, "first", spec={"nodeSelector": first})
    stack.until_event("first-0", NOMINATED, kind="Pod")
    pods(stack, 1, cpu="1500m", spec={"nodeSelector": {names.NODEPOOL: "team"}})
    gang = {names.GANG: "g", names.GANG_SIZE: "2"}
    pods(stack, 2, "gang", annotations=gang, spec={"nodeSelector": {names.NODEPOOL: "memory"}})
    message = stack.until_event("p-0", FAILED, kind="Pod", text="limit of cpu").message
    assert "NodePool team" in message and "(m5.large) has 2" in message
    assert "its limit of cpu is 3, its nodes and claims use 2" in message
    message = stack.until_event("gang-0", FAILED, kind="Pod", text="NodePool memory").message
    assert "its limit of memory is 4Gi, its nodes and claims use 0" in message
    assert "its limit of nodes is 0" in message


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize("kind", [RESERVED, ON_DEMAND])
def test_refusal_of_the_only_type_that_fits_is_the_reason_of_pods_that_come_later(
    stack: Stack, kind: str
) -> None:
    """The pool has other types, which lack what the pods need."""
    large, small = stack.aws.odcr("m5.xlarge"), stack.aws.odcr("m5.large")
    stack.node_class(zones=(A,), group=stack.aws.group(large, small))
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large", "m5.xlarge"]}
    pool(stack, template={"requirements": [requirement(names.CAPACITY_TYPE, kind), types]})
    stack.control.fault(action="CreateFleet", code="InsufficientInstanceCapacity", message="none", times=-1)
    pods(stack, 1, cpu="3")
    start(stack)
    (claim,) = stack.until(lambda: stack.all(NodeClaim), "a claim", step=0.2)
    stack.until_waiting(claim.name, "InsufficientCapacity")
    pods(stack, 1, "later", cpu="3")
    event = stack.until_event("later-0", FAILED, kind="Pod", text="InsufficientInstanceCapacity")
    assert "m5.xlarge" in event.message and "too little cpu" not in event.message


@pytest.mark.covers("FLT-35")
def test_pod_that_draws_from_none_reads_nothing_of_the_machines_for_others(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    pods(stack, 1, "draws", cpu="900", annotations={names.DRAWS_FROM: "gpu"})
    pods(stack, 1, cpu="900")
    pods(stack, 1, "lost", spec={"nodeSelector": {names.NODEPOOL: "tema"}})
    start(stack)
    for name in ("draws-0", "p-0"):
        message = stack.until_event(name, FAILED, kind="Pod", text="NodePool team").message
        assert "the pod requests 900 CPU" in message and DRAWS_ELSEWHERE not in message
    lost = stack.until_event("lost-0", FAILED, kind="Pod").message
    assert lost.endswith("NodePool tema does not exist; the nearest name is team")


@pytest.mark.covers("FLT-35")
def test_pool_that_is_being_deleted_is_the_reason_of_its_pods(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    stack.edit(NodePool, "team", {"metadata": {"finalizers": ["example.com/kept"]}})
    stack.delete(NodePool, "team")
    start(stack)
    pods(stack, 1)
    stack.until_event("p-0", FAILED, kind="Pod", text="NodePool team: it is being deleted")
