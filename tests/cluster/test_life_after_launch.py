"""Claims and nodes when their reservation ends, includes their instances, or has a free slot again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.commands.explain import claims
from broker.oncall.metrics import REGISTRY
from broker.webpage.live import live_state
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.taps import writes_of

MINUTE = 60.0
RELIST = 61.0  # seconds after which the broker lists its instances anew


def placement(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that show the placement of a node."""
    keys = (names.CAPACITY_TYPE, *names.RESERVATION_LABELS)
    return {key: labels[key] for key in keys if key in labels}


def inside(odcr: str, type_: str = "default", interruptible: str = "false") -> dict[str, str]:
    return {
        names.CAPACITY_TYPE: RESERVED,
        names.RESERVATION_ID: odcr,
        names.RESERVATION_TYPE: type_,
        names.RESERVATION_INTERRUPTIBLE: interruptible,
    }


OUTSIDE = {names.CAPACITY_TYPE: ON_DEMAND}


def of_claim(stack: Stack, claim: str) -> dict[str, str]:
    return placement(stack.get(NodeClaim, claim).labels)


def node_of(stack: Stack, claim: str) -> Node:
    return stack.get(Node, stack.get(NodeClaim, claim).status.node_name)


def until_both(stack: Stack, claim: str, labels: Mapping[str, str]) -> None:
    """Returns when claim and Node both show this."""
    stack.until_shown(claim)
    stack.until(lambda: of_claim(stack, claim) == labels, f"claim {claim} has {labels}")
    stack.until(lambda: placement(node_of(stack, claim).labels) == labels, f"node of {claim} has {labels}")


def in_minutes(count: float) -> datetime:
    return (datetime.now(UTC) + timedelta(minutes=count)).replace(microsecond=0)


def ending(stack: Stack, minutes: float, count: int = 1) -> tuple[str, datetime]:
    """A default reservation that ends."""
    end = in_minutes(minutes)
    return stack.aws.odcr(count=count, EndDateType="limited", EndDate=end), end


# ---- demotion


@pytest.mark.covers("KRP-27")
def test_instances_of_a_cancelled_reservation_run_on_as_on_demand(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claims(2, labels={"team": "research"})
    stack.until_ready("c-0", "c-1")
    for claim in ("c-0", "c-1"):
        until_both(stack, claim, inside(odcr))
    before = {claim: stack.instance(claim)["InstanceId"] for claim in ("c-0", "c-1")}

    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    for claim in ("c-0", "c-1"):
        until_both(stack, claim, OUTSIDE)
        event = stack.until_event(claim, "DemotedToOnDemand")
        assert odcr in event.message and "cancelled" in event.message and before[claim] in event.message
    # Nothing is disrupted.
    for claim in ("c-0", "c-1"):
        node_claim, node = stack.get(NodeClaim, claim), node_of(stack, claim)
        assert not node_claim.deleting and not node.deleting and not node.spec.taints
        assert node_claim.labels["team"] == node.labels["team"] == "research"
        assert stack.instance(claim)["InstanceId"] == before[claim]
        assert stack.instance(claim)["State"]["Name"] == "running"


@pytest.mark.covers("KRP-24", "KRP-27")
def test_class_and_pool_of_a_cancelled_reservation_are_available_no_more(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr()
    stack.node_class(id_=first)
    stack.node_pool()
    stack.start()
    stack.claim(pool="gpu")
    stack.until_launched("c-0")

    def shown(model: type[EC2NodeClass | NodePool], status: str, reason: str) -> bool:
        current = stack.condition(model, "gpu", "CapacityReservation")
        return current is not None and (current.status, current.reason) == (status, reason)

    for model in (EC2NodeClass, NodePool):
        stack.until(lambda m=model: shown(m, "True", "Available"), f"{model} available")  # type: ignore[misc]
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=first)
    for model in (EC2NodeClass, NodePool):
        stack.until(
            lambda m=model: shown(m, "False", "ReservationCancelled"),  # type: ignore[misc]
            f"{model} without a reservation",
            step=1.0,
        )
        current = stack.condition(model, "gpu", "CapacityReservation")
        assert current is not None and first in current.message
    target = {"capacityReservationTarget": {"capacityReservationId": second}}
    stack.edit(EC2NodeClass, "gpu", {"spec": {"capacityReservationSpec": target}})
    for model in (EC2NodeClass, NodePool):
        stack.until(
            lambda m=model: stack.condition(m, "gpu", "CapacityReservation") is None,  # type: ignore[misc]
            f"{model} before its first launch",
            step=1.0,
        )
    stack.claim("c-1", pool="gpu")
    for model in (EC2NodeClass, NodePool):
        stack.until(lambda m=model: shown(m, "True", "Available"), f"{model} available", step=1.0)  # type: ignore[misc]


@pytest.mark.covers("KRP-24")
def test_class_that_requests_no_reservation_any_more_reports_none(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr())
    stack.node_pool()
    stack.start()
    stack.claim(pool="gpu")
    models: tuple[type[EC2NodeClass | NodePool], ...] = (EC2NodeClass, NodePool)

    def reported(model: type[EC2NodeClass | NodePool]) -> bool:
        return stack.condition(model, "gpu", "CapacityReservation") is not None

    stack.until(lambda: all(map(reported, models)), "both report the launch")
    spec = {
        "capacityReservationSpec": {
            "capacityReservationPreference": "none",
            "capacityReservationTarget": None,
        }
    }
    stack.edit(EC2NodeClass, "gpu", {"spec": spec})
    stack.until(lambda: not any(map(reported, models)), "none reports it any more", step=1.0)


@pytest.mark.covers("KRP-27")
def test_instance_of_an_expired_reservation_runs_on_as_on_demand(stack: Stack) -> None:
    odcr, _ = ending(stack, 30)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(odcr))
    stack.advance(31 * MINUTE)
    until_both(stack, "c-0", OUTSIDE)
    assert "expired" in stack.until_event("c-0", "DemotedToOnDemand").message


