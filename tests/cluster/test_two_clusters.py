"""Two clusters in one account, a broker each, with shared reservations and groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Condition
from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID
from tests.cluster import objects
from tests.cluster.account import CLUSTER, A, tags
from tests.cluster.objects import ON_DEMAND, RESERVED, Json
from tests.cluster.ome import bought
from tests.cluster.ome.reserved import GPU, KIND, raw_condition, reservation_status, spec
from tests.cluster.stack import Stack
from tests.cluster.twin import Twin

GREEN, GREEN_KEY = "green", "AKIAGREEN00000000000"
GRACE = 130.0  # more than an orphan's grace time, and EC2 is listed anew
SPEND: dict[str, Any] = {"buy_dollars": 1000.0}
# A reservation that another tool made for blue's CapacityReservation.
_MARKS = {names.TAG_RESERVATION: "default/training", TAG_CLUSTER: CLUSTER}
OF_BLUE = [
    {
        "ResourceType": "capacity-reservation",
        "Tags": [{"Key": key, "Value": value} for key, value in _MARKS.items()],
    }
]
embedded = pytest.mark.parametrize("stack", ["embedded"], indirect=True)


@contextmanager
def green(stack: Stack, **settings: Any) -> Iterator[Twin]:
    """Another cluster of the account with a running broker. Its calls carry its own access key."""
    twin = Twin(stack, GREEN, key=GREEN_KEY, **settings)
    twin.broker.start()
    try:
        yield twin
    finally:
        twin.broker.stop()


def written(stack: Stack, cluster: str) -> str:
    """The parameters of all calls of one broker that are no reads, as text."""
    calls = [
        call
        for call in stack.control.log()
        if (call["access_key"] == GREEN_KEY) == (cluster == GREEN)
        and not call["action"].startswith(("Describe", "List", "Get", "Search"))
    ]
    return json.dumps([call["params"] for call in calls])


def reserve(client: Any, instances: int, *, name: str = "training", **annotations: str) -> None:
    """A CapacityReservation of p5.48xlarge."""
    notes = {f"capacity-broker.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    body = {
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": spec(bought.P5, quotas={GPU: str(8 * instances)}),
    }
    client.create(KIND, body)


def status(twin: Twin, name: str = "training") -> Json:
    return dict(twin.client.get(KIND, name, namespace="default").get("status", {}))


def owned_by(stack: Stack, cluster: str) -> list[Json]:
    return [odcr for odcr in bought.odcrs(stack.aws.ec2) if tags(odcr).get(TAG_CLUSTER) == cluster]


@pytest.mark.covers("USR-31")
@embedded
def test_slot_that_two_clusters_need_goes_to_one_and_the_other_falls_back_or_waits(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    group = stack.aws.group(odcr, name="shared")
    stack.node_class("gpu", group=group, zones=(A,))
    stack.start(kubelets=False)
    stack.polls()
    # Green reads EC2 once before the race: afterwards it believes that the slot is free.
    with green(stack, poll_seconds=30.0) as twin:
        twin.node_class(spec=objects.reservation_spec(id_=odcr))
        twin.claim("first", ON_DEMAND)
        stack.until(lambda: twin.instance("first"), "green has read EC2")
        stack.claim("c-0")
        stack.until_launched("c-0")
        assert stack.reservation_of("c-0") == odcr

        twin.claim("waits", RESERVED)
        twin.claim("falls-back", RESERVED, ON_DEMAND)
        stack.until(lambda: twin.instance("falls-back"), "it falls back")

        def waiting() -> Condition | None:
            condition = twin.claim_condition("waits", names.LAUNCHED)
            return condition if condition is not None and condition.status == "Unknown" else None

        launched = stack.until(waiting, "the other waits")
        assert launched is not None and odcr in launched.message, launched
        assert "full" in launched.message or "free" in launched.message, launched
        assert "CapacityReservationId" not in stack.aws.instance(twin.instance("falls-back"))
        assert stack.reservation_of("c-0") == odcr

        stack.delete(NodeClaim, "c-0")
        stack.until_gone(NodeClaim, "c-0")
        stack.until(lambda: twin.instance("waits"), "it has the slot once blue is gone", step=5.0)
        assert stack.aws.instance(twin.instance("waits"))["CapacityReservationId"] == odcr


@pytest.mark.covers("USR-31")
@embedded
def test_no_broker_touches_instances_templates_reservations_or_tags_of_the_other(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    group = stack.aws.group(odcr, name="shared")
    before = tags(stack.aws.reservation(odcr))
    stack.node_class("gpu", group=group, zones=(A,))
    stack.start(kubelets=False)
    stack.claim("held")
    stack.claim("ended")
    stack.until_launched("held", "ended")
    blues = [str(stack.instance(name)["InstanceId"]) for name in ("held", "ended")]
    blue_templates = {*stack.aws.template_names()}
    with green(stack) as twin:
        twin.node_class(spec=objects.reservation_spec(group=group))
        twin.claim("theirs", RESERVED)
        stack.until(lambda: twin.instance("theirs"), "green launches")
        greens = twin.instance("theirs")
        green_templates = {*stack.aws.template_names()} - blue_templates
        assert stack.aws.instance(greens)["CapacityReservationId"] == odcr

        stack.stop()  # a broker without claims ends orphans and sweeps templates: neither is the other's
        stack.start(kubelets=False)
        stack.delete(NodeClaim, "ended")
        stack.until_gone(NodeClaim, "ended")
        for _ in range(2):
            listed = stack.calls("DescribeInstances")
            stack.advance(GRACE)
            stack.until(lambda n=listed: stack.calls("DescribeInstances") >= n + 2, "both list instances")  # type: ignore[misc]
        stack.passes()
    blue_writes, green_writes = written(stack, CLUSTER), written(stack, GREEN)
    assert {id_: stack.aws.instance(id_)["State"]["Name"] for id_ in (blues[0], greens)} == {
        blues[0]: "running",
        greens: "running",
    }
    assert blue_templates and green_templates
    assert blue_templates | green_templates <= {*stack.aws.template_names()}
    assert greens not in blue_writes and not [name for name in green_templates if name in blue_writes]
    assert not [name for name in (*blues, *blue_templates) if name in green_writes]
    assert tags(stack.aws.instance(greens))[TAG_CLUSTER] == GREEN
    assert tags(stack.aws.instance(greens))[TAG_CLUSTER_UID] == twin.uid
    reservation = stack.aws.reservation(odcr)
    assert (tags(reservation), reservation["State"], reservation["TotalInstanceCount"]) == (
        before,
        "active",
        3,
    )


@pytest.mark.covers("USR-31")
@embedded
@pytest.mark.both_servers
def test_odcr_of_one_cluster_is_not_adopted_resized_or_cancelled_by_the_other(stack: Stack) -> None:
    adopted = stack.aws.odcr(bought.P5, A, 1, TagSpecifications=OF_BLUE)
    stack.start(kubelets=False, **SPEND)
    # Both clusters have a reservation of this name.
    reserve(stack.client, 3, reservation_policy="Manage")
    stack.until(lambda: bought.sizes(stack.aws.ec2) == {A: 2}, "blue adopts one and buys two")
    (odcr,) = bought.broker_odcrs(stack.aws.ec2)
    blues = [adopted, str(odcr["CapacityReservationId"])]
    arn = stack.until(
        lambda: str(reservation_status(stack).get("reservationGroupARN", "")), "blue has a group"
    )
    before = [stack.aws.reservation(odcr_id) for odcr_id in blues]
    with green(stack, **SPEND) as twin:
        notes = {"reservation_ids": ",".join(blues), "reservation_group_arn": arn}
        reserve(twin.client, 1, reservation_policy="Manage", deletion_policy="Cancel", **notes)
        stack.until(lambda: "is not adopted" in json.dumps(status(twin)), "green reports why")
        reported = json.dumps(status(twin))
        assert all(odcr_id in reported for odcr_id in blues) and f"of cluster {CLUSTER!r}" in reported
        assert {entry["id"] for entry in status(twin).get("cloudReservations", ())} & {*blues} == set()
        mended = {f"capacity-broker.io/{key.replace('_', '-')}": None for key in notes}
        twin.client.patch(KIND, "training", {"metadata": {"annotations": mended}}, namespace="default")
        stack.until(lambda: owned_by(stack, GREEN), "green buys its own", step=5.0)
        (its,) = owned_by(stack, GREEN)
        stack.until(lambda: status(twin).get("capacityReservationLifecycleState") == "Active", "it is active")
        twin.client.delete(KIND, "training", namespace="default")
        stack.until(lambda: not twin.client.list(KIND)[0], "green gives back its own", step=5.0)
        stack.polls(2)
    assert stack.aws.reservation(its["CapacityReservationId"])["State"] == "cancelled"
    assert [stack.aws.reservation(odcr_id) for odcr_id in blues] == before
    assert not [id_ for id_ in (*blues, arn) if id_ in written(stack, GREEN)]
    assert its["CapacityReservationId"] not in written(stack, CLUSTER)


@pytest.mark.covers("USR-31")
@embedded
def test_open_odcr_taken_by_the_other_cluster_shows_as_used_by_others(stack: Stack) -> None:
    odcr = stack.aws.odcr(bought.P5, A, 2, criteria="open", TagSpecifications=OF_BLUE)
    stack.start(kubelets=False)
    reserve(stack.client, 2)
    stack.until(
        lambda: reservation_status(stack).get("capacityReservationLifecycleState") == "Active",
        "blue has both",
    )
    with green(stack) as twin:
        twin.node_class(spec=objects.reservation_spec(preference="open"))
        twin.claim("theirs", RESERVED, ON_DEMAND, types=(bought.P5,))
        stack.until(lambda: twin.instance("theirs"), "green launches")
        assert stack.aws.instance(twin.instance("theirs"))["CapacityReservationId"] == odcr
        words = f"an instance in {odcr} is no node of this cluster"
        stack.until(
            lambda: words in str(raw_condition(reservation_status(stack), "ResourcesSufficient")),
            words,
            step=5.0,
        )
        mirrored = stack.get(OnDemandCapacityReservation, odcr)
        assert (mirrored.status.total, mirrored.status.available) == (2, 1)
