"""Plan, decision and drain in rounds: decisions come to rest, and freed slots go to their nominees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from broker.apis import names
from broker.quota.cycle import Head
from broker.quota.entitled import AdmissionPhase, entitle
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.model import Preemption, Queue
from broker.quota.slot_model import PendingSlots, SlotHolder, SlotRequest
from broker.quota.slots import SlotTree
from tests.support.examples import times
from tests.unit.quota.builders import FLAVORS, queue, quota, workload
from tests.unit.quota.rounds import TYPES, Dedicated, Job, Reservation, Setting, World
from tests.unit.quota.rules import check
from tests.unit.quota.test_slots import holder, member, owned_slots
from tests.unit.quota.worlds import setting

P5 = "p5.48xlarge"
ANY = {"reclaimWithinCohort": "Any"}
LOWER = {**ANY, "borrowWithinCohort": {"policy": "LowerPriority"}}
WITHIN = {"withinClusterQueue": "LowerPriority"}
# Worlds that once did not come to rest, or drained a holder twice, and some of every kind.
SEEDS = (
    *(20096, 20180, 20235, 20415, 20534, 20617, 20698, 20738, 20977, 21201, 21548, 21662),
    *(30001, 30544, 31044, 31074, 31685, 40821, 41126, 42448, 51441, 60460, 70812, 91232, 100848, 3001476),
    *range(times(5)),
)


def job(name: str, draws: str, **more: object) -> Job:
    return Job(**{"name": name, "draws": draws, "flavors": [P5], **more})  # type: ignore[arg-type]


def reservation(name: str, count: int, **more: object) -> Reservation:
    return Reservation(**{"name": name, "nominal": {P5: count}, **more})  # type: ignore[arg-type]


def slots(**counts: int) -> dict[str, tuple[str, str, int]]:
    return {f"cr-{owner}": (owner, P5, count) for owner, count in counts.items()}


def rest(setting: Setting) -> World:
    """The world at rest. Every rule of `check` holds."""
    world = World(setting)
    assert [*check(world)] == []
    return world


def at(world: World) -> dict[str, str]:
    """The EC2 reservation of each job's claim; empty for one that waits."""
    return {
        claim.name.rpartition(".")[0] or claim.name: claim.labels.get(names.RESERVATION_ID, "")
        for claim in world.claims.list()
    }


def cluster_request(name: str, queue: str, gpus: int, **more: object) -> Head:
    wants = FlavorRequest(requests={"gpu": gpus})
    return Head(**{"name": name, "queue": queue, "request": wants, **more})  # type: ignore[arg-type]


RECLAIMS = Preemption(within="LowerPriority", reclaim="Any")


@pytest.mark.covers("SAF-30", "SAF-31", "SAF-35", "SAF-37")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_world_comes_to_rest(seed: int) -> None:
    """No holder drains twice for one reason, freed slots are given, and no slot is idle with a claim
    waiting for it."""
    assert [*check(World(setting(seed)))] == []


def test_a_world_is_not_always_at_rest() -> None:
    """The rules find violations: a world in which one claim never terminates is not at rest."""
    jobs = [job("b0", "b"), job("a0", "a", round=2)]
    world = World(
        Setting(
            reservations=[reservation("a", 1, rule=ANY), reservation("b", 0)], slots=slots(a=1), jobs=jobs
        )
    )
    for _ in range(4):
        world.round()
    assert [(drain.victim, drain.preemptor) for drain in world.drains] == [("b0", "a0")]
    world.drains *= 2
    assert [violation for violation in check(world) if violation.startswith("drained twice")] != []


@pytest.mark.covers("SAF-30")
def test_request_is_admitted_if_its_only_victims_got_quota_in_the_same_decision() -> None:
    """Round 1 lends a0 the quota that b1, the second of its queue, reclaims in round 2."""
    queues = [queue("a", quota(0), "c"), queue("b", quota(16), "c", preemption=RECLAIMS)]
    requests = [
        cluster_request("a0", "a", 8),
        cluster_request("b0", "b", 8, priority=1),
        cluster_request("b1", "b", 8),
    ]
    result = entitle(queues, holders=(), requests=requests, flavors=FLAVORS)
    assert {name: decision.phase for name, decision in result.decisions.items()} == {
        "a0": AdmissionPhase.WAITING,
        "b0": AdmissionPhase.ADMITTED,
        "b1": AdmissionPhase.ADMITTED,
    }
    assert result.evictions == {}


