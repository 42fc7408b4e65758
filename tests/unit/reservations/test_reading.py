"""An object's demand on EC2, the names of its group, late descriptions, idle slots, and the end of an
object."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_rules import judge
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumptionStore
from broker.controllers.odcr.groups import EVERY, GROUP_NAME_LENGTH, Groups
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.quota.usage import ReservationKey
from broker.reservations.desired import LATEST_VISIBLE
from broker.reservations.flavors import FlavorCatalog
from broker.reservations.idle import IdleTracker
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.purchases import UNSHOWN
from broker.reservations.reading import ParsedReservation, read
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.errors import ErrorClass, ProviderError
from providers.model import UNCHANGED, Odcr, ReservationGroup
from providers.names import MANAGED_BY, TAG_CLUSTER
from tests.support.clock import FakeClock
from tests.unit.capacity.builders import GROUP, INSTANCE_TYPE, NOW, TYPES, ZONE, ZONES, minutes, odcr

GPU = "nvidia.com/gpu"
P5 = "p5.48xlarge"
TEAM = ReservationKey("ml", "training")


def reservation(
    annotations: dict[str, str] | None = None, gpus: str = "16", **more: Any
) -> CapacityReservation:
    quota = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": gpus}]}
    metadata = {
        "name": "training",
        "namespace": "ml",
        "uid": "u-1",
        "generation": 3,
        "annotations": annotations or {},
        "labels": {"team": "blue", "tier": "gold"},
        "finalizers": [names.RESERVED_FINALIZER],
    }
    spec = {"resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}], **more.pop("spec", {})}
    return CapacityReservation.decode({"metadata": metadata | more, "spec": spec})


def catalog(labels: dict[str, dict[str, str]]) -> FlavorCatalog:
    """ResourceFlavors with these node labels, by name."""
    return FlavorCatalog(
        {
            name: ResourceFlavor.decode({"metadata": {"name": name}, "spec": {"nodeLabels": values}})
            for name, values in labels.items()
        }
    )


def reading(
    annotations: dict[str, str] | None = None,
    *,
    flavors: dict[str, dict[str, str]] | None = None,
    **more: Any,
) -> ParsedReservation:
    known = {"h100": {INSTANCE_TYPE: P5, ZONE: ZONES[0]}} if flavors is None else flavors
    obj = reservation(annotations, **more)
    return read(obj, judge(obj.spec), catalog(known).instances(TYPES, ()), cost_labels=("team", "owner"))


@pytest.mark.covers("CAP-02")
def test_an_object_without_annotations_is_observed_and_retained() -> None:
    parsed = reading()
    assert (parsed.managed, parsed.desired.cancels, parsed.problems) == (False, False, ())
    terms = parsed.desired.terms
    assert (terms.match_criteria, terms.platform, terms.tenancy, terms.end) == (
        "targeted",
        "Linux/UNIX",
        "default",
        None,
    )
    assert terms.tags == {
        "team": "blue",
        names.TAG_RESERVATION: "ml/training",
        MANAGED_BY: "capacity-broker",
    }
    (demand,) = parsed.desired.demands.values()
    assert (demand.nominal, demand.flavor.instance_types, demand.flavor.zones) == (
        {GPU: 16.0},
        (P5,),
        ZONES[:1],
    )


@pytest.mark.covers("CAP-02", "CAP-03", "OME-095")
def test_annotations_set_policy_purchase_and_adoption() -> None:
    parsed = reading(
        {
            names.RESERVATION_POLICY: "Manage",
            names.DELETION_POLICY: " Cancel ",
            names.MATCH_CRITERIA: "open",
            names.TENANCY: "dedicated",
            names.PLATFORM: "Windows",
            names.END_DATE: "2027-01-31T01:00:00.5+01:00",
            names.SIZING: "max\n",
            names.ADOPT_IDS: "cr-1, cr-2,",
            names.ADOPT_GROUP: GROUP,
        },
        spec={"compartmentID": "acme"},
    )
    terms = parsed.desired.terms
    assert (parsed.managed, parsed.desired.cancels) == (True, True)
    assert (terms.match_criteria, terms.tenancy, terms.platform) == ("open", "dedicated", "Windows")
    assert terms.end == datetime(2027, 1, 31, tzinfo=UTC)
    assert terms.tags[names.TAG_COMPARTMENT] == "acme"
    assert parsed.desired.demands["h100"].sizing == "max"
    assert (parsed.claimant.ids, parsed.claimant.group_arn) == (frozenset({"cr-1", "cr-2"}), GROUP)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (names.RESERVATION_POLICY, "manage", "'manage': write Observe or Manage"),
        (names.DELETION_POLICY, "Delete", "'Delete': write Retain or Cancel"),
        (names.MATCH_CRITERIA, "any", "write targeted or open"),
        (names.TENANCY, "host", "write default or dedicated"),
        (names.SIZING, "cpu", "write accelerator or max"),
        (names.MINIMUM, "0", "'0': write all, or a number of instances from 1"),
        (names.MINIMUM, "some", "'some': write all, or a number of instances from 1"),
        (names.SIZING, "Max", "'Max': write accelerator or max"),
        (names.END_DATE, "next week", "'next week': write a time such as 2027-01-31T00:00:00Z"),
        (names.END_DATE, "2027-01-31T00:00:00", "write a time such as"),
        (names.END_DATE, "9999-12-31T23:59:59-05:00", "write a time such as"),
        (names.ADOPT_IDS, "cr-1,i-2", "'i-2'"),
        (names.ADOPT_GROUP, "arn:aws:resource-groups:us-east-1:1:group/own", ":1:group/own': write the ARN"),
        (names.ADOPT_GROUP, "own", "such as arn:aws:resource-groups:us-east-1:123456789012:group/NAME"),
    ],
)
def test_an_invalid_annotation_is_a_problem_and_freezes_the_reservation(
    key: str, value: str, message: str
) -> None:
    parsed = reading({names.RESERVATION_POLICY: "Manage"} | {key: value})
    (problem,) = parsed.problems
    assert problem.reason == "InvalidAnnotation"
    assert key in problem.message and message in problem.message
    assert parsed.desired.frozen
    assert not parsed.desired.cancels
    assert not parsed.claimant.group_arn  # no call to AWS about it
    assert parsed.managed is (key != names.RESERVATION_POLICY)


@pytest.mark.parametrize(
    ("key", "nothing_done"),
    [
        ("capacity-broker.io/end-dat", True),
        ("capacity-broker.io/reservation-polcy", True),
        ("capacity-broker.io/match_criteria", True),
        ("capacity-broker.io/admision", False),
        ("capacity-broker.io/draws-from", False),
        ("example.com/reservation-policy", False),
    ],
)
def test_a_misspelt_annotation_is_a_problem_and_freezes_purchases(key: str, nothing_done: bool) -> None:
    parsed = reading({names.RESERVATION_POLICY: "Manage", key: "x"})
    messages = {problem.reason: problem.message for problem in parsed.problems}
    own_key = key.startswith("capacity-broker.io/")
    assert list(messages) == (["UnknownAnnotation"] if own_key else [])
    assert (
        not own_key
        or f"annotation {key} means nothing on a CapacityReservation" in messages["UnknownAnnotation"]
    )
    assert bool(parsed.desired.frozen) == nothing_done


def test_a_missing_flavor_or_an_invalid_spec_gives_no_demand() -> None:
    parsed = reading(flavors={})
    assert (parsed.desired.demands, parsed.desired.flavor_names) == ({}, ("h100",))
    assert [problem.reason for problem in parsed.problems] == ["FlavorNotFound"]
    assert reading(spec={"allowBorrowing": True}).desired.demands == {}


def test_without_kueue_a_flavor_is_the_type_of_its_name() -> None:
    flavor_of = FlavorCatalog().instances(TYPES, ZONES[1:])
    flavor = flavor_of("m5.large")
    assert getattr(flavor, "zones", None) == ZONES[1:]
    assert getattr(flavor_of("h100"), "reason", "") == "InstanceTypeUnknown"


def test_an_object_without_its_finalizer_is_not_ready() -> None:
    assert reading().desired.ready
    assert not reading(finalizers=[]).desired.ready


class Api:
    """Resource Groups, with a count of its calls."""

    def __init__(self) -> None:
        self.requests = 0
        self.answer: ReservationGroup | ProviderError = ReservationGroup(arn=GROUP, name="gpus")

    def account_id(self) -> str:
        return "111122223333"

    def group(self, arn: str) -> ReservationGroup:
        self.requests += 1
        if isinstance(self.answer, ProviderError):
            raise self.answer
        return self.answer


def groups(cluster: str = "blue") -> tuple[Groups, Api]:
    api: Any = Api()
    return Groups(api, region="us-east-1", cluster=cluster), api


def test_a_groups_name_is_valid_and_follows_from_cluster_and_object() -> None:
    group_reader, _ = groups()
    assert group_reader.name(TEAM) == "capacity-broker.blue.ml--training"
    assert group_reader.name(ReservationKey("", "shared")) == "capacity-broker.blue.shared"
    long = group_reader.name(ReservationKey("n" * 63, "r" * 200))
    assert len(long) == GROUP_NAME_LENGTH and long != group_reader.name(ReservationKey("n" * 63, "r" * 201))
    assert groups("a/b")[0].name(TEAM) != groups("a-b")[0].name(TEAM)
    like = "arn:aws-cn:ec2:cn-north-1:1:capacity-reservation/cr-1"
    assert group_reader.arn(TEAM, sample_arn=like).startswith(
        "arn:aws-cn:resource-groups:us-east-1:111122223333:group/"
    )


def test_a_group_is_read_again_after_a_while_and_an_error_is_not_a_missing_group() -> None:
    group_reader, api = groups()
    assert group_reader.read(GROUP, NOW) == group_reader.read(GROUP, NOW + EVERY - minutes(1)) == api.answer
    assert api.requests == 1
    group_reader.read(GROUP, NOW + EVERY)
    assert api.requests == 2
    group_reader.forget(GROUP)
    api.answer = ProviderError("NotFoundException", "none", class_=ErrorClass.NOT_FOUND)
    assert group_reader.read(GROUP, NOW + EVERY) is None
    group_reader.forget(GROUP)
    api.answer = ProviderError("Throttling", "later", class_=ErrorClass.THROTTLING)
    with pytest.raises(ProviderError):
        group_reader.read(GROUP, NOW + EVERY)


def test_a_named_group_keeps_its_last_members_during_errors() -> None:
    group_reader, api = groups()
    first = group_reader.named(GROUP, NOW)
    api.answer = ProviderError("AccessDenied", "no", class_=ErrorClass.PERMISSION)
    assert group_reader.named(GROUP, NOW + EVERY) == first
    with pytest.raises(ProviderError):
        groups_never_read, refusing = groups()
        refusing.answer = api.answer
        groups_never_read.named(GROUP, NOW)
    # A group that is gone has no members, and later errors do not restore any.
    api.answer = ProviderError("NotFoundException", "none", class_=ErrorClass.NOT_FOUND)
    assert group_reader.named(GROUP, NOW + EVERY) is None
    api.answer = ProviderError("Throttling", "later", class_=ErrorClass.THROTTLING)
    with pytest.raises(ProviderError):
        group_reader.named(GROUP, NOW + 2 * EVERY)


def shown(*odcrs: Odcr, at: datetime = NOW) -> Inventory:
    return Inventory(odcrs={reservation.id: reservation for reservation in odcrs}, described=at)


def test_changes_are_assumed_until_ec2_must_show_them() -> None:
    recent = AssumptionStore(FakeClock())
    recent.purchases.assume("cr-new", odcr("cr-new", total=2, free=2), at=NOW)
    recent.changes.assume("cr-1", (5, UNCHANGED), at=NOW)
    recent.changes.assume("cr-2", (0, UNCHANGED), at=NOW)
    late = shown(odcr("cr-1", total=8, free=4), odcr("cr-2"), at=NOW + minutes(1))
    odcrs = recent.shown(late).odcrs
    assert {
        id_: (reservation.total, reservation.available, reservation.state)
        for id_, reservation in odcrs.items()
    } == {
        "cr-new": (2, 2, "active"),
        "cr-1": (5, 1, "active"),
        "cr-2": (1, 1, "cancelled"),
    }
    # A new reservation that EC2 shows is as EC2 shows it; after a while all of them are.
    gone = replace(odcr("cr-new", total=2, free=2), state="cancelled")
    assert recent.shown(shown(gone, at=NOW + minutes(2))).odcrs["cr-new"].state == "cancelled"
    after = replace(late, described=NOW + LATEST_VISIBLE)
    assert recent.shown(after) == after


def test_a_purchase_is_assumed_until_ec2_shows_it_or_it_expires() -> None:
    recent = AssumptionStore(FakeClock())
    recent.purchases.assume("cr-new", odcr("cr-new", total=2, free=2), at=NOW)
    assert "cr-new" in recent.shown(shown(at=NOW + UNSHOWN - minutes(1))).odcrs
    assert "cr-new" not in recent.shown(shown(at=NOW + UNSHOWN)).odcrs


def test_a_slot_is_idle_only_as_long_as_every_observation_has_it_idle() -> None:
    tags = {MANAGED_BY: "capacity-broker", TAG_CLUSTER: "blue"}
    idle = IdleTracker(ttl=timedelta(minutes=60), cluster="blue")

    def at(minute: int, free: int, kept: int = 0) -> int:
        now = NOW + minutes(minute)
        reservation = odcr("cr-1", total=8, free=free, tags=tags)
        inventory = shown(reservation, odcr("cr-2", total=9, free=9))
        idle.observe(replace(inventory, kept={f"next-{n}": "cr-1" for n in range(kept)}), now)
        return idle.expired([reservation, odcr("cr-2")], now)

    assert [at(0, 8), at(30, 5), at(59, 8), at(60, 8)] == [0, 0, 0, 5]
    assert [at(61, 0), at(62, 8), at(121, 8), at(122, 8)] == [0, 0, 0, 8]
    assert [at(123, 8, kept=3), at(190, 8)] == [5, 5]
    never = IdleTracker(ttl=timedelta(0), cluster="blue")
    never.observe(shown(odcr("cr-1", tags=tags)), NOW)
    assert never.expired([odcr("cr-1")], NOW + timedelta(days=9)) == 0


def test_a_deleted_object_is_deletable_only_after_a_pass_over_its_uid() -> None:
    assert (NO_ODCRS.known, NO_ODCRS.is_deletable(TEAM)) == (False, False)
    deletable = OdcrSnapshot(deletable={TEAM: "u-1"})
    assert [deletable.is_deletable(TEAM, uid=uid) for uid in ("", "u-1", "u-2")] == [True, True, False]
    later = OdcrSnapshot(ownership=Ownership())
    assert (later.known, later.is_deletable(TEAM)) == (True, False)


def test_only_a_change_of_ownership_gives_a_new_snapshot() -> None:
    reads = ReservationReads(Client(InProcessTransport(Cluster())), clock=FakeClock())
    changes: list[int] = []
    reads.snapshots.on_odcrs(lambda: changes.append(reads.snapshot().version))
    before = reads.snapshot()
    reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
    after = reads.snapshot()
    reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
    assert reads.snapshot() is after and changes == [after.version] and after.version > before.version
    assert (before.odcrs.known, after.odcrs.known) == (False, True)


def test_a_cluster_wide_reservation_is_tagged_by_its_name_alone() -> None:
    obj = ClusterCapacityReservation.decode(
        {"metadata": {"name": "shared"}, "spec": reservation().spec.wire()}
    )
    parsed = read(obj, judge(obj.spec), FlavorCatalog().instances(TYPES, ()))
    assert parsed.desired.terms.tags[names.TAG_RESERVATION] == "shared"
