"""Plans of small random worlds, compared with every possible assignment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, NodeClass, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Scope, Shortages
from providers.errors import ErrorClass

from .builders import GROUP, NOW, TYPES, claim, inventory, minutes, node_class, odcr, supply

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
        waiting = self.claims if claims is None else claims
        return plan(waiting, supply(self.classes, self.inventory, shortages=self.shortages))

    def room(self, id_: str) -> int:
        return 0 if self.shortages.get(Scope("reservation", id_), NOW) else self.inventory.free(id_)

    def usable(self, claim: Claim) -> tuple[str, ...]:
        """The reservations that a claim could run in, from the meaning of its class and requirements."""
        named = {
            "id": {"cr-1"},
            "group": set(self.inventory.groups[GROUP].member_ids),
            "open": {odcr.id for odcr in self.inventory.odcrs.values() if odcr.match_criteria == "open"},
            "none": set(),
        }[claim.node_class]
        return tuple(
            id_
            for id_ in IDS
            if id_ in named
            and claim.requirements.allows("karpenter.sh/capacity-type", "reserved")
            and claim.requirements.allows(
                "node.kubernetes.io/instance-type", self.inventory.odcrs[id_].instance_type
            )
            and claim.requirements.allows("topology.kubernetes.io/zone", self.inventory.odcrs[id_].zone)
        )

    def possible(self, served: Sequence[Claim]) -> bool:
        """Whether all of these can have a slot at once."""
        return any(
            all(picks.count(id_) <= self.room(id_) for id_ in IDS)
            for picks in itertools.product(*(self.usable(claim) for claim in served))
        )


# Strategies are made once: hypothesis checks each new one.
_type = st.sampled_from(["m5.large", "m5.xlarge"])
_zone = st.sampled_from(["us-east-1a", "us-east-1b"])
_free = st.integers(0, 2)
_match = st.sampled_from(["open", "targeted"])
_end = st.sampled_from([None, NOW + minutes(90), NOW + minutes(300)])
_ids = st.lists(st.sampled_from(IDS), unique=True)
_class = st.sampled_from(list(SELECTIONS))
_kinds = st.sampled_from([[], ["reserved"], ["reserved", "on-demand"]])
_types = st.sampled_from([[], ["m5.large"], ["m5.xlarge"]])
_zones = st.sampled_from([[], ["us-east-1a"]])
_gang = st.sampled_from(["", "", "g1", "g2"])
_short = st.lists(st.sampled_from(IDS), unique=True, max_size=1)


@st.composite
def worlds(draw: st.DrawFn, *, gangs: bool = False, ends: bool = False) -> World:
    odcrs = [
        odcr(
            id_,
            draw(_type),
            draw(_zone),
            total=4,
            free=draw(_free),
            match_criteria=draw(_match),
            end=draw(_end) if ends else None,
        )
        for id_ in IDS
    ]
    world = inventory(
        *odcrs,
        groups={GROUP: draw(_ids)},
        debits={id_: draw(st.integers(0, 1)) for id_ in IDS},
    )
    claims = [
        claim(
            f"c{number}",
            node_class=draw(_class),
            kinds=draw(_kinds),
            types=draw(_types),
            zones=draw(_zones),
            priority=draw(_free),
            gang=draw(_gang) if gangs else "",
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    shortages = Shortages()
    for id_ in draw(_short):
        shortages = shortages.record(
            Scope("reservation", id_), class_=ErrorClass.RESERVATION_FULL, code="Full", now=NOW
        )
    classes = {name: node_class(selection, world, name=name) for name, selection in SELECTIONS.items()}
    return World(inventory=world, classes=classes, claims=claims, shortages=shortages)


def in_reservations(plan: Plan) -> list[Claim]:
    return [
        assignment.claim
        for assignment in plan.assignments
        if assignment.option.pool.capacity_type == "reserved"
    ]


@pytest.mark.covers("KRP-20")
@given(worlds())
def test_every_usable_slot_is_used_by_the_first_claims(world: World) -> None:
    def place(claim: Claim) -> tuple[int, bool, float]:
        price = fallback(claim)
        return -claim.priority, price is not None, -(price or 0.0)

    served: list[Claim] = []
    for contender in sorted(world.claims, key=place):
        if world.possible([*served, contender]):
            served.append(contender)
    most = max(
        (
            size
            for size in range(len(world.claims) + 1)
            for choice in itertools.combinations(world.claims, size)
            if world.possible(choice)
        ),
        default=0,
    )
    got = in_reservations(world.planned())
    assert sorted(place(claim) for claim in got) == [place(claim) for claim in served]
    assert len(got) == most


def outcomes(world: World) -> Iterator[Objective]:
    """The objective of every possible assignment, larger if better."""
    effective = {
        claim.name: max(other.priority for other in world.claims if claim in (other, *gang_of(world, other)))
        for claim in world.claims
    }
    choices = [
        [
            *(id_ for id_ in world.usable(claim) if world.room(id_)),
            *(["plain"] if fallback(claim) else []),
            "",
        ]
        for claim in world.claims
    ]
    for picks in itertools.product(*choices):
        taken = dict(zip((claim.name for claim in world.claims), picks, strict=True))
        if any(picks.count(id_) > world.room(id_) for id_ in IDS):
            continue
        if any(
            len({bool(taken[member.name]) for member in gang_of(world, claim)}) > 1 for claim in world.claims
        ):
            continue
        yield objective(world, taken, effective)


def objective(world: World, taken: Mapping[str, str], effective: Mapping[str, int]) -> Objective:
    """By priority the claims in reservations; launched; cost; vCPUs; ends. `taken`: id, plain or nothing."""
    by_name = {claim.name: claim for claim in world.claims}
    slots = [world.inventory.odcrs[pick] for pick in taken.values() if pick.startswith("cr-")]
    return (
        *(
            sum(pick.startswith("cr-") and effective[name] == priority for name, pick in taken.items())
            for priority in (2, 1, 0)
        ),
        sum(bool(pick) for pick in taken.values()),
        -round(sum(fallback(by_name[name]) or 0.0 for name, pick in taken.items() if pick == "plain"), 6),
        -sum(TYPES[odcr.instance_type].vcpus for odcr in slots),
        -sum((odcr.end or NOW + minutes(1000)).timestamp() for odcr in slots),
    )


def gang_of(world: World, claim: Claim) -> list[Claim]:
    return [member for member in world.claims if member.gang and member.gang == claim.gang]


def fallback(claim: Claim) -> float | None:
    """The claim's on-demand cost, if it may fall back."""
    if not claim.requirements.allows("karpenter.sh/capacity-type", "on-demand"):
        return None
    return min(
        instance_type.on_demand_price or 0.0
        for instance_type in TYPES.values()
        if claim.requirements.allows("node.kubernetes.io/instance-type", instance_type.name)
    )


