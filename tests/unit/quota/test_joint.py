"""Dedicated clusters and claims, decided together: nothing is given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.quota.assign import SharingRules
from broker.quota.entitled import AdmissionPhase
from broker.quota.entitled import ClusterRequest as ClusterWant
from broker.quota.flavors import Flavor, PodSetRequest
from broker.quota.joint import GROWTH, JointDecision, QuotaState, SlotState, WaitingClaim, decide
from broker.quota.model import (
    AdmittedWorkload,
    Amounts,
    FlavorGroup,
    FlavorResource,
    Policy,
    Preemption,
    Queue,
)
from broker.quota.model import Quota as Limits
from broker.quota.slot_model import CLAIM, Member, OwnedSlots, Promise, SlotHolder, SlotRequest
from broker.quota.slots import SlotTree

GPU = "gpu"
KEY = FlavorResource("f", GPU)
EACH = 8  # GPUs of an instance


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`at`: the EC2 reservations that its instances are in, one for each. Counts are of instances."""

    name: str
    queue: str
    holds: int = 0
    wants: int = 0
    at: Sequence[str] = ()
    priority: int = 0
    growing: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """Reservations `quota` (instances, each with as many slots in its own `cr-<name>`), and their holders."""

    quota: Mapping[str, int]
    rules: Mapping[str, Preemption] = field(default_factory=dict)
    clusters: Sequence[Cluster] = ()
    claims: Sequence[SlotHolder] = ()
    waiting: Sequence[SlotRequest] = ()
    non_preemptible: bool = False

    def lot(self, queue: str) -> OwnedSlots:
        return OwnedSlots(
            owner=queue, flavor="f", slots={f"cr-{queue}": self.quota[queue]}, quota=self.quota[queue]
        )

    @property
    def holders(self) -> list[SlotHolder]:
        own = [
            SlotHolder(
                name=f"{each.name}-{number}",
                queue=each.queue,
                odcr_id=odcr_id,
                cluster=each.name,
                priority=each.priority,
                non_preemptible=self.non_preemptible,
            )
            for each in self.clusters
            for number, odcr_id in enumerate(each.at)
        ]
        return [*own, *self.claims]

    @property
    def places(self) -> SlotState:
        return SlotState(
            lots=[self.lot(name) for name in self.quota],
            members=[
                Member(
                    name=name,
                    cohort="ml",
                    borrowing_limit={"f": None},
                    preemption=self.rules.get(name, Preemption(reclaim="Any")),
                )
                for name in self.quota
            ],
            cohorts=(),
            holders=self.holders,
            promises=self._promises,
        )

    def _promises(self, admitted: Mapping[str, Amounts], gone: object) -> list[Promise]:
        assert hasattr(gone, "__contains__")
        return [
            Promise(
                cluster=each.name,
                queue=each.queue,
                flavor="f",
                count=count,
                priority=each.priority,
                non_preemptible=self.non_preemptible,
            )
            for each in self.clusters
            if each.name not in gone
            and (
                count := admitted.get(each.name, {KEY: EACH * each.holds}).get(KEY, 0) // EACH - len(each.at)
            )
            > 0
        ]

    @property
    def decides(self) -> QuotaState:
        holders = [
            AdmittedWorkload(
                name=f"{CLAIM}{each.name}",
                queue=each.queue,
                usage={KEY: EACH},
                priority=each.priority,
                evicted=each.terminating,
                non_preemptible=each.non_preemptible,
                on_own_slots=each.odcr_id == f"cr-{each.queue}",
                occupied_queues=frozenset({each.odcr_id.removeprefix("cr-")}),
            )
            for each in self.claims
        ]
        for each in self.clusters:
            if not each.holds:
                continue
            whole = AdmittedWorkload(
                name=each.name,
                queue=each.queue,
                usage={KEY: EACH * each.holds},
                priority=each.priority,
                on_own_slots=bool(each.at) and {*each.at} == {f"cr-{each.queue}"},
                occupied_queues=frozenset(odcr_id.removeprefix("cr-") for odcr_id in each.at),
            )
            if each.growing and 0 < len(each.at) < each.holds:
                more = {KEY: EACH * (each.holds - len(each.at))}
                holders.append(
                    replace(
                        whole,
                        name=f"{each.name}{GROWTH}",
                        usage=more,
                        on_own_slots=False,
                        occupied_queues=frozenset(),
                    )
                )
                whole = replace(whole, usage={KEY: EACH * len(each.at)})
            holders.append(whole)
        return QuotaState(
            queues=[
                Queue(
                    name=name,
                    cohort="ml",
                    groups=(FlavorGroup(frozenset({GPU}), ("f",)),),
                    quotas={KEY: Limits(nominal=EACH * count)},
                    preemption=self.rules.get(name, Preemption(reclaim="Any")),
                )
                for name, count in self.quota.items()
            ],
            cohorts=(),
            rules=SharingRules(flavors={"f": Flavor(name="f")}),
            holders=holders,
            wants=[
                ClusterWant(
                    name=each.name,
                    queue=each.queue,
                    pods=PodSetRequest(requests={GPU: EACH * each.wants}),
                    priority=each.priority,
                )
                for each in self.clusters
                if each.wants > each.holds
            ],
        )

    def decide(self) -> JointDecision:
        waiting = [WaitingClaim(want=each, usage={KEY: EACH}) for each in self.waiting]
        return decide(None if self.non_preemptible else self.decides, self.places, waiting)

    def slots(self, decided: JointDecision | None = None) -> SlotTree:
        given = decided or JointDecision()
        admitted = {
            name: each.usage
            for name, each in given.decisions.items()
            if each.phase is AdmissionPhase.ADMITTED
        }
        return self.places.slots(admitted, given.evictions.keys())


