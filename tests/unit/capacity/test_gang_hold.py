"""Slots that are held for a gang which outranks other claims, until its window ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.entitlement import Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, LaunchDefaults, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Scope, Shortages
from broker.quota.model import Policy, Preemption
from providers.errors import ErrorClass
from tests.support.examples import examples

from .builders import GROUP, NOW, ZONES, claim, inventory, minutes, node_class, odcr, supply

HOLD = 600.0
DEFAULTS = LaunchDefaults(gang_hold_seconds=HOLD)
RESERVED = ("reserved",)
ANY = ("reserved", "on-demand")
A = SlotPool("a", "f")


def gang(name: str, size: int, *, priority: int = 1000, age: float = 0.0, **more: object) -> list[Claim]:
    defaults = {
        "created": NOW - timedelta(seconds=age),
        "priority": priority,
        "gang": name,
        "kinds": RESERVED,
    }
    return [claim(f"{name}-{number}", **(defaults | more)) for number in range(size)]  # type: ignore[arg-type]


def planned(
    claims: Sequence[Claim],
    world: Inventory,
    *,
    hold: float = HOLD,
    entitlements: Entitlements | None = None,
    shortages: Shortages | None = None,
) -> Plan:
    classes = node_class(
        Selection(group_arn=GROUP), world, defaults=replace(DEFAULTS, gang_hold_seconds=hold)
    )
    return plan(
        claims,
        supply(
            {classes.name: classes},
            world,
            shortages=shortages or Shortages(),
            entitlements=entitlements or Entitlements(),
        ),
    )


def slots(free: int, total: int = 8) -> Inventory:
    return inventory(odcr("cr-1", free=free, total=total), groups={GROUP: ["cr-1"]})


def in_slots(plan: Plan) -> list[str]:
    return [assignment.claim.name for assignment in plan.assignments if assignment.option.pool.reserved]


def held(plan: Plan) -> Mapping[str, Mapping[str, int]]:
    return {hold.gang: hold.slots for hold in plan.holds}


SINGLE = claim("single", kinds=RESERVED)


@pytest.mark.covers("KRP-39")
@pytest.mark.parametrize(
    ("claims", "free", "hold", "served", "holds"),
    [
        pytest.param([*gang("g", 8), SINGLE], 3, HOLD, [], {"g": {"cr-1": 3}}, id="free slots are held"),
        pytest.param([*gang("g", 8), SINGLE], 3, 0.0, ["single"], {}, id="no hold if it is off"),
        pytest.param(
            [*gang("g", 8, age=599), SINGLE], 3, HOLD, [], {"g": {"cr-1": 3}}, id="until the window ends"
        ),
        pytest.param([*gang("g", 8, age=600), SINGLE], 3, HOLD, ["single"], {}, id="and no longer"),
        pytest.param(
            [*gang("g", 7, age=900), replace(gang("g", 1, age=1)[0], name="last", uid="last"), SINGLE],
            3,
            HOLD,
            ["single"],
            {},
            id="a later claim does not renew the window",
        ),
        pytest.param(
            [*gang("g", 8, since=NOW - timedelta(seconds=600)), SINGLE], 3, HOLD, ["single"], {},
            id="nor do claims for which others gave way",
        ),
        pytest.param(
            [*gang("g", 8), replace(SINGLE, priority=1000)], 3, HOLD, ["single"], {"g": {"cr-1": 2}},
            id="an equal is not outranked",
        ),
        pytest.param(
            [*gang("g", 2), SINGLE], 3, HOLD, ["g-0", "g-1", "single"], {}, id="a whole gang launches"
        ),
        pytest.param([*gang("g", 9), SINGLE], 3, HOLD, ["single"], {}, id="a gang that never fits"),
        pytest.param(
            [*gang("g", 5), SINGLE], 0, HOLD, [], {}, id="no slot is free"
        ),
        pytest.param(
            [*gang("g", 8, gang_size=9), SINGLE], 3, HOLD, ["single"], {}, id="a gang that is not complete"
        ),
        pytest.param(
            [*gang("g", 8), *gang("h", 2, priority=500)], 3, HOLD, [], {"g": {"cr-1": 3}},
            id="a lower gang waits as others do",
        ),
        pytest.param(
            [*gang("g", 4), *gang("h", 2, priority=1000)], 3, HOLD, ["h-0", "h-1"], {"g": {"cr-1": 1}},
            id="an equal gang that fits launches",
        ),
    ],
)  # fmt: skip
def test_free_slots_are_held_for_a_gang_that_outranks_others(
    claims: Sequence[Claim],
    free: int,
    hold: float,
    served: Sequence[str],
    holds: Mapping[str, Mapping[str, int]],
) -> None:
    plan = planned(claims, slots(free), hold=hold)
    assert (in_slots(plan), held(plan)) == (served, holds)


@pytest.mark.covers("KRP-39")
def test_held_slot_is_visible_on_claims_that_wait_fall_back_and_on_the_gang() -> None:
    claims = [*gang("g", 8), SINGLE, claim("leaves", kinds=ANY)]
    plan = planned(claims, slots(3))
    by_claim = {unplaced.claim.name: unplaced for unplaced in plan.unplaced}
    text = (
        "free slots (3 of cr-1) are held until 2026-11-01T12:10:00Z for gang g of priority 1000, "
        "which needs 8 at once"
    )
    single = by_claim["single"]
    assert (single.reason, single.message, single.retry_at) == ("HeldForGang", text, NOW + minutes(10))
    assert {by_claim[f"g-{number}"].reason for number in range(8)} == {"GangIncomplete"}
    assert all(by_claim[f"g-{number}"].message.endswith(text) for number in range(8))
    assert "nothing for g-3, g-4, g-5, g-6, g-7" in by_claim["g-0"].message
    (skipped,) = [skip for skip in plan.skipped["uid-leaves"] if skip.pool.reserved]
    assert skipped.reason == "HeldForGang"
    assert skipped.message.endswith(text)


def owned(reclaim: Policy, *, within: bool) -> Entitlements:
    """`a` owns cr-1 and lends it to `b`."""
    availability = SlotAvailability(quota=8, room=8, lendable=8)
    draws = {f"uid-g-{number}": "a" for number in range(8)} | {"uid-single": "a", "uid-b": "b"}
    return Entitlements(
        slot_pools={"cr-1": A},
        availability={A: availability},
        draws=draws,
        borrow={SlotPool("b", "f"): 1},
        peers={"b": frozenset({"a", "b"})},
        rules={"a": Preemption(reclaim=reclaim, within="LowerPriority" if within else "Never")},
    )


@pytest.mark.covers("KRP-39")
@pytest.mark.parametrize(
    ("reclaim", "within", "served"),
    [
        ("Never", False, []),
        ("LowerPriority", False, ["b"]),
        ("Any", False, ["b"]),
        ("Never", True, ["single"]),
        ("Any", True, ["b", "single"]),
    ],
)
def test_held_slots_are_lent_only_to_claims_that_give_them_back(
    reclaim: Policy, within: bool, served: list[str]
) -> None:
    claims = [*gang("g", 8), SINGLE, claim("b", kinds=RESERVED)]
    plan = planned(claims, slots(3), entitlements=owned(reclaim, within=within))
    assert sorted(in_slots(plan)) == served


@st.composite
def contests(draw: st.DrawFn) -> tuple[list[Claim], Inventory]:
    """Two gangs of any age and priority, singles, and two reservations of unlike types."""
    world = inventory(
        *(
            odcr(f"cr-{place}", type_, free=draw(st.integers(0, 4)), total=5)
            for place, type_ in enumerate(("m5.large", "m5.xlarge"))
        ),
        groups={GROUP: ["cr-0", "cr-1"]},
    )
    types = st.sampled_from([[], ["m5.large"], ["m5.xlarge"]])
    claims: list[Claim] = []
    for name in "gh":
        age, priority = draw(st.sampled_from([0, 300, 599, 600, 900])), draw(st.integers(0, 3))
        for number in range(draw(st.integers(0, 5))):
            member = gang(name, 1, age=age, priority=priority, types=draw(types))[0]
            claims.append(replace(member, name=f"{name}-{number}", uid=f"uid-{name}-{number}"))
    for number in range(draw(st.integers(0, 4))):
        claims.append(
            claim(f"c{number}", kinds=RESERVED, types=draw(types), priority=draw(st.integers(0, 3)))
        )
    return claims, world


@pytest.mark.covers("KRP-39")
@examples(60)
@given(contests())
def test_hold_is_bounded_and_gangs_never_starve_one_another(contest: tuple[list[Claim], Inventory]) -> None:
    claims, world = contest
    free, held_ = planned(claims, world, hold=0.0), planned(claims, world)
    sizes = {name: sum(claim.gang == name for claim in claims) for name in "gh"}
    used = dict.fromkeys(world.odcrs, 0)
    for assignment in held_.assignments:
        used[assignment.option.odcr_ids[0]] += len(assignment.option.odcr_ids) == 1
    for hold in held_.holds:
        members = [claim for claim in claims if claim.gang == hold.gang]
        first = min(claim.created for claim in members if claim.created)
        assert first + timedelta(seconds=HOLD) == hold.until > NOW
        assert sum(hold.slots.values()) <= sizes[hold.gang]
    for id_ in world.odcrs:
        assert sum(hold.slots.get(id_, 0) for hold in held_.holds) <= world.free(id_)
    # No claim loses a slot to a gang that does not outrank it, and no gang that holds slots launches.
    for least in range(max((hold.priority for hold in held_.holds), default=0), 4):
        served = [
            sum(assignment.claim.priority >= least for assignment in result.assignments)
            for result in (free, held_)
        ]
        assert served[0] <= served[1]
    launched = {assignment.claim.gang for assignment in held_.assignments}
    assert not launched & {hold.gang for hold in held_.holds}
    # When the windows are over, the plan is the one without holds.
    later = [
        replace(claim, created=claim.created - timedelta(seconds=HOLD)) for claim in claims if claim.created
    ]
    without = planned(later, world, hold=0.0)
    assert [assignment.claim.uid for assignment in planned(later, world).assignments] == [
        assignment.claim.uid for assignment in without.assignments
    ]


@pytest.mark.covers("KRP-39")
def test_gang_gets_its_slots_one_by_one_while_singles_keep_coming() -> None:
    """A slot becomes free every minute; without the hold each goes to the next single."""

    def launched_after(hold: float) -> int | None:
        free = 0
        for minute in range(12):
            free += 1
            claims = [*gang("g", 8, age=60.0 * minute), claim(f"s-{minute}", kinds=RESERVED)]
            launched = in_slots(planned(claims, slots(free), hold=hold))
            if "g-0" in launched:
                return minute
            free -= len(launched)
        return None

    assert launched_after(HOLD) == 7
    assert launched_after(0.0) is None


@pytest.mark.covers("KRP-39")
def test_gang_is_planned_again_when_the_hold_of_another_gang_ends() -> None:
    world = inventory(
        odcr("cr-a", free=3, total=4),
        odcr("cr-b", "m5.2xlarge", free=1, total=1),
        groups={GROUP: ["cr-a", "cr-b"]},
    )
    upper = gang("g", 4, age=500, types=["m5.xlarge"])
    (small,) = gang("h", 1, priority=500, types=["m5.xlarge"])
    (large,) = gang("h", 1, priority=500, types=["m5.2xlarge"])
    lower = [small, replace(large, name="h-b", uid="h-b")]
    plan = planned([*upper, *lower], world)
    ends = {unplaced.claim.uid: unplaced.retry_at for unplaced in plan.unplaced}
    assert ends["uid-h-0"] == ends["h-b"] == NOW + timedelta(seconds=100)
    after = planned([*gang("g", 4, age=601, types=["m5.xlarge"]), *lower], world)
    assert {"h-0", "h-b"} <= set(in_slots(after))


@pytest.mark.covers("KRP-39")
def test_gang_with_held_slots_is_planned_again_when_the_shortage_of_its_other_claims_ends() -> None:
    shortages = Shortages()
    for ends, zone in enumerate(ZONES):
        shortages = shortages.record(
            Scope("pool", f"on-demand:m5.xlarge:{zone}"),
            class_=ErrorClass.CAPACITY,
            code="InsufficientInstanceCapacity",
            now=NOW - minutes(2 - ends / 2),
        )
    members = gang("g", 3, kinds=ANY, types=["m5.xlarge"])
    waiting = planned(members, slots(2), shortages=shortages)
    assert held(waiting) == {"g": {"cr-1": 2}}
    first_end = min(shortage.until for shortage in shortages.lasting(NOW))
    assert first_end == NOW + minutes(1)
    assert {unplaced.retry_at for unplaced in waiting.unplaced} == {first_end}
    assert in_slots(planned(members, slots(2))) == ["g-0", "g-1"]  # the third is beside them, on demand
