"""Own, unowned and lent slots of small random worlds, compared with every possible assignment."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

import pytest

from broker.capacity.entitlement import Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Plan, Selection
from broker.capacity.plan import plan
from tests.support.examples import times

from .builders import GROUP, NOW, claim, inventory, node_class, odcr, supply

WORLDS = times(200)
QUEUES = ("a", "b", "c")
IDS = ("cr-0", "cr-1", "cr-2", "cr-3")
A, B = SlotPool("a", "f"), SlotPool("b", "f")


@dataclass(frozen=True, kw_only=True)
class World:
    inventory: Inventory
    claims: tuple[Claim, ...]
    entitlements: Entitlements

    def planned(self) -> Plan:
        classes = {"default": node_class(Selection(group_arn=GROUP), self.inventory)}
        return plan(self.claims, supply(classes, self.inventory, entitlements=self.entitlements))

    def without_lending(self) -> World:
        given = self.entitlements
        return replace(
            self,
            entitlements=Entitlements(
                slot_pools=given.slot_pools, availability=given.availability, draws=given.draws
            ),
        )


def world(seed: int) -> World:
    random = Random(seed)
    reservations = inventory(
        *(
            odcr(
                id_,
                random.choice(["m5.large", "m5.xlarge"]),
                random.choice(["us-east-1a", "us-east-1b"]),
                total=3,
                free=random.randint(0, 2),
            )
            for id_ in IDS
        ),
        groups={GROUP: IDS},
    )
    claims = tuple(
        claim(
            f"c{number}",
            kinds=random.choice([["reserved"], ["reserved", "on-demand"]]),
            types=random.choice([[], ["m5.large"], ["m5.xlarge"]]),
            zones=random.choice([[], ["us-east-1a"]]),
            priority=random.randint(0, 1),
        )
        for number in range(random.randint(2, 5))
    )
    slot_pools = {id_: SlotPool(random.choice(QUEUES), "f") for id_ in IDS if random.random() < 0.7}
    availability = {}
    for queue in QUEUES:
        room = random.randint(1, 4)
        availability[SlotPool(queue, "f")] = SlotAvailability(
            quota=room, room=room, lendable=random.randint(0, room)
        )
    draws = {claim.uid: random.choice(["", *QUEUES]) for claim in claims}
    return World(
        inventory=reservations,
        claims=claims,
        entitlements=Entitlements(
            slot_pools=slot_pools,
            availability=availability,
            draws={uid: queue for uid, queue in draws.items() if queue},
            borrow={SlotPool(queue, "f"): random.randint(0, 3) for queue in QUEUES},
            peers={queue: frozenset(QUEUES) for queue in QUEUES if random.random() < 0.8},
        ),
    )


def served(plan: Plan) -> dict[str, int]:
    """The claims in reservations, with their priority."""
    return {
        assignment.claim.uid: assignment.claim.priority
        for assignment in plan.assignments
        if assignment.option.pool.capacity_type == "reserved"
    }


def assignments(scenario: World) -> Iterator[Mapping[str, str]]:
    """Every assignment of claims to slots that keeps to all limits."""
    given = scenario.entitlements
    choices = []
    for waiting_claim in scenario.claims:
        queue = given.draws.get(waiting_claim.uid, "")
        usable = [
            id_
            for id_, odcr in scenario.inventory.odcrs.items()
            if given.right(queue, id_)
            and waiting_claim.requirements.allows("node.kubernetes.io/instance-type", odcr.instance_type)
            and waiting_claim.requirements.allows("topology.kubernetes.io/zone", odcr.zone)
        ]
        choices.append([*usable, ""])
    for picks in itertools.product(*choices):
        taken = {claim.uid: id_ for claim, id_ in zip(scenario.claims, picks, strict=True) if id_}
        if _within(scenario, taken):
            yield taken


def _within(scenario: World, taken: Mapping[str, str]) -> bool:
    given = scenario.entitlements
    used = Counter(taken.values())
    if any(count > scenario.inventory.free(id_) for id_, count in used.items()):
        return False
    room: Counter[SlotPool] = Counter()
    lent: Counter[SlotPool] = Counter()
    borrowed: Counter[SlotPool] = Counter()
    for uid, id_ in taken.items():
        if (slot_pool := given.slot_pools.get(id_)) is None:
            continue
        room[slot_pool] += 1
        if slot_pool.owner != (queue := given.draws[uid]):
            lent[slot_pool] += 1
            borrowed[SlotPool(queue, slot_pool.flavor)] += 1
    return (
        all(count <= given.of(slot_pool).room for slot_pool, count in room.items())
        and all(count <= given.of(slot_pool).lendable for slot_pool, count in lent.items())
        and all(count <= given.borrow.get(limit, 0) for limit, count in borrowed.items())
    )


@pytest.mark.covers("SAF-43")
def test_no_assignment_within_all_limits_has_more_claims_in_reservations() -> None:
    wrong = []
    for seed in range(WORLDS):
        scenario = world(seed)
        plan = scenario.planned()
        got = served(plan)
        keep = served(scenario.without_lending().planned())
        best = max(
            (
                (sum(claim.priority == 1 and claim.uid in taken for claim in scenario.claims), len(taken))
                for taken in assignments(scenario)
                if keep.keys() <= taken.keys()
            ),
            default=(0, 0),
        )
        if (sum(got.values()), len(got)) != best or not keep.keys() <= got.keys():
            wrong.append(seed)
        assert plan.solution.optimal, seed
    assert wrong == []


@pytest.mark.covers("SAF-43")
def test_owner_leaves_the_slot_that_a_borrower_can_use() -> None:
    """The owner's claim fits both slots, the borrower's only the better one."""
    both = inventory(odcr("cr-1", "m5.large"), odcr("cr-2", "m5.xlarge"), groups={GROUP: ["cr-1", "cr-2"]})
    availability = SlotAvailability(quota=2, room=2, lendable=2)
    scenario = World(
        inventory=both,
        claims=(claim("owner", kinds=["reserved"]), claim("guest", kinds=["reserved"], types=["m5.large"])),
        entitlements=Entitlements(
            slot_pools={"cr-1": A, "cr-2": A},
            availability={A: availability},
            draws={"uid-owner": "a", "uid-guest": "b"},
            borrow={B: 1},
            peers={"b": frozenset({"a", "b"})},
        ),
    )
    plan = scenario.planned()
    assert {
        assignment.claim.name: assignment.option.pool.instance_type for assignment in plan.assignments
    } == {
        "owner": "m5.xlarge",
        "guest": "m5.large",
    }
    assert plan.solution.optimal and plan.solution.reserved == plan.solution.bound == 2


@pytest.mark.covers("SAF-43", "CAP-09")
@pytest.mark.parametrize(
    "types", [("m5.large", "m5.large"), ("m5.large", "m5.large", "m5.xlarge")], ids=["alike", "unlike"]
)
@pytest.mark.parametrize("own", ["cr-1", "cr-9"], ids=["own-first", "own-last"])
@pytest.mark.parametrize("modelled", [False, True], ids=["network", "model"])
def test_the_claim_of_higher_priority_has_its_own_slot(
    types: tuple[str, ...], own: str, modelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner takes back what it lent, and of borrowers the one of lower priority loses its slot."""
    if modelled:
        monkeypatch.setattr("broker.capacity.problem.SlotFlow.exceeds", lambda *_: True)
    ids = [own, "cr-5"]
    scenario = World(
        inventory=inventory(*(odcr(id_, "m5.large") for id_ in ids), groups={GROUP: sorted(ids)}),
        claims=(
            claim("low", kinds=["reserved"], types=types[:1]),
            claim(
                "high", kinds=["reserved"], types=types[1:], priority=20, created=NOW + timedelta(minutes=1)
            ),
        ),
        entitlements=Entitlements(
            slot_pools={own: B, "cr-5": A},
            availability=dict.fromkeys((A, B), SlotAvailability(quota=1, room=1, lendable=1)),
            draws={"uid-low": "b", "uid-high": "b"},
            borrow={B: 1},
            peers={"b": frozenset({"a", "b"})},
        ),
    )
    given = {item.claim.uid: item.option.pool.reservation for item in scenario.planned().assignments}
    assert given == {"uid-high": own, "uid-low": "cr-5"}


