"""The reserved-capacity check counts what EC2 sells, and only promises that can be kept, end to end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import yaml

from broker.apis import names
from broker.apis.kueue import ADMITTED, ResourceFlavor, Workload
from broker.apis.ome import CapacityReservation
from broker.webpage.live import ReservationRow, live_state
from tests.cluster.ome.test_kueue import (
    GPU,
    QUEUE,
    TEAM,
    TYPE,
    World,
    false_message,
    kept_out,
    odcr_of_the_team,
    spec,
)
from tests.cluster.stack import Stack
from tests.support.fault_cases import case_text

Json = dict[str, Any]


class Case(World):
    """The objects of a case, and an ODCR of the team."""

    def __init__(self, stack: Stack, case: str, kind: str = TYPE, count: int = 1) -> None:
        super().__init__(stack)
        self.case = case
        self.namespace("team")
        self.create(ResourceFlavor, "flavor")
        self.client.create(CapacityReservation.KIND, self.body("reservation"))
        marks = [{"ResourceType": "capacity-reservation", "Tags": [tag(names.TAG_RESERVATION, str(TEAM))]}]
        self.odcr = stack.aws.odcr(kind, count=count, TagSpecifications=marks)
        broker = stack.start(kubelets=False)
        self.until_queue()
        stack.until(lambda: broker.reads.snapshot().odcrs.owned.of(TEAM), "the instances are known")

    def body(self, file: str) -> Json:
        body: Json = yaml.safe_load(case_text(self.case, file))
        return body

    def create(self, model: type[Any], file: str) -> None:
        body = self.body(file) | {"apiVersion": f"kueue.x-k8s.io/{self.kueue.kind(model).version}"}
        self.client.create(self.kueue.kind(model), body)

    def submit(self, file: str, usage: dict[str, str], *, pods: int = 1) -> str:
        """A workload of the case, for which Kueue has reserved quota."""
        self.create(Workload, file)
        name = str(self.body(file)["metadata"]["name"])
        self.kueue.reserves(name, QUEUE, {"f": usage}, namespace="team", pods=pods)
        return name


def tag(key: str, value: str) -> Json:
    return {"Key": key, "Value": value}


@pytest.mark.covers("FLT-43")
def test_workload_that_needs_ephemeral_storage_is_admitted_on_its_reserved_instances(stack: Stack) -> None:
    world = Case(stack, "quota-7", "m5.xlarge", count=2)
    usage = {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi"}
    world.until_state(world.submit("workload", usage), "Ready")
    world.until_admitted("w")


@pytest.mark.covers("FLT-06")
def test_workload_whose_reservation_is_cancelled_before_it_starts_gives_its_quota_back(stack: Stack) -> None:
    world = Case(stack, "quota-13")
    world.until_state(world.submit("workload", {GPU: "8"}), "Ready")
    world.until_admitted("w")
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=world.odcr)

    def parked() -> bool:
        stack.polls()
        world.kueue.turns(namespace="team")
        return world.parked("w")

    stack.until(parked, "it waits without quota")
    assert not world.is_true("w", ADMITTED)
    (check,) = world.kueue.workload("w", "team").status.admission_checks
    assert "flavor f: 0 reserved instances are active" in check.message


@pytest.mark.covers("FLT-06")
def test_workload_is_not_admitted_on_instances_that_its_reservation_counts_no_more(stack: Stack) -> None:
    """Ten minutes before the end of an EC2 reservation: after it, its nodes are not reserved."""
    world = Case(stack, "quota-13")
    end = stack.clock.now().replace(microsecond=0) + timedelta(minutes=8)
    stack.aws.ec2.modify_capacity_reservation(
        CapacityReservationId=world.odcr, EndDateType="limited", EndDate=end
    )

    def counted() -> Any:
        stack.polls()
        return (
            stack.get(CapacityReservation, TEAM.name, namespace="team")
            .status.allocatable[0]
            .resources[0]
            .total
        )

    stack.until(lambda: counted() == "0", "the status counts them no more")
    name = world.submit("workload", {GPU: "8"})

    def answer() -> str:
        (check,) = world.kueue.workload(name, "team").status.admission_checks
        return check.message

    assert "flavor f: 0 reserved instances are active" in str(stack.until(answer, "the check answers"))


@pytest.mark.covers("FLT-07")
def test_elastic_workload_grows_on_the_instances_that_it_has(stack: Stack) -> None:
    world = Case(stack, "quota-14", count=2)
    world.until_state(world.submit("first", {GPU: "8"}), "Ready")
    world.until_state(world.submit("second", {GPU: "16"}, pods=2), "Ready")
    assert world.parked("two") is False


def renamed_under(world: World) -> None:
    """The reservation's flavor gets another name while `one` runs in the old one."""
    odcr_of_the_team(world.stack, count=2)
    world.flavor("h100")
    world.flavor("h200")
    world.reserve(body=spec("16"), annotations={names.ADMISSION: "Off"})
    world.until_queue()
    world.kueue.judges(QUEUE)
    world.workload("one")
    world.until_admitted("one")
    world.client.patch(CapacityReservation.KIND, "gpu", {"spec": spec("16", "h200")}, namespace="team")


def admitted(world: World, name: str) -> bool:
    world.kueue.turns(namespace="team")
    return world.is_true(name, ADMITTED)


def stop_policy(world: World) -> str:
    queue = world.kueue.queue(QUEUE)
    return queue.spec.stop_policy if queue is not None else ""


@pytest.mark.covers("FLT-44", "FLT-45")
@pytest.mark.parametrize("restarted", [False, True], ids=["same broker", "next leader"])
def test_flavor_renamed_under_a_workload_admits_nothing_more_until_it_fits(
    stack: Stack, restarted: bool
) -> None:
    """Without the reserved-capacity check, Kueue alone decides: it sees new quota beside the old."""
    world = World(stack)
    world.namespace("team")
    stack.start(kubelets=False)
    renamed_under(world)
    if restarted:
        stack.stop()
        stack.start(kubelets=False)
    message = stack.until(
        lambda: kept_out(stack, "QueueStopped"), "the reservation says that it admits nothing"
    )
    assert "8 of nvidia.com/gpu in h100 used" in message and "nothing more is admitted" in message
    stack.until(lambda: stop_policy(world) == "Hold", "its queue is stopped")
    world.kueue.judges(QUEUE)
    broker, provider = stack.broker, stack.current
    assert broker is not None and provider is not None

    def shown() -> ReservationRow:
        (row,) = live_state(broker).reservations
        return row

    stack.until(
        lambda: "its machines are counted in h200" in shown().detail,
        "the page says which is which",
        step=10.0,
    )
    assert shown().summary.text == "quota: 8 of 16 accelerators used, 0 borrowed; machines: 16 usable now"
    assert "quota that its users hold" in false_message(stack, "ResourcesSufficient", "QuotaExceeded")
    world.job("two")
    assert not admitted(world, "two")
    assert world.is_true("one", ADMITTED), "nothing is evicted"
    world.kueue.finishes("one", namespace="team")
    stack.until(lambda: admitted(world, "two"), "the old users have left")
    stack.until(lambda: not kept_out(stack, "QueueStopped"), "it says so")


@pytest.mark.covers("FLT-44")
def test_flavor_that_gets_its_earlier_name_again_admits_at_once(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    stack.start(kubelets=False)
    renamed_under(world)
    stack.until(lambda: stop_policy(world) == "Hold", "its queue is stopped")
    world.client.patch(CapacityReservation.KIND, "gpu", {"spec": spec("16")}, namespace="team")
    world.job("two")
    stack.until(lambda: admitted(world, "two"), "it admits")
