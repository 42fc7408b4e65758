"""EC2 counts running instances in slots that become free: accounting moves, pods stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition, is_true
from broker.apis.ome import CapacityReservation
from broker.webpage.live import live_state
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import P5, create_reservation, flavored, sizes
from tests.cluster.ome.reserved import amounts, flavors_alone, reservation_status, reserve
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, gone, later, replacement, run
from tests.support.examples import times

BOTH = (RESERVED, ON_DEMAND)
SEEDS = times(3)
OPEN, BY_ID, BY_GROUP = "open", "id", "group"
SELECTIONS = pytest.mark.parametrize("selection", [OPEN, BY_ID, BY_GROUP])
FREED = pytest.mark.parametrize("absorbs", [True, False], ids=["ec2-absorbs", "ec2-does-not"])


def full(
    stack: Stack, selection: str, *, slots: int = 1, annotations: Mapping[str, str] | None = None
) -> str:
    """A reservation, and a pool of a class that selects it. Returns the ODCR."""
    odcr = stack.aws.odcr(count=slots, criteria="targeted" if selection == BY_GROUP else "open")
    chosen = {
        OPEN: lambda: {"preference": "open"},
        BY_ID: lambda: {"id_": odcr},
        BY_GROUP: lambda: {"group": stack.aws.group(odcr)},
    }[selection]()
    stack.node_class("web", zones=(A,), **chosen)
    stack.node_pool("web", node_class="web")
    block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    metadata = {"annotations": dict(annotations or {})}
    stack.edit(NodePool, "web", {"spec": {"disruption": block, **template()}, "metadata": metadata})
    return odcr


def template() -> dict[str, Any]:
    """Of a pool with one type, of which no node is replaced by a cheaper one."""
    values: Mapping[str, Sequence[str]] = {names.CAPACITY_TYPE: BOTH, names.INSTANCE_TYPE: ["m5.large"]}
    required = [{"key": key, "operator": "In", "values": [*listed]} for key, listed in values.items()]
    return {"template": {"spec": {"requirements": required}}}


def beside(stack: Stack, name: str = "low", **more: Any) -> None:
    """A Ready claim with a pod that found no slot."""
    stack.claim(name, **{"node_class": "web", "pool": "web", "capacity": BOTH, **more})
    stack.until_ready(name)
    stack.until_shown(name)
    run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name)
    assert stack.reservation_of(name) == ""


def holder(stack: Stack, odcr: str, name: str = "first") -> None:
    stack.claim(name, node_class="web", capacity=(RESERVED,))
    stack.until_ready(name)
    assert stack.reservation_of(name) == odcr


def end(stack: Stack, name: str) -> None:
    stack.delete(NodeClaim, name)
    stack.until_gone(NodeClaim, name)


def reserved_in(stack: Stack, name: str, odcr: str) -> bool:
    """Whether claim and Node say so."""
    claim = stack.get(NodeClaim, name)
    wanted = {names.CAPACITY_TYPE: RESERVED, names.RESERVATION_ID: odcr, names.RESERVATION_TYPE: "default"}
    labels = (claim.labels, stack.get(Node, claim.status.node_name).labels)
    return all(wanted.items() <= present.items() for present in labels)


def free_slot(stack: Stack, odcr: str) -> str:
    end(stack, "first")
    return odcr


def grow(stack: Stack, odcr: str) -> str:
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=2)
    return odcr


def add_another(stack: Stack, odcr: str) -> str:
    """A second reservation, open or a member of the group."""
    criteria = str(stack.aws.reservation(odcr)["InstanceMatchCriteria"])
    other = stack.aws.odcr(criteria=criteria)
    if criteria == "targeted":
        stack.aws.join("team", other)
    return other


Change = Callable[[Stack, str], str]


@pytest.mark.covers("FUL-10", "CUR-11")
@pytest.mark.parametrize(
    ("selection", "change"),
    [
        *((selection, change) for selection in (OPEN, BY_ID, BY_GROUP) for change in (free_slot, grow)),
        *((selection, add_another) for selection in (OPEN, BY_GROUP)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_running_instance_becomes_reserved_without_a_launch_or_an_eviction(
    stack: Stack, selection: str, change: Change
) -> None:
    odcr = full(stack, selection)
    stack.start()
    holder(stack, odcr)
    beside(stack)
    launches, instance = stack.calls("CreateFleet"), stack.instance("low")["InstanceId"]
    target = change(stack, odcr)
    assert stack.reservation_of("low") == target  # EC2 counts it at once
    stack.until(lambda: reserved_in(stack, "low", target), "labels follow")
    assert target in stack.until_event("low", "PromotedToReserved").message
    current = condition(stack.get(NodeClaim, "low").status.conditions, names.CAPACITY_RESERVATION)
    assert current is not None and current.status == "True" and target in current.message
    later(stack, 300)
    claim = stack.get(NodeClaim, "low")
    assert not claim.deleting and not is_true(claim, names.DRIFTED) and replacement(stack, "low") is None
    assert stack.find(Pod, "app-low", namespace="default") is not None
    assert stack.calls("CreateFleet") == launches
    assert stack.instance("low")["InstanceId"] == instance


@SELECTIONS
@pytest.mark.covers("FUL-10")
def test_labels_follow_within_one_poll_where_the_numbers_stay(stack: Stack, selection: str) -> None:
    """A full reservation is full again at once: nothing but a new listing shows the change."""
    odcr = full(stack, selection)
    stack.start()
    (rival,) = stack.aws.rival(odcr)
    beside(stack)
    began = stack.clock.now()
    stack.aws.ec2.terminate_instances(InstanceIds=[rival])
    stack.advance(2.0)  # a poll
    stack.until(lambda: reserved_in(stack, "low", odcr), "labels follow")
    assert (stack.clock.now() - began).total_seconds() < 30


@SELECTIONS
@pytest.mark.covers("FUL-10")
def test_labels_follow_within_one_poll_of_ec2s_count_and_back(stack: Stack, selection: str) -> None:
    """The listing of the instances is younger than a minute: the reservation's numbers request another."""
    odcr = full(stack, selection)
    stack.start()
    holder(stack, odcr)
    beside(stack)
    grow(stack, odcr)
    stack.advance(2.0)  # a poll
    stack.until(lambda: reserved_in(stack, "low", odcr), "labels follow")
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=1)
    outside = "low" if not stack.reservation_of("low") else "first"
    stack.advance(2.0)
    stack.until(
        lambda: stack.get(NodeClaim, outside).labels.get(names.CAPACITY_TYPE) == ON_DEMAND, "and back"
    )
    stack.until_event(outside, "DemotedToOnDemand")


