"""Calls of one plan that could take each other's slots, with EC2 choosing the worst member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from broker.capacity import launches
from broker.capacity.entitlement import KEPT, NO_ENTITLEMENTS, Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.launches import LaunchGroup
from broker.capacity.model import Claim, NodeClass, Plan, ReservationTerm, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from providers.launch import Preference, ReservationTarget
from providers.model import Image
from tests.support.examples import times

from .builders import GROUP, NOW, TYPES, claim, inventory, node_class, odcr, supply

WORLDS = times(200)
IDS = ("cr-0", "cr-1", "cr-2", "cr-3")
GROUPS = tuple(f"{GROUP}-{number}" for number in range(3))
ANY, ONLY = ["reserved", "on-demand"], ["reserved"]
OPEN = Selection(preference="open")
QUEUES = ("a", "b")


@dataclass(frozen=True, kw_only=True)
class World:
    inventory: Inventory
    classes: Mapping[str, NodeClass]
    claims: Sequence[Claim]
    entitlements: Entitlements = NO_ENTITLEMENTS

    def planned(self) -> Plan:
        return plan(self.claims, supply(self.classes, self.inventory, entitlements=self.entitlements))

    def calls(self) -> list[LaunchGroup]:
        return launches.group(
            self.planned().assignments,
            node_classes=self.classes,
            types=TYPES,
            shortages=Shortages(),
            now=NOW,
        )

    def reach(self, call: LaunchGroup) -> tuple[str, ...]:
        """The reservations that EC2 may place an instance of the call into: it knows no owners."""
        target = call.target
        if target.preference == "none":
            return ()
        if target.reservation_id:
            return (target.reservation_id,)
        places = {(override.instance_type, override.zone) for override in call.overrides}
        candidates = [
            odcr for odcr in self.inventory.odcrs.values() if (odcr.instance_type, odcr.zone) in places
        ]
        if target.group_arn:
            members = self.inventory.groups[target.group_arn].member_ids
            return tuple(odcr.id for odcr in candidates if odcr.id in members)
        return tuple(odcr.id for odcr in candidates if odcr.match_criteria == "open")


def world(seed: int, *, owned: bool = False) -> World:
    """Classes that overlap: three groups, an open class, and two that name reservations."""
    random = Random(seed)
    reservations = inventory(
        *(
            odcr(
                id_,
                random.choice(["m5.large", "m5.xlarge", "m5.xlarge"]),
                total=3,
                free=random.randint(0, 2),
                match_criteria=random.choice(["open", "targeted"]),
            )
            for id_ in IDS
        ),
        groups={arn: sorted(random.sample(IDS, random.randint(1, 4))) for arn in GROUPS},
    )
    selections = {
        **{f"group-{place}": Selection(group_arn=arn) for place, arn in enumerate(GROUPS)},
        "open": OPEN,
        "id": Selection(reservation_id=random.choice(IDS)),
        "terms": Selection(terms=tuple(ReservationTerm(id=id_) for id_ in random.sample(IDS, 2))),
    }
    claims = [
        claim(
            f"c{number}",
            node_class=random.choice([*selections]),
            kinds=random.choice([ANY, ONLY]),
            types=random.choice([[], ["m5.large"], ["m5.xlarge"]]),
            priority=random.randint(0, 1),
            gang=random.choice(["", "", "", "g"]),
        )
        for number in range(random.randint(2, 7))
    ]
    slot_pools = {id_: SlotPool(random.choice(QUEUES), "f") for id_ in IDS if random.random() < 0.6}
    draws = {claim.uid: random.choice(["", *QUEUES, KEPT]) for claim in claims}
    availability = SlotAvailability(quota=random.randint(0, 3), room=random.randint(0, 3), lendable=1)
    entitlements = Entitlements(
        slot_pools=slot_pools,
        availability={SlotPool(queue, "f"): availability for queue in QUEUES},
        draws={uid: queue for uid, queue in draws.items() if queue},
        borrow={SlotPool(queue, "f"): 1 for queue in QUEUES},
        peers={"b": frozenset(QUEUES)},
        barred={KEPT: "its quota is kept"},
    )
    return World(
        inventory=reservations,
        classes={
            name: node_class(selection, reservations, name=name) for name, selection in selections.items()
        },
        claims=claims,
        entitlements=entitlements if owned else Entitlements(),
    )


Room = tuple[int, ...]


def _outcomes(scenario: World, wave: Sequence[LaunchGroup], room: Room) -> Iterator[Room | None]:
    """The free slots after each order and choice of EC2; None if a planned instance finds none."""
    reach = [[IDS.index(id_) for id_ in scenario.reach(call)] for call in wave]
    seen = {(room, tuple(call.count for call in wave))}
    stack = [*seen]
    while stack:
        left, counts = stack.pop()
        if not any(counts):
            yield left
        for place, count in enumerate(counts):
            if not count:
                continue
            choices = [slot for slot in reach[place] if left[slot]]
            if not choices:
                if wave[place].capacity_type == "reserved":
                    yield None
                    return
                choices = [-1]  # outside reservations
            for slot in choices:
                then = tuple(free - (number == slot) for number, free in enumerate(left))
                state = (then, tuple(many - (at == place) for at, many in enumerate(counts)))
                if state not in seen:
                    seen.add(state)
                    stack.append(state)


def loses(scenario: World) -> bool:
    """Whether EC2 can leave a planned claim without its slot."""
    rooms: set[Room] = {tuple(scenario.inventory.free(id_) for id_ in IDS)}
    calls = scenario.calls()
    for number in sorted({call.wave for call in calls}):
        wave = [call for call in calls if call.wave == number]
        after: set[Room] = set()
        for room in rooms:
            for outcome in _outcomes(scenario, wave, room):
                if outcome is None:
                    return True
                after.add(outcome)
        rooms = after
    return False


@pytest.mark.covers("SAF-42", "KRP-12")
def test_no_call_takes_the_slot_of_another_for_any_member_that_ec2_picks() -> None:
    assert [seed for seed in range(WORLDS) if loses(world(seed))] == []
    assert [seed for seed in range(WORLDS) if loses(world(seed, owned=True))] == []


@pytest.mark.covers("SAF-41")
def test_ec2_matches_no_owned_reservation_for_a_claim_without_a_right_to_it() -> None:
    matched = 0
    for seed in range(WORLDS):
        scenario = world(seed, owned=True)
        for call in scenario.calls():
            if call.target.preference != "open" and not call.target.spills:
                continue
            for assignment in call.assignments:
                queue = scenario.entitlements.draws.get(assignment.claim.uid, "")
                rights = [scenario.entitlements.right(queue, id_) for id_ in scenario.reach(call)]
                assert None not in rights, seed
                assert call.capacity_type == "reserved" or "lent" not in rights, seed
                if (name := assignment.claim.node_class) in ("id", "terms"):
                    usable = {odcr.id for odcr in scenario.classes[name].resolved.usable}
                    assert usable.issuperset(scenario.reach(call)), seed
                matched += bool(rights)
    assert matched  # some claims are matched openly


def two_groups(*claims: Claim, **more: object) -> World:
    """Group 0 has cr-1 and cr-2, group 1 only cr-2; one slot each."""
    reservations = inventory(
        odcr("cr-1"), odcr("cr-2"), groups={GROUPS[0]: ["cr-1", "cr-2"], GROUPS[1]: ["cr-2"]}
    )
    classes = {
        f"group-{place}": node_class(Selection(group_arn=GROUPS[place]), reservations, name=f"group-{place}")
        for place in (0, 1)
    }
    return World(inventory=reservations, classes=classes, claims=claims, **more)  # type: ignore[arg-type]


def targets(scenario: World) -> dict[str, ReservationTarget]:
    return {
        assignment.claim.name: call.target for call in scenario.calls() for assignment in call.assignments
    }


def by_id(id_: str) -> ReservationTarget:
    return ReservationTarget(preference="capacity-reservations-only", reservation_id=id_)


def by_group(arn: str) -> ReservationTarget:
    return ReservationTarget(preference="capacity-reservations-only", group_arn=arn)


@pytest.mark.covers("KRP-12")
def test_members_are_named_if_groups_overlap_and_both_are_called() -> None:
    both = two_groups(claim("wide", node_class="group-0"), claim("narrow", node_class="group-1"))
    assert targets(both) == {"wide": by_id("cr-1"), "narrow": by_id("cr-2")}
    alone = replace(both, claims=both.claims[:1])
    assert targets(alone) == {"wide": by_group(GROUPS[0])}


@pytest.mark.covers("KRP-12")
def test_open_match_beside_a_group_names_its_members() -> None:
    reservations = inventory(
        odcr("cr-1", match_criteria="open"),
        odcr("cr-2", match_criteria="open"),
        groups={GROUPS[0]: ["cr-2"]},
    )
    classes = {
        "open": node_class(OPEN, reservations, name="open"),
        "group-0": node_class(Selection(group_arn=GROUPS[0]), reservations, name="group-0"),
    }
    claims = [claim("open", node_class="open"), claim("group", node_class="group-0")]
    scenario = World(inventory=reservations, classes=classes, claims=claims)
    assert targets(scenario) == {"open": by_id("cr-1"), "group": by_id("cr-2")}


def test_a_named_member_in_a_placement_group_is_launched_into_that_group() -> None:
    arn = "arn:aws:ec2:us-east-1:111122223333:placement-group/rack"
    scenario = two_groups(claim("wide", node_class="group-0"), claim("narrow", node_class="group-1"))
    odcrs = {**scenario.inventory.odcrs, "cr-2": odcr("cr-2", placement_group_arn=arn)}
    reservations = replace(scenario.inventory, odcrs=odcrs)
    classes = {
        name: node_class(nodeclass.selection, reservations, name=name)
        for name, nodeclass in scenario.classes.items()
    }
    calls = replace(scenario, inventory=reservations, classes=classes).calls()
    assert {call.target.reservation_id: call.placement_group for call in calls} == {
        "cr-1": "",
        "cr-2": "rack",
    }


def test_group_over_two_platforms_is_launched_by_member() -> None:
    """A launch has one image: EC2 would leave the members of the other platform idle."""
    reservations = inventory(
        odcr("cr-1"), odcr("cr-2", platform="Red Hat Enterprise Linux"), groups={GROUPS[0]: ["cr-1", "cr-2"]}
    )
    images = (Image(id="ami-1"), Image(id="ami-2", platform="Red Hat Enterprise Linux"))
    classes = node_class(Selection(group_arn=GROUPS[0]), reservations, name="group-0", images=images)
    scenario = World(
        inventory=reservations,
        classes={"group-0": classes},
        claims=[claim(name, node_class="group-0") for name in ("c-1", "c-2")],
    )
    assert {(call.target.reservation_id, call.image.id) for call in scenario.calls()} == {
        ("cr-1", "ami-1"),
        ("cr-2", "ami-2"),
    }


@pytest.mark.covers("SAF-41")
@pytest.mark.parametrize(
    ("owner", "draws", "target"),
    [
        ("", "", ReservationTarget(preference="open")),
        ("a", "a", ReservationTarget(preference="open")),  # its own slot
        ("a", "b", ReservationTarget(preference="none")),  # falls back beside it
        ("a", "", ReservationTarget(preference="none")),
        ("", KEPT, ReservationTarget(preference="none")),
    ],
)
def test_only_claims_with_a_right_to_an_open_reservation_are_matched_openly(
    owner: str, draws: str, target: ReservationTarget
) -> None:
    reservations = inventory(odcr("cr-1", match_criteria="open"))
    scenario = World(
        inventory=reservations,
        classes={"open": node_class(OPEN, reservations, name="open")},
        claims=[claim("c", node_class="open", types=["m5.xlarge"], zones=["us-east-1a"])],
        entitlements=Entitlements(
            slot_pools={"cr-1": SlotPool(owner, "f")} if owner else {},
            availability={SlotPool("a", "f"): SlotAvailability(quota=1, room=1)},
            draws={"uid-c": draws} if draws else {},
            barred={KEPT: "its quota is kept"},
        ),
    )
    assert targets(scenario) == {"c": target}


@pytest.mark.covers("SAF-41")
@pytest.mark.covers("FUL-10", "FUL-13")
@pytest.mark.parametrize(("draws", "preference"), [("a", "open"), ("b", "none"), ("", "none")])
def test_on_demand_beside_a_full_reservation_is_counted_there_later_only_for_its_owner(
    draws: str, preference: Preference
) -> None:
    reservations = inventory(odcr("cr-1", match_criteria="open", total=1, free=0))
    scenario = World(
        inventory=reservations,
        classes={"open": node_class(OPEN, reservations, name="open")},
        claims=[
            claim("c", node_class="open", types=["m5.xlarge"], zones=["us-east-1a"]),
            claim("d", node_class="open", types=["m5.large"]),
        ],
        entitlements=Entitlements(
            slot_pools={"cr-1": SlotPool("a", "f")},
            availability={SlotPool("a", "f"): SlotAvailability(quota=1, room=1)},
            draws={"uid-c": draws} if draws else {},
        ),
    )
    assert targets(scenario) == {
        "c": ReservationTarget(preference=preference),
        "d": ReservationTarget(preference="open"),  # no open reservation of its type
    }