@pytest.mark.covers("KRP-27")
@pytest.mark.both_servers
def test_a_node_that_a_crash_left_behind_is_demoted_by_the_next_process(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(odcr))
    stack.tap.lose(writes_of("nodes"))
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    stack.until(lambda: of_claim(stack, "c-0") == OUTSIDE, "the claim is demoted")
    stack.stop()
    assert placement(node_of(stack, "c-0").labels) == inside(odcr)
    stack.tap.heal()
    stack.start()
    until_both(stack, "c-0", OUTSIDE)


@pytest.mark.covers("KRP-27")
def test_a_demoted_claim_is_written_once(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(odcr))
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    until_both(stack, "c-0", OUTSIDE)
    stack.until_event("c-0", "DemotedToOnDemand")
    versions = [o.metadata.resource_version for o in (stack.get(NodeClaim, "c-0"), node_of(stack, "c-0"))]
    stack.advance(RELIST)
    stack.passes()
    stack.advance(RELIST)
    stack.passes()
    assert versions == [
        o.metadata.resource_version for o in (stack.get(NodeClaim, "c-0"), node_of(stack, "c-0"))
    ]
    assert len([e for e in stack.events("c-0") if e.reason == "DemotedToOnDemand"]) == 1


@pytest.mark.covers("FLT-52")
def test_a_shrunk_reservation_shows_everywhere_as_the_cause_of_a_demotion(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claims(2)
    stack.until_ready("c-0", "c-1")
    for claim in ("c-0", "c-1"):
        until_both(stack, claim, inside(odcr))
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=1)
    name = stack.until(
        lambda: next((c for c in ("c-0", "c-1") if of_claim(stack, c) == OUTSIDE), ""), "one is demoted"
    )
    cause = f"reservation {odcr} shrank from 2 to 1 instance"
    assert cause in stack.until_event(name, "DemotedToOnDemand").message
    condition = stack.claim_condition(name, names.CAPACITY_RESERVATION)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "DemotedToOnDemand")
    assert cause in condition.message

    demoted = stack.get(NodeClaim, name)
    usd_hour = claims.price(stack.client, demoted)
    events = claims.events(stack.client, demoted)
    document = claims.document(demoted, None, events, pods=(), usd_hour=usd_hour)
    assert [event for event in document["events"] if cause in event["message"]]
    assert (document["capacity_type"], document["usd_hour"]) == ("on-demand", pytest.approx(0.096))
    assert "  on-demand, 0.10 $/h" in claims.headline(demoted, pods=(), usd_hour=usd_hour)
    assert stack.broker is not None and stack.current is not None
    live = live_state(stack.broker)
    (row,) = (live.row(claim) for claim in live.claims if claim.name == name)
    assert (row.capacity_type, row.reservation, cause in row.placed) == ("on-demand", "", True)
    assert row.price == stack.current.instance_types()[demoted.labels[names.INSTANCE_TYPE]].on_demand_price


