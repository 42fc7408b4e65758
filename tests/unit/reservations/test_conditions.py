"""The conditions of a reservation, word by word, and its status as it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis.meta import ConditionUpdate
from broker.apis.ome import (
    RESERVATION_CONDITIONS,
    CapacityReservation,
    ReservationSpec,
    ReservationStatus,
)
from broker.apis.ome_rules import JudgedSpec, judge
from broker.apis.units import LARGEST_AMOUNT
from broker.controllers.capacityreservation import status
from broker.controllers.capacityreservation.related_objects import (
    remaining,
)
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Snapshot
from broker.kube.client import Client
from broker.quota.hardware import HardwareShare
from broker.quota.lifecycle import ObstacleKind, State
from broker.quota.model import UNLIMITED, Amounts, FlavorResource
from broker.quota.usage import HolderKind, ReservationHolder, ReservationKey
from broker.reservations.conditions import (
    QueueState,
    ReservationFacts,
    condition_updates,
    deciding,
    detail,
    obstacles,
    transition,
)
from broker.reservations.desired import FlavorCount
from broker.reservations.odcr_status import OdcrSnapshot, OdcrStatus, purchase_failures, remedies
from broker.reservations.ownership import Ownership, ReservationProblem
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.model import Odcr
from tests.support.clock import FakeClock
from tests.support.reservation_reasons import REASONS

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
    default = ReservationFacts(
        judged=SPEC, nominal=NOMINAL, limit=NOMINAL, share=share, deciding=frozenset({GPU})
    )
    return replace(default, **more)  # type: ignore[arg-type]


def holder(name: str, kind: HolderKind = "Workload", *, why: str = "", gpus: int = 8) -> ReservationHolder:
    return ReservationHolder(
        kind=kind, name=name, reserved=ReservationKey("a", "r"), usage={GPU: gpus}, healthy=not why, why=why
    )


HALF = {GPU: 32, MEMORY: 16 * TI}


def updates_of(
    known: ReservationFacts, state: State = "Active", *, was_ready: bool = True
) -> dict[str, ConditionUpdate]:
    obstacle = next(obstacles(known), None)
    updates = condition_updates(known, state, obstacle, first=False, was_ready=was_ready)
    return {update.type: update for update in updates}


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
def test_an_invalid_annotation_is_reported_beside_any_other_problem(
    more: dict[str, Any], reason: str
) -> None:
    failures = (
        ReservationProblem(reason="InvalidAnnotation", message="sizing is Max"),
        ReservationProblem(reason="UnknownAnnotation", message="tenant means nothing"),
    )
    known = facts(**more, failures=failures)
    obstacle = next(obstacles(known))
    assert obstacle.reason == reason
    line = detail(
        "Failed", obstacle, condition_updates(known, "Failed", obstacle, first=False, was_ready=False), known
    )
    for failure in failures:
        assert line.count(failure.text) == 1
        assert obstacle.message.count(failure.text) == 1


@pytest.mark.covers("OME-063", "OME-064", "OME-065", "OME-066")
def test_a_healthy_reservation_has_omes_messages() -> None:
    updates = updates_of(facts())
    assert {name: (update.status, update.reason, update.message) for name, update in updates.items()} == {
        "Ready": ("True", "ReservationActive", "Capacity reservation is active and healthy"),
        "ResourcesSufficient": (
            "True",
            "CapacityAvailable",
            "Sufficient resources available for allocation",
        ),
        "ResourcesProvisioned": ("True", "CapacityProvisioned", "the capacity of the spec exists"),
        "DACAssociationsHealthy": ("True", "AllDACsHealthy", "All associated DACs are in healthy state"),
        "WorkloadsHealthy": (
            "True",
            "AllWorkloadsHealthy",
            "All associated workloads are in healthy state",
        ),
    }
    assert detail("Active", None, tuple(updates.values()), facts()) == "Active"


@pytest.mark.covers("OME-064")
@pytest.mark.parametrize(
    "known",
    [
        facts(refused=("ResourceQuota five allows 5",)),
        facts(queue=QueueState(active=False, reason="FlavorNotFound", message="can't be found")),
    ],
    ids=["no room", "queue"],
)
def test_problems_of_quota_and_queue_leave_resources_sufficient(known: ReservationFacts) -> None:
    updates = updates_of(known, "Failed")
    assert (updates["Ready"].status, updates["ResourcesSufficient"].status) == ("False", "True")
    assert (
        updates_of(replace(known, share=facts(HALF).share))["ResourcesSufficient"].reason
        == "InsufficientCapacity"
    )


@pytest.mark.covers("OME-065", "OME-066", "OME-075")
@pytest.mark.parametrize(
    ("ill", "dacs", "workloads"),
    [
        (holder("a", "DedicatedAICluster", why="no room"), "False", "True"),
        (holder("team/a", why="evicted"), "True", "False"),
        (holder("a", "NodeClaim", why="gone"), "True", "False"),
    ],
    ids=lambda value: value.kind if isinstance(value, ReservationHolder) else value,
)
def test_each_kind_of_user_has_its_own_condition(ill: ReservationHolder, dacs: str, workloads: str) -> None:
    well = (holder("b", "DedicatedAICluster"), holder("team/b"))
    updates = updates_of(facts(holders=(ill, *well)))
    assert updates["DACAssociationsHealthy"].status == dacs
    assert updates["WorkloadsHealthy"].status == workloads
    assert updates["Ready"].status == "True"
    message = updates["DACAssociationsHealthy" if dacs == "False" else "WorkloadsHealthy"].message
    assert message == f"{ill.name}: {ill.why}"


OUT = {GPU: 56, MEMORY: 14 * TI}
DRY = {GPU: 64, MEMORY: 15 * TI}


@pytest.mark.covers("OME-033", "OME-052", "OME-066", "OME-068", "OME-083")
@pytest.mark.parametrize(
    ("known", "type_", "reason", "words"),
    [
        (facts(HALF), "ResourcesSufficient", "InsufficientCapacity", "there are 32 of 64 nvidia.com/gpu"),
        (facts(DRY), "ResourcesSufficient", "ResourceRatioUnsatisfiable", "there are 15Ti of 16Ti memory"),
        (
            facts(NOMINAL, OUT, out_of_service=("node ip-1 is cordoned",)),
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
                failures=(
                    ReservationProblem(
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
            facts(
                HALF,
                failures=(ReservationProblem(reason="SpendingCapReached", message="--buy-dollars is 0"),),
            ),
            "Ready",
            "InsufficientCapacity",
            "there are 32 of 64 nvidia.com/gpu; SpendingCapReached: --buy-dollars is 0",
        ),
        (
            facts(HALF, failures=(ReservationProblem(reason="PurchaseSkipped", message="flavor h100: why"),)),
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
            facts(NOMINAL, OUT, out_of_service=("node ip-1 is cordoned",)),
            "ResourcesSufficient",
            "HardwareUnavailable",
            "node ip-1 is cordoned; a cordoned node counts again once it is uncordoned",
        ),
        (
            facts(taken={GPU: 8}, takers=("n-1", "n-2")),
            "ResourcesSufficient",
            "HardwareInUse",
            "8 of 64 nvidia.com/gpu are used by others: pods on n-1, n-2 draw from another reservation",
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
                queue_failures=(
                    ReservationProblem(reason="ObjectConflict", message="LocalQueue r is there: delete it"),
                )
            ),
            "WorkloadsHealthy",
            "ObjectConflict",
            "LocalQueue r is there: delete it",
        ),
        (
            facts(
                queue_failures=(ReservationProblem(reason="QueueStopped", message="annotation x is Hold"),)
            ),
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
def test_each_problem_has_its_reason_and_a_remedy(
    known: ReservationFacts, type_: str, reason: str, words: str
) -> None:
    updates = updates_of(known, "Creating" if type_ == "Ready" else "Active", was_ready=False)
    assert (updates[type_].status, updates[type_].reason) == ("False", reason)
    assert words in updates[type_].message
    assert reason in REASONS[type_]
    assert words in detail("Active", next(obstacles(known), None), tuple(updates.values()), known)


def remedies_and_reasons(state: OdcrStatus) -> tuple[Sequence[str], list[str]]:
    """The remedies for a reservation with this state, and the reasons of its obstacles."""
    return remedies(state, ReservationKey("a", "r")), [failure.reason for failure in purchase_failures(state)]


def test_a_reservation_that_buys_nothing_names_the_remedies() -> None:
    short = {"h100": FlavorCount(wanted=8, obtained=4)}
    counted, way = remedies_and_reasons(OdcrStatus(flavors=short))[0]
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
    assert remedies_and_reasons(OdcrStatus(problems=(no_type,)))[0][0] == "flavor h100: no type"
    # If the broker buys, the obstacle's own message has the remedy.
    cap = ReservationProblem(reason="SpendingCapReached", message="8 more")
    managed = OdcrStatus(managed=True, flavors=short, problems=(cap,))
    assert remedies_and_reasons(managed) == ([], ["InsufficientCapacity", "SpendingCapReached"])


@pytest.mark.covers("CAP-04", "OME-021")
@pytest.mark.parametrize(
    ("reason", "waits_for"),
    [
        ("InstancesRunning", "instances still run in cr-1"),
        ("GroupUnreadable", "instances still run in cr-1"),
        ("ReservationNotDescribed", "instances still run in cr-1"),
        # A shortage, too, does not keep a deleted reservation.
        ("FlavorUnmatched", "its EC2 reservations are being checked"),
    ],
)
def test_a_deleted_reservation_names_the_ec2_state_that_it_waits_for(reason: str, waits_for: str) -> None:
    reads = ReservationReads(Client(InProcessTransport(Cluster())), clock=FakeClock())
    problem = ReservationProblem(reason=reason, message="instances still run in cr-1")
    short = {"h100": FlavorCount(wanted=2, obtained=1)}
    state = OdcrStatus(managed=True, flavors=short, problems=(problem,))
    odcrs = OdcrSnapshot(ownership=Ownership(), statuses={ReservationKey("a", "r"): state})
    snapshot = Snapshot(version=1, reservations={}, odcrs=odcrs)
    reservation = CapacityReservation.decode({"metadata": {"name": "r", "namespace": "a", "uid": "u"}})
    assert remaining(reads, reservation, snapshot) == [waits_for]


@pytest.mark.covers("OME-068")
def test_reasons_are_words_without_spaces() -> None:
    for reasons in REASONS.values():
        assert all(re.fullmatch("([A-Z][A-Za-z0-9]*)", reason) for reason in reasons)


def test_detail_of_an_active_reservation_has_the_shortage_and_what_is_done_about_it() -> None:
    """Machines of other reservations serve it, and its own purchase waits."""
    problems = (
        ReservationProblem(reason="InsufficientCapacity", message="1 of 2 is reserved"),
        ReservationProblem(reason="PurchaseSkipped", message="restored at noon"),
    )
    assert detail("Active", None, (), facts(failures=problems)) == (
        "InsufficientCapacity: 1 of 2 is reserved; PurchaseSkipped: restored at noon"
    )


def test_a_harmless_problem_of_a_queue_is_only_in_the_detail() -> None:
    known = facts(
        queue_failures=(
            ReservationProblem(reason="InvalidAnnotation", message="annotation x is 'y': write z"),
        )
    )
    updates = updates_of(known)
    assert {update.status for update in updates.values()} == {"True"}
    assert (
        detail("Active", None, tuple(updates.values()), known)
        == "InvalidAnnotation: annotation x is 'y': write z"
    )


@pytest.mark.covers("OME-067")
def test_the_first_write_has_all_conditions_and_none_is_true() -> None:
    updates = condition_updates(facts(), "Creating", None, first=True, was_ready=False)
    assert {update.type for update in updates} == set(RESERVATION_CONDITIONS)
    assert {update.status for update in updates} == {"False", "Unknown"}


def test_an_updating_reservation_stays_ready_and_a_deleted_one_names_the_remaining_objects() -> None:
    assert updates_of(facts(HALF), "Updating")["Ready"].reason == "ReservationUpdating"
    assert updates_of(facts(HALF), "Updating", was_ready=False)["Ready"].status == "False"
    gone = facts(remaining=("ClusterQueue a--r",))
    updates = updates_of(gone, "Deleting")
    assert (updates["Ready"].status, updates["Ready"].reason) == ("False", "Deleting")
    assert detail("Deleting", None, (), gone) == "Deleting: ClusterQueue a--r"


@pytest.mark.covers("OME-022")
@pytest.mark.parametrize("state", ["Creating", "Active", "Updating", "Deleting", "Failed"])
def test_without_a_problem_the_detail_is_the_state(state: State) -> None:
    assert detail(state, None, tuple(updates_of(facts()).values()), facts()) == state


def write(before: ReservationStatus, known: ReservationFacts, state: State, now: datetime = NOW) -> Any:
    obstacle = next(obstacles(known), None)
    updates = condition_updates(known, state, obstacle, first=False, was_ready=True)
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
        updates,
        detail(state, obstacle, updates, known),
        replace(known, cloud=(("h100", odcr),), group_arn="arn:aws:resource-groups:us-east-1:1:group/x"),
        known=True,
        now=now,
    )


@pytest.mark.covers("OME-024", "OME-025", "OME-026", "OME-044", "OME-056")
def test_amounts_are_quantities_by_flavor_and_resource() -> None:
    known = facts(
        NOMINAL,
        OUT,
        limit={GPU: 96, MEMORY: 16 * TI},
        used={GPU: 72, MEMORY: 2 * TI},
        holders=(
            ReservationHolder(
                kind="DedicatedAICluster",
                name="prod",
                reserved=ReservationKey("", "r"),
                usage={GPU: 64, MEMORY: 2 * TI},
            ),
            holder("team/train"),
        ),
    )
    body = write(ReservationStatus(), known, "Active")
    assert body["capacity"] == [
        {
            "name": "h100",
            "resources": [{"name": "memory", "total": "16Ti"}, {"name": "nvidia.com/gpu", "total": "64"}],
        }
    ]
    assert body["allocatable"] == [
        {
            "name": "h100",
            "resources": [{"name": "memory", "total": "14Ti"}, {"name": "nvidia.com/gpu", "total": "56"}],
        }
    ]
    assert body["allocated"] == [
        {
            "name": "h100",
            "resources": [
                {"name": "memory", "total": "2Ti"},
                {"name": "nvidia.com/gpu", "total": "72", "borrowed": "8"},
            ],
        }
    ]
    assert body["associationUsages"] == [
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
    assert body["summary"] == {
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
    body = write(ReservationStatus(), replace(known, judged=judged), "Active")
    (used,) = body["allocated"][0]["resources"]
    assert (used["total"], used.get("borrowed")) == ("72", borrowed)
    assert body["summary"]["gpuBorrowed"] == (8 if borrowed else 0)


@pytest.mark.covers("OME-024")
def test_unlimited_quota_is_written_as_the_maximum_of_the_field() -> None:
    endless = {GPU: UNLIMITED, MEMORY: 0}
    body = write(ReservationStatus(), facts({}, nominal=endless), "Active")
    (flavor,) = body["capacity"]
    assert flavor["resources"] == [
        {"name": "memory", "total": "0"},
        {"name": "nvidia.com/gpu", "total": str(LARGEST_AMOUNT)},
    ]
    assert body["summary"]["gpuTotal"] == LARGEST_AMOUNT


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
def test_an_equal_status_is_not_written_and_only_a_new_status_moves_the_time() -> None:
    body = write(ReservationStatus(), facts(), "Active")
    before = ReservationStatus.model_validate(body)
    later = NOW + timedelta(hours=1)
    assert status.same(before, write(before, facts(), "Active", later))
    worse = write(before, facts(NOMINAL, OUT), "Active", later)
    assert not status.same(before, worse)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in worse["conditions"]}
    assert times.pop("ResourcesSufficient") == "2026-11-21T13:00:00Z"
    assert set(times.values()) == {"2026-11-21T12:00:00Z"}
    # Another reason with the same status changes no transition time.
    worst = write(ReservationStatus.model_validate(worse), facts(HALF), "Active", later + timedelta(hours=1))
    sufficient = next(c for c in worst["conditions"] if c["type"] == "ResourcesSufficient")
    assert (sufficient["reason"], sufficient["lastTransitionTime"]) == (
        "InsufficientCapacity",
        "2026-11-21T13:00:00Z",
    )


def test_capacity_used_by_others_is_allocatable_but_not_free() -> None:
    body = write(ReservationStatus(), facts(used={GPU: 16}, taken={GPU: 8}), "Active")
    amounts = {
        field: {e["name"]: e["total"] for e in body[field][0]["resources"]}
        for field in ("free", "allocatable")
    }
    assert (amounts["free"]["nvidia.com/gpu"], amounts["allocatable"]["nvidia.com/gpu"]) == ("40", "64")


def test_a_removed_amount_is_a_difference() -> None:
    body = write(ReservationStatus(), facts(used={GPU: 8}, holders=(holder("a/b"),)), "Active")
    before = ReservationStatus.model_validate(body)
    assert not status.same(before, write(before, facts(), "Active"))


def test_users_beyond_the_limit_are_summed() -> None:
    many = [(f"w/{n:05}", {GPU: 1}) for n in range(status.MOST_USERS + 500)]
    shown = status.users(many)
    assert len(shown) == status.MOST_USERS + 1
    assert shown[-1] == {
        "name": "(others)",
        "usage": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "500"}]}],
    }


def test_accelerators_decide_the_size_if_there_are_any() -> None:
    assert deciding(NOMINAL, "accelerator") == {GPU}
    assert deciding(NOMINAL, "max") == {GPU, MEMORY}
    assert deciding({GPU: 0, MEMORY: 1}, "accelerator") == {MEMORY}
    # A flavor without accelerators is sized by its own resources, independent of other flavors.
    assert deciding({**NOMINAL, CPUS: 64_000}, "accelerator") == {GPU, CPUS}


@pytest.mark.covers("OME-018", "OME-033")
def test_a_missing_flavor_without_accelerators_is_reported() -> None:
    nominal = {**NOMINAL, CPUS: 64_000}
    known = facts({**NOMINAL, CPUS: 32_000}, nominal=nominal, deciding=deciding(nominal, "accelerator"))
    (obstacle,) = obstacles(known)
    assert (obstacle.reason, obstacle.kind) == ("InsufficientCapacity", ObstacleKind.SUPPLY)
    assert obstacle.message == "flavor plain: there are 32 of 64 cpu"


def test_event_of_an_active_reservation_names_its_machines_before_its_purchase() -> None:
    """Machines of its flavor serve it, and its own EC2 reservation is still being bought."""
    bought = ReservationProblem(
        reason="CloudReservationPending", message="0 of 2 instances are reserved", pending=True
    )
    full = facts(failures=(bought,))
    assert next(obstacles(full), None) is None
    updates = condition_updates(full, "Active", None, first=False, was_ready=False)
    assert transition("Active", None, detail("Active", None, updates, full)) == (
        "machines for the whole quota exist; CloudReservationPending: 0 of 2 instances are reserved"
    )
    assert transition("Active", None, "Active") == "Active"
