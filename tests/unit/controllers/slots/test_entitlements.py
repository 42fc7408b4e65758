"""When plans may be made: at once without reservations, else once the owners of the slots are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.apis import crds, names
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import CONVERGENCE, AssumptionStore
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.slots.builder import SlotSnapshotBuilder
from broker.controllers.slots.entitlements import PATIENCE, EntitlementReader
from broker.controllers.snapshot import Snapshot
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.unit.capacity.builders import inventory, odcr

RESERVATIONS = ("capacityreservations", "clustercapacityreservations")


class World:
    """A reader of entitlements over the caches."""

    def __init__(self, *, installed: bool) -> None:
        self.client = Client(InProcessTransport(Cluster()), field_manager="test")
        for body in crds.load() if installed else ():
            self.client.create(crds.KIND, body)
        self.clock = FakeClock()
        self.reads = ReservationReads(self.client, clock=self.clock)
        self.assumed = assumed = AssumptionStore(self.clock)
        self.slots = SlotSnapshotBuilder(self.reads, claim_caches(), settings=Settings(), assumed=assumed)
        self.reader = EntitlementReader(self.slots)

    def snapshot(self, stock: Inventory) -> Snapshot:
        """The present one, with these ODCRs."""
        return replace(self.reads.snapshot(), inventory=stock, assumed=self.assumed.slots())

    def read(self, kinds: Iterable[str]) -> None:
        for name in kinds:
            try:
                self.reads.named[name].read()
            except NotFound:
                assert self.reads.named[name].missing

    def reserve(self) -> None:
        self.client.create(Namespace.KIND, {"metadata": {"name": "team"}})
        group = {
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}],
        }
        body: Any = {"metadata": {"name": "gpu", "namespace": "team"}, "spec": {"resourceGroups": [group]}}
        self.client.create(CapacityReservation.KIND, body)


@pytest.mark.parametrize("installed", [False, True])
def test_without_reservations_no_launch_waits_for_other_kinds(installed: bool) -> None:
    world = World(installed=installed)
    assert not world.reader.known()
    world.read(RESERVATIONS)
    assert world.reader.known()


def test_with_a_reservation_launches_wait_until_ownership_is_known() -> None:
    world = World(installed=True)
    world.reserve()
    world.read(RESERVATIONS)
    assert not world.reader.known()
    world.read(world.reads.named)
    assert not world.reader.known()
    world.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
    assert world.reader.known()


@pytest.mark.covers("FLT-64")
@pytest.mark.parametrize("error", ["", "timed out (0 NoAnswer)", "busy (503 ServiceUnavailable)"])
def test_launches_wait_for_a_slow_api_server_without_end(error: str) -> None:
    world = World(installed=True)
    for informer in world.reads.named.values():
        informer.error, informer.forbidden = "403 Forbidden", True
    world.reads.cluster_reservations.error, world.reads.cluster_reservations.forbidden = error, False
    world.clock.advance(100 * PATIENCE.total_seconds())
    assert not world.reader.known()


@pytest.mark.covers("FLT-64")
def test_launches_wait_for_owners_that_are_not_resolved_yet() -> None:
    """EC2 is slow, or the pass that resolves the owners fails."""
    world = World(installed=True)
    world.reserve()
    world.read(world.reads.named)
    world.clock.advance(100 * PATIENCE.total_seconds())
    assert not world.reader.known()


def test_unreadable_kinds_pause_launches_for_a_time_and_are_logged_once() -> None:
    world = World(installed=True)
    with capture_logs() as logs:
        assert not world.reader.known()  # no error yet
        assert not logs
        for informer in world.reads.named.values():
            informer.error, informer.forbidden = "403 Forbidden", True
        assert not world.reader.known()
        assert not world.reader.known()
        world.clock.advance(PATIENCE.total_seconds() + 1)
        assert world.reader.known()
        assert world.reader.known()
    assert [entry["event"].partition("; ")[2] for entry in logs] == [
        "launches are paused",
        "launches continue without it",
    ]
    assert {entry["unread"]["capacityreservations"] for entry in logs} == {"403 Forbidden"}


@pytest.mark.covers("FLT-64", "FLT-70")
@pytest.mark.parametrize(
    ("installed", "minutes", "kept"), [(True, 9, True), (True, 10, False), (False, 0, False)]
)
def test_slots_of_a_tagged_reservation_are_kept_for_its_owner_for_a_time(
    installed: bool, minutes: int, kept: bool
) -> None:
    """Not if no kind of reservation is served: then no owner can come."""
    world = World(installed=installed)
    world.read(RESERVATIONS)
    tagged = inventory(odcr("cr-1", tags={names.TAG_RESERVATION: "team/gpu"}))
    assert world.reader.entitlements({}, world.snapshot(tagged)).owned is installed
    world.clock.advance(60 * minutes)
    entitled = world.reader.entitlements({}, world.snapshot(tagged))
    assert entitled.owned is kept
    assert (entitled.right("", "cr-1") is None) is kept


@pytest.mark.covers("FLT-64")
@pytest.mark.parametrize("published", [True, False])
def test_slots_of_a_deleted_reservation_are_kept_while_its_ownership_is_still_published(
    published: bool,
) -> None:
    """Ownership is resolved by another loop, after the reservation is gone."""
    world = World(installed=True)
    world.read(world.reads.named)
    if published:
        owner = {"cr-1": ReservationKey("team", "gpu")}
        world.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership(owner=owner)))
    tagged = inventory(odcr("cr-1", tags={names.TAG_RESERVATION: "team/gpu"}))
    entitled = world.reader.entitlements({}, world.snapshot(tagged))
    assert entitled.right("", "cr-1") is None
    assert "does not exist" in entitled.denial("", "cr-1")


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("exists", [True, False])
def test_denial_says_whether_the_owner_exists(exists: bool) -> None:
    """The tag may be newer than the resolution of owners."""
    world = World(installed=True)
    if exists:
        world.reserve()
    world.read(world.reads.named)
    world.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
    tagged = inventory(odcr("cr-1", tags={names.TAG_RESERVATION: "team/gpu"}))
    denial = world.reader.entitlements({}, world.snapshot(tagged)).denial("", "cr-1")
    assert denial.startswith("reservation cr-1 belongs to team/gpu")
    assert ("does not exist" in denial) is not exists


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(("ended", "freed"), [((), 0), (("u-1",), 1), (("u-1", "u-2"), 1)])
@pytest.mark.parametrize("unattributed", [False, True])
def test_no_claim_waits_for_more_slots_than_ended_claims_still_hold(
    ended: tuple[str, ...], freed: int, unattributed: bool
) -> None:
    """EC2 counts one slot as used. If another instance has it, nothing becomes free there."""
    world = World(installed=True)
    world.reserve()
    world.read(world.reads.named)
    world.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
    tagged = inventory(odcr("cr-1", total=2, free=1, tags={names.TAG_RESERVATION: "team/gpu"}))

    def freed_slots() -> int:
        built = world.slots.build(world.snapshot(tagged), planning=(), assumed=world.assumed.slots())
        assert built is not None
        return built.freed.get("cr-1", 0)

    freed_slots()
    if unattributed:
        world.clock.advance(CONVERGENCE.total_seconds())
    for uid in ended:
        world.assumed.ended.assume(uid, "cr-1")
    assert freed_slots() == (0 if unattributed else freed)


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("evicted", [False, True])
def test_waiting_claims_of_an_evicted_cluster_have_no_held_quota(evicted: bool) -> None:
    """They would come before those of the cluster that it is evicted for."""
    world = World(installed=True)
    world.reserve()
    spec = {"capacityReservationId": "team/gpu", "resources": {"requests": {"nvidia.com/gpu": 8}}}
    body = world.client.create(DedicatedAICluster.KIND, {"metadata": {"name": "serving"}, "spec": spec})
    world.read(world.reads.named)
    world.reads.clusters.read()
    world.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
    usage = {FlavorResource("h100", "nvidia.com/gpu"): 8}
    admission = ClusterAdmission(reserved=ReservationKey("team", "gpu"), since=world.clock.now(), usage=usage)
    world.assumed.admitted.assume(body["metadata"]["uid"], admission)
    if evicted:
        world.assumed.evicted.assume("serving", None)
    built = world.slots.build(world.snapshot(inventory()), planning=(), assumed=world.assumed.slots())
    assert built is not None
    assert built.holding == (set() if evicted else {"serving"})
