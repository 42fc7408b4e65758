"""The conditions of a reservation, word by word, and its status as it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis.ome import RESERVATION_CONDITIONS, CapacityReservation, ReservationSpec, ReservationStatus
from broker.apis.ome_rules import JudgedSpec, judge
from broker.apis.units import MOST
from broker.apiserver import Cluster
from broker.controllers.capacityreservation import status
from broker.controllers.capacityreservation.marks import label_of
from broker.controllers.capacityreservation.views import ReservationViews
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Snapshot
from broker.kube.client import Client
from broker.kube.clock import FakeClock
from broker.kube.conditions import ConditionUpdate
from broker.kube.transports import InProcessTransport
from broker.quota.hardware import HardwareShare
from broker.quota.lifecycle import ObstacleKind, State
from broker.quota.model import UNLIMITED, Amounts, FlavorResource
from broker.quota.usage import HolderKind, ReservationHolder, Reserved
from broker.reservations.conditions import (
    REASONS,
    QueueState,
    ReservationFacts,
    WorkFailure,
    condition_updates,
    deciding,
    detail,
    obstacles,
    transition,
)
from broker.reservations.desired import FlavorCount
from broker.reservations.odcr_status import OdcrSnapshot, OdcrStatus, purchase_troubles, remedies
from broker.reservations.ownership import Ownership, ReservationProblem
from providers.model import Odcr

GPU, MEMORY = FlavorResource("h100", "nvidia.com/gpu"), FlavorResource("h100", "memory")
CPUS = FlavorResource("plain", "cpu")
TI = 2**40
NOMINAL = {GPU: 64, MEMORY: 16 * TI}
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SPEC = judge(
    ReservationSpec.model_validate(
        {
            "cohort": "ai",
            "resourceGroups": [
                {
                    "coveredResources": ["nvidia.com/gpu", "memory"],
                    "flavors": [
                        {
                            "name": "h100",
                            "resources": [
                                {"name": "nvidia.com/gpu", "nominalQuota": 64},
                                {"name": "memory", "nominalQuota": "16Ti"},
                            ],
                        }
                    ],
                }
            ],
        }
    )
)


def facts(
    supplied: Amounts = NOMINAL, allocatable: Amounts | None = None, **more: object
) -> ReservationFacts:
    share = HardwareShare(supplied=supplied, allocatable=supplied if allocatable is None else allocatable)
    made = ReservationFacts(
        judged=SPEC, nominal=NOMINAL, limit=NOMINAL, share=share, deciding=frozenset({GPU})
    )
    return replace(made, **more)  # type: ignore[arg-type]


def holder(name: str, kind: HolderKind = "Workload", *, why: str = "", gpus: int = 8) -> ReservationHolder:
    return ReservationHolder(
        kind=kind, name=name, reserved=Reserved("a", "r"), usage={GPU: gpus}, healthy=not why, why=why
    )


HALF = {GPU: 32, MEMORY: 16 * TI}


def told(
    known: ReservationFacts, state: State = "Active", *, was_ready: bool = True
) -> dict[str, ConditionUpdate]:
    obstacle = next(obstacles(known), None)
    said = condition_updates(known, state, obstacle, first=False, was_ready=was_ready)
    return {each.type: each for each in said}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"missing_flavors": ("h200",)}, "FlavorNotFound"),
        ({"refused": ("no room",)}, "QuotaExceeded"),
        ({"judged": replace(SPEC, problems=("odd",))}, "SpecInvalid"),
        ({"queue": QueueState(active=False)}, "ClusterQueueInactive"),
        ({"supplied": HALF}, "InsufficientCapacity"),
    ],
)
def test_a_wrong_annotation_is_told_beside_whatever_else_is_wrong(more: dict[str, Any], reason: str) -> None:
    troubles = (
        WorkFailure(reason="InvalidAnnotation", message="sizing is Max"),
        WorkFailure(reason="UnknownAnnotation", message="tenant means nothing"),
    )
    known = facts(**more, troubles=troubles)
    obstacle = next(obstacles(known))
    assert obstacle.reason == reason
    line = detail(
        "Failed", obstacle, condition_updates(known, "Failed", obstacle, first=False, was_ready=False), known
    )
    for each in troubles:
        assert line.count(each.said) == 1
        assert obstacle.message.count(each.said) == 1


@pytest.mark.covers("OME-063", "OME-064", "OME-065", "OME-066")
def test_what_is_well_is_said_in_omes_own_words() -> None:
    said = told(facts())
    assert {name: (each.status, each.reason, each.message) for name, each in said.items()} == {
        "Ready": ("True", "ReservationActive", "Capacity reservation is active and healthy"),
        "ResourcesSufficient": (
            "True",
            "CapacityAvailable",
            "Sufficient resources available for allocation",
        ),
        "ResourcesProvisioned": ("True", "CapacityProvisioned", "what the spec asks for is there"),
        "DACAssociationsHealthy": ("True", "AllDACsHealthy", "All associated DACs are in healthy state"),
        "WorkloadsHealthy": (
            "True",
            "AllWorkloadsHealthy",
            "All associated workloads are in healthy state",
        ),
    }
    assert detail("Active", None, tuple(said.values()), facts()) == "Active"


@pytest.mark.covers("OME-064")
@pytest.mark.parametrize(
    "known",
    [
        facts(refused=("ResourceQuota five allows 5",)),
        facts(queue=QueueState(active=False, reason="FlavorNotFound", message="can't be found")),
    ],
    ids=["no room", "queue"],
)
def test_what_says_nothing_of_resources_leaves_them_sufficient(known: ReservationFacts) -> None:
    said = told(known, "Failed")
    assert (said["Ready"].status, said["ResourcesSufficient"].status) == ("False", "True")
    assert (
        told(replace(known, share=facts(HALF).share))["ResourcesSufficient"].reason == "InsufficientCapacity"
    )


@pytest.mark.covers("OME-065", "OME-066", "OME-075")
@pytest.mark.parametrize(
    ("ill", "dacs", "workloads"),
    [
        (holder("a", "DedicatedAICluster", why="no room"), "False", "True"),
        (holder("team/a", why="evicted"), "True", "False"),
        (holder("a", "NodeClaim", why="gone"), "True", "False"),
    ],
    ids=lambda each: each.kind if isinstance(each, ReservationHolder) else each,
)
def test_each_kind_of_user_is_told_of_in_its_own_condition(
    ill: ReservationHolder, dacs: str, workloads: str
) -> None:
    well = (holder("b", "DedicatedAICluster"), holder("team/b"))
    said = told(facts(holders=(ill, *well)))
    assert said["DACAssociationsHealthy"].status == dacs
    assert said["WorkloadsHealthy"].status == workloads
    assert said["Ready"].status == "True"
    told_of = said["DACAssociationsHealthy" if dacs == "False" else "WorkloadsHealthy"].message
    assert told_of == f"{ill.name}: {ill.why}"


OUT = {GPU: 56, MEMORY: 14 * TI}
DRY = {GPU: 64, MEMORY: 15 * TI}


@pytest.mark.covers("OME-033", "OME-052", "OME-066", "OME-068", "OME-083")
@pytest.mark.parametrize(
    ("known", "type_", "reason", "words"),
    [
        (facts(HALF), "ResourcesSufficient", "InsufficientCapacity", "there are 32 of 64 nvidia.com/gpu"),
        (facts(DRY), "ResourcesSufficient", "ResourceRatioUnsatisfiable", "there are 15Ti of 16Ti memory"),
        (
            facts(NOMINAL, OUT, outs=("node ip-1 is cordoned",)),
            "ResourcesSufficient",
            "HardwareUnavailable",
            "can be used now 56 of 64 nvidia.com/gpu; node ip-1 is cordoned",
        ),
        (
            facts(missing_flavors=("h100",)),
            "ResourcesSufficient",
            "FlavorNotFound",
            "no ResourceFlavor h100: create it",
        ),
        (facts(missing_flavors=("h100",)), "Ready", "FlavorNotFound", "no ResourceFlavor h100"),
        (
            facts(queue=QueueState(active=False, reason="FlavorNotFound", message="can't be found")),
            "Ready",
            "ClusterQueueInactive",
            "FlavorNotFound: can't be found",
        ),
        (
            facts(judged=JudgedSpec(spec=SPEC.spec, problems=("spec.cohort is empty: name one",))),
            "Ready",
            "SpecInvalid",
            "spec.cohort is empty: name one",
        ),
        (facts(refused=("ResourceQuota five allows 5",)), "Ready", "QuotaExceeded", "allows 5"),
        (
            facts(HALF, pending=("cr-1 is scheduled, starts at 2027-01-01T00:00:00Z",)),
            "Ready",
            "CloudReservationPending",
            "cr-1 is scheduled, starts at 2027-01-01",
        ),
        (
            facts(
                HALF,
                troubles=(
                    WorkFailure(
                        reason="CloudReservationPending",
                        message="InsufficientInstanceCapacity: no p5 in us-east-1a",
                        pending=True,
                    ),
                ),
            ),
            "ResourcesSufficient",
            "CloudReservationPending",
            "InsufficientInstanceCapacity: no p5",
        ),
        (
            facts(HALF, troubles=(WorkFailure(reason="SpendingCapReached", message="--buy-dollars is 0"),)),
            "Ready",
            "InsufficientCapacity",
            "there are 32 of 64 nvidia.com/gpu; SpendingCapReached: --buy-dollars is 0",
        ),
        (
            facts(HALF, troubles=(WorkFailure(reason="PurchaseSkipped", message="flavor h100: why"),)),
            "ResourcesSufficient",
            "InsufficientCapacity",
            "there are 32 of 64 nvidia.com/gpu; PurchaseSkipped: flavor h100: why",
        ),
        (
            facts(HALF, remedies=("the broker buys none: set it to Manage",)),
            "Ready",
            "InsufficientCapacity",
            "there are 32 of 64 nvidia.com/gpu; the broker buys none: set it to Manage",
        ),
        (
            facts(NOMINAL, OUT, outs=("node ip-1 is cordoned",)),
            "ResourcesSufficient",
            "HardwareUnavailable",
            "node ip-1 is cordoned; it counts again once it can be used: uncordon the nodes",
        ),
        (
            facts(taken={GPU: 8}, takers=("n-1", "n-2")),
            "ResourcesSufficient",
            "HardwareInUse",
            "8 of 64 nvidia.com/gpu are used by others: what runs on n-1, n-2 draws from another reservation",
        ),
        (
            facts(taken={GPU: 8}, queue=QueueState(active=True)),
            "ResourcesSufficient",
            "HardwareInUse",
            "pods on its nodes that no workload with quota accounts for; queue them for a reservation",
        ),
        (
            facts(used={GPU: 80}),
            "ResourcesSufficient",
            "QuotaExceeded",
            "end some of status.associationUsages, or raise nominalQuota",
        ),
        (
            facts(DRY),
            "ResourcesSufficient",
            "ResourceRatioUnsatisfiable",
            "or set annotation capacity-broker.",
        ),
        (
            facts(used={GPU: 80}),
            "ResourcesSufficient",
            "QuotaExceeded",
            "80 of nvidia.com/gpu in h100 used, 16 more than it may",
        ),
        (
            facts(holders=(holder("prod", "DedicatedAICluster", why="NotEnoughResources"),)),
            "DACAssociationsHealthy",
            "DACFailed",
            "prod: NotEnoughResources",
        ),
        (
            facts(holders=(holder("team/train", why="evicted"),)),
            "WorkloadsHealthy",
            "WorkloadFailed",
            "team/train: evicted",
        ),
        (
            facts(
                hindered=(WorkFailure(reason="ObjectConflict", message="LocalQueue r is there: delete it"),)
            ),
            "WorkloadsHealthy",
            "ObjectConflict",
            "LocalQueue r is there: delete it",
        ),
        (
            facts(hindered=(WorkFailure(reason="QueueStopped", message="annotation x is Hold"),)),
            "WorkloadsHealthy",
            "QueueStopped",
            "annotation x is Hold",
        ),
        (
            facts(priority_missing="high"),
            "WorkloadsHealthy",
            "PriorityClassNotFound",
            "spec.priorityClassName high is no WorkloadPriorityClass and no PriorityClass",
        ),
    ],
)
def test_what_is_amiss_has_its_reason_and_a_way_out(
    known: ReservationFacts, type_: str, reason: str, words: str
) -> None:
    said = told(known, "Creating" if type_ == "Ready" else "Active", was_ready=False)
    assert (said[type_].status, said[type_].reason) == ("False", reason)
    assert words in said[type_].message
    assert reason in REASONS[type_]
    assert words in detail("Active", next(obstacles(known), None), tuple(said.values()), known)


def asked(state: OdcrStatus) -> tuple[Sequence[str], list[str]]:
    """The remedies for a reservation with this state, and the reasons of its obstacles."""
    return remedies(state, Reserved("a", "r")), [each.reason for each in purchase_troubles(state)]


def test_where_nothing_is_bought_it_is_said_what_would_buy_or_bring_it() -> None:
    short = {"h100": FlavorCount(wanted=8, obtained=4)}
    counted, way = asked(OdcrStatus(flavors=short))[0]
    assert counted == "flavor h100: 4 of 8 instances are in EC2 reservations of its own"
    for named in (
        "annotation capacity-broker.io/reservation-policy is Observe: set it to Manage",
        "--buy-dollars",
        "the tag capacity-broker.io/reservation=a/r",
        "terraform/modules/capacity-reservations",
        "lower nominalQuota",
    ):
        assert named in way
    no_type = ReservationProblem(reason="FlavorWithoutInstanceType", message="flavor h100: no type")
    assert asked(OdcrStatus(problems=(no_type,)))[0][0] == "flavor h100: no type"
    # If the broker buys, the obstacle's own message has the remedy.
    cap = ReservationProblem(reason="SpendingCapReached", message="8 more")
    managed = OdcrStatus(managed=True, flavors=short, problems=(cap,))
    assert asked(managed) == ([], ["InsufficientCapacity", "SpendingCapReached"])


@pytest.mark.covers("CAP-04", "OME-021")
@pytest.mark.parametrize(
    ("reason", "detail", "waits_for"),
    [
        ("InstancesRunning", "", "instances still run in cr-1"),
        ("GroupUnreadable", "", "instances still run in cr-1"),
        ("ReservationNotDescribed", "", "instances still run in cr-1"),
        ("FlavorUnmatched", "", "its EC2 reservations are looked at"),
        ("FlavorUnmatched", "1 of 2", "1 of 2"),
    ],
)
def test_what_a_deleted_one_waits_for_in_ec2_is_said(reason: str, detail: str, waits_for: str) -> None:
    reads = ReservationReads(Client(InProcessTransport(Cluster())), clock=FakeClock())
    told_ = ReservationProblem(reason=reason, message="instances still run in cr-1")
    state = OdcrStatus(managed=True, problems=(told_,), detail=detail)
    odcrs = OdcrSnapshot(ownership=Ownership(), statuses={Reserved("a", "r"): state})
    views = ReservationViews(reads=reads)
    snapshot = Snapshot(version=1, reservations={}, odcrs=odcrs)
    one = CapacityReservation.decode({"metadata": {"name": "r", "namespace": "a", "uid": "u"}})
    assert views.left(one, snapshot) == [waits_for]


@pytest.mark.covers("OME-068")
def test_reasons_are_words_without_spaces() -> None:
    for reasons in REASONS.values():
        assert all(re.fullmatch("([A-Z][A-Za-z0-9]*)", reason) for reason in reasons)


def test_what_is_odd_about_a_queue_and_keeps_nobody_out_is_the_detail_alone() -> None:
    known = facts(hindered=(WorkFailure(reason="AnnotationInvalid", message="annotation x is 'y': write z"),))
    said = told(known)
    assert {each.status for each in said.values()} == {"True"}
    assert (
        detail("Active", None, tuple(said.values()), known)
        == "AnnotationInvalid: annotation x is 'y': write z"
    )


@pytest.mark.covers("OME-067")
def test_all_conditions_are_there_from_the_first_write_and_none_is_true() -> None:
    said = condition_updates(facts(), "Creating", None, first=True, was_ready=False)
    assert {each.type for each in said} == set(RESERVATION_CONDITIONS)
    assert {each.status for each in said} == {"False", "Unknown"}


def test_an_update_is_served_by_what_was_there_before_and_a_deletion_says_what_is_left() -> None:
    assert told(facts(HALF), "Updating")["Ready"].reason == "ReservationUpdating"
    assert told(facts(HALF), "Updating", was_ready=False)["Ready"].status == "False"
    gone = facts(left=("ClusterQueue a--r",))
    said = told(gone, "Deleting")
    assert (said["Ready"].status, said["Ready"].reason) == ("False", "Deleting")
    assert detail("Deleting", None, (), gone) == "Deleting: ClusterQueue a--r"


@pytest.mark.covers("OME-022")
@pytest.mark.parametrize("state", ["Creating", "Active", "Updating", "Deleting", "Failed"])
def test_where_nothing_is_amiss_the_detail_is_the_state(state: State) -> None:
    assert detail(state, None, tuple(told(facts()).values()), facts()) == state


def write(before: ReservationStatus, known: ReservationFacts, state: State, now: datetime = NOW) -> Any:
    obstacle = next(obstacles(known), None)
    said = condition_updates(known, state, obstacle, first=False, was_ready=True)
    odcr = Odcr(
        id="cr-1",
        instance_type="p5.48xlarge",
        zone="a",
        total=8,
        available=2,
        owner_id="999999999999",
        interruptible=True,
        start=NOW,
    )
    return status.body(
        before,
        3,
        state,
        said,
        detail(state, obstacle, said, known),
        known,
        [("h100", odcr)],
        "arn:aws:resource-groups:us-east-1:1:group/x",
        known=True,
        now=now,
    )


@pytest.mark.covers("OME-024", "OME-025", "OME-026", "OME-044", "OME-056")
def test_amounts_as_people_write_them_by_flavor_and_resource() -> None:
    known = facts(
        NOMINAL,
        OUT,
        limit={GPU: 96, MEMORY: 16 * TI},
        used={GPU: 72, MEMORY: 2 * TI},
        holders=(
            ReservationHolder(
                kind="DedicatedAICluster",
                name="prod",
                reserved=Reserved("", "r"),
                usage={GPU: 64, MEMORY: 2 * TI},
            ),
            holder("team/train"),
        ),
    )
    made = write(ReservationStatus(), known, "Active")
    assert made["capacity"] == [
        {
            "name": "h100",
            "resources": [{"name": "memory", "total": "16Ti"}, {"name": "nvidia.com/gpu", "total": "64"}],
        }
    ]
    assert made["allocatable"] == [
        {
            "name": "h100",
            "resources": [{"name": "memory", "total": "14Ti"}, {"name": "nvidia.com/gpu", "total": "56"}],
        }
    ]
    assert made["allocated"] == [
        {
            "name": "h100",
            "resources": [
                {"name": "memory", "total": "2Ti"},
                {"name": "nvidia.com/gpu", "total": "72", "borrowed": "8"},
            ],
        }
    ]
    assert made["associationUsages"] == [
        {
            "name": "prod",
            "usage": [
                {
                    "name": "h100",
                    "resources": [
                        {"name": "memory", "total": "2Ti"},
                        {"name": "nvidia.com/gpu", "total": "64"},
                    ],
                }
            ],
        },
        {
            "name": "team/train",
            "usage": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "8"}]}],
        },
    ]
    assert made["summary"] == {
        "gpuTotal": 64,
        "gpuAllocated": 72,
        "gpuBorrowed": 8,
        "gpuAllocatable": 56,
        "dacs": 1,
    }


@pytest.mark.covers("SAF-74")
@pytest.mark.parametrize(("cohort", "borrowed"), [("ai", "8"), ("", None)])
def test_use_above_the_quota_is_borrowed_only_in_a_cohort(cohort: str, borrowed: str | None) -> None:
    """Quota that was lowered below its use lends nothing to a reservation outside a cohort."""
    known = facts(NOMINAL, OUT, limit={GPU: 64}, used={GPU: 72}, holders=(holder("team/train"),))
    judged = replace(known.judged, spec=known.judged.spec.model_copy(update={"cohort": cohort}))
    made = write(ReservationStatus(), replace(known, judged=judged), "Active")
    (used,) = made["allocated"][0]["resources"]
    assert (used["total"], used.get("borrowed")) == ("72", borrowed)
    assert made["summary"]["gpuBorrowed"] == (8 if borrowed else 0)


@pytest.mark.covers("OME-024")
def test_a_quota_without_end_is_written_as_the_most_that_a_field_holds() -> None:
    endless = {GPU: UNLIMITED, MEMORY: 0}
    made = write(ReservationStatus(), facts({}, nominal=endless), "Active")
    (flavor,) = made["capacity"]
    assert flavor["resources"] == [
        {"name": "memory", "total": "0"},
        {"name": "nvidia.com/gpu", "total": str(MOST)},
    ]
    assert made["summary"]["gpuTotal"] == MOST


@pytest.mark.covers("CAP-08")
def test_a_shared_reservation_is_shown_with_its_owner_and_kind() -> None:
    assert write(ReservationStatus(), facts(), "Active")["cloudReservations"] == [
        {
            "id": "cr-1",
            "flavor": "h100",
            "state": "active",
            "total": 8,
            "available": 2,
            "kind": "interruptible",
            "ownerID": "999999999999",
            "start": "2026-11-21T12:00:00Z",
        }
    ]


@pytest.mark.covers("OME-069", "OME-097")
def test_the_same_is_not_written_and_times_move_with_the_status_alone() -> None:
    made = write(ReservationStatus(), facts(), "Active")
    before = ReservationStatus.model_validate(made)
    later = NOW + timedelta(hours=1)
    assert status.same(before, write(before, facts(), "Active", later))
    worse = write(before, facts(NOMINAL, OUT), "Active", later)
    assert not status.same(before, worse)
    times = {each["type"]: each["lastTransitionTime"] for each in worse["conditions"]}
    assert times.pop("ResourcesSufficient") == "2026-11-21T13:00:00Z"
    assert set(times.values()) == {"2026-11-21T12:00:00Z"}
    # Another reason with the same status changes no transition time.
    worst = write(ReservationStatus.model_validate(worse), facts(HALF), "Active", later + timedelta(hours=1))
    sufficient = next(c for c in worst["conditions"] if c["type"] == "ResourcesSufficient")
    assert (sufficient["reason"], sufficient["lastTransitionTime"]) == (
        "InsufficientCapacity",
        "2026-11-21T13:00:00Z",
    )


def test_what_others_use_is_not_free_and_can_be_used_all_the_same() -> None:
    made = write(ReservationStatus(), facts(used={GPU: 16}, taken={GPU: 8}), "Active")
    amounts = {
        what: {e["name"]: e["total"] for e in made[what][0]["resources"]} for what in ("free", "allocatable")
    }
    assert (amounts["free"]["nvidia.com/gpu"], amounts["allocatable"]["nvidia.com/gpu"]) == ("40", "64")


def test_what_is_no_more_is_a_difference() -> None:
    made = write(ReservationStatus(), facts(used={GPU: 8}, holders=(holder("a/b"),)), "Active")
    before = ReservationStatus.model_validate(made)
    assert not status.same(before, write(before, facts(), "Active"))


def test_more_users_than_an_object_holds_are_added_up() -> None:
    many = [(f"w/{n:05}", {GPU: 1}) for n in range(status.MOST_USERS + 500)]
    shown = status.users(many)
    assert len(shown) == status.MOST_USERS + 1
    assert shown[-1] == {
        "name": "(others)",
        "usage": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "500"}]}],
    }


def test_the_resources_that_decide() -> None:
    assert deciding(NOMINAL, largest=False) == {GPU}
    assert deciding(NOMINAL, largest=True) == {GPU, MEMORY}
    assert deciding({GPU: 0, MEMORY: 1}, largest=False) == {MEMORY}
    # A flavor without accelerators is sized by its own resources, whatever other flavors have.
    assert deciding({**NOMINAL, CPUS: 64_000}, largest=False) == {GPU, CPUS}


@pytest.mark.covers("OME-018", "OME-033")
def test_a_group_without_accelerators_is_missed_by_itself() -> None:
    nominal = {**NOMINAL, CPUS: 64_000}
    known = facts({**NOMINAL, CPUS: 32_000}, nominal=nominal, deciding=deciding(nominal, largest=False))
    (obstacle,) = obstacles(known)
    assert (obstacle.reason, obstacle.kind) == ("InsufficientCapacity", ObstacleKind.SUPPLY)
    assert obstacle.message == "flavor plain: there are 32 of 64 cpu"


@pytest.mark.covers("OME-045")
@pytest.mark.parametrize(
    ("cohort", "label"),
    [("teams", "teams"), ("", ""), ("a" * 63, "a" * 63), ("a" * 64, f"{'a' * 54}-ffe054fe")],
)
def test_a_cohort_as_a_label(cohort: str, label: str) -> None:
    assert label_of(cohort) == label
    assert len(label_of(f"{cohort[:53]}...{cohort}")) <= 63


def test_event_of_an_active_reservation_names_its_machines_before_its_purchase() -> None:
    """Machines of its flavor serve it, and its own EC2 reservation is still being bought."""
    bought = WorkFailure(
        reason="CloudReservationPending", message="0 of 2 instances are reserved", pending=True
    )
    full = facts(troubles=(bought,))
    assert next(obstacles(full), None) is None
    updates = condition_updates(full, "Active", None, first=False, was_ready=False)
    assert transition("Active", None, detail("Active", None, updates, full)) == (
        "machines for the whole quota are there; CloudReservationPending: 0 of 2 instances are reserved"
    )
    assert transition("Active", None, "Active") == "Active"
