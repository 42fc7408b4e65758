"""Launches use a class's present spec, resolved; never an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import ServiceNetwork, Unresolved
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.errors import Unavailable
from broker.kube.events import Recorder
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.errors import ErrorClass, ProviderError
from providers.model import Image, Odcr, SecurityGroup, Selector, Subnet
from tests.cluster.taps import Tap
from tests.support.clock import FakeClock

SPEC = {
    "amiFamily": "AL2023",
    "amiSelectorTerms": [{"id": "ami-1"}],
    "subnetSelectorTerms": [{"tags": {"team": "a"}}],
    "securityGroupSelectorTerms": [{"id": "sg-1"}],
    "instanceProfile": "node",
}


class Ec2:
    """An account of one subnet; `refused` is raised instead, if it is set."""

    def __init__(self) -> None:
        self.subnet = "subnet-1"
        self.odcrs: Sequence[Odcr] = ()
        self.refused: ProviderError | None = None

    def account_id(self) -> str:
        return "111122223333"

    def reservations(self) -> Sequence[Odcr]:
        return self.odcrs

    def subnets(self, _terms: Sequence[Selector]) -> Sequence[Subnet]:
        if self.refused:
            raise self.refused
        return [Subnet(id=self.subnet, zone="us-east-1a")]

    def security_groups(self, _terms: Sequence[Selector]) -> Sequence[SecurityGroup]:
        return [SecurityGroup(id="sg-1")]

    def images(self, _terms: Sequence[Selector]) -> Sequence[Image]:
        return [Image(id="ami-1")]

    def instance_profile(
        self, *, role: str, profile: str, labels: Mapping[str, str], doubted: bool = False
    ) -> str:
        return profile or role


class World:
    """One class and its controller."""

    def __init__(self, *odcrs: Odcr, karpenters_crd: bool = False) -> None:
        self.tap = Tap(InProcessTransport(Cluster()))
        self.client, self.ec2 = Client(self.tap), Ec2()
        self.ec2.odcrs = odcrs
        for crd in load():
            if karpenters_crd and crd["spec"]["names"]["kind"] == "EC2NodeClass":
                _narrow(crd)
            self.client.create(CRD, crd)
        clock = FakeClock()
        self.cache: Cache[EC2NodeClass] = Cache(EC2NodeClass)
        inventory = InventoryCache(cast(Any, self.ec2), clock=clock, groups=tuple)
        inventory.refresh()
        self.changed: list[str] = []
        self.unread: Exception | None = None  # raised by the read of the cluster's network
        self.controller = NodeClassController(
            ControllerContext(client=self.client, recorder=Recorder(self.client, "test", clock), clock=clock),
            cast(Any, self.ec2),
            inventory,
            self.cache,
            describe=inventory.refresh,
            requeue=lambda _: None,
            network=self.read_network,
        )
        self.controller.on_change(self.changed.append)
        self.create()

    def read_network(self) -> ServiceNetwork:
        if self.unread is not None:
            raise self.unread
        return ServiceNetwork()

    def create(self) -> None:
        terms = [{"id": reservation.id} for reservation in self.ec2.odcrs]
        spec = SPEC | ({"capacityReservationSelectorTerms": terms} if terms else {})
        self.client.create(EC2NodeClass.KIND, {"metadata": {"name": "gpu"}, "spec": spec})
        self.see()

    def see(self) -> None:
        self.cache.observe(self.client.get(EC2NodeClass.KIND, "gpu"))

    def edit(self, body: dict[str, Any]) -> None:
        self.client.patch(EC2NodeClass.KIND, "gpu", body)
        self.see()

    def version(self) -> str:
        return str(self.client.get(EC2NodeClass.KIND, "gpu")["metadata"]["resourceVersion"])


def _narrow(crd: dict[str, Any]) -> None:
    """Karpenter's own definition of a class's reservations: no misfits, no counts, two states."""
    for version in crd["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        del status["capacityReservationMisfits"]
        entry = status["capacityReservations"]["items"]["properties"]
        del entry["totalInstanceCount"], entry["availableInstanceCount"]
        entry["state"]["enum"] = ["active", "expiring"]


def odcr(id_: str, **more: Any) -> Odcr:
    return Odcr(id=id_, instance_type="m5.large", zone="us-east-1a", total=2, available=1, **more)


@pytest.mark.covers("KRP-09")
def test_under_karpenters_definition_only_the_condition_reports_reservations() -> None:
    starts = datetime(2027, 1, 1, tzinfo=UTC)
    world = World(odcr("cr-1"), odcr("cr-2", state="scheduled", start=starts), karpenters_crd=True)
    world.controller.reconcile("gpu")
    world.see()
    status = world.client.get(EC2NodeClass.KIND, "gpu")["status"]
    resolved = {entry["type"]: entry for entry in status["conditions"]}[names.RESERVATIONS_RESOLVED]
    assert (resolved["status"], resolved["message"]) == (
        "True",
        "1 usable with 1 of 2 slots free; cr-2 is scheduled until 2027-01-01T00:00:00Z",
    )
    before = len(world.tap.log)
    world.controller.reconcile("gpu")
    assert [verb for verb, _ in world.tap.log[before:] if verb != "GET"] == []


def test_an_edited_class_is_resolved_before_it_launches() -> None:
    world = World()
    world.controller.reconcile("gpu")
    assert world.controller.ready("gpu").source.spec.user_data == ""
    world.changed.clear()
    world.edit({"spec": {"userData": "echo new"}})
    with pytest.raises(Unresolved) as refused:
        world.controller.ready("gpu")
    assert refused.value.passing
    world.controller.reconcile("gpu")
    assert world.controller.ready("gpu").source.spec.user_data == "echo new"
    assert world.changed == ["gpu"]  # waiting claims are processed


@pytest.mark.covers("KRP-04")
def test_an_annotation_that_becomes_invalid_stops_launches_at_once() -> None:
    world = World()
    world.controller.reconcile("gpu")
    world.edit({"metadata": {"annotations": {names.RESERVATION_SPEC: "{}}"}}})
    with pytest.raises(Unresolved):
        world.controller.ready("gpu")


def test_a_recreated_class_is_resolved_again() -> None:
    """Both have generation 1."""
    world = World()
    world.controller.reconcile("gpu")
    world.ec2.subnet = "subnet-2"
    world.client.delete(EC2NodeClass.KIND, "gpu")
    world.create()
    world.controller.reconcile("gpu")
    assert [subnet.id for subnet in world.controller.ready("gpu").plan.subnets] == ["subnet-2"]


def test_a_repeated_refusal_is_written_once() -> None:
    world = World()
    for request in ("r-1", "r-2"):
        world.ec2.refused = ProviderError(
            "UnauthorizedOperation",
            f"not allowed {request}",
            class_=ErrorClass.PERMISSION,
            request_id=request,
            operation="DescribeSubnets",
        )
        with pytest.raises(ProviderError):
            world.controller.reconcile("gpu")
        if request == "r-1":
            before = world.version()
            world.see()
    assert world.version() == before
    with pytest.raises(Unresolved, match=r"UnauthorizedOperation.*request r-1"):
        world.controller.ready("gpu")


@pytest.mark.parametrize("error", [Unavailable(503, "ServiceUnavailable", "later"), OSError("no route")])
def test_a_class_stays_while_the_clusters_network_cannot_be_read(error: Exception) -> None:
    """The failure is the API server's, so the class is tried again and not left out."""
    world = World()
    world.unread = error
    with pytest.raises(type(error)):
        world.controller.reconcile("gpu")
    assert (world.cache.broken, len(world.cache)) == ({}, 1)
    world.unread = None
    world.controller.reconcile("gpu")
    assert world.controller.ready("gpu").source.name == "gpu"
