"""The steps of one dedicated cluster: quota before instances, instances gone before quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster import status_body
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError
from broker.controllers.dedicatedaicluster.snapshot import ClusterState, terminating
from broker.controllers.dedicatedaicluster.status import (
    ClusterFacts,
    ClusterStatus,
    next_status,
    preempted,
)
from broker.kube.partial import PartialObject
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, Eviction, Shortfall
from broker.quota.model import FlavorResource, Reason
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import ClusterAdmission, held
from broker.reservations.sizing import FlavorProblem, SizedQuota

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
KEY = FlavorResource("h100", GPU)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE = ReservationKey("team", "gpu")
EVICTION = preempted(
    Eviction(
        reason=Reason.RECLAIM, preemptor="other", preemptor_path="/c/team--b", preemptee_path="/c/team--gpu"
    )
)


def cluster(
    *,
    holds: int = 0,
    deleting: bool = False,
    state: str = "",
    waits: int | None = None,
    preempted: bool = False,
) -> DedicatedAICluster:
    status: Json = {"conditions": []}
    if holds:
        flavors = [{"name": "h100", "resources": [{"name": GPU, "total": holds}]}]
        status["admission"] = {
            "reservation": str(MINE),
            "reservedAt": "2025-12-31T00:00:00Z",
            "flavors": flavors,
        }
    if state:
        status["dacLifecycleState"] = state
    if waits is not None:
        since = (NOW - timedelta(seconds=waits)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status["conditions"].append(
            {
                "type": "QuotaReserved",
                "status": "False",
                "reason": "WaitingForQuota",
                "lastTransitionTime": since,
            }
        )
    if preempted:
        status["conditions"].append(
            {"type": "Preempted", "status": "True", "reason": "InCohortReclamation", "message": "for other"}
        )
    metadata: Json = {"name": "c", "uid": "u", "finalizers": [names.RESERVED_FINALIZER]}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return DedicatedAICluster.decode({"metadata": metadata, "spec": {}, "status": status})


def claim(at: int, *, ready: bool = True, deleting: bool = False, why: str = "") -> NodeClaim:
    metadata: Json = {"name": f"c-u-{at}", "uid": f"claim-{at}", "annotations": {names.TAG_FLAVOR: "h100"}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True"}] if ready else []
    if why:
        conditions.append({"type": "Launched", "status": "Unknown", "reason": why, "message": "no slot"})
    status = {"conditions": conditions, "capacity": {GPU: "8"}, "nodeName": f"n-{at}"}
    return NodeClaim.decode({"metadata": metadata, "status": status | ({"providerID": "x"} if ready else {})})


def size(flavor: str, amounts: Mapping[str, int]) -> SizedQuota | FlavorProblem:
    return SizedQuota(count=-(-amounts[GPU] // 8), instance_type="p5.48xlarge")


def status_of(
    dac: DedicatedAICluster, *claims: NodeClaim, gpus: int = 16, sized: Any = size, **more: Any
) -> ClusterStatus:
    own: Json = {
        key: more.pop(key) for key in ("demand", "reserved", "barred", "full", "priority") if key in more
    }
    state = replace(state_of(dac, gpus), **own)
    return next_status(ClusterFacts(state=state, claims=claims, **more), sized, now=NOW, wait=600)


def state_of(dac: DedicatedAICluster, gpus: int = 16) -> ClusterState:
    demand = ClusterDemand(requests={GPU: gpus})
    return ClusterState(cluster=dac, profile=None, demand=demand, reserved=MINE, held=held(dac))


def admitted(gpus: int) -> AdmissionDecision:
    return AdmissionDecision(phase=AdmissionPhase.ADMITTED, usage={KEY: gpus})


WAITING = AdmissionDecision(phase=AdmissionPhase.WAITING, shortfalls=(Shortfall(KEY, 16, 8),))


def claim_changes(status: ClusterStatus) -> tuple[list[int], list[str]]:
    return [at for at, _ in status.changes.create], [claim_.name for claim_ in status.changes.delete]


def conditions_of(status: ClusterStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions}


def test_quota_is_held_with_its_claims() -> None:
    status = status_of(cluster(), decision=admitted(16))
    assert status.held == ClusterAdmission(reserved=MINE, since=NOW, usage={KEY: 16})
    assert claim_changes(status) == ([0, 1], [])
    assert (status.state, status.allocated, status.available) == ("CREATING", 16, 0)
    assert conditions_of(status) == {
        "QuotaReserved": ("True", "QuotaReserved"),
        "Ready": ("False", "InstancesPending"),
    }


def test_held_quota_and_priority_are_written_and_read_back() -> None:
    status = status_of(cluster(), decision=admitted(16), priority=20)
    assert status.held is not None
    assert status.held.priority == 20
    written = status_body.body(cluster(), status, now=NOW)
    assert written is not None
    assert written["admission"]["priority"] == 20
    again = DedicatedAICluster.decode({"metadata": {"name": "c"}, "spec": {}, "status": written})
    assert held(again) == status.held
    assert status_body.body(again, status_of(again, priority=20), now=NOW) is None
    changed = status_of(again, priority=30)
    assert changed.held is not None
    assert changed.held.priority == 30


@pytest.mark.covers("OME-078")
def test_a_cluster_is_active_when_all_its_instances_are_ready() -> None:
    status = status_of(cluster(holds=16), claim(0), claim(1))
    assert (status.state, status.detail, status.available) == ("ACTIVE", "ACTIVE", 16)
    assert conditions_of(status)["Ready"] == ("True", "InstancesReady")
    waits = status_of(cluster(holds=16), claim(0), claim(1, ready=False, why="InsufficientCapacity"))
    assert (waits.state, waits.available) == ("CREATING", 8)
    assert waits.detail == "1 of 2 instances are ready; c-u-1: InsufficientCapacity: no slot"


def test_an_instance_with_an_unready_node_is_not_ready() -> None:
    status = status_of(cluster(holds=16, state="ACTIVE"), claim(0), claim(1), unready_nodes={"n-1"})
    assert (status.state, status.available) == ("UPDATING", 8)
    assert status.detail == "1 of 2 instances are ready; node n-1 is not ready"
    assert claim_changes(status) == ([], [])


def test_a_lost_instance_is_replaced_under_another_number() -> None:
    status = status_of(cluster(holds=16, state="ACTIVE"), claim(0), claim(1, deleting=True))
    assert claim_changes(status) == ([2], [])
    assert status.state == "UPDATING"


@pytest.mark.covers("OME-073")
def test_without_quota_no_claim_is_created() -> None:
    never = status_of(
        cluster(), decision=AdmissionDecision(phase=AdmissionPhase.NEVER, shortfalls=(Shortfall(KEY, 16, 8),))
    )
    assert (never.state, conditions_of(never)["QuotaReserved"]) == ("FAILED", ("False", "NotEnoughResources"))
    assert never.detail == (
        "reservation team/gpu can never grant it: 16 of nvidia.com/gpu requested, 8 available in h100; "
        "request less in spec.resources or spec.count, or raise nominalQuota of the reservation"
    )
    waits = status_of(cluster(), decision=WAITING)
    assert (waits.state, waits.requeue_after) == ("CREATING", 600)
    assert "it continues by itself once other quota is released or nominalQuota is raised" in waits.detail
    assert claim_changes(never) == claim_changes(waits) == ([], [])


@pytest.mark.covers("OME-073", "OME-078")
def test_a_cluster_that_waits_too_long_fails_and_keeps_waiting() -> None:
    early = status_of(cluster(waits=599), decision=WAITING)
    assert (early.state, early.requeue_after) == ("CREATING", 1)
    late = status_of(cluster(waits=600), decision=WAITING)
    assert (late.state, conditions_of(late)["QuotaReserved"]) == ("FAILED", ("False", "NotEnoughResources"))
    assert late.requeue_after is None
    assert status_of(cluster(waits=601, state="FAILED"), decision=admitted(16)).state == "CREATING"


@pytest.mark.parametrize(
    ("more", "reason", "message"),
    [
        ({"demand": DemandError("SizeUnknown", "set a size")}, "SizeUnknown", "set a size"),
        (
            {"reserved": UnresolvedName("ReservationNotFound", "there is none")},
            "ReservationNotFound",
            "spec.capacityReservationId: there is none",
        ),
        ({"barred": "it is deleted"}, "ReservationInvalid", "team/gpu grants nothing: it is deleted"),
    ],
)
def test_an_invalid_cluster_fails_unless_it_holds_quota(more: Json, reason: str, message: str) -> None:
    status = status_of(cluster(), **more)
    assert (status.state, conditions_of(status)["QuotaReserved"]) == ("FAILED", ("False", reason))
    assert message in status.detail
    kept = status_of(cluster(holds=16, state="ACTIVE"), claim(0), claim(1), **more)
    assert (kept.state, kept.held) == ("UPDATING", held(cluster(holds=16)))
    assert conditions_of(kept)["Ready"] == ("True", "InstancesReady")
    assert "it keeps what it has" in kept.detail
    assert claim_changes(kept) == ([], [])


def test_growth_adds_to_the_existing_claims() -> None:
    dac = cluster(holds=8, state="ACTIVE")
    waits = status_of(dac, claim(0), decision=WAITING)
    assert (waits.state, waits.held) == ("UPDATING", held(dac))
    assert claim_changes(waits) == ([], [])
    grows = status_of(dac, claim(0), decision=admitted(16))
    assert grows.held == ClusterAdmission(
        reserved=MINE, since=datetime(2025, 12, 31, tzinfo=UTC), usage={KEY: 16}
    )
    assert claim_changes(grows) == ([1], [])


def test_quota_is_reduced_after_the_instances_are_gone() -> None:
    dac = cluster(holds=16, state="ACTIVE")
    ends = status_of(dac, claim(0), claim(1), gpus=8)
    assert claim_changes(ends) == ([], ["c-u-1"])
    assert ends.held == held(dac)
    draining = status_of(dac, claim(0), claim(1, deleting=True), gpus=8)
    assert draining.held == held(dac)
    gone = status_of(dac, claim(0), gpus=8)
    assert gone.held is not None
    assert (gone.held.usage, gone.state) == ({KEY: 8}, "ACTIVE")


def test_of_excess_claims_the_least_useful_are_deleted_first() -> None:
    claims = (claim(0, ready=False), claim(1), claim(2))
    assert claim_changes(status_of(cluster(holds=24), *claims, gpus=16)) == ([], ["c-u-0"])
    assert claim_changes(status_of(cluster(holds=24), *claims, gpus=8)) == ([], ["c-u-0", "c-u-2"])


@pytest.mark.covers("OME-055")
def test_a_preempted_cluster_returns_instances_then_quota_and_waits() -> None:
    dac = cluster(holds=16, state="ACTIVE")
    first = status_of(dac, claim(0), claim(1), eviction=EVICTION)
    assert claim_changes(first) == ([], ["c-u-0", "c-u-1"]) or claim_changes(first) == (
        [],
        ["c-u-1", "c-u-0"],
    )
    assert (first.state, first.held) == ("UPDATING", held(dac))
    assert conditions_of(first)["Preempted"] == ("True", "InCohortReclamation")
    assert "preemptor path: /c/team--b; preemptee path: /c/team--gpu" in first.detail
    drains = cluster(holds=16, preempted=True)
    assert terminating(drains, MINE)
    assert status_of(drains, claim(0, deleting=True)).held == held(drains)
    empty = status_of(drains)
    assert empty.held is None
    assert conditions_of(empty)["QuotaReserved"] == ("False", "InCohortReclamation")
    waits = cluster(preempted=True, waits=0)
    assert status_of(waits, decision=WAITING).state == "CREATING"
    back = status_of(waits, decision=admitted(16))
    assert conditions_of(back)["Preempted"] == ("False", "QuotaReserved")


def test_a_partial_eviction_keeps_the_rest() -> None:
    dac = cluster(holds=24, state="UPDATING")
    partial = replace(EVICTION, keeps={KEY: 8})
    first = status_of(dac, claim(0), claim(1, ready=False), claim(2, ready=False), gpus=24, eviction=partial)
    assert sorted(claim_changes(first)[1]) == ["c-u-1", "c-u-2"]
    assert (first.state, first.held) == ("UPDATING", held(dac))
    assert "; it keeps 8 of nvidia.com/gpu in h100; " in first.detail
    assert "Preempted" not in conditions_of(first)
    gone = status_of(dac, claim(0), gpus=24, eviction=partial)
    assert gone.held is not None
    assert (gone.held.usage, claim_changes(gone)) == ({KEY: 8}, ([], []))


def test_a_cluster_that_moves_releases_its_first_reservation() -> None:
    dac = cluster(holds=16, state="ACTIVE")
    status = status_of(dac, claim(0), reserved=ReservationKey("team", "other"))
    assert (status.state, conditions_of(status)["Ready"][1]) == ("UPDATING", "ReservationChanged")
    assert (claim_changes(status), status.held) == (([], ["c-u-0"]), held(dac))
    assert status_of(dac, reserved=ReservationKey("team", "other")).held is None


def test_a_deleted_cluster_is_released_after_its_last_instance() -> None:
    first = status_of(cluster(holds=16, deleting=True), claim(0), claim(1, deleting=True))
    assert (first.state, first.releasable) == ("DELETING", False)
    assert claim_changes(first) == ([], ["c-u-0"])
    assert "2 instances left" in first.detail
    last = status_of(cluster(holds=16, deleting=True))
    assert (last.state, last.releasable, last.held) == ("DELETING", True, None)
    assert status_of(cluster(deleting=True)).releasable


def test_instances_of_a_lost_status_are_deleted_only_after_quota_is_denied() -> None:
    unresolved = UnresolvedName("ReservationNotFound", "there is none")
    assert claim_changes(status_of(cluster(), claim(0), reserved=unresolved)) == ([], [])
    assert claim_changes(status_of(cluster(), claim(0), claim(1), decision=admitted(16))) == ([], [])
    assert claim_changes(status_of(cluster(), claim(0), decision=WAITING)) == ([], ["c-u-0"])


def test_an_unresolved_flavor_keeps_its_instances() -> None:
    def lost(flavor: str, amounts: Mapping[str, int]) -> FlavorProblem:
        return FlavorProblem(reason="FlavorNotFound", message="make it")

    status = status_of(cluster(holds=16, state="ACTIVE"), claim(0), claim(1), sized=lost)
    assert (status.state, status.detail) == ("FAILED", "make it")
    assert (claim_changes(status), status.held) == (([], []), held(cluster(holds=16)))


def test_an_equal_status_is_not_written_again() -> None:
    dac = cluster()
    status = status_of(dac, decision=admitted(16))
    body = status_body.body(dac, status, now=NOW)
    assert body is not None
    after = dac.model_validate({**dac.wire(), "status": body})
    assert held(after) == status.held
    later = NOW + timedelta(hours=1)
    again = next_status(ClusterFacts(state=state_of(after)), size, now=later, wait=600)
    assert status_body.body(after, again, now=later) is None


def test_a_left_out_claim_counts_as_existing() -> None:
    lost = PartialObject.of_object(claim(0), "poison")
    dac = cluster(holds=16, state="ACTIVE")
    status = status_of(dac, decision=admitted(16), left_out=(lost,))
    assert claim_changes(status) == ([1], [])
    assert "c-u-0 is left out: poison" in status.detail
    status = status_of(dac, claim(1), decision=admitted(16), left_out=(lost,))
    assert claim_changes(status) == ([], [])
    status = status_of(dac, claim(1), gpus=8, left_out=(lost,))
    assert claim_changes(status) == ([], ["c-u-1"])
    assert status.held is not None and status.held.usage == {KEY: 16}
    meaningless = FlavorProblem(reason="FlavorNotFound", message="make it")
    status = status_of(dac, claim(1), sized=lambda *_: meaningless, left_out=(lost,))
    assert claim_changes(status) == ([], [])
    status = status_of(cluster(holds=16, deleting=True), left_out=(lost,))
    assert not status.releasable and status.held is not None


@pytest.mark.covers("SAF-59")
@pytest.mark.parametrize("gpus", [8_000_000, 2**31 - 8, 2**63 - 1])
def test_new_claims_are_limited_to_the_free_slots(gpus: int) -> None:
    dac = cluster(holds=gpus, state="ACTIVE")
    waiting = [claim(at, ready=False) for at in range(60)]
    status = status_of(dac, *waiting, gpus=gpus, decision=admitted(gpus), launch_limit=64)
    assert [at for at, _ in status.changes.create] == [60, 61, 62, 63]
    running = [claim(at) for at in range(0, 200, 2)]
    status = status_of(dac, *running, gpus=gpus, decision=admitted(gpus), launch_limit=100)
    assert [at for at, _ in status.changes.create] == [*range(1, 200, 2)]
    status = status_of(dac, *[claim(at, ready=False) for at in range(64)], gpus=gpus, decision=admitted(gpus))
    assert status.changes.create == ()