@FREED
@SELECTIONS
@pytest.mark.covers("FUL-10", "FUL-11")
def test_node_moves_only_if_ec2_did_not_count_it_in_time(stack: Stack, selection: str, absorbs: bool) -> None:
    """No annotation asks for it: the broker itself put the node outside."""
    stack.control.freed_slot_absorbs(absorbs)
    odcr = full(stack, selection)
    stack.start(absorption_seconds=180.0)
    holder(stack, odcr)
    beside(stack)
    end(stack, "first")
    later(stack, 120)
    assert replacement(stack, "low") is None
    later(stack, 120)
    if absorbs:
        assert reserved_in(stack, "low", odcr)
        assert replacement(stack, "low") is None
    else:
        new = stack.until(lambda: replacement(stack, "low"), "make before break", step=STEP)
        assert new is not None
        gone(stack, "low")
        assert stack.reservation_of(new.name) == odcr
    assert stack.aws.free(odcr) == 0 and len(stack.aws.instances()) == 1


@pytest.mark.covers("FUL-11")
@pytest.mark.parametrize("text", ["", "true", "false"])
def test_node_that_ec2_cannot_count_in_the_slot_moves_at_once_unless_its_pool_forbids(
    stack: Stack, text: str
) -> None:
    odcr = stack.aws.odcr()  # targeted, and selected by its id: EC2 never counts a running instance there
    stack.node_class("web", id_=odcr, zones=(A,))
    stack.node_pool("web", node_class="web")
    block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    annotations = {names.RETURN_TO_RESERVATIONS: text} if text else {}
    spec = {"disruption": block, **template()}
    stack.edit(NodePool, "web", {"spec": spec, "metadata": {"annotations": annotations}})
    stack.start(absorption_seconds=3600.0)
    holder(stack, odcr)
    beside(stack)
    end(stack, "first")
    if text == "false":
        later(stack, 240)
        assert replacement(stack, "low") is None
        return
    new = stack.until(lambda: replacement(stack, "low"), "make before break", step=STEP)
    assert new is not None
    gone(stack, "low")
    assert stack.reservation_of(new.name) == odcr


