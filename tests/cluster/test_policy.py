"""Where a claim goes: its capacity-type requirement is the policy, among its class's reservations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from tests.cluster.account import A, B, pools
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT
from tests.cluster.stack import Stack

CAPACITY_TYPE = names.CAPACITY_TYPE


def runs_as(stack: Stack, name: str) -> str:
    return stack.get(NodeClaim, name).labels[CAPACITY_TYPE]


def test_reserved_alone_never_leaves_the_reservations(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    waits = stack.until_waiting("c-0", "AllReservationsFull")
    assert odcr in waits.message and "0 of 1" in waits.message
    stack.passes()
    assert not stack.aws.instances()
    assert stack.calls("CreateFleet") == 0
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=2)
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.parametrize("capacity", [(RESERVED, ON_DEMAND), ()], ids=["both", "no requirement"])
def test_it_falls_back_when_nothing_reserved_can_serve(stack: Stack, capacity: tuple[str, ...]) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.claims(2, capacity=capacity)
    stack.until_launched("c-0", "c-1")
    stack.until_shown("c-0", "c-1")
    assert sorted(map(stack.reservation_of, ("c-0", "c-1"))) == ["", odcr]
    assert {runs_as(stack, n) for n in ("c-0", "c-1")} == {RESERVED, ON_DEMAND}


@pytest.mark.both_servers
def test_on_demand_alone_leaves_a_free_reservation_alone(stack: Stack) -> None:
    odcr = stack.aws.odcr(criteria="open")
    stack.node_class(preference="open")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == ""
    assert stack.aws.free(odcr) == 1
    # The claim requested no reservation: the lack of one is no shortage.
    assert stack.claim_condition("c-0", names.CAPACITY_RESERVATION) is None


def test_spot_comes_last_and_never_with_a_target(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.control.pool(instance_type="m5.large", zone=A, size=0)
    stack.node_class(id_=odcr, zones=(A,))
    stack.start()
    stack.claims(2, capacity=(RESERVED, ON_DEMAND, SPOT))
    stack.until_launched("c-0", "c-1")
    stack.until_shown("c-0", "c-1")
    assert {runs_as(stack, n) for n in ("c-0", "c-1")} == {RESERVED, SPOT}
    spot = next(i for i in stack.aws.instances() if i.get("InstanceLifecycle") == "spot")
    templates = [t["Data"] for t in stack.aws.templates()]
    assert {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": odcr},
    } in [data["CapacityReservationSpecification"] for data in templates]
    [used] = [
        stack.aws.template_data(
            f["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"]
        )
        for f in stack.aws.fleets()
        if f["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot"
    ]
    assert used["CapacityReservationSpecification"] == {"CapacityReservationPreference": "none"}
    assert spot["InstanceType"] == "m5.large"


@pytest.mark.covers("KRP-17")
def test_a_full_reservation_moves_the_claim_to_another_type_and_zone_in_the_same_pass(stack: Stack) -> None:
    """EC2 refuses as full where the last description showed room: the next reserved option comes before
    on-demand."""
    small, large = stack.aws.odcr("m5.large", A), stack.aws.odcr("m5.xlarge", B)
    arn = stack.aws.group(small, large)
    stack.node_class(group=arn)
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.aws.rival(small)
    stack.claim(types=("m5.large", "m5.xlarge"), capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == large
    assert stack.instance("c-0")["Placement"]["AvailabilityZone"] == B
    types = [pool["InstanceType"] for fleet in stack.aws.fleets() for pool in pools(fleet)]
    assert types == ["m5.large", "m5.xlarge"]
    attempts = stack.get(NodeClaim, "c-0").annotations["capacity-broker.io/attempts"]
    assert "ReservationCapacityExceeded" in attempts
    stack.until_shown("c-0")
    assert runs_as(stack, "c-0") == RESERVED


@pytest.mark.covers("KRP-17")
def test_when_every_reservation_turns_out_full_it_falls_back_in_the_same_pass(stack: Stack) -> None:
    small, large = stack.aws.odcr("m5.large", A), stack.aws.odcr("m5.xlarge", B)
    arn = stack.aws.group(small, large)
    stack.node_class(group=arn)
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.aws.rival(small)
    stack.aws.rival(large)
    stack.claim(types=("m5.large", "m5.xlarge"), capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == ""
    assert stack.calls("CreateFleet") == 3
    condition = stack.claim_condition("c-0", names.CAPACITY_RESERVATION)
    assert condition is not None and (condition.status, condition.reason) == ("False", "LimitExceeded")


@pytest.mark.covers("FLT-35")
def test_the_reason_of_a_launch_outside_names_the_full_reservation_once(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    condition = stack.claim_condition("c-0", names.CAPACITY_RESERVATION)
    full = f"{odcr} (m5.large, {A}): ReservationFull: free slots: {odcr} 0 of 1"
    assert condition is not None and condition.message == full


@pytest.mark.covers("KRP-33")
@pytest.mark.prompt("the answer to the launch shows the spill")
def test_a_launch_under_open_that_ec2_spills_is_reported_and_labelled_as_ec2_has_it(stack: Stack) -> None:
    odcr = stack.aws.odcr(criteria="open")
    stack.node_class(preference="open")
    stack.before_launch(lambda: stack.aws.rival(odcr))
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == ""
    claim = stack.get(NodeClaim, "c-0")
    assert claim.labels[CAPACITY_TYPE] == ON_DEMAND
    assert not {*names.RESERVATION_LABELS} & {*claim.labels}
    condition = stack.claim_condition("c-0", names.CAPACITY_RESERVATION)
    assert condition is not None and (condition.status, condition.reason) == ("False", "LimitExceeded")
    assert odcr in condition.message and "on demand" in condition.message
    assert '"Spilled"' in claim.annotations["capacity-broker.io/attempts"]
    # The next claim is not planned into the slot that was not there.
    stack.claim("c-1", capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-1")
    attempts = stack.get(NodeClaim, "c-1").annotations["capacity-broker.io/attempts"]
    assert '"Skipped"' in attempts and '"Spilled"' not in attempts


@pytest.mark.covers("KRP-33")
def test_placement_that_ec2_does_not_show_yet_is_labelled_later(stack: Stack) -> None:
    """The claim has its instance at once; its placement is neither guessed nor permanently wrong."""
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.control.lag(3600.0)
    stack.claim(requirements=[{"key": names.RESERVATION_ID, "operator": "In", "values": [odcr]}])
    stack.until_launched("c-0")
    claim = stack.get(NodeClaim, "c-0")
    assert not {CAPACITY_TYPE, *names.RESERVATION_LABELS} & {*claim.labels}
    assert claim.status.image_id == stack.aws.image
    assert '"Spilled"' not in claim.annotations["capacity-broker.io/attempts"]
    # Its slot is taken all the same.
    stack.claim("c-1")
    stack.until_waiting("c-1", "AllReservationsFull")
    stack.control.lag(0.0)

    def labels() -> Mapping[str, str]:
        return stack.get(NodeClaim, "c-0").labels

    stack.until(lambda: labels().get(CAPACITY_TYPE) == RESERVED, "c-0 labelled", step=1.0)
    assert labels()[names.RESERVATION_ID] == odcr
    assert not [e for e in stack.events("c-0") if e.reason == "PromotedToReserved"]
    assert stack.calls("CreateFleet") == 1


@pytest.mark.covers("KRP-33")
def test_a_spill_that_ec2_shows_late_is_reported_when_it_does(stack: Stack) -> None:
    odcr = stack.aws.odcr(criteria="open")
    stack.node_class(preference="open")
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.aws.rival(odcr)
    stack.control.lag(3600.0)
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    stack.control.lag(0.0)

    def shown() -> bool:
        return stack.get(NodeClaim, "c-0").labels.get(CAPACITY_TYPE) == ON_DEMAND

    stack.until(shown, "c-0 shows that it runs on demand", step=1.0)
    condition = stack.claim_condition("c-0", names.CAPACITY_RESERVATION)
    assert condition is not None and (condition.status, condition.reason) == ("False", "LimitExceeded")
    assert stack.instance("c-0")["InstanceId"] in condition.message and "on demand" in condition.message


@pytest.mark.covers("KRP-33")
@pytest.mark.prompt("later, with pods on its node, an instance is not given back")
def test_an_instance_outside_the_reservation_is_given_back_for_a_claim_that_takes_reserved_alone(
    stack: Stack,
) -> None:
    """As with a shared reservation after the share ends: EC2 launches on demand despite the request."""
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start(poll_seconds=600.0)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.after_launch(lambda: stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr))
    stack.claim()
    waits = stack.until_waiting("c-0")
    assert odcr in waits.message
    stack.until(lambda: not stack.aws.instances(), "the instance given back")
    stack.passes()
    assert not stack.aws.instances()
    assert stack.calls("CreateFleet") == 1
