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
from broker.controllers.dedicatedaicluster.status import (
    ClusterFacts,
    ClusterStatus,
    preempted,
    settle,
    terminating,
)
from broker.kube.partial import PartialObject
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, Eviction, Shortfall
from broker.quota.model import FlavorResource, Reason
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import Reserved
from broker.reservations.cluster_admission import ClusterAdmission, held
from broker.reservations.sizing import FlavorProblem, SizedQuota

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
KEY = FlavorResource("h100", GPU)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE = Reserved("team", "gpu")
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


def settled(
    one: DedicatedAICluster, *claims: NodeClaim, gpus: int = 16, sized: Any = size, **more: Any
) -> ClusterStatus:
    facts: Json = {"wanted": ClusterDemand(requests={GPU: gpus}), "reserved": MINE, **more}
    return settle(ClusterFacts(cluster=one, claims=claims, **facts), sized, now=NOW, wait=600)


def admitted(gpus: int) -> AdmissionDecision:
    return AdmissionDecision(phase=AdmissionPhase.ADMITTED, usage={KEY: gpus})


WAITING = AdmissionDecision(phase=AdmissionPhase.WAITING, shortfalls=(Shortfall(KEY, 16, 8),))


def made(found: ClusterStatus) -> tuple[list[int], list[str]]:
    return [at for at, _ in found.change.make], [each.name for each in found.change.end]


def said(found: ClusterStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in found.said}


def test_quota_comes_with_the_claims_that_it_pays_for() -> None:
    found = settled(cluster(), verdict=admitted(16))
    assert found.held == ClusterAdmission(reserved=MINE, since=NOW, usage={KEY: 16})
    assert made(found) == ([0, 1], [])
    assert (found.state, found.allocated, found.available) == ("CREATING", 16, 0)
    assert said(found) == {"QuotaReserved": ("True", "QuotaReserved"), "Ready": ("False", "InstancesPending")}


def test_what_it_holds_is_written_with_its_priority_and_read_again() -> None:
    found = settled(cluster(), verdict=admitted(16), priority=20)
    assert found.held is not None
    assert found.held.priority == 20
    written = status_body.body(cluster(), found, now=NOW)
    assert written is not None
    assert written["admission"]["priority"] == 20
    again = DedicatedAICluster.decode({"metadata": {"name": "c"}, "spec": {}, "status": written})
    assert held(again) == found.held
    assert status_body.body(again, settled(again, priority=20), now=NOW) is None
    changed = settled(again, priority=30)
    assert changed.held is not None
    assert changed.held.priority == 30


@pytest.mark.covers("OME-078")
def test_it_is_active_when_each_of_its_instances_is_ready() -> None:
    found = settled(cluster(holds=16), claim(0), claim(1))
    assert (found.state, found.detail, found.available) == ("ACTIVE", "ACTIVE", 16)
    assert said(found)["Ready"] == ("True", "InstancesReady")
    waits = settled(cluster(holds=16), claim(0), claim(1, ready=False, why="InsufficientCapacity"))
    assert (waits.state, waits.available) == ("CREATING", 8)
    assert waits.detail == "1 of 2 instances are ready; c-u-1: InsufficientCapacity: no slot"


def test_a_node_that_is_not_ready_is_no_instance_that_is() -> None:
    found = settled(cluster(holds=16, state="ACTIVE"), claim(0), claim(1), down={"n-1"})
    assert (found.state, found.available) == ("UPDATING", 8)
    assert found.detail == "1 of 2 instances are ready; node n-1 is not ready"
    assert made(found) == ([], [])


def test_a_lost_instance_is_replaced_under_another_number() -> None:
    found = settled(cluster(holds=16, state="ACTIVE"), claim(0), claim(1, deleting=True))
    assert made(found) == ([2], [])
    assert found.state == "UPDATING"


@pytest.mark.covers("OME-073")
def test_without_quota_nothing_is_asked_for() -> None:
    never = settled(
        cluster(), verdict=AdmissionDecision(phase=AdmissionPhase.NEVER, shortfalls=(Shortfall(KEY, 16, 8),))
    )
    assert (never.state, said(never)["QuotaReserved"]) == ("FAILED", ("False", "NotEnoughResources"))
    assert never.detail == (
        "reservation team/gpu can never give it: 16 of nvidia.com/gpu wanted, 8 to be had in h100; ask for "
        "less in spec.resources or spec.count, or raise nominalQuota of the reservation"
    )
    waits = settled(cluster(), verdict=WAITING)
    assert (waits.state, waits.patience) == ("CREATING", 600)
    assert "it goes on by itself when others give theirs back, or once nominalQuota is raised" in waits.detail
    assert made(never) == made(waits) == ([], [])


