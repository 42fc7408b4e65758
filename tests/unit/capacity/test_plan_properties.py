"""Plans of small random worlds, compared with every possible assignment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.capacity.model import Claim, Inventory, NodeClass, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Scope, Shortages
from providers.model import ErrorClass

from .builders import GROUP, NOW, TYPES, claim, inventory, minutes, node_class, odcr

Objective = tuple[float, ...]
IDS = ("cr-1", "cr-2", "cr-3")
SELECTIONS: Mapping[str, Selection] = {
    "id": Selection(reservation_id="cr-1"),
    "group": Selection(group_arn=GROUP),
    "open": Selection(preference="open"),
    "none": Selection(preference="none"),
}


@dataclass(frozen=True, kw_only=True)
class World:
    inventory: Inventory
    classes: Mapping[str, NodeClass]
    claims: Sequence[Claim]
    shortages: Shortages

    def planned(self, claims: Sequence[Claim] | None = None) -> Plan:
        made = self.claims if claims is None else claims
        return plan(made, self.classes, TYPES, self.inventory, self.shortages, NOW)

    def room(self, id_: str) -> int:
        return 0 if self.shortages.get(Scope("reservation", id_), NOW) else self.inventory.free(id_)

    def usable(self, wanted: Claim) -> tuple[str, ...]:
        """The reservations that a claim could run in, from the meaning of its class and requirements."""
        named = {
            "id": {"cr-1"},
            "group": set(self.inventory.groups[GROUP].member_ids),
            "open": {each.id for each in self.inventory.odcrs.values() if each.match_criteria == "open"},
            "none": set(),
        }[wanted.node_class]
        return tuple(
            id_
            for id_ in IDS
            if id_ in named
            and wanted.requirements.allows("karpenter.sh/capacity-type", "reserved")
            and wanted.requirements.allows(
                "node.kubernetes.io/instance-type", self.inventory.odcrs[id_].instance_type
            )
            and wanted.requirements.allows("topology.kubernetes.io/zone", self.inventory.odcrs[id_].zone)
        )

    def possible(self, served: Sequence[Claim]) -> bool:
        """Whether all of these can have a slot at once."""
        return any(
            all(each.count(id_) <= self.room(id_) for id_ in IDS)
            for each in itertools.product(*(self.usable(one) for one in served))
        )


@st.composite
def worlds(draw: st.DrawFn, *, gangs: bool = False, ends: bool = False) -> World:
    odcrs = [
        odcr(
            id_,
            draw(st.sampled_from(["m5.large", "m5.xlarge"])),
            draw(st.sampled_from(["us-east-1a", "us-east-1b"])),
            total=4,
            free=draw(st.integers(0, 2)),
            match_criteria=draw(st.sampled_from(["open", "targeted"])),
            end=draw(st.sampled_from([None, NOW + minutes(90), NOW + minutes(300)])) if ends else None,
        )
        for id_ in IDS
    ]
    world = inventory(
        *odcrs,
        groups={GROUP: draw(st.lists(st.sampled_from(IDS), unique=True))},
        debits={id_: draw(st.integers(0, 1)) for id_ in IDS},
    )
    claims = [
        claim(
            f"c{number}",
            node_class=draw(st.sampled_from(list(SELECTIONS))),
            kinds=draw(st.sampled_from([[], ["reserved"], ["reserved", "on-demand"]])),
            types=draw(st.sampled_from([[], ["m5.large"], ["m5.xlarge"]])),
            zones=draw(st.sampled_from([[], ["us-east-1a"]])),
            priority=draw(st.integers(0, 2)),
            gang=draw(st.sampled_from(["", "", "g1", "g2"])) if gangs else "",
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    shortages = Shortages()
    for id_ in draw(st.lists(st.sampled_from(IDS), unique=True, max_size=1)):
        shortages = shortages.record(
            Scope("reservation", id_), class_=ErrorClass.RESERVATION_FULL, code="Full", now=NOW
        )
    classes = {name: node_class(selection, world, name=name) for name, selection in SELECTIONS.items()}
    return World(inventory=world, classes=classes, claims=claims, shortages=shortages)


def in_reservations(made: Plan) -> list[Claim]:
    return [each.claim for each in made.assignments if each.option.pool.capacity_type == "reserved"]


@pytest.mark.covers("KRP-20")
@given(worlds())
def test_every_usable_slot_is_used_by_the_first_claims(world: World) -> None:
    def place(wanted: Claim) -> tuple[int, bool, float]:
        price = fallback(wanted)
        return -wanted.priority, price is not None, -(price or 0.0)

    served: list[Claim] = []
    for wanted in sorted(world.claims, key=place):
        if world.possible([*served, wanted]):
            served.append(wanted)
    most = max(
        (
            size
            for size in range(len(world.claims) + 1)
            for some in itertools.combinations(world.claims, size)
            if world.possible(some)
        ),
        default=0,
    )
    got = in_reservations(world.planned())
    assert sorted(place(each) for each in got) == [place(each) for each in served]
    assert len(got) == most


def outcomes(world: World) -> Iterator[Objective]:
    """The objective of every possible assignment, larger if better."""
    effective = {
        each.name: max(other.priority for other in world.claims if each in (other, *gang_of(world, other)))
        for each in world.claims
    }
    choices = [
        [*(id_ for id_ in world.usable(one) if world.room(id_)), *(["plain"] if fallback(one) else []), ""]
        for one in world.claims
    ]
    for picks in itertools.product(*choices):
        taken = dict(zip((each.name for each in world.claims), picks, strict=True))
        if any(picks.count(id_) > world.room(id_) for id_ in IDS):
            continue
        if any(len({bool(taken[each.name]) for each in gang_of(world, one)}) > 1 for one in world.claims):
            continue
        yield objective(world, taken, effective)


def objective(world: World, taken: Mapping[str, str], effective: Mapping[str, int]) -> Objective:
    """By priority the claims in reservations; launched; cost; vCPUs; ends. `taken`: id, plain or nothing."""
    by_name = {each.name: each for each in world.claims}
    slots = [world.inventory.odcrs[pick] for pick in taken.values() if pick.startswith("cr-")]
    return (
        *(
            sum(pick.startswith("cr-") and effective[name] == priority for name, pick in taken.items())
            for priority in (2, 1, 0)
        ),
        sum(bool(pick) for pick in taken.values()),
        -round(sum(fallback(by_name[name]) or 0.0 for name, pick in taken.items() if pick == "plain"), 6),
        -sum(TYPES[each.instance_type].vcpus for each in slots),
        -sum((each.end or NOW + minutes(1000)).timestamp() for each in slots),
    )


def gang_of(world: World, one: Claim) -> list[Claim]:
    return [each for each in world.claims if each.gang and each.gang == one.gang]


def fallback(one: Claim) -> float | None:
    """The claim's on-demand cost, if it may fall back."""
    if not one.requirements.allows("karpenter.sh/capacity-type", "on-demand"):
        return None
    return min(
        each.on_demand_price or 0.0
        for each in TYPES.values()
        if one.requirements.allows("node.kubernetes.io/instance-type", each.name)
    )