@pytest.mark.covers("SAF-43")
def test_equal_reservations_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.capacity.solve.MOST_WAYS", 10)
    ids = [f"cr-{number:02}" for number in range(60)]
    odcrs = [odcr(id_, "m5.large" if number < 30 else "m5.xlarge") for number, id_ in enumerate(ids)]
    owners = [claim(f"owner-{number:02}", kinds=["reserved"]) for number in range(30)]
    guests = [claim(f"guest-{number:02}", kinds=["reserved"], types=["m5.large"]) for number in range(30)]
    scenario = World(
        inventory=inventory(*odcrs, groups={GROUP: ids}),
        claims=(*owners, *guests),
        entitlements=Entitlements(
            slot_pools=dict.fromkeys(ids, A),
            availability={A: SlotAvailability(quota=60, room=60, lendable=60)},
            draws={claim.uid: "a" if claim in owners else "b" for claim in (*owners, *guests)},
            borrow={B: 30},
            peers={"b": frozenset({"a", "b"})},
        ),
    )
    plan = scenario.planned()
    assert len(served(plan)) == 60 and plan.solution.optimal and not plan.solution.note
    used = Counter(assignment.option.pool.instance_type for assignment in plan.assignments)
    assert used == {"m5.large": 30, "m5.xlarge": 30}


@pytest.mark.covers("SAF-43")
def test_too_many_ways_to_compare_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.capacity.problem.SlotFlow.exceeds", lambda *_: True)  # no flow is good enough
    modelled = [world(seed).planned() for seed in range(times(75))]
    monkeypatch.setattr("broker.capacity.solve.MOST_WAYS", 0)
    greedy = [world(seed).planned() for seed in range(times(75))]
    for best, first in zip(modelled, greedy, strict=True):
        assert len(served(best)) >= len(served(first))
        assert sum(served(best).values()) >= sum(served(first).values())
        assert first.solution.optimal or "are more than 0: no others were compared" in first.solution.note
    assert any(len(served(best)) > len(served(first)) for best, first in zip(modelled, greedy, strict=True))
