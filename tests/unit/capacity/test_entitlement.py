"""Plans over owned slots: entitlements, borrowing, and claims that wait to reclaim a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.entitlement import Borrower, Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, NodeClass, Plan, Selection
from broker.capacity.plan import plan
from broker.quota.model import Policy, Preemption
from tests.support.examples import examples

from .builders import GROUP, ZONE, chosen, claim, inventory, node_class, odcr, refusals, supply

OPEN = Selection(preference="open")
ANY: Sequence[str] = ("reserved", "on-demand")
A, B = SlotPool("a", "f"), SlotPool("b", "f")
POLICIES: Sequence[Policy] = ("Never", "LowerPriority", "Any")
AT = "reserved:m5.xlarge:us-east-1a:"


def entitled(
    draws: Mapping[str, str] | None = None,
    *,
    slot_pools: Mapping[str, SlotPool] | None = None,
    **more: object,
) -> Entitlements:
    """`a` owns cr-a, `b` owns cr-b; both have room for one and lend it, and b may borrow one."""
    availability = SlotAvailability(quota=1, room=1, lendable=1)
    given: dict[str, object] = {
        "slot_pools": {"cr-a": A, "cr-b": B} if slot_pools is None else slot_pools,
        "availability": {A: availability, B: availability},
        "rules": {name: Preemption(reclaim="Any") for name in ("a", "b")},
        "draws": {f"uid-{name}": queue for name, queue in (draws or {}).items()},
        "borrow": {B: 1},
        "peers": {"b": frozenset({"a", "b"})},
        "names": {"a": "team/a", "b": "team/b"},
    }
    return Entitlements(**(given | more))  # type: ignore[arg-type]


def planned(
    claims: Sequence[Claim], classes: NodeClass, world: Inventory, entitlements: Entitlements
) -> Plan:
    by_name = {classes.name: classes}
    return plan(claims, supply(by_name, world, entitlements=entitlements))


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("", "reservation cr-a belongs to team/a, and the claim draws from no reservation"),
        ("b", "reservation cr-a belongs to team/a; the claim draws from team/b, which may not borrow"),
        ("c", "reservation cr-a belongs to team/a; the claim draws from c, which is not in its cohort"),
        ("x", "reservation cr-a belongs to team/a; the claim draws from x: there is no such reservation"),
    ],
)
def test_claim_without_entitlement_reports_the_owner(queue: str, message: str) -> None:
    world = inventory(odcr("cr-a"))
    given = entitled(
        {"c": queue} if queue else {},
        peers={"c": frozenset({"c"})},
        barred={"x": "there is no such reservation"},
    )
    classes = node_class(Selection(reservation_id="cr-a"), world)
    plan = planned([claim("c", kinds=["reserved"])], classes, world, given)
    (left,) = plan.unplaced
    assert left.reason == "NoUsableReservation"
    assert [(skip.reason, skip.message) for skip in left.skipped] == [
        ("ReservedForOthers", f"cr-a (m5.xlarge, us-east-1a): {message}")
    ]
    assert chosen(planned([claim("c", kinds=ANY)], classes, world, given)) == {
        "c": "on-demand:m5.large:us-east-1a"
    }


def test_an_open_match_never_spans_two_owners() -> None:
    world = inventory(*(odcr(id_, match_criteria="open") for id_ in ("cr-a", "cr-b", "cr-free")))
    claims = [claim("a", kinds=ANY), claim("none", kinds=ANY)]
    plan = planned(claims, node_class(OPEN, world), world, entitled({"a": "a"}))
    taken = chosen(plan)
    assert {taken["a"], taken["none"]} == {f"{AT}cr-a", f"{AT}cr-free"}
    assert taken["none"] == f"{AT}cr-free"


def test_unowned_reservations_match_without_entitlements() -> None:
    world = inventory(odcr("cr-free", match_criteria="open"), odcr("cr-a", zone="us-east-1b"))
    plan = planned([claim("c", kinds=ANY)], node_class(OPEN, world), world, entitled())
    assert chosen(plan) == {"c": "reserved:m5.xlarge:us-east-1a"}


def test_owners_come_before_borrowers_of_any_priority() -> None:
    world = inventory(odcr("cr-a"), groups={GROUP: ["cr-a"]})
    claims = [claim("b", kinds=ANY, priority=9), claim("a", kinds=ANY)]
    plan = planned(
        claims, node_class(Selection(group_arn=GROUP), world), world, entitled({"a": "a", "b": "b"})
    )
    taken = chosen(plan)
    assert (taken["a"].split(":")[0], taken["b"].split(":")[0]) == ("reserved", "on-demand")


@pytest.mark.parametrize("draws", ["a", "b"])
def test_claims_for_which_quota_is_held_come_before_others_of_more_priority(draws: str) -> None:
    world = inventory(odcr("cr-a"))
    claims = [claim("plain", kinds=ANY, priority=9), claim("held", kinds=["reserved"])]
    given = entitled({"plain": draws, "held": draws}, held=frozenset({"uid-held"}))
    plan = planned(claims, node_class(Selection(reservation_id="cr-a"), world), world, given)
    assert chosen(plan) == {"held": f"{AT}cr-a", "plain": "on-demand:m5.large:us-east-1a"}


def test_quota_and_limits_leave_slots_idle_with_a_reason() -> None:
    world = inventory(odcr("cr-a", free=3))
    own = {A: SlotAvailability(quota=2, room=2, lendable=0)}
    classes = node_class(Selection(reservation_id="cr-a"), world)
    claims = [claim(f"c{n}", kinds=["reserved"]) for n in range(3)]
    plan = planned(claims, classes, world, entitled({f"c{n}": "a" for n in range(3)}, availability=own))
    assert len(plan.assignments) == 2
    assert refusals(plan) == {"c2": "AllReservationsFull"}
    (unplaced,) = planned(
        [claim("c", kinds=["reserved"])], classes, world, entitled({"c": "a"}, availability={})
    ).unplaced
    assert [skip.reason for skip in unplaced.skipped] == ["QuotaReached"]
    (unplaced,) = planned(
        [claim("c", kinds=["reserved"])], classes, world, entitled({"c": "b"}, availability=own)
    ).unplaced
    assert [skip.reason for skip in unplaced.skipped] == ["LendingLimitReached"]
    (unplaced,) = planned(
        [claim("c", kinds=["reserved"])], classes, world, entitled({"c": "b"}, borrow={})
    ).unplaced
    assert [skip.reason for skip in unplaced.skipped] == ["BorrowingLimitReached"]


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("large", [False, True], ids=["", "too large to compare"])
@pytest.mark.parametrize(("lendable", "lent"), [(0, 0), (1, 1), (2, 2)])
def test_slots_lent_to_nominated_claims_lower_what_others_may_borrow(
    lendable: int, lent: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:  # neither the flow nor the model decides, but the greedy pass
        monkeypatch.setattr("broker.capacity.solve.MOST_WAYS", 0)
        monkeypatch.setattr("broker.capacity.problem.SlotFlow.exceeds", lambda *_: True)
    world = inventory(odcr("cr-a", free=3))
    given = entitled(
        {"first": "b", "second": "b"},
        availability={A: SlotAvailability(quota=3, room=3, lendable=lendable)},
        borrow={B: 3},
        nominated={"uid-first": A},
    )
    claims = [claim(name, kinds=["reserved"]) for name in ("second", "first")]
    plan = planned(claims, node_class(Selection(reservation_id="cr-a"), world), world, given)
    assert len(plan.assignments) == lent
    assert "first" in chosen(plan) or not lent


@pytest.mark.parametrize(
    ("policy", "priority", "waits"),
    [("Any", 0, True), ("LowerPriority", 1, True), ("LowerPriority", 0, False), ("Never", 9, False)],
)
def test_claim_waits_for_a_lent_slot_if_its_reservation_may_reclaim_it(
    policy: Policy, priority: int, waits: bool
) -> None:
    world = inventory(odcr("cr-a", total=1, free=0))
    lent = {A: SlotAvailability(quota=1, room=0, borrowers=(Borrower("cr-a", 0),))}
    owner_claim = claim("c", kinds=ANY, priority=priority)
    classes = node_class(Selection(reservation_id="cr-a"), world)
    rules = {"a": Preemption(reclaim=policy)}
    plan = planned([owner_claim], classes, world, entitled({"c": "a"}, availability=lent, rules=rules))
    assert refusals(plan) == ({"c": "ReclaimingSlots"} if waits else {})
    assert [*plan.nominated] == (["uid-c"] if waits else [])


def test_no_more_claims_wait_than_slots_come_back() -> None:
    world = inventory(odcr("cr-a", total=2, free=0))
    lent = {A: SlotAvailability(quota=2, room=0, borrowers=(Borrower("cr-a", 0, terminating=True),))}
    claims = [claim(name, kinds=ANY) for name in ("c0", "c1")]
    classes = node_class(Selection(reservation_id="cr-a"), world)
    plan = planned(claims, classes, world, entitled({"c0": "a", "c1": "a"}, availability=lent))
    assert [*plan.nominated] == ["uid-c0"]
    assert chosen(plan) == {"c1": "on-demand:m5.large:us-east-1a"}


def test_gang_keeps_its_free_slots_while_it_waits_for_the_rest() -> None:
    world = inventory(odcr("cr-a", total=2, free=1), groups={GROUP: ["cr-a"]})
    lent = {A: SlotAvailability(quota=2, room=1, lendable=1, borrowers=(Borrower("cr-a", 0),))}
    gang = [claim(name, kinds=["reserved"], gang="g") for name in ("g0", "g1")]
    draws = {"g0": "a", "g1": "a", "b": "b"}
    classes = node_class(Selection(group_arn=GROUP), world)
    plan = planned(
        [*gang, claim("b", kinds=ANY, priority=5)], classes, world, entitled(draws, availability=lent)
    )
    assert len(plan.nominated) == 1
    assert chosen(plan) == {"b": "on-demand:m5.large:us-east-1a"}
    alone = planned(
        [*gang],
        classes,
        world,
        entitled(draws, availability={A: SlotAvailability(quota=2, room=1, lendable=1)}),
    )
    assert not alone.nominated


@pytest.mark.covers("SAF-40")
def test_gang_that_may_fall_back_keeps_its_slots_while_one_of_its_claims_waits_for_another() -> None:
    world = inventory(odcr("cr-a", total=2, free=1), groups={GROUP: ["cr-a"]})
    lent = {A: SlotAvailability(quota=2, room=1, lendable=1, borrowers=(Borrower("cr-a", 0),))}
    gang = [claim(name, kinds=ANY, gang="g") for name in ("g0", "g1")]
    classes = node_class(Selection(group_arn=GROUP), world)
    plan = planned(gang, classes, world, entitled({"g0": "a", "g1": "a"}, availability=lent))
    assert refusals(plan) == {"g0": "GangIncomplete", "g1": "ReclaimingSlots"}
    assert [*plan.nominated] == ["uid-g1"] and plan.kept == {"uid-g0": "cr-a"}


def test_a_gang_launches_on_its_own_slots_and_borrowed_ones_together() -> None:
    world = inventory(odcr("cr-a"), odcr("cr-b"), groups={GROUP: ["cr-a", "cr-b"]})
    gang = [claim(name, kinds=["reserved"], gang="g") for name in ("g0", "g1")]
    classes = node_class(Selection(group_arn=GROUP), world)
    plan = planned(gang, classes, world, entitled({"g0": "b", "g1": "b"}))
    assert sorted(chosen(plan).values()) == [f"{AT}cr-a", f"{AT}cr-b"]
    assert plan.unplaced == ()


@dataclass(frozen=True, kw_only=True)
class World:
    inventory: Inventory
    claims: Sequence[Claim]
    entitlements: Entitlements


QUEUES = ("a", "b", "c")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    few = st.integers(0, 3)
    ids = [f"cr-{n}" for n in range(4)]
    reservations = inventory(
        *(
            odcr(id_, zone=draw(st.sampled_from(["us-east-1a", "us-east-1b"])), total=3, free=draw(few))
            for id_ in ids
        ),
        groups={GROUP: ids},
    )
    owners = {id_: draw(st.sampled_from(["", *QUEUES])) for id_ in ids}
    availability = {}
    for queue in QUEUES:
        quota = draw(few)
        room = draw(st.integers(0, quota))
        borrowers = tuple(
            Borrower(id_, draw(few), terminating=draw(st.booleans()))
            for id_ in ids
            if owners[id_] == queue and draw(st.booleans())
        )
        availability[SlotPool(queue, "f")] = SlotAvailability(
            quota=quota, room=room, lendable=draw(st.integers(0, room)), borrowers=borrowers
        )
    claims = [
        claim(
            f"c{n}",
            kinds=draw(st.sampled_from([["reserved"], ANY])),
            zones=draw(st.sampled_from([[], ["us-east-1a"]])),
            priority=draw(few),
            gang=draw(st.sampled_from(["", "", "", "g"])),
        )
        for n in range(draw(st.integers(0, 7)))
    ]
    entitlements = Entitlements(
        slot_pools={id_: SlotPool(queue, "f") for id_, queue in owners.items() if queue},
        availability=availability,
        draws={claim.uid: queue for claim in claims if (queue := draw(st.sampled_from(["", *QUEUES])))},
        borrow={SlotPool(queue, "f"): draw(few) for queue in QUEUES},
        peers={queue: frozenset(QUEUES) for queue in draw(st.lists(st.sampled_from(QUEUES), unique=True))},
        rules={queue: Preemption(reclaim=draw(st.sampled_from(POLICIES))) for queue in QUEUES},
    )
    return World(inventory=reservations, claims=claims, entitlements=entitlements)


@pytest.mark.covers("SAF-40")
@examples(100)
@given(worlds())
def test_a_gang_launches_together_or_waits_together(world: World) -> None:
    classes = node_class(Selection(group_arn=GROUP), world.inventory)
    plan = planned(world.claims, classes, world.inventory, world.entitlements)
    gang = {claim.uid for claim in world.claims if claim.gang}
    launched = {assignment.claim.uid for assignment in plan.assignments}
    assert gang <= launched or not gang & launched


@examples(100)
@given(worlds())
def test_no_plan_exceeds_any_entitlement(world: World) -> None:
    given = world.entitlements
    classes = node_class(Selection(group_arn=GROUP), world.inventory)
    plan = planned(world.claims, classes, world.inventory, given)
    own: Counter[str] = Counter()
    lent: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for assignment in plan.assignments:
        if assignment.option.pool.capacity_type != "reserved":
            continue
        owners = {given.slot_pools.get(id_) for id_ in assignment.option.odcr_ids}
        assert len(owners) == 1
        (slot_pool,) = owners
        if len(assignment.option.odcr_ids) == 1:
            used[assignment.option.odcr_ids[0]] += 1
        queue = given.draws.get(assignment.claim.uid, "")
        if slot_pool is None:
            continue
        if slot_pool.owner == queue:
            own[queue] += 1
        else:
            assert slot_pool.owner in given.peers[queue]
            lent[slot_pool.owner] += 1
            borrowed[queue] += 1
    for queue in QUEUES:
        availability = given.of(SlotPool(queue, "f"))
        assert own[queue] + lent[queue] <= availability.room
        assert lent[queue] <= availability.lendable
        assert borrowed[queue] <= given.borrow[SlotPool(queue, "f")]
        waits = [nominated for nominated in plan.nominated.values() if nominated.slot_pool.owner == queue]
        assert own[queue] + len(waits) <= availability.quota
        assert len(waits) <= len(availability.borrowers)
    for id_, count in used.items():
        assert count <= world.inventory.free(id_)
    gang = [claim for claim in world.claims if claim.gang]
    if any("on-demand" not in claim.requirements.describe("karpenter.sh/capacity-type") for claim in gang):
        launched = {assignment.claim.uid for assignment in plan.assignments}
        assert len({claim.uid in launched for claim in gang}) <= 1


@examples(75)
@given(worlds())
def test_an_owner_gets_no_slot_less_because_others_would_borrow(world: World) -> None:
    """A queue's claims get the same own slots whether or not others would borrow them."""
    classes = node_class(Selection(group_arn=GROUP), world.inventory)
    given = world.entitlements
    singles = [claim for claim in world.claims if not claim.gang]

    def own(entitlements: Entitlements) -> Counter[str]:
        plan = planned(singles, classes, world.inventory, entitlements)
        return Counter(
            slot_pool.owner
            for assignment in plan.assignments
            for id_ in assignment.option.odcr_ids[:1]
            if (slot_pool := given.slot_pools.get(id_))
            and slot_pool.owner == given.draws.get(assignment.claim.uid)
        )

    alone = Entitlements(slot_pools=given.slot_pools, availability=given.availability, draws=given.draws)
    assert own(given) == own(alone)