@pytest.mark.covers("FUL-11")
def test_node_that_the_broker_did_not_put_outside_stays_unless_its_pool_asks(stack: Stack) -> None:
    """EC2 took it out of its reservation, which was made smaller for a time."""
    odcr = full(stack, BY_GROUP, slots=2)
    stack.start()
    holder(stack, odcr)
    stack.claim("low", node_class="web", pool="web", capacity=BOTH)
    stack.until_ready("low")
    stack.until_shown("low")
    run(stack, "app-low", stack.get(NodeClaim, "low").status.node_name)
    assert stack.reservation_of("low") == odcr
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=1)
    stack.until_event("low", "DemotedToOnDemand")
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=2)
    assert stack.reservation_of("low") == ""  # it was launched with `capacity-reservations-only`
    later(stack, 240)
    assert replacement(stack, "low") is None
    stack.edit(NodePool, "web", {"metadata": {"annotations": {names.RETURN_TO_RESERVATIONS: "true"}}})
    new = stack.until(lambda: replacement(stack, "low"), "it moves", step=STEP)
    assert new is not None


@pytest.mark.covers("FUL-10", "FUL-13")
def test_quota_and_status_of_the_owner_follow_the_absorbed_instance(stack: Stack) -> None:
    tags = [{"Key": names.TAG_RESERVATION, "Value": "default/training"}]
    specifications = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    odcr = stack.aws.odcr(criteria="open", TagSpecifications=specifications)
    reserve(stack, "training", flavor="m5.large", quotas={"cpu": "2"})
    stack.node_class("web", preference="open", zones=(A,))
    stack.node_pool("web", node_class="web")
    stack.start()
    draws = {names.DRAWS_FROM: "default/training"}
    stack.claim("first", node_class="web", annotations=draws)
    stack.until_ready("first")
    beside(stack, annotations=draws)
    beside(stack, "stranger")
    stack.until(lambda: amounts(reservation_status(stack), "allocated") == {"cpu": "2"}, "one is counted")
    end(stack, "first")
    stack.until(lambda: reserved_in(stack, "low", odcr), "the owner's own instance is counted")
    stack.until(lambda: amounts(reservation_status(stack), "allocated") == {"cpu": "2"}, "and draws quota")
    assert stack.reservation_of("stranger") == ""


@pytest.mark.covers("FUL-13")
def test_absorbed_instance_of_another_team_is_a_loan_and_is_reclaimed_as_one(stack: Stack) -> None:
    """The reservation got its owner after the launch."""
    odcr = stack.aws.odcr(criteria="open")
    (rival,) = stack.aws.rival(odcr)
    stack.node_class("web", preference="open", zones=(A,))
    stack.node_pool("web", node_class="web")
    rule: Mapping[str, Any] = {"preemptionRule": {"reclaimWithinCohort": "Any"}, "cohort": "ml"}
    reserve(
        stack, "research", flavor="m5.large", quotas={"cpu": "0"}, borrow="4", allowBorrowing=True, **rule
    )
    stack.start()
    beside(stack, annotations={names.DRAWS_FROM: "default/research"})
    tags = [{"Key": names.TAG_RESERVATION, "Value": "default/training"}]
    stack.aws.ec2.create_tags(Resources=[odcr], Tags=tags)
    reserve(stack, "training", flavor="m5.large", quotas={"cpu": "2"}, **rule)
    stack.aws.ec2.terminate_instances(InstanceIds=[rival])
    stack.until(lambda: reserved_in(stack, "low", odcr), "it is counted", step=1.0)
    broker = stack.broker
    assert broker is not None
    (loan,) = stack.until(lambda: live_state(broker).loans, "a loan", step=1.0)
    assert (loan.owner, loan.borrower, loan.claims) == ("default/training", "default/research", ["low"])
    stack.claim("owner", node_class="web", annotations={names.DRAWS_FROM: "default/training"})
    stack.until_ready("owner")
    assert stack.reservation_of("owner") == odcr
    assert "InCohortReclamation" in stack.until_event("low", "Preempted").message