def reached(world: World, plan: Plan) -> Objective:
    """The objective of a plan. EC2 chooses the member of a group, so the best valid choice counts."""
    options = [
        assignment.option.odcr_ids if assignment.option.pool.capacity_type == "reserved" else ("plain",)
        for assignment in plan.assignments
    ]
    effective = {
        claim.name: max(other.priority for other in world.claims if claim in (other, *gang_of(world, other)))
        for claim in world.claims
    }
    return max(
        objective(
            world,
            {claim.name: "" for claim in world.claims}
            | {assignment.claim.name: pick for assignment, pick in zip(plan.assignments, picks, strict=True)},
            effective,
        )
        for picks in itertools.product(*options)
        if all(picks.count(id_) <= world.room(id_) for id_ in IDS)
    )


@pytest.mark.covers("KRP-20", "KRP-22")
@given(worlds(gangs=True, ends=True))
def test_no_other_assignment_is_better(world: World) -> None:
    plan = world.planned()
    assert plan.solution.optimal
    assert reached(world, plan) == max(outcomes(world))


@pytest.mark.covers("KRP-20")
@given(worlds(gangs=True))
def test_no_reservation_is_planned_beyond_its_free_slots_however_it_is_reached(world: World) -> None:
    plan = world.planned()
    reserved = [
        assignment for assignment in plan.assignments if assignment.option.pool.capacity_type == "reserved"
    ]
    # Each launch may use any of its option's reservations: all must fit at once.
    assert any(
        all(picks.count(id_) <= world.inventory.free(id_) for id_ in IDS)
        for picks in itertools.product(*(assignment.option.odcr_ids for assignment in reserved))
    )
    for assignment in reserved:
        assert set(assignment.option.odcr_ids) <= set(world.usable(assignment.claim))
        assert not all(
            world.shortages.get(Scope("reservation", id_), NOW) for id_ in assignment.option.odcr_ids
        )


@given(worlds(gangs=True))
def test_every_claim_is_assigned_once_within_its_requirements_or_reports_a_reason(world: World) -> None:
    plan = world.planned()
    names = [assignment.claim.name for assignment in plan.assignments]
    names += [unplaced.claim.name for unplaced in plan.unplaced]
    assert sorted(names) == sorted(claim.name for claim in world.claims)
    for assignment in plan.assignments:
        for option in (assignment.option, *assignment.rest):
            requirements = assignment.claim.requirements
            kind = option.pool.capacity_type
            assert requirements.allows("karpenter.sh/capacity-type", kind)
            assert requirements.allows("node.kubernetes.io/instance-type", option.pool.instance_type)
            assert requirements.allows("topology.kubernetes.io/zone", option.pool.zone)
            assert kind != "spot"
        kinds = [option.pool.capacity_type for option in (assignment.option, *assignment.rest)]
        assert kinds == sorted(kinds, key=["reserved", "spot", "on-demand"].index)
        assert assignment.option not in assignment.rest
    for unplaced in plan.unplaced:
        assert unplaced.reason and unplaced.message
        if unplaced.reason == "BackingOff":
            assert unplaced.retry_at is not None and unplaced.retry_at > NOW


@pytest.mark.covers("KRP-22")
@given(worlds(gangs=True))
def test_a_gang_is_whole_or_absent(world: World) -> None:
    assigned = {assignment.claim.name for assignment in world.planned().assignments}
    for gang in {member.gang for member in world.claims if member.gang}:
        members = {claim.name for claim in world.claims if claim.gang == gang}
        assert members <= assigned or not (members & assigned)


@pytest.mark.covers("KRP-20")
@given(worlds(gangs=True), st.integers(0, 2**32))
def test_order_of_the_inputs_does_not_matter(world: World, seed: int) -> None:
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
def test_a_higher_priority_never_costs_a_claim_its_slot(world: World, index: int) -> None:
    if index >= len(world.claims):
        return
    raised = [
        replace(claim, priority=claim.priority + 5) if place == index else claim
        for place, claim in enumerate(world.claims)
    ]
    before = {claim.name for claim in in_reservations(world.planned())}
    after = {claim.name for claim in in_reservations(world.planned(raised))}
    name = world.claims[index].name
    assert name not in before or name in after
    assert len(after) == len(before)


@given(worlds())
def test_one_more_free_slot_never_leaves_fewer_claims_in_reservations(world: World) -> None:
    more = {
        id_: replace(odcr, available=odcr.available + 1) if id_ == "cr-2" else odcr
        for id_, odcr in world.inventory.odcrs.items()
    }
    richer = replace(world, inventory=replace(world.inventory, odcrs=more))
    assert len(in_reservations(richer.planned())) >= len(in_reservations(world.planned()))