def gang_of_owner(free: Mapping[str, int], *, domain: str = "", kinds: Sequence[str] = ("reserved",)) -> Plan:
    """A gang of two of queue a, which owns a slot in zone a and two lent ones in zone b.

    `free`: the free slots by reservation.
    """
    world = inventory(
        odcr("cr-a", total=1, free=free.get("cr-a", 0)),
        odcr("cr-b", zone="us-east-1b", total=2, free=free.get("cr-b", 0)),
        groups={GROUP: ["cr-a", "cr-b"]},
    )
    left = sum(free.values())
    lent = tuple(Borrower("cr-b", 0, queue="b") for _ in range(2 - free.get("cr-b", 0)))
    given = entitled(
        {"g-1": "a", "g-2": "a"},
        slot_pools={"cr-a": A, "cr-b": A},
        availability={A: SlotAvailability(quota=2 + left, room=left, lendable=left, borrowers=lent)},
    )
    gang = [claim(f"g-{n}", kinds=kinds, gang="g", gang_size=2, domain=domain) for n in (1, 2)]
    return planned(gang, node_class(Selection(group_arn=GROUP), world), world, given)


@pytest.mark.covers("FLT-22", "FLT-30")
@pytest.mark.parametrize("domain", ["", ZONE])
def test_gang_of_the_owner_gets_slots_back_if_all_are_lent(domain: str) -> None:
    result = gang_of_owner({}, domain=domain)
    assert refusals(result) == {"g-1": "ReclaimingSlots", "g-2": "ReclaimingSlots"}
    assert result.nominated.keys() == {"uid-g-1", "uid-g-2"}