@pytest.mark.covers("SAF-30")
def test_nothing_is_evicted_for_a_request_that_loses_its_quota_in_the_same_decision() -> None:
    """v would be evicted for c0 first, but b1 outranks c0 and fits without an eviction."""
    higher = Preemption(within="LowerPriority", reclaim="Any", borrow="LowerPriority")
    queues = [
        queue("c", quota(0), "c", preemption=higher),
        queue("d", quota(0), "c"),
        queue("b", quota(16), "c", preemption=RECLAIMS),
    ]
    held = [workload("v", "d", 8, priority=0)]
    requests = [
        cluster_request("c0", "c", 16, priority=5),
        cluster_request("b0", "b", 8, priority=1),
        cluster_request("b1", "b", 8),
    ]
    result = entitle(queues, holders=held, requests=requests, flavors=FLAVORS)
    phases = {name: decision.phase for name, decision in result.decisions.items()}
    assert phases["b0"] is AdmissionPhase.ADMITTED
    assert {eviction.preemptor for eviction in result.evictions.values()} <= {
        name for name, phase in phases.items() if phase is AdmissionPhase.PREEMPTING
    }


@pytest.mark.covers("SAF-31")
@pytest.mark.parametrize("priority", [0, 9])
def test_freed_slot_goes_to_the_claim_it_was_freed_for_not_to_a_newcomer(priority: int) -> None:
    """a0 waits for the slot of b0, which drains for a while; a1 comes in the meantime, and quota has room
    for one."""
    jobs = [
        job("b0", "b", drains=4),
        job("a0", "a", round=2),
        job("a1", "a", round=4, priority=priority),
        job("b1", "b", round=4, priority=priority),
    ]
    world = rest(
        Setting(
            reservations=[
                reservation("a", 1, rule=ANY | {"withinClusterQueue": "Never"}),
                reservation("b", 0),
            ],
            slots=slots(a=1),
            jobs=jobs,
        )
    )
    assert at(world) == {"a0": "cr-a", "a1": "", "b0": "", "b1": ""}
    assert len(world.drains) == 1


@pytest.mark.covers("SAF-31")
def test_freed_slot_goes_to_the_borrower_it_was_freed_for_not_to_the_owner() -> None:
    jobs = [
        job("b0", "b", drains=4),
        job("c0", "c", round=2, priority=5),
        job("a0", "a", round=4),
        job("a1", "a", round=4, priority=9),
    ]
    world = rest(
        Setting(
            reservations=[reservation("a", 1), reservation("b", 0), reservation("c", 0, rule=LOWER)],
            slots=slots(a=1),
            jobs=jobs,
        )
    )
    assert at(world)["c0"] == "cr-a"
    assert [(drain.victim, drain.preemptor) for drain in world.drains] == [("b0", "c0")]


@pytest.mark.covers("SAF-32")
@pytest.mark.parametrize("within", ["LowerPriority", "Never"])
def test_no_claim_drains_a_cluster_that_the_plan_then_puts_first(within: str) -> None:
    """Quota for two, one slot: the cluster holds quota for it, the claim has more priority."""
    world = rest(
        Setting(
            reservations=[reservation("a", 2, rule={"withinClusterQueue": within})],
            slots=slots(a=1),
            jobs=[job("w", "a", round=3, priority=9)],
            clusters=[Dedicated(name="x", draws="a", count=1, priority=5)],
        )
    )
    drained = [(drain.victim, drain.preemptor) for drain in world.drains]
    assert drained == ([("cluster x", "w")] if within == "LowerPriority" else [])
    assert at(world)["w"] == ("cr-a" if within == "LowerPriority" else "")


@pytest.mark.covers("SAF-32")
def test_claim_and_cluster_of_one_plan_are_ranked_as_for_preemption() -> None:
    """The claim comes when the cluster's own are planned: nothing is launched to be drained at once."""
    world = rest(
        Setting(
            reservations=[reservation("a", 2)],
            slots=slots(a=1),
            jobs=[job("w", "a", round=1, priority=9)],
            clusters=[Dedicated(name="x", draws="a", count=1, priority=5)],
        )
    )
    assert at(world)["w"] == "cr-a"
    assert world.drains == []


@pytest.mark.covers("SAF-33")
def test_non_preemptible_borrower_counts_against_the_lending_limit() -> None:
    non_preemptible = holder("b0", "b", non_preemptible=True)
    lends = SlotTree(
        [owned_slots("a", 3, lend=1)], [member("a"), member("b"), member("c")], [non_preemptible]
    )
    (slot_pool,) = lends.owned_slots.values()
    assert (lends.quota(slot_pool), lends.room(slot_pool), lends.lendable(slot_pool)) == (2, 2, 0)
    # Nor is it reclaimed: only the slot of the other borrower is.
    full = SlotTree(
        [owned_slots("a", 3)],
        [member("a"), member("b")],
        [non_preemptible, holder("b1", "b"), holder("a0", "a")],
    )
    requests = [SlotRequest(name=f"w{n}", queue="a", odcr_ids=("cr-a",)) for n in range(3)]
    assert [victim.holder.name for victim in full.reclaim(requests)] == ["b1"]


