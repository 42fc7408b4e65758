"""Dedicated clusters and claims, decided together: nothing is given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.cycle import Head
from broker.quota.entitled import AdmissionPhase, Entitled
from broker.quota.flavors import Flavor, FlavorRequest
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
from broker.quota.slot_model import CLAIM, Member, OwnedSlots, PendingSlots, SlotHolder, SlotRequest
from broker.quota.slots import SlotTree
from tests.support.examples import examples

GPU = "gpu"
KEY = FlavorResource("f", GPU)
EACH = 8  # GPUs of an instance


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`odcr_ids`: the EC2 reservation of each instance. Counts are of instances."""

    name: str
    queue: str
    holds: int = 0
    requested: int = 0
    odcr_ids: Sequence[str] = ()
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

    def owned_slots(self, queue: str) -> OwnedSlots:
        return OwnedSlots(
            owner=queue, flavor="f", slots={f"cr-{queue}": self.quota[queue]}, quota=self.quota[queue]
        )

    @property
    def holders(self) -> list[SlotHolder]:
        own = [
            SlotHolder(
                name=f"{cluster.name}-{number}",
                queue=cluster.queue,
                odcr_id=odcr_id,
                cluster=cluster.name,
                priority=cluster.priority,
                non_preemptible=self.non_preemptible,
            )
            for cluster in self.clusters
            for number, odcr_id in enumerate(cluster.odcr_ids)
        ]
        return [*own, *self.claims]

    @property
    def slot_state(self) -> SlotState:
        return SlotState(
            owned_slots=[self.owned_slots(name) for name in self.quota],
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
            pending_slots=self._promises,
        )

    def _promises(self, admitted: Mapping[str, Amounts], gone: object) -> list[PendingSlots]:
        assert hasattr(gone, "__contains__")
        return [
            PendingSlots(
                cluster=cluster.name,
                queue=cluster.queue,
                flavor="f",
                count=count,
                priority=cluster.priority,
                non_preemptible=self.non_preemptible,
            )
            for cluster in self.clusters
            if cluster.name not in gone
            and (
                count := admitted.get(cluster.name, {KEY: EACH * cluster.holds}).get(KEY, 0) // EACH
                - len(cluster.odcr_ids)
            )
            > 0
        ]

    @property
    def quota_state(self) -> QuotaState:
        holders = [
            AdmittedWorkload(
                name=f"{CLAIM}{claim.name}",
                queue=claim.queue,
                usage={KEY: EACH},
                priority=claim.priority,
                evicted=claim.terminating,
                non_preemptible=claim.non_preemptible,
                on_own_slots=claim.odcr_id == f"cr-{claim.queue}",
                occupied_queues=frozenset({claim.odcr_id.removeprefix("cr-")}),
            )
            for claim in self.claims
        ]
        for cluster in self.clusters:
            if not cluster.holds:
                continue
            whole = AdmittedWorkload(
                name=cluster.name,
                queue=cluster.queue,
                usage={KEY: EACH * cluster.holds},
                priority=cluster.priority,
                on_own_slots=bool(cluster.odcr_ids) and {*cluster.odcr_ids} == {f"cr-{cluster.queue}"},
                occupied_queues=frozenset(odcr_id.removeprefix("cr-") for odcr_id in cluster.odcr_ids),
            )
            if cluster.growing and 0 < len(cluster.odcr_ids) < cluster.holds:
                more = {KEY: EACH * (cluster.holds - len(cluster.odcr_ids))}
                holders.append(
                    replace(
                        whole,
                        name=f"{cluster.name}{GROWTH}",
                        usage=more,
                        on_own_slots=False,
                        occupied_queues=frozenset(),
                    )
                )
                whole = replace(whole, usage={KEY: EACH * len(cluster.odcr_ids)})
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
            flavors={"f": Flavor(name="f")},
            holders=holders,
            requests=[
                Head(
                    name=cluster.name,
                    queue=cluster.queue,
                    request=FlavorRequest(requests={GPU: EACH * cluster.requested}),
                    priority=cluster.priority,
                )
                for cluster in self.clusters
                if cluster.requested > cluster.holds
            ],
        )

    def decide(self) -> JointDecision:
        waiting = [WaitingClaim(request=request, usage={KEY: EACH}) for request in self.waiting]
        return decide(None if self.non_preemptible else self.quota_state, self.slot_state, waiting)

    def slots(self, decided: JointDecision | None = None) -> SlotTree:
        given = decided or JointDecision()
        return self.slot_state.slots(Entitled(given.decisions, given.evictions))