def claim(name: str, queue: str, at: str, **more: object) -> SlotHolder:
    return SlotHolder(name=name, queue=queue, odcr_id=f"cr-{at}", **more)  # type: ignore[arg-type]


def waits(name: str, queue: str, *at: str, priority: int = 0) -> SlotRequest:
    ids = tuple(f"cr-{each}" for each in at or (queue,))
    return SlotRequest(name=name, queue=queue, odcr_ids=ids, priority=priority)


def rooms(slots: SlotTree, queue: str) -> tuple[int, int, int]:
    lot = slots.lots[queue, "f"]
    return slots.quota(lot), slots.room(lot), slots.lendable(lot)


def test_admitted_quota_without_instances_is_not_lent() -> None:
    idle = State(quota={"a": 3, "b": 0})
    assert rooms(idle.slots(), "a") == (3, 3, 3)
    held = replace(idle, clusters=[Cluster(name="x", queue="a", holds=2, at=["cr-a"])])
    assert rooms(held.slots(), "a") == (1, 1, 1)
    # Nor quota admitted in this decision, nor borrowed quota without instances.
    wants = replace(idle, clusters=[Cluster(name="x", queue="a", wants=2)])
    assert rooms(wants.slots(wants.decide()), "a") == (1, 1, 1)
    borrows = replace(idle, clusters=[Cluster(name="x", queue="b", holds=2)])
    assert rooms(borrows.slots(), "a") == (3, 1, 1)
    assert rooms(replace(borrows, non_preemptible=True).slots(), "a") == (1, 1, 1)
    both = replace(
        borrows,
        quota={"a": 3, "b": 1},
        clusters=[Cluster(name="x", queue="b", holds=2)],
        non_preemptible=True,
    )
    assert [rooms(both.slots(), queue) for queue in ("a", "b")] == [(2, 2, 2), (0, 0, 0)]


@pytest.mark.covers("OME-032", "OME-046")
def test_a_claim_has_its_slot_back_from_another_reservations_cluster_as_a_whole() -> None:
    borrowed = State(
        quota={"a": 3, "b": 1},
        clusters=[Cluster(name="x", queue="b", holds=3, at=["cr-a", "cr-a", "cr-b"])],
        claims=[claim("own", "a", "a")],
        waiting=[waits("w0", "a"), waits("w1", "a")],
    )
    decided = borrowed.decide()
    assert [*decided.evictions] == ["x"]
    assert decided.evictions["x"].preemptor == "NodeClaim w0"
    assert decided.evictions["x"].preemptee_path == "/ml/b"
    assert not decided.victims
    # If Kueue counts its quota, Kueue decides that.
    assert replace(borrowed, non_preemptible=True).decide() == JointDecision()
    plain = replace(borrowed, rules={"a": Preemption(reclaim="Never")})
    assert not plain.decide().evictions