def reached(world: World, made: Plan) -> Objective:
    """The objective of a plan. EC2 chooses the member of a group, so the best valid choice counts."""
    options = [
        each.option.odcr_ids if each.option.pool.capacity_type == "reserved" else ("plain",)
        for each in made.assignments
    ]
    effective = {
        each.name: max(other.priority for other in world.claims if each in (other, *gang_of(world, other)))
        for each in world.claims
    }
    return max(
        objective(
            world,
            {each.name: "" for each in world.claims}
            | {one.claim.name: pick for one, pick in zip(made.assignments, picks, strict=True)},
            effective,
        )
        for picks in itertools.product(*options)
        if all(picks.count(id_) <= world.room(id_) for id_ in IDS)
    )


@pytest.mark.covers("KRP-20", "KRP-22")
@given(worlds(gangs=True, ends=True))
def test_no_other_assignment_is_better(world: World) -> None:
    made = world.planned()
    assert made.solution.optimal
    assert reached(world, made) == max(outcomes(world))


@pytest.mark.covers("KRP-20")
@given(worlds(gangs=True))
def test_no_reservation_is_planned_beyond_its_free_slots_however_it_is_reached(world: World) -> None:
    made = world.planned()
    reserved = [each for each in made.assignments if each.option.pool.capacity_type == "reserved"]
    # Each launch may use any of its option's reservations: all must fit at once.
    assert any(
        all(each.count(id_) <= world.inventory.free(id_) for id_ in IDS)
        for each in itertools.product(*(one.option.odcr_ids for one in reserved))
    )
    for one in reserved:
        assert set(one.option.odcr_ids) <= set(world.usable(one.claim))
        assert not all(world.shortages.get(Scope("reservation", id_), NOW) for id_ in one.option.odcr_ids)