def claim(name: str, queue: str, slot_queue: str, **more: object) -> SlotHolder:
    return SlotHolder(name=name, queue=queue, odcr_id=f"cr-{slot_queue}", **more)  # type: ignore[arg-type]


def waiting_request(name: str, queue: str, *slot_queues: str, priority: int = 0) -> SlotRequest:
    ids = tuple(f"cr-{owner}" for owner in slot_queues or (queue,))
    return SlotRequest(name=name, queue=queue, odcr_ids=ids, priority=priority)


def rooms(slots: SlotTree, queue: str) -> tuple[int, int, int]:
    slot_pool = slots.owned_slots[queue, "f"]
    return slots.quota(slot_pool), slots.room(slot_pool), slots.lendable(slot_pool)


def test_admitted_quota_without_instances_is_not_lent() -> None:
    idle = State(quota={"a": 3, "b": 0})
    assert rooms(idle.slots(), "a") == (3, 3, 3)
    held = replace(idle, clusters=[Cluster(name="x", queue="a", holds=2, odcr_ids=["cr-a"])])
    assert rooms(held.slots(), "a") == (1, 1, 1)
    # Nor quota admitted in this decision, nor borrowed quota without instances.
    requesting = replace(idle, clusters=[Cluster(name="x", queue="a", requested=2)])
    assert rooms(requesting.slots(requesting.decide()), "a") == (1, 1, 1)
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
def test_claim_reclaims_its_slot_by_evicting_the_whole_borrowing_cluster() -> None:
    borrowed = State(
        quota={"a": 3, "b": 1},
        clusters=[Cluster(name="x", queue="b", holds=3, odcr_ids=["cr-a", "cr-a", "cr-b"])],
        claims=[claim("own", "a", "a")],
        waiting=[waiting_request("w0", "a"), waiting_request("w1", "a")],
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
        clusters=[Cluster(name="x", queue="a", requested=1)],
        claims=[claim("b0", "b", "a"), claim("b1", "b", "a")],
        waiting=[waiting_request("w", "a")],
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


def test_newly_admitted_quota_of_a_cluster_is_not_free_for_claims() -> None:
    free = State(
        quota={"a": 2, "b": 0, "c": 0},
        rules={"b": Preemption(reclaim="Any", borrow="LowerPriority")},
        clusters=[Cluster(name="x", queue="a", requested=1)],
        claims=[claim("c0", "c", "a")],
    )
    # A cluster's claim: that one holds the quota for it.
    decided = decide(
        free.quota_state, free.slot_state, [WaitingClaim(request=waiting_request("w", "b", "a", priority=5))]
    )
    assert decided.decisions["x"].phase is AdmissionPhase.ADMITTED
    assert [victim.holder.name for victim in decided.victims] == ["c0"]


def test_waiting_claim_keeps_the_quota_freed_for_it() -> None:
    """Otherwise the cluster evicted for it would be admitted again at once."""
    waiting_state = State(
        quota={"a": 1},
        clusters=[Cluster(name="x", queue="a", requested=1)],
        waiting=[waiting_request("w", "a", priority=5)],
    )
    assert waiting_state.decide().decisions["x"].phase is AdmissionPhase.WAITING
    higher = replace(
        waiting_state,
        rules={"a": Preemption(within="LowerPriority")},
        clusters=[Cluster(name="x", queue="a", requested=1, priority=9)],
    )
    assert higher.decide().decisions["x"].phase is AdmissionPhase.ADMITTED


def test_slots_freed_for_a_cluster_are_given_only_to_it() -> None:
    """Otherwise a drained holder would return to the slot first, and drain again."""

    def kept(count: int, *claims: SlotHolder, queue: str = "a", quota: int = 2) -> SlotTree:
        state = State(quota={"a": quota, "b": 0, "c": 0}, claims=claims)
        later = PendingSlots(cluster="x", queue=queue, flavor="f", count=count, priority=9, nominated=True)
        return replace(state.slot_state, pending_slots=lambda *_: [later]).slots()

    held, borrower = claim("v", "a", "a", terminating=True), claim("b", "b", "a", terminating=True)
    assert rooms(kept(1), "a") == (1, 1, 1)
    assert rooms(kept(2), "a") == (0, 0, 0)
    # While a terminating holder has a slot, that slot is the cluster's, and the rest is free for all.
    assert rooms(kept(1, held), "a") == (1, 1, 1)
    assert rooms(kept(1, borrower), "a") == (2, 1, 1)
    assert rooms(kept(2, borrower), "a") == (1, 0, 0)
    # In another reservation no other claim borrows it, and its owner does not take it either.
    assert rooms(kept(1, queue="b"), "a") == (1, 1, 1)
    assert rooms(kept(2, borrower, queue="b", quota=3), "a") == (2, 1, 1)
    assert kept(1, queue="b").reclaim([waiting_request("w", "a")]) == ()


@pytest.mark.parametrize("priority", [0, 9])
def test_victims_for_a_cluster_on_its_own_reservations_slots_come_first(priority: int) -> None:
    """Another reservation's slot would stay idle, and the holder of the cluster's slot would still have
    to be evicted."""
    lent = State(
        quota={"a": 2, "b": 0, "d": 2},
        clusters=[Cluster(name="x", queue="a", requested=1)],
        claims=[
            claim("own", "a", "a"),
            claim("near", "b", "a", since=1.0, priority=priority),
            claim("far", "b", "d", since=2.0),
            claim("d", "d", "d"),
        ],
    )
    assert [*lent.decide().evictions] == ["NodeClaim near"]
    # A non-preemptible holder is skipped, and the slot of another victim is borrowed.
    non_preemptible = replace(
        lent, claims=[replace(claim, non_preemptible=claim.name == "near") for claim in lent.claims]
    )
    assert [*non_preemptible.decide().evictions] == ["NodeClaim far"]


def test_growth_without_instances_is_evicted_alone() -> None:
    grown = State(
        quota={"a": 3, "b": 1},
        clusters=[
            Cluster(name="x", queue="b", holds=2, odcr_ids=["cr-b"], growing=True),
            Cluster(name="mine", queue="a", requested=3),
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
        waiting=[waiting_request("w", queue, "a", priority=priority)],
    )
    if queue == "a":
        full = replace(full, quota={**full.quota, "a": 2}, claims=full.claims[:2])
    decided = full.decide()
    assert not decided.evictions
    assert [(victim.holder.name, str(victim.reason)) for victim in decided.victims] == (
        [expected] if expected else []
    )


QUEUES = ("a", "b", "c")


@st.composite
def states(draw: st.DrawFn) -> State:
    few = st.integers(0, 3)
    quota = {queue: draw(few) for queue in QUEUES}
    free = Counter({f"cr-{queue}": count for queue, count in quota.items()})

    def place() -> str:
        left = [odcr_id for odcr_id, count in free.items() if count > 0]
        if not left:
            return ""
        taken = draw(st.sampled_from(left))
        free[taken] -= 1
        return taken

    clusters = []
    for number in range(draw(st.integers(0, 3))):
        taken = [odcr_id for _ in range(draw(st.integers(0, 2))) if (odcr_id := place())]
        holds = len(taken) + draw(st.integers(0, 1))
        clusters.append(
            Cluster(
                name=f"x{number}",
                queue=draw(st.sampled_from(QUEUES)),
                holds=holds,
                requested=holds + draw(st.integers(0, 2)),
                odcr_ids=taken,
                priority=draw(few),
                growing=draw(st.booleans()),
            )
        )
    claims = [
        SlotHolder(
            name=f"c{number}",
            queue=draw(st.sampled_from(QUEUES)),
            odcr_id=odcr_id,
            priority=draw(few),
            terminating=draw(st.booleans()),
            non_preemptible=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 4)))
        if (odcr_id := place())
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
        waiting_request(
            f"w{number}",
            queue := draw(st.sampled_from(QUEUES)),
            draw(st.sampled_from([queue, *QUEUES])),
            priority=draw(few),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    return State(quota=quota, rules=rules, clusters=clusters, claims=claims, waiting=waiting)


@pytest.mark.covers("OME-046", "OME-047", "OME-048", "OME-049", "OME-053", "OME-054", "OME-055")
@examples(75)
@given(states())
def test_holders_on_own_slots_are_no_victims_and_every_eviction_is_allowed(state: State) -> None:
    decided = state.decide()
    claims = {f"{CLAIM}{claim.name}": claim for claim in state.claims}
    clusters = {cluster.name: cluster for cluster in state.clusters}
    priorities = {f"{CLAIM}{request.name}": request.priority for request in state.waiting} | {
        cluster.name: cluster.priority for cluster in state.clusters
    }
    queue_of = {f"{CLAIM}{request.name}": request.queue for request in state.waiting} | {
        cluster.name: cluster.queue for cluster in state.clusters
    }
    gone = [(name, eviction.preemptor, str(eviction.reason)) for name, eviction in decided.evictions.items()]
    gone += [
        (f"{CLAIM}{victim.holder.name}", f"{CLAIM}{victim.request.name}", str(victim.reason))
        for victim in decided.victims
    ]
    assert len({name for name, _, _ in gone}) == len(gone)
    used = Counter(dict.fromkeys(QUEUES, 0))
    for claim in state.claims:
        used[claim.queue] += 1
    for cluster in state.clusters:
        used[cluster.queue] += cluster.holds
    for name, preemptor, reason in gone:
        whole = name.removesuffix(GROWTH)
        evictee = claims[name] if name in claims else clusters[whole]
        own = f"cr-{evictee.queue}"
        occupied_ids = [evictee.odcr_id] if isinstance(evictee, SlotHolder) else [*evictee.odcr_ids]
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
        assert used[evictee.queue] > state.quota[evictee.queue] or {*occupied_ids} - {own}
        assert name.endswith(GROWTH) or not occupied_ids or {*occupied_ids} - {own}
        assert rule.reclaim != "Never"
        if reason == "InCohortReclaimWhileBorrowing":
            assert lower and (rule.threshold is None or evictee.priority <= rule.threshold)
        else:
            assert rule.reclaim == "Any" or lower
    for_claims = [preemptor for _, preemptor, _ in gone if preemptor.startswith(CLAIM)]
    assert len({*for_claims}) == len(for_claims)  # one victim for each claim
    slots = state.slots(decided)
    for queue in QUEUES:
        slot_pool = slots.owned_slots[queue, "f"]
        promised = sum(
            decision.usage[KEY] // EACH - len(clusters[name].odcr_ids)
            for name, decision in decided.decisions.items()
            if decision.phase is AdmissionPhase.ADMITTED and clusters[name].queue == queue
        )
        occupied = sum(holder.odcr_id == f"cr-{queue}" for holder in state.holders)
        of_own = sum(holder.odcr_id == f"cr-{queue}" and holder.queue == queue for holder in state.holders)
        owed = min(promised, max(0, state.quota[queue] - of_own))
        assert slots.lendable(slot_pool) <= max(0, state.quota[queue] - occupied - owed)