def test_victim_of_a_cluster_is_no_victim_of_a_claim() -> None:
    both = State(
        quota={"a": 2, "b": 0},
        clusters=[Cluster(name="x", queue="a", wants=1)],
        claims=[claim("b0", "b", "a"), claim("b1", "b", "a")],
        waiting=[waits("w", "a")],
    )
    decided = both.decide()
    assert sorted(decided.evictions) == ["NodeClaim b0", "NodeClaim b1"]
    assert not decided.victims
    assert decided.decisions["x"].phase is AdmissionPhase.PREEMPTING
    # One victim is gone and the other is terminating: no third victim is chosen.
    left = replace(both, claims=[claim("b1", "b", "a", terminating=True)])
    again = left.decide()
    assert not again.evictions and not again.victims
    assert again.decisions["x"].phase is AdmissionPhase.PREEMPTING
    assert replace(both, claims=[]).decide().decisions["x"].phase is AdmissionPhase.ADMITTED


def test_newly_admitted_quota_of_a_cluster_is_free_for_no_claim() -> None:
    free = State(
        quota={"a": 2, "b": 0, "c": 0},
        rules={"b": Preemption(reclaim="Any", borrow="LowerPriority")},
        clusters=[Cluster(name="x", queue="a", wants=1)],
        claims=[claim("c0", "c", "a")],
    )
    # A cluster's claim: that one holds the quota for it.
    decided = decide(free.decides, free.places, [WaitingClaim(want=waits("w", "b", "a", priority=5))])
    assert decided.decisions["x"].phase is AdmissionPhase.ADMITTED
    assert [each.holder.name for each in decided.victims] == ["c0"]


def test_a_claim_that_waits_keeps_the_quota_that_comes_free_for_it() -> None:
    """Otherwise the cluster evicted for it would be admitted again at once."""
    leaves = State(
        quota={"a": 1},
        clusters=[Cluster(name="x", queue="a", wants=1)],
        waiting=[waits("w", "a", priority=5)],
    )
    assert leaves.decide().decisions["x"].phase is AdmissionPhase.WAITING
    higher = replace(
        leaves,
        rules={"a": Preemption(within="LowerPriority")},
        clusters=[Cluster(name="x", queue="a", wants=1, priority=9)],
    )
    assert higher.decide().decisions["x"].phase is AdmissionPhase.ADMITTED


def test_slots_freed_for_a_cluster_are_given_only_to_it() -> None:
    """Otherwise a drained holder would return to the slot first, and drain again."""

    def kept(count: int, *claims: SlotHolder, queue: str = "a", quota: int = 2) -> SlotTree:
        state = State(quota={"a": quota, "b": 0, "c": 0}, claims=claims)
        later = Promise(cluster="x", queue=queue, flavor="f", count=count, priority=9, later=True)
        return replace(state.places, promises=lambda *_: [later]).slots({}, ())

    held, leaves = claim("v", "a", "a", terminating=True), claim("b", "b", "a", terminating=True)
    assert rooms(kept(1), "a") == (1, 1, 1)
    assert rooms(kept(2), "a") == (0, 0, 0)
    # While a terminating holder has a slot, that slot is the cluster's, and the rest is free for all.
    assert rooms(kept(1, held), "a") == (1, 1, 1)
    assert rooms(kept(1, leaves), "a") == (2, 1, 1)
    assert rooms(kept(2, leaves), "a") == (1, 0, 0)
    # In another reservation no other claim borrows it, and its owner does not take it either.
    assert rooms(kept(1, queue="b"), "a") == (1, 1, 1)
    assert rooms(kept(2, leaves, queue="b", quota=3), "a") == (2, 1, 1)
    assert kept(1, queue="b").reclaim([waits("w", "a")]) == ()


