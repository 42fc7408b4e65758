"""EC2 reservations behind a CapacityReservation under policy Manage: bought, resized, returned."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation
from broker.kube.identity import cluster_uid
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_status import OdcrStatus
from broker.reservations.purchases import TAG_PURCHASE
from providers.names import MANAGED_BY, TAG_CLUSTER, TAG_CLUSTER_UID
from tests.cluster.account import ACCOUNT, A, B, tags
from tests.cluster.ome import bought
from tests.cluster.ome.bought import (
    CANCEL,
    broker_odcrs,
    change_quota,
    create_reservation,
    flavored,
    gone,
    sizes,
)
from tests.cluster.ome.reserved import flavors_alone, reservation_status
from tests.cluster.stack import Stack
from tests.support.odcr_counts import counts

SPEND: dict[str, Any] = {"buy_dollars": 1000.0, "cost_labels": "team"}


@pytest.mark.covers("CAP-03", "CAP-04", "OME-095", "USR-04")
def test_instances_are_reserved_grouped_resized_and_given_back(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    broker = stack.start(**SPEND)
    create_reservation(
        stack, 2, annotations=CANCEL, labels={"team": "blue", "tier": "gold"}, compartmentID="acme"
    )

    stack.until(lambda: sizes(stack.aws.ec2) == {A: 2}, "two instances are reserved")
    (odcr,) = broker_odcrs(stack.aws.ec2)
    assert (odcr["InstanceType"], odcr["InstanceMatchCriteria"]) == (bought.P5, "targeted")
    assert tags(odcr) == {
        TAG_CLUSTER: "blue",
        TAG_CLUSTER_UID: cluster_uid(stack.client),
        names.TAG_RESERVATION: "default/training",
        names.TAG_FLAVOR: "h100",
        MANAGED_BY: "capacity-broker",
        names.TAG_COMPARTMENT: "acme",
        "team": "blue",
        TAG_PURCHASE: tags(odcr)[TAG_PURCHASE],
    }
    arn = stack.until(
        lambda: str(reservation_status(stack).get("reservationGroupARN", "")), "its group is read"
    )
    stack.until(
        lambda: (
            stack.current is not None
            and stack.current.group(arn).member_ids == (odcr["CapacityReservationId"],)
        ),
        "it is in the group",
    )
    # An ODCR that the broker has not seen described is not resized: another one would be bought.
    stack.until(
        lambda: reservation_status(stack).get("capacityReservationLifecycleState") == "Active",
        "it is described",
    )
    change_quota(stack, 3)
    stack.until(lambda: sizes(stack.aws.ec2) == {A: 3}, "it has grown")
    change_quota(stack, 1)
    stack.until(lambda: sizes(stack.aws.ec2) == {A: 1}, "it has shrunk")
    assert [owned["CapacityReservationId"] for owned in broker_odcrs(stack.aws.ec2)] == [
        odcr["CapacityReservationId"]
    ]
    id_ = odcr["CapacityReservationId"]
    for reason, text in (
        ("InstancesReserved", f"reserved 2 {bought.P5} in {A} for flavor h100: {id_}"),
        ("ReservationGrown", f"{id_} grew from 2 to 3 {bought.P5} in {A} for flavor h100"),
        ("ReservationShrunk", f"{id_} shrank from 3 to 1 {bought.P5} in {A}: 2 more than flavor h100 needs"),
    ):
        assert stack.until_event("training", reason, kind="CapacityReservation").message == text

    stack.client.patch(ResourceFlavor.KIND, "h100", {"spec": {"nodeLabels": {names.ZONE: B}}})
    stack.until(lambda: sizes(stack.aws.ec2) == {B: 1}, "it is replaced in the other zone")
    (other,) = broker_odcrs(stack.aws.ec2)
    moved = stack.until_event("training", "ReservationMoved", kind="CapacityReservation")
    assert moved.message == (
        f"flavor h100 moved from 1 {bought.P5} in {A} ({id_}) "
        f"to 1 {bought.P5} in {B} ({other['CapacityReservationId']})"
    )

    stack.delete(CapacityReservation, "training", namespace="default")
    stack.until(lambda: gone(stack), "the object is gone")
    assert broker_odcrs(stack.aws.ec2) == []
    assert broker.reads.snapshot().odcrs.owned.odcrs == {}


@pytest.mark.covers("CAP-02", "USR-05")
def test_nothing_is_bought_unless_the_object_and_the_settings_allow_it(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    broker = stack.start(buy_dollars=0.0)
    create_reservation(stack, 1, name="watched", annotations={})
    create_reservation(stack, 1, name="odd", annotations={names.RESERVATION_POLICY: "manage"})
    create_reservation(stack, 3, name="managed")
    reads = broker.reads
    expected = {
        "watched": (),
        "odd": ("InvalidAnnotation",),
        "managed": ("SpendingCapReached",),
    }
    for name, reasons in expected.items():
        state = ReservationKey("default", name)
        stack.until(
            lambda s=state, r=reasons: (  # type: ignore[misc]
                counts(o := reads.snapshot().odcrs.status(s)).wanted and _reasons(o) == r
            ),
            f"{name} has the problems {reasons}",
        )
    until_status_has(stack, "managed", "SpendingCapReached: 3 more p5.48xlarge are wanted for 165.12 dollars")
    until_status_has(
        stack, "watched", "annotation capacity-broker.io/reservation-policy is Observe: set it to Manage"
    )
    for name, (reason,) in (("odd", expected["odd"]), ("managed", expected["managed"])):
        event = stack.until_event(name, reason, kind="CapacityReservation")
        assert (event.type, event.message) == (
            "Warning",
            reads.snapshot().odcrs.status(ReservationKey("default", name)).problems[0].message,
        )
    assert broker_odcrs(stack.aws.ec2) == []
    stack.stop()

    stack.start(buy_dollars=120.0, buy_dollars_each=120.0, buy_dollars_namespace=120.0)
    whole = "3 more p5.48xlarge are wanted for 165.12 dollars an hour, 55.04 each"
    until_status_has(stack, "managed", f"{whole}, and 2 may be bought, so none is")
    assert broker_odcrs(stack.aws.ec2) == [], "a part is not bought unless the reservation allows it"
    allowed = {"metadata": {"annotations": {names.MINIMUM: "2"}}}
    stack.client.patch(CapacityReservation.KIND, "managed", allowed, namespace="default")
    stack.until(lambda: sizes(stack.aws.ec2) == {A: 2}, "as many as may be had are")
    until_status_has(
        stack, "managed", "1 more p5.48xlarge is wanted for 55.04 dollars an hour, and 0 may be bought"
    )
    assert {tags(odcr)[names.TAG_RESERVATION] for odcr in broker_odcrs(stack.aws.ec2)} == {"default/managed"}


@pytest.mark.covers("CAP-06", "CAP-08")
@pytest.mark.both_servers
def test_existing_reservations_are_adopted_grouped_and_never_changed(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack, "")
    ec2 = stack.aws.ec2
    tag = {"Key": names.TAG_RESERVATION, "Value": "default/training"}
    tagged = [{"ResourceType": "capacity-reservation", "Tags": [tag]}]
    by_tag = stack.aws.odcr(bought.P5, A, 1, TagSpecifications=tagged)
    by_id = stack.aws.odcr(bought.P5, B, 1)
    by_group = stack.aws.odcr(bought.P5, A, 1)
    shared = elsewhere(stack, owner_id="999988887777", shared_with=[ACCOUNT])
    block = elsewhere(stack, reservation_type="capacity-block")
    spare = elsewhere(stack, interruptible=True)
    later = elsewhere(stack, 2, StartDate=(stack.clock.now() + timedelta(days=7)).isoformat())
    adopted = [by_tag, by_id, by_group, shared, block, spare, later]
    before = [stack.aws.reservation(odcr_id) for odcr_id in adopted]
    annotations = CANCEL | {
        names.ADOPT_IDS: f"{by_id}, {shared},{block},{spare},{later}",
        names.ADOPT_GROUP: stack.aws.group(by_group, name="terraform"),
    }
    broker = stack.start(**SPEND, adopt_by_annotation="default")
    create_reservation(stack, 10, annotations=annotations)
    # Eight exist, of which two start later: two are bought.
    stack.until(lambda: sum(sizes(ec2).values()) == 2, "the rest is bought")
    reads, training = broker.reads, ReservationKey("default", "training")
    stack.until(
        lambda: counts(reads.snapshot().odcrs.status(training)).obtained == 8, "all that is active is counted"
    )
    odcrs = reads.snapshot().odcrs
    (count,) = odcrs.status(training).flavors.values()
    assert (count.wanted, count.obtained, count.pending) == (10, 8, 2)
    assert {odcr.id: odcr.owner_id for odcr in odcrs.owned.of(training)["h100"]}[shared] == "999988887777"
    bought_id = broker_odcrs(ec2)[0]["CapacityReservationId"]
    arn = stack.until(
        lambda: str(reservation_status(stack).get("reservationGroupARN", "")), "its group is read"
    )
    stack.until(
        lambda: (
            stack.current is not None and set(stack.current.group(arn).member_ids) == {*adopted, bought_id}
        ),
        "all of it is in the group",
    )
    change_quota(stack, 1)
    stack.until(lambda: broker_odcrs(ec2) == [], "the purchase is given back")
    stack.delete(CapacityReservation, "training", namespace="default")
    stack.until(lambda: gone(stack), "the object is gone")
    assert [stack.aws.reservation(odcr_id) for odcr_id in adopted] == before


def elsewhere(stack: Stack, count: int = 1, **more: Any) -> str:
    """A reservation that no call of this account made."""
    reply = stack.control.reservation(
        InstanceType=bought.P5,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=B,
        InstanceCount=count,
        InstanceMatchCriteria="targeted",
        **more,
    )
    return str(reply["CapacityReservationId"])


def _reasons(state: OdcrStatus) -> tuple[str, ...]:
    return tuple(dict.fromkeys(problem.reason for problem in state.problems))


def until_status_has(stack: Stack, name: str, words: str) -> None:
    stack.until(lambda: words in str(reservation_status(stack, name)), f"the status of {name} has: {words}")