@pytest.mark.covers("OME-073", "OME-078")
def test_who_waits_too_long_has_failed_and_waits_on() -> None:
    early = settled(cluster(waits=599), verdict=WAITING)
    assert (early.state, early.patience) == ("CREATING", 1)
    late = settled(cluster(waits=600), verdict=WAITING)
    assert (late.state, said(late)["QuotaReserved"]) == ("FAILED", ("False", "NotEnoughResources"))
    assert late.patience is None
    assert settled(cluster(waits=601, state="FAILED"), verdict=admitted(16)).state == "CREATING"


@pytest.mark.parametrize(
    ("more", "reason", "says"),
    [
        ({"wanted": DemandError("SizeUnknown", "say how large")}, "SizeUnknown", "say how large"),
        (
            {"reserved": UnresolvedName("ReservationNotFound", "there is none")},
            "ReservationNotFound",
            "spec.capacityReservationId: there is none",
        ),
        ({"barred": "it is deleted"}, "ReservationInvalid", "team/gpu gives nothing: it is deleted"),
    ],
)
def test_what_is_wrong_fails_who_holds_nothing_and_leaves_alone_who_does(
    more: Json, reason: str, says: str
) -> None:
    found = settled(cluster(), **more)
    assert (found.state, said(found)["QuotaReserved"]) == ("FAILED", ("False", reason))
    assert says in found.detail
    kept = settled(cluster(holds=16, state="ACTIVE"), claim(0), claim(1), **more)
    assert (kept.state, kept.held) == ("UPDATING", held(cluster(holds=16)))
    assert said(kept)["Ready"] == ("True", "InstancesReady")
    assert "it keeps what it has" in kept.detail
    assert made(kept) == ([], [])


def test_growth_keeps_what_there_is_and_adds_to_it() -> None:
    one = cluster(holds=8, state="ACTIVE")
    waits = settled(one, claim(0), verdict=WAITING)
    assert (waits.state, waits.held) == ("UPDATING", held(one))
    assert made(waits) == ([], [])
    grows = settled(one, claim(0), verdict=admitted(16))
    assert grows.held == ClusterAdmission(
        reserved=MINE, since=datetime(2025, 12, 31, tzinfo=UTC), usage={KEY: 16}
    )
    assert made(grows) == ([1], [])


def test_less_quota_is_held_once_fewer_instances_are_there() -> None:
    one = cluster(holds=16, state="ACTIVE")
    ends = settled(one, claim(0), claim(1), gpus=8)
    assert made(ends) == ([], ["c-u-1"])
    assert ends.held == held(one)
    draining = settled(one, claim(0), claim(1, deleting=True), gpus=8)
    assert draining.held == held(one)
    gone = settled(one, claim(0), gpus=8)
    assert gone.held is not None
    assert (gone.held.usage, gone.state) == ({KEY: 8}, "ACTIVE")


def test_of_too_many_the_ones_that_do_least_go_first() -> None:
    claims = (claim(0, ready=False), claim(1), claim(2))
    assert made(settled(cluster(holds=24), *claims, gpus=16)) == ([], ["c-u-0"])
    assert made(settled(cluster(holds=24), *claims, gpus=8)) == ([], ["c-u-0", "c-u-2"])


@pytest.mark.covers("OME-055")
def test_who_is_preempted_gives_instances_back_then_quota_then_waits() -> None:
    one = cluster(holds=16, state="ACTIVE")
    first = settled(one, claim(0), claim(1), eviction=EVICTION)
    assert made(first) == ([], ["c-u-0", "c-u-1"]) or made(first) == ([], ["c-u-1", "c-u-0"])
    assert (first.state, first.held) == ("UPDATING", held(one))
    assert said(first)["Preempted"] == ("True", "InCohortReclamation")
    assert "preemptor path: /c/team--b; preemptee path: /c/team--gpu" in first.detail
    drains = cluster(holds=16, preempted=True)
    assert terminating(drains, MINE)
    assert settled(drains, claim(0, deleting=True)).held == held(drains)
    empty = settled(drains)
    assert empty.held is None
    assert said(empty)["QuotaReserved"] == ("False", "InCohortReclamation")
    waits = cluster(preempted=True, waits=0)
    assert settled(waits, verdict=WAITING).state == "CREATING"
    back = settled(waits, verdict=admitted(16))
    assert said(back)["Preempted"] == ("False", "QuotaReserved")


def test_who_is_to_give_back_only_a_growth_keeps_the_rest() -> None:
    one = cluster(holds=24, state="UPDATING")
    some = replace(EVICTION, keeps={KEY: 8})
    first = settled(one, claim(0), claim(1, ready=False), claim(2, ready=False), gpus=24, eviction=some)
    assert sorted(made(first)[1]) == ["c-u-1", "c-u-2"]
    assert (first.state, first.held) == ("UPDATING", held(one))
    assert "; it keeps 8 of nvidia.com/gpu in h100; " in first.detail
    assert "Preempted" not in said(first)
    gone = settled(one, claim(0), gpus=24, eviction=some)
    assert gone.held is not None
    assert (gone.held.usage, made(gone)) == ({KEY: 8}, ([], []))