@pytest.mark.covers("FUL-10", "CUR-11")
@pytest.mark.parametrize("selects", [True, False])
def test_node_that_ec2_counts_in_a_reservation_of_others_does_not_drift(stack: Stack, selects: bool) -> None:
    """EC2 chose it, and could choose it again for a replacement, as long as the class selects any."""
    odcr = full(stack, BY_ID)
    stack.start()
    holder(stack, odcr)
    beside(stack)
    other = stack.aws.odcr(criteria="open")
    assert stack.reservation_of("low") == other
    stack.until(lambda: reserved_in(stack, "low", other), "labels follow")
    if not selects:
        stack.edit(EC2NodeClass, "web", {"spec": {"capacityReservationSpec": None}})
        stack.until(lambda: is_true(stack.get(NodeClaim, "low"), names.DRIFTED), "it drifts", step=STEP)
        return
    later(stack, 240)
    assert not is_true(stack.get(NodeClaim, "low"), names.DRIFTED) and replacement(stack, "low") is None


@pytest.mark.covers("FUL-10")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_instance_runs_beside_an_idle_slot_that_ec2_could_count_it_in(stack: Stack, seed: int) -> None:
    """Random launches, ends and resizes: labels and EC2's count agree two polls later."""
    random = Random(seed)
    selection = random.choice([OPEN, BY_ID, BY_GROUP])
    odcr = full(stack, selection, annotations={names.RETURN_TO_RESERVATIONS: "false"})
    stack.start()
    alive: list[str] = []
    for number in range(8):
        action = random.choice(["launch", "launch", "end", "resize"])
        if action == "launch" or not alive:
            alive.append(stack.claim(f"c-{number}", node_class="web", capacity=BOTH))
            stack.until_ready(alive[-1])
        elif action == "end":
            end(stack, alive.pop(random.randrange(len(alive))))
        else:
            count = random.randint(1, 4)
            stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=count)
        stack.advance(2.0)
        counted = {name: stack.reservation_of(name) for name in alive}
        outside = [name for name, place in counted.items() if not place and _countable(stack, name)]
        assert not (stack.aws.free(odcr) and outside), (seed, number, counted)
        stack.until(lambda c=counted: all(_agrees(stack, *item) for item in c.items()), "labels agree")  # type: ignore[misc]


def _countable(stack: Stack, name: str) -> bool:
    """One that EC2 took out of a reservation which it was launched into by name stays outside."""
    specification = stack.instance(name)["CapacityReservationSpecification"]
    assert specification.get("CapacityReservationPreference") != "none"
    return specification.get("CapacityReservationPreference") in (None, "open")


def _agrees(stack: Stack, name: str, odcr: str) -> bool:
    labels = stack.get(NodeClaim, name).labels
    kind = RESERVED if odcr else ON_DEMAND
    return labels.get(names.CAPACITY_TYPE) == kind and labels.get(names.RESERVATION_ID, "") == odcr


@pytest.mark.covers("FUL-12")
def test_managed_purchase_is_made_where_its_quota_runs_and_absorbs_it(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack, zone="")
    stack.node_class("web", preference="open")
    stack.start(buy_dollars=1000.0, buy_dollars_each=1000.0, buy_dollars_namespace=1000.0)
    create_reservation(stack, 3, annotations={})
    draws = {names.DRAWS_FROM: "default/training"}
    for name in ("c-0", "c-1"):
        stack.claim(name, node_class="web", types=(P5,), zones=(B,), capacity=BOTH, annotations=draws)
    stack.until_ready("c-0", "c-1")
    launches = stack.calls("CreateFleet")
    listings = stack.calls("DescribeInstances")
    stack.advance(61.0)
    stack.until(lambda: stack.calls("DescribeInstances") > listings, "the instances are listed")
    stack.passes()
    terms = {names.RESERVATION_POLICY: "Manage", names.MATCH_CRITERIA: "open"}
    body = {"metadata": {"annotations": terms}}
    stack.client.patch(CapacityReservation.KIND, "training", body, namespace="default")
    stack.until(lambda: sum(sizes(stack.aws.ec2).values()) == 3, "three are reserved")
    assert sizes(stack.aws.ec2) == {A: 1, B: 2}
    assert all(stack.reservation_of(name) for name in ("c-0", "c-1"))
    stack.until(
        lambda: all(reserved_in(stack, name, stack.reservation_of(name)) for name in ("c-0", "c-1")),
        "labels follow",
    )
    assert stack.calls("CreateFleet") == launches