@pytest.mark.covers("FLT-22", "FLT-30")
@pytest.mark.parametrize("kinds", [("reserved",), ANY])
def test_gang_of_one_zone_gets_slots_back_before_it_buys(kinds: Sequence[str]) -> None:
    result = gang_of_owner({"cr-a": 1}, domain=ZONE, kinds=kinds)
    assert not result.assignments
    assert {slot.odcr_ids for slot in result.nominated.values()} == {("cr-b",)}


@pytest.mark.covers("FLT-22", "FLT-30")
def test_gang_of_one_zone_keeps_the_slot_that_came_back_first() -> None:
    result = gang_of_owner({"cr-b": 1}, domain=ZONE, kinds=ANY)
    assert not result.assignments
    assert sorted(result.kept.values()) == ["cr-b"]
    assert {slot.odcr_ids for slot in result.nominated.values()} == {("cr-b",)}


@pytest.mark.covers("FLT-30")
def test_gang_of_one_zone_takes_free_slots_before_lent_ones() -> None:
    world = inventory(
        odcr("cr-a", total=2, free=0),
        odcr("cr-b", zone="us-east-1b", total=2, free=2),
        groups={GROUP: ["cr-a", "cr-b"]},
    )
    lent = tuple(Borrower("cr-a", 0, queue="b") for _ in range(2))
    given = entitled(
        {"g-1": "a", "g-2": "a"},
        slot_pools={"cr-a": A, "cr-b": A},
        availability={A: SlotAvailability(quota=4, room=2, lendable=2, borrowers=lent)},
    )
    gang = [claim(f"g-{n}", kinds=["reserved"], gang="g", gang_size=2, domain=ZONE) for n in (1, 2)]
    result = planned(gang, node_class(Selection(group_arn=GROUP), world), world, given)
    assert {item.option.pool.zone for item in result.assignments} == {"us-east-1b"}