@pytest.mark.parametrize("priority", [0, 9])
def test_victims_for_a_cluster_on_its_own_reservations_slots_come_first(priority: int) -> None:
    """Another reservation's slot would stay idle, and the holder of the cluster's slot would still have
    to leave."""
    lent = State(
        quota={"a": 2, "b": 0, "d": 2},
        clusters=[Cluster(name="x", queue="a", wants=1)],
        claims=[
            claim("own", "a", "a"),
            claim("near", "b", "a", since=1.0, priority=priority),
            claim("far", "b", "d", since=2.0),
            claim("d", "d", "d"),
        ],
    )
    assert [*lent.decide().evictions] == ["NodeClaim near"]
    # A non-preemptible holder is skipped, and the slot of another victim is borrowed.
    spared = replace(
        lent, claims=[replace(each, non_preemptible=each.name == "near") for each in lent.claims]
    )
    assert [*spared.decide().evictions] == ["NodeClaim far"]


def test_a_growth_without_instances_goes_alone() -> None:
    grown = State(
        quota={"a": 3, "b": 1},
        clusters=[
            Cluster(name="x", queue="b", holds=2, at=["cr-b"], growing=True),
            Cluster(name="mine", queue="a", wants=3),
        ],
    )
    assert [*grown.decide().evictions] == [f"x{GROWTH}"]


@pytest.mark.covers("OME-047", "OME-048", "OME-049", "OME-053", "OME-055")
@pytest.mark.parametrize(
    ("rule", "queue", "priority", "expected"),
    [
        # Its own reservation's quota is used up: one of lower priority there.
        (Preemption(within="LowerPriority"), "a", 5, ("own-low", "InClusterQueue")),
        (Preemption(within="LowerPriority"), "a", 1, None),
        (Preemption(within="Never"), "a", 5, None),
        (Preemption(within="LowerPriority", reclaim="Any"), "a", 1, None),
        # It would borrow, and others do already.
        (
            Preemption(reclaim="Any", borrow="LowerPriority", threshold=3),
            "b",
            5,
            ("c-low", "InCohortReclaimWhileBorrowing"),
        ),
        (Preemption(reclaim="Any", borrow="LowerPriority", threshold=1), "b", 5, None),
        (Preemption(reclaim="Any", borrow="LowerPriority"), "b", 2, None),
        (Preemption(reclaim="Any"), "b", 9, None),
        # Borrowers of its own reservation.
        (Preemption(within="LowerPriority"), "b", 5, ("b-mid", "InClusterQueue")),
    ],
)
def test_victim_of_a_claim_with_higher_priority(
    rule: Preemption, queue: str, priority: int, expected: tuple[str, str] | None
) -> None:
    full = State(
        quota={"a": 4, "b": 0, "c": 0},
        rules={queue: rule},
        claims=[
            claim("own-low", "a", "a", priority=1),
            claim("own-high", "a", "a", priority=9),
            claim("c-low", "c", "a", priority=2),
            claim("b-mid", "b", "a", priority=3),
        ],
        waiting=[waits("w", queue, "a", priority=priority)],
    )
    if queue == "a":
        full = replace(full, quota={**full.quota, "a": 2}, claims=full.claims[:2])
    decided = full.decide()
    assert not decided.evictions
    assert [(each.holder.name, str(each.reason)) for each in decided.victims] == (
        [expected] if expected else []
    )


QUEUES = ("a", "b", "c")