@pytest.mark.covers("SAF-33")
def test_no_second_slot_is_lent_beside_a_non_preemptible_borrower() -> None:
    world = rest(
        Setting(
            reservations=[reservation("a", 3, lending={P5: 1}), reservation("b", 0), reservation("c", 0)],
            slots=slots(a=3),
            jobs=[job("b0", "b", non_preemptible=True), job("c0", "c", round=3), job("b1", "b", round=3)],
        )
    )
    assert at(world) == {"b0": "cr-a", "c0": "", "b1": ""}


@pytest.mark.covers("SAF-34")
@pytest.mark.parametrize("later", [False, True])
def test_pending_slots_of_a_cluster_exclude_the_slot_requested_by_its_own_claim(later: bool) -> None:
    """Two slots, one of them lent; the cluster holds quota for three, and one of its claims requests a
    slot."""

    def slots_with(requesting: int) -> SlotTree:
        promise = PendingSlots(
            cluster="x", queue="a", flavor="f", count=2, nominated=later, requesting=requesting
        )
        return SlotTree(
            [owned_slots("a", 2)],
            [member("a"), member("b")],
            [
                SlotHolder(name="b0", queue="b", odcr_id="cr-a"),
                SlotHolder(name="x-0", queue="a", odcr_id="cr-a", cluster="x"),
            ],
            pending_slots=[promise],
        )

    assert slots_with(0).quota(slots_with(0).owned_slots["a", "f"]) == 0
    requesting_slots = slots_with(1)
    assert requesting_slots.quota(requesting_slots.owned_slots["a", "f"]) == 1
    (victim,) = requesting_slots.reclaim([SlotRequest(name="x-1", queue="a", odcr_ids=("cr-a",))])
    assert victim.holder.name == "b0"


@pytest.mark.covers("SAF-34")
def test_cluster_that_can_never_be_whole_reclaims_its_lent_slot() -> None:
    """Quota for three, two slots, one of them lent: the claims of the cluster that wait do not hide it."""
    world = rest(
        Setting(
            reservations=[reservation("a", 3, rule=ANY), reservation("b", 0)],
            slots=slots(a=2),
            jobs=[job("b0", "b")],
            clusters=[Dedicated(name="x", draws="a", count=1, round=3, grows=6, then=3)],
        )
    )
    assert [(drain.victim, drain.preemptor) for drain in world.drains] != []
    assert sum(id_ == "cr-a" for name, id_ in at(world).items() if name.startswith("x-")) == 2


@pytest.mark.covers("SAF-35")
def test_nominated_request_comes_before_one_of_higher_priority() -> None:
    queues: list[Queue] = [queue("a", quota(8), "c", preemption=RECLAIMS), queue("b", quota(0), "c")]
    terminating = workload("v", "b", 8, evicted=True)
    requests = [cluster_request("x", "a", 8), cluster_request("y", "a", 8, priority=9)]

    def phases(flavors: Mapping[str, Flavor], nominated: tuple[str, ...]) -> dict[str, AdmissionPhase]:
        for held in ([terminating], []):
            result = entitle(queues, holders=held, requests=requests, flavors=flavors, nominated=nominated)
            assert result.evictions == {}
        return {name: decision.phase for name, decision in result.decisions.items()}

    assert phases(FLAVORS, ("x",))["x"] is AdmissionPhase.ADMITTED
    assert phases(FLAVORS, ())["y"] is AdmissionPhase.ADMITTED


@pytest.mark.covers("SAF-35")
@pytest.mark.parametrize("priority", [1, 9])
def test_room_made_for_a_cluster_is_given_to_no_later_claim(priority: int) -> None:
    """j0 is evicted for the cluster; j1 of the same reservation arrives in the next round."""
    world = rest(
        Setting(
            reservations=[reservation("a", 2, rule={"withinClusterQueue": "LowerPriority"})],
            slots=slots(a=2),
            jobs=[job("j0", "a", drains=2), job("j1", "a", round=3, priority=priority, fallback=True)],
            clusters=[Dedicated(name="x", draws="a", count=2, round=2, priority=9)],
        )
    )
    assert sorted(name for name, id_ in at(world).items() if id_) == ["x-x-cluste-0", "x-x-cluste-1"]
    assert [(drain.victim, drain.preemptor) for drain in world.drains] == [("j0", "x")]