def test_moved_to_another_reservation_it_leaves_the_first() -> None:
    one = cluster(holds=16, state="ACTIVE")
    found = settled(one, claim(0), reserved=Reserved("team", "other"))
    assert (found.state, said(found)["Ready"][1]) == ("UPDATING", "ReservationChanged")
    assert (made(found), found.held) == (([], ["c-u-0"]), held(one))
    assert settled(one, reserved=Reserved("team", "other")).held is None


def test_deleted_it_goes_when_its_last_instance_has_gone() -> None:
    first = settled(cluster(holds=16, deleting=True), claim(0), claim(1, deleting=True))
    assert (first.state, first.over) == ("DELETING", False)
    assert made(first) == ([], ["c-u-0"])
    assert "2 instances left" in first.detail
    last = settled(cluster(holds=16, deleting=True))
    assert (last.state, last.over, last.held) == ("DELETING", True, None)
    assert settled(cluster(deleting=True)).over


def test_instances_of_a_lost_status_go_only_where_quota_was_decided_and_not_given() -> None:
    unresolved = UnresolvedName("ReservationNotFound", "there is none")
    assert made(settled(cluster(), claim(0), reserved=unresolved)) == ([], [])
    assert made(settled(cluster(), claim(0), claim(1), verdict=admitted(16))) == ([], [])
    assert made(settled(cluster(), claim(0), verdict=WAITING)) == ([], ["c-u-0"])


def test_a_flavor_that_means_nothing_now_keeps_its_instances() -> None:
    def lost(flavor: str, amounts: Mapping[str, int]) -> FlavorProblem:
        return FlavorProblem(flavor=flavor, reason="FlavorNotFound", message="make it")

    found = settled(cluster(holds=16, state="ACTIVE"), claim(0), claim(1), sized=lost)
    assert (found.state, found.detail) == ("FAILED", "make it")
    assert (made(found), found.held) == (([], []), held(cluster(holds=16)))


def test_what_was_written_is_not_written_again() -> None:
    one = cluster()
    found = settled(one, verdict=admitted(16))
    body = status_body.body(one, found, now=NOW)
    assert body is not None
    after = one.model_validate({**one.wire(), "status": body})
    assert held(after) == found.held
    later = NOW + timedelta(hours=1)
    again = settle(
        ClusterFacts(cluster=after, wanted=ClusterDemand(requests={GPU: 16}), reserved=MINE),
        size,
        now=later,
        wait=600,
    )
    assert status_body.body(after, again, now=later) is None


def test_claim_that_is_left_out_counts_as_one_that_stays() -> None:
    lost = PartialObject.of_object(claim(0), "poison", 0.0)
    one = cluster(holds=16, state="ACTIVE")
    found = settled(one, verdict=admitted(16), left_out=(lost,))
    assert made(found) == ([1], [])
    assert "c-u-0 is left out: poison" in found.detail
    found = settled(one, claim(1), verdict=admitted(16), left_out=(lost,))
    assert made(found) == ([], [])
    found = settled(one, claim(1), gpus=8, left_out=(lost,))
    assert made(found) == ([], ["c-u-1"])
    assert found.held is not None and found.held.usage == {KEY: 16}
    meaningless = FlavorProblem(flavor="h100", reason="FlavorNotFound", message="make it")
    found = settled(one, claim(1), sized=lambda *_: meaningless, left_out=(lost,))
    assert made(found) == ([], [])
    found = settled(cluster(holds=16, deleting=True), left_out=(lost,))
    assert not found.over and found.held is not None


@pytest.mark.covers("SAF-59")
@pytest.mark.parametrize("gpus", [8_000_000, 2**31 - 8, 2**63 - 1])
def test_a_cluster_of_any_size_makes_no_more_claims_at_a_time_than_there_are_slots(gpus: int) -> None:
    one = cluster(holds=gpus, state="ACTIVE")
    waiting = [claim(at, ready=False) for at in range(60)]
    found = settled(one, *waiting, gpus=gpus, verdict=admitted(gpus), waiting=64)
    assert [at for at, _ in found.change.make] == [60, 61, 62, 63]
    running = [claim(at) for at in range(0, 200, 2)]
    found = settled(one, *running, gpus=gpus, verdict=admitted(gpus), waiting=100)
    assert [at for at, _ in found.change.make] == [*range(1, 200, 2)]
    found = settled(one, *[claim(at, ready=False) for at in range(64)], gpus=gpus, verdict=admitted(gpus))
    assert found.change.make == ()