@st.composite
def states(draw: st.DrawFn) -> State:
    few = st.integers(0, 3)
    quota = {queue: draw(few) for queue in QUEUES}
    free = Counter({f"cr-{queue}": count for queue, count in quota.items()})

    def place() -> str:
        left = [each for each, count in free.items() if count > 0]
        if not left:
            return ""
        taken = draw(st.sampled_from(left))
        free[taken] -= 1
        return taken

    clusters = []
    for number in range(draw(st.integers(0, 3))):
        taken = [found for _ in range(draw(st.integers(0, 2))) if (found := place())]
        holds = len(taken) + draw(st.integers(0, 1))
        clusters.append(
            Cluster(
                name=f"x{number}",
                queue=draw(st.sampled_from(QUEUES)),
                holds=holds,
                wants=holds + draw(st.integers(0, 2)),
                at=taken,
                priority=draw(few),
                growing=draw(st.booleans()),
            )
        )
    claims = [
        SlotHolder(
            name=f"c{number}",
            queue=draw(st.sampled_from(QUEUES)),
            odcr_id=at,
            priority=draw(few),
            terminating=draw(st.booleans()),
            non_preemptible=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 4)))
        if (at := place())
    ]
    policies: st.SearchStrategy[Policy] = st.sampled_from(["Never", "LowerPriority", "Any"])
    rules = {}
    for queue in QUEUES:
        reclaim = draw(policies)
        rules[queue] = Preemption(
            within=draw(st.sampled_from(["Never", "LowerPriority"])),
            reclaim=reclaim,
            borrow="LowerPriority" if reclaim != "Never" and draw(st.booleans()) else "Never",
            threshold=draw(st.sampled_from([None, 0, 1, 2])),
        )
    waiting = [
        waits(
            f"w{number}",
            queue := draw(st.sampled_from(QUEUES)),
            draw(st.sampled_from([queue, *QUEUES])),
            priority=draw(few),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    return State(quota=quota, rules=rules, clusters=clusters, claims=claims, waiting=waiting)


@pytest.mark.covers("OME-046", "OME-047", "OME-048", "OME-049", "OME-053", "OME-054", "OME-055")
@settings(max_examples=200)
@given(states())
def test_holders_on_own_slots_are_no_victims_and_no_eviction_is_in_vain(state: State) -> None:
    decided = state.decide()
    claims = {f"{CLAIM}{each.name}": each for each in state.claims}
    clusters = {each.name: each for each in state.clusters}
    priorities = {f"{CLAIM}{each.name}": each.priority for each in state.waiting} | {
        each.name: each.priority for each in state.clusters
    }
    queue_of = {f"{CLAIM}{each.name}": each.queue for each in state.waiting} | {
        each.name: each.queue for each in state.clusters
    }
    gone = [(name, each.preemptor, str(each.reason)) for name, each in decided.evictions.items()]
    gone += [
        (f"{CLAIM}{each.holder.name}", f"{CLAIM}{each.want.name}", str(each.reason))
        for each in decided.victims
    ]
    assert len({name for name, _, _ in gone}) == len(gone)
    used = Counter(dict.fromkeys(QUEUES, 0))
    for one in state.claims:
        used[one.queue] += 1
    for each in state.clusters:
        used[each.queue] += each.holds
    for name, preemptor, reason in gone:
        whole = name.removesuffix(GROWTH)
        evictee = claims[name] if name in claims else clusters[whole]
        own = f"cr-{evictee.queue}"
        at = [evictee.odcr_id] if isinstance(evictee, SlotHolder) else [*evictee.at]
        rule = state.rules[queue_of[preemptor]]
        lower = evictee.priority < priorities[preemptor]
        if isinstance(evictee, SlotHolder):
            assert not evictee.non_preemptible and not evictee.terminating
        if reason == "InClusterQueue":
            assert queue_of[preemptor] == evictee.queue
            assert rule.within == "LowerPriority" and lower
            continue
        assert queue_of[preemptor] != evictee.queue
        # From outside: only borrowers of quota or slots, and never holders on their own slots alone.
        assert used[evictee.queue] > state.quota[evictee.queue] or {*at} - {own}
        assert name.endswith(GROWTH) or not at or {*at} - {own}
        assert rule.reclaim != "Never"
        if reason == "InCohortReclaimWhileBorrowing":
            assert lower and (rule.threshold is None or evictee.priority <= rule.threshold)
        else:
            assert rule.reclaim == "Any" or lower
    for_claims = [preemptor for _, preemptor, _ in gone if preemptor.startswith(CLAIM)]
    assert len({*for_claims}) == len(for_claims)  # one leaves for a claim
    slots = state.slots(decided)
    for queue in QUEUES:
        lot = slots.lots[queue, "f"]
        promised = sum(
            verdict.usage[KEY] // EACH - len(clusters[name].at)
            for name, verdict in decided.decisions.items()
            if verdict.phase is AdmissionPhase.ADMITTED and clusters[name].queue == queue
        )
        there = sum(each.odcr_id == f"cr-{queue}" for each in state.holders)
        of_own = sum(each.odcr_id == f"cr-{queue}" and each.queue == queue for each in state.holders)
        owed = min(promised, max(0, state.quota[queue] - of_own))
        assert slots.lendable(lot) <= max(0, state.quota[queue] - there - owed)