@pytest.mark.covers("SAF-35")
def test_room_made_for_a_cluster_that_borrows_is_not_taken_by_the_owner() -> None:
    """a2 frees the owner's slot for the cluster, which waits for two others; the owner's claim follows."""
    world = rest(
        Setting(
            reservations=[
                reservation("a", 2, rule=LOWER | WITHIN),
                reservation("b", 1, rule={"reclaimWithinCohort": "Never"}),
            ],
            slots=slots(a=2, b=1),
            jobs=[
                job("a0", "a", drains=4),
                job("a1", "a", drains=4),
                job("a2", "a"),
                job("b0", "b", round=4, priority=9),
            ],
            clusters=[Dedicated(name="x", draws="a", count=3, round=2, priority=5)],
        )
    )
    assert sorted(name for name, id_ in at(world).items() if id_) == [f"x-x-cluste-{n}" for n in range(3)]
    assert len(world.drains) == 3


@pytest.mark.covers("SAF-35")
def test_quota_made_free_for_a_cluster_is_not_used_up_by_the_claim_that_left() -> None:
    """The reservation has no slots of its own: its claims take unowned slots, within its quota."""
    world = rest(
        Setting(
            reservations=[reservation("a", 1, rule=WITHIN)],
            slots={"cr-open": ("", P5, 2)},
            jobs=[job("a0", "a")],
            clusters=[Dedicated(name="x", draws="a", count=1, round=2, priority=9)],
        )
    )
    assert at(world)["x-x-cluste-0"] == "cr-open"
    assert len(world.drains) == 1


@pytest.mark.covers("SAF-31")
def test_nominated_claim_takes_no_slot_freed_for_another() -> None:
    """a1 has more priority than d1, and its slot drains longer; it may borrow that of d1."""
    world = rest(
        Setting(
            reservations=[
                reservation("a", 1, rule=ANY),
                reservation("c", 0),
                reservation("d", 1, rule=ANY | WITHIN),
            ],
            slots=slots(a=1, d=1),
            jobs=[
                job("c0", "c", drains=4),
                job("d0", "d"),
                job("a1", "a", round=2, priority=2),
                job("d1", "d", round=2, priority=1),
            ],
        )
    )
    assert at(world) == {"a1": "cr-a", "d1": "cr-d", "c0": "", "d0": ""}
    assert len(world.drains) == 2


@pytest.mark.covers("SAF-31")
def test_nominated_gang_keeps_the_slot_that_is_freed_first() -> None:
    """b0 is gone, and would return, long before b1 leaves; the unowned slot is kept too."""
    world = rest(
        Setting(
            reservations=[reservation("b", 2, rule=WITHIN)],
            slots=slots(b=2) | {"cr-open": ("", P5, 1)},
            jobs=[
                job("b0", "b"),
                job("b1", "b", drains=4),
                *(job(f"g{n}", "b", round=2, priority=2, gang="g", gang_size=3) for n in range(3)),
            ],
        )
    )
    assert {name for name, id_ in at(world).items() if id_} == {"g0", "g1", "g2"}
    assert len(world.drains) == 2


def test_worlds_are_of_every_kind() -> None:
    cases = [setting(seed) for seed in range(40)]
    assert any(len({flavor for _, flavor, _ in case.slots.values()}) == len(TYPES) for case in cases)
    jobs = [job for case in cases for job in case.jobs]
    assert any(job.gang for job in jobs) and any(job.non_preemptible for job in jobs)
    assert any(job.fallback for job in jobs) and any(case.clusters for case in cases)


def test_claim_takes_an_idle_slot_elsewhere_if_its_victim_does_not_terminate() -> None:
    """A PodDisruptionBudget may hold up the drain for as long as it likes."""
    world = World(
        Setting(
            reservations=[
                reservation("x", 1),
                reservation("y", 2),
                reservation("q", 0, rule={**LOWER, **WITHIN}),
                reservation("r", 0),
            ],
            slots=slots(x=1, y=1),
            jobs=[
                job("r0", "r", drains=1000),
                job("y0", "y", non_preemptible=True),
                job("q0", "q", priority=10, round=3),
            ],
        )
    )
    for _ in range(12):
        world.round()
    assert [drain.preemptor for drain in world.drains] and at(world)["q0"] == ""
    world.setting = replace(world.setting, slots=slots(x=1, y=2))
    world.total = {"cr-x": 1, "cr-y": 2}
    for _ in range(3):
        world.round()
    assert at(world)["q0"] == "cr-y"