@pytest.mark.covers("FLT-52")
def test_cause_of_a_demotion_names_the_size_before_also_after_a_restart(stack: Stack) -> None:
    """The reservation shrinks while no broker runs."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claims(2)
    stack.until_ready("c-0", "c-1")
    for claim in ("c-0", "c-1"):
        until_both(stack, claim, inside(odcr))
    stack.until(lambda: stack.get(OnDemandCapacityReservation, odcr).status.total == 2, "it is recorded")
    stack.stop()
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=1)
    stack.start()
    name = stack.until(
        lambda: next((c for c in ("c-0", "c-1") if of_claim(stack, c) == OUTSIDE), ""), "one is demoted"
    )
    cause = "shrank from 2 to 1 instance"
    assert cause in stack.until_event(name, "DemotedToOnDemand").message
    condition = stack.claim_condition(name, names.CAPACITY_RESERVATION)
    assert condition is not None and cause in condition.message


# ---- promotion


@pytest.mark.covers("KRP-28")
def test_an_instance_that_an_open_reservation_takes_in_becomes_reserved(stack: Stack) -> None:
    stack.node_class(preference="open")
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_ready("c-0")
    until_both(stack, "c-0", OUTSIDE)
    odcr = stack.aws.odcr(criteria="open")
    assert stack.reservation_of("c-0") == odcr
    stack.advance(RELIST)
    until_both(stack, "c-0", inside(odcr))
    assert odcr in stack.until_event("c-0", "PromotedToReserved").message
    assert stack.is_true("c-0", names.CAPACITY_RESERVATION)


@pytest.mark.covers("KRP-27", "KRP-28")
def test_instance_that_open_matching_moves_to_another_reservation_stays_reserved(stack: Stack) -> None:
    first = stack.aws.odcr(criteria="open")
    stack.node_class(preference="open")
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(first))
    second = stack.aws.odcr(criteria="open")
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=first)
    assert stack.reservation_of("c-0") == second
    until_both(stack, "c-0", inside(second))
    message = stack.until_event("c-0", "ReservationChanged").message
    assert first in message and second in message
    assert "DemotedToOnDemand" not in {event.reason for event in stack.events("c-0")}


# ---- ends


@pytest.mark.covers("KRP-29")
def test_a_capacity_block_drains_forty_minutes_before_its_end(stack: Stack) -> None:
    odcr = stack.aws.capacity_block(ends=timedelta(minutes=180))
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(types=("p5.48xlarge",))
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(odcr, "capacity-block"))
    node = node_of(stack, "c-0").name
    stack.budget("none", app="train", allowed=0)
    stack.pod("train", node=node, labels={"app": "train"})
    # A pod that does not run yet is not protected.
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    stack.client.patch(Pod.KIND, "train", {"status": running}, namespace="default", subresource="status")
    stack.advance(135 * MINUTE)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting
    stack.advance(5 * MINUTE)
    event = stack.until_event("c-0", "CapacityBlockEnding")
    assert odcr in event.message
    # It drains like every claim: pods that a budget protects are not killed.
    stack.until_event("c-0", "EvictionBlocked")
    assert stack.get(NodeClaim, "c-0").deleting
    assert stack.instance("c-0")["State"]["Name"] == "running"


@pytest.mark.covers("FUL-41")
@pytest.mark.parametrize("paid", [True, False], ids=["paid", "not-paid"])
def test_a_block_whose_extension_is_being_paid_drains_only_if_it_stays_unpaid(
    stack: Stack, paid: bool
) -> None:
    odcr = stack.aws.capacity_block(ends=timedelta(minutes=180))
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(types=("p5.48xlarge",))
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(odcr, "capacity-block"))
    stack.advance(118 * MINUTE)
    bought = stack.clock.now()
    stack.control.payment(1500 if paid else 1800)  # 37 or 32 minutes before the end; EC2 waits until 35
    extend(stack, odcr)
    stack.polls(2)
    left = 24 * MINUTE - (stack.clock.now() - bought).total_seconds()
    stack.advance(left)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting
    stack.advance(2 * MINUTE)
    stack.polls(2)
    stack.advance(2 * MINUTE)
    if paid:
        stack.passes()
        stack.advance(30 * MINUTE)
        stack.passes()
        assert not stack.get(NodeClaim, "c-0").deleting
    else:
        stack.advance(MINUTE)
        stack.until_event("c-0", "CapacityBlockEnding")


@pytest.mark.covers("FUL-41")
@pytest.mark.parametrize("code", ["InternalError", "UnauthorizedOperation"])
def test_a_block_drains_late_while_ec2_refuses_to_list_its_extensions(stack: Stack, code: str) -> None:
    odcr = stack.aws.capacity_block(ends=timedelta(minutes=180))
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(types=("p5.48xlarge",))
    stack.until_ready("c-0")
    until_both(stack, "c-0", inside(odcr, "capacity-block"))
    stack.control.fault(action="DescribeCapacityBlockExtensionHistory", code=code, times=-1)
    stack.advance(118 * MINUTE)
    stack.polls(2)
    if code == "UnauthorizedOperation":
        for name, kind in (("c-0", "NodeClaim"), ("gpu", "EC2NodeClass")):
            stack.until_event(name, "ExtensionsUnreadable", kind=kind, text="grant the broker's role")
    stack.advance(24 * MINUTE)
    stack.polls(2)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting
    stack.advance(5 * MINUTE)
    stack.until_event("c-0", "CapacityBlockEnding")


def extend(stack: Stack, odcr: str) -> None:
    """Buys two days more of a Capacity Block."""
    (offer,) = stack.aws.ec2.describe_capacity_block_extension_offerings(
        CapacityReservationId=odcr, CapacityBlockExtensionDurationHours=48
    )["CapacityBlockExtensionOfferings"]
    stack.aws.ec2.purchase_capacity_block_extension(
        CapacityReservationId=odcr,
        CapacityBlockExtensionOfferingId=offer["CapacityBlockExtensionOfferingId"],
    )


@pytest.mark.covers("KRP-29")
def test_end_of_a_default_reservation_is_announced_an_hour_and_ten_minutes_before(stack: Stack) -> None:
    odcr, end = ending(stack, 120)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    stack.passes()
    assert "ReservationEnding" not in {event.reason for event in stack.events("c-0")}

    def notices(name: str, kind: str) -> list[str]:
        messages = [e.message for e in stack.events(name, kind=kind) if e.reason == "ReservationEnding"]
        return sorted(
            ("60" if "60 minutes" in m else "10") for m in messages if odcr in m and f"{end:%H:%M}" in m
        )

    stack.advance(61 * MINUTE)
    for name, kind in (("c-0", "NodeClaim"), ("gpu", "EC2NodeClass")):
        stack.until(lambda n=name, k=kind: notices(n, k) == ["60"], f"{kind} has the event")  # type: ignore[misc]
    left = REGISTRY.get_sample_value(
        "capacity_broker_odcr_end_seconds",
        {"odcr": odcr, "instance_type": "m5.large", "zone": A, "reservation_type": "default"},
    )
    assert left is not None and 50 * MINUTE < left <= 59 * MINUTE
    stack.advance(50 * MINUTE)
    for name, kind in (("c-0", "NodeClaim"), ("gpu", "EC2NodeClass")):
        stack.until(lambda n=name, k=kind: notices(n, k) == ["10", "60"], f"{kind} has the event")  # type: ignore[misc]
    assert not stack.get(NodeClaim, "c-0").deleting


# ---- the slot of an ended instance


@pytest.mark.covers("KRP-30")
@pytest.mark.parametrize("counted", [True, False], ids=["counted by EC2", "launched since"])
def test_slot_of_a_deleted_claim_is_taken_before_ec2_is_polled_again(stack: Stack, counted: bool) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    broker = stack.start(poll_seconds=3600.0)
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.until_shown("c-0")
    if counted:
        broker.inventory.refresh()
    stack.claim("c-1")
    stack.until_waiting("c-1", "AllReservationsFull")
    stack.control.fault(action="DescribeCapacityReservations", code="InternalError", status=500, times=-1)
    stack.delete(NodeClaim, "c-0")
    stack.until_launched("c-1")
    assert stack.reservation_of("c-1") == odcr


def test_annotation_that_a_person_removes_from_a_registered_node_stays_away(stack: Stack) -> None:
    """As with Karpenter, the claim's annotations are copied when the node registers, and not again."""
    stack.node_class(preference="none")
    stack.start()
    stack.claim("c-0", capacity=(ON_DEMAND,), annotations={names.DO_NOT_DISRUPT: "true"})
    stack.until_ready("c-0")
    node = stack.get(NodeClaim, "c-0").status.node_name
    assert stack.get(Node, node).annotations[names.DO_NOT_DISRUPT] == "true"
    stack.edit(Node, node, {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}, "labels": {"a": "b"}}})
    stack.edit(NodeClaim, "c-0", {"metadata": {"labels": {"team": "blue"}}})
    stack.until(lambda: stack.get(Node, node).labels.get("team") == "blue", "the claim's label", step=1.0)
    assert names.DO_NOT_DISRUPT not in stack.get(Node, node).annotations