@given(worlds(gangs=True))
def test_every_claim_is_assigned_once_within_its_requirements_or_reports_a_reason(world: World) -> None:
    made = world.planned()
    told = [each.claim.name for each in made.assignments] + [each.claim.name for each in made.unplaced]
    assert sorted(told) == sorted(each.name for each in world.claims)
    for one in made.assignments:
        for option in (one.option, *one.rest):
            requirements = one.claim.requirements
            kind = option.pool.capacity_type
            assert requirements.allows("karpenter.sh/capacity-type", kind)
            assert requirements.allows("node.kubernetes.io/instance-type", option.pool.instance_type)
            assert requirements.allows("topology.kubernetes.io/zone", option.pool.zone)
            assert kind != "spot"
        kinds = [option.pool.capacity_type for option in (one.option, *one.rest)]
        assert kinds == sorted(kinds, key=["reserved", "spot", "on-demand"].index)
        assert one.option not in one.rest
    for waits in made.unplaced:
        assert waits.reason and waits.message
        if waits.reason == "BackingOff":
            assert waits.retry_at is not None and waits.retry_at > NOW


@pytest.mark.covers("KRP-22")
@given(worlds(gangs=True))
def test_a_gang_is_whole_or_absent(world: World) -> None:
    assigned = {each.claim.name for each in world.planned().assignments}
    for gang in {each.gang for each in world.claims if each.gang}:
        members = {each.name for each in world.claims if each.gang == gang}
        assert members <= assigned or not (members & assigned)


@pytest.mark.covers("KRP-20")
@given(worlds(gangs=True), st.integers(0, 2**32))
def test_the_order_in_which_things_are_given_changes_nothing(world: World, seed: int) -> None:
    random = Random(seed)
    claims = list(world.claims)
    random.shuffle(claims)
    ids = list(world.inventory.odcrs)
    random.shuffle(ids)
    shuffled = replace(
        world,
        inventory=replace(world.inventory, odcrs={id_: world.inventory.odcrs[id_] for id_ in ids}),
        classes=dict(sorted(world.classes.items(), key=lambda _: random.random())),
    )
    assert shuffled.planned(claims) == world.planned()


@pytest.mark.covers("KRP-20")
@given(worlds(), st.integers(0, 5))
def test_a_higher_priority_never_costs_a_claim_its_slot(world: World, which: int) -> None:
    if which >= len(world.claims):
        return
    raised = [
        replace(each, priority=each.priority + 5) if place == which else each
        for place, each in enumerate(world.claims)
    ]
    before = {each.name for each in in_reservations(world.planned())}
    after = {each.name for each in in_reservations(world.planned(raised))}
    name = world.claims[which].name
    assert name not in before or name in after
    assert len(after) == len(before)


@settings(max_examples=50)
@given(worlds())
def test_one_more_free_slot_never_leaves_fewer_claims_in_reservations(world: World) -> None:
    more = {
        id_: replace(each, available=each.available + 1) if id_ == "cr-2" else each
        for id_, each in world.inventory.odcrs.items()
    }
    richer = replace(world, inventory=replace(world.inventory, odcrs=more))
    assert len(in_reservations(richer.planned())) >= len(in_reservations(world.planned()))
