"""Successors of nodes in full reservations: their slots go to them, and they go nowhere else meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from broker.capacity.entitlement import Entitlements, SlotAvailability, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.shortages import BACKING_OFF, Scope, Shortages
from broker.capacity.successors import COUNTED, HOLD
from broker.quota.model import Preemption
from providers.errors import ErrorClass

from .builders import GROUP, NOW, chosen, claim, inventory, node_class, odcr, refusals, supply

KINDS = ("reserved", "on-demand")
AT = "reserved:m5.xlarge:us-east-1a:"


def successor(
    name: str = "next", slot: str = "cr-1", *, until: datetime | None = NOW + HOLD, **more: Any
) -> Claim:
    return claim(name, kinds=KINDS, slot=slot, slot_until=until, **more)


def planned(world: Inventory, *claims: Claim, entitlements: Entitlements | None = None, **more: Any) -> Plan:
    classes = node_class(Selection(group_arn=GROUP), world)
    given = supply({"default": classes}, world, entitlements=entitlements or Entitlements(), **more)
    return plan(claims, given)


def group(*free: int) -> Inventory:
    ids = [f"cr-{number}" for number, _ in enumerate(free, 1)]
    odcrs = [odcr(id_, total=1, free=count) for id_, count in zip(ids, free, strict=True)]
    return inventory(*odcrs, groups={GROUP: ids})


def test_successor_waits_for_its_slot_and_launches_nowhere_else() -> None:
    result = planned(group(0, 1), successor(), claim("other", kinds=KINDS))
    assert refusals(result) == {"next": "AwaitsReplaced"}
    assert list(chosen(result)) == ["other"]
    assert "the node that it replaces has not left it yet" in result.unplaced[0].message


def test_freed_slot_goes_to_the_successor_before_claims_of_higher_priority() -> None:
    result = planned(group(1), claim("rival", kinds=("reserved",), priority=1000), successor())
    assert chosen(result) == {"next": f"{AT}cr-1"}
    assert list(refusals(result)) == ["rival"]


def test_calls_of_other_claims_cannot_take_the_slot_of_a_successor() -> None:
    """A launch into the group would let EC2 pick the member."""
    result = planned(group(1, 1), successor(), claim("other", kinds=("reserved",)))
    assert chosen(result) == {"next": f"{AT}cr-1", "other": f"{AT}cr-2"}


def test_hold_that_is_over_makes_the_claim_like_any_other() -> None:
    late = successor(until=NOW)
    assert chosen(planned(group(0), late))["next"].startswith("on-demand:")
    result = planned(group(1), claim("rival", kinds=("reserved",), priority=1000), late)
    assert chosen(result)["rival"].startswith(AT)
    kept = successor(until=NOW + HOLD)
    assert refusals(planned(group(0), kept)) == {"next": "AwaitsReplaced"}


def test_slot_goes_to_the_successor_whose_node_is_gone() -> None:
    early, late = successor("a", until=None), successor("b")
    result = planned(group(1), early, late)
    assert chosen(result) == {"b": f"{AT}cr-1"} and refusals(result) == {"a": "AwaitsReplaced"}


def test_slot_that_others_took_is_not_waited_for() -> None:
    just, long = (successor(until=NOW + HOLD - ago) for ago in (COUNTED / 2, COUNTED))
    assert refusals(planned(group(0), just)) == {"next": "AwaitsReplaced"}
    assert chosen(planned(group(0), long))["next"].startswith("on-demand:")
    gang = [successor(f"g-{n}", f"cr-{n}", gang="g", until=NOW + HOLD - COUNTED) for n in (1, 2)]
    result = planned(group(1, 0), *gang)
    assert len(chosen(result)) in (0, 2) and "AwaitsReplaced" not in refusals(result).values()


def test_slot_that_the_class_no_longer_launches_into_is_not_waited_for() -> None:
    assert "next" in chosen(planned(group(0), successor(slot="cr-9")))


@pytest.mark.covers("FLT-60", "FUL-04")
def test_slot_of_a_reservation_that_ec2_describes_no_more_is_not_waited_for() -> None:
    """Its sharing ended, and the class was resolved before that."""
    classes = {"default": node_class(Selection(group_arn=GROUP), group(1, 1))}
    rest = replace(group(1, 1), odcrs={"cr-2": odcr("cr-2", total=1, free=1)})
    result = plan((successor(), claim("other", kinds=("reserved",), priority=1)), supply(classes, rest))
    assert chosen(result) == {"next": "on-demand:m5.large:us-east-1a", "other": f"{AT}{GROUP}"}


def test_successors_of_a_gang_launch_together() -> None:
    gang = [successor(f"g-{n}", f"cr-{n}", gang="g") for n in (1, 2)]
    rival = claim("rival", kinds=("reserved",), priority=1000)
    half = planned(group(1, 0), *gang, rival)
    assert refusals(half).keys() == {"g-1", "g-2", "rival"}
    assert {refusals(half)[name] for name in ("g-1", "g-2")} == {"AwaitsReplaced"}
    assert chosen(planned(group(1, 1), *gang, rival)) == {"g-1": f"{AT}cr-1", "g-2": f"{AT}cr-2"}


def test_hold_never_keeps_an_owner_from_its_slot() -> None:
    owner = SlotPool("a", "f")
    availability = SlotAvailability(quota=1, room=1, lendable=1)
    entitlements = Entitlements(
        slot_pools={"cr-1": owner},
        availability={owner: availability},
        rules={"a": Preemption(reclaim="Any")},
        draws={"uid-next": "b", "uid-owner": "a"},
        borrow={SlotPool("b", "f"): 1},
        peers={"b": frozenset({"a", "b"})},
    )
    astray = claim("astray", node_class="nowhere")  # a class that does not exist hides no owner
    owners = claim("owner", kinds=("reserved",))
    result = planned(group(1), successor(), astray, owners, entitlements=entitlements)
    assert chosen(result)["owner"].startswith(AT)
    assert [item.reason for item in result.unplaced if item.claim == astray] == ["NodeClassNotFound"]


@pytest.mark.covers("FUL-04")
@pytest.mark.parametrize(("quota", "free"), [(0, (1,)), (2, (1, 1))], ids=["no quota", "another free slot"])
def test_owner_that_needs_no_slot_back_ends_no_hold_of_a_lent_one(quota: int, free: tuple[int, ...]) -> None:
    owner = SlotPool("a", "f")
    entitlements = Entitlements(
        slot_pools={f"cr-{n}": owner for n in range(1, len(free) + 1)},
        availability={owner: SlotAvailability(quota=quota, room=len(free), lendable=len(free))},
        draws={"uid-next": "b", "uid-owner": "a", "uid-rival": "b"},
        borrow={SlotPool("b", "f"): len(free)},
        peers={"b": frozenset({"a", "b"})},
    )
    others = [claim("owner", kinds=("reserved",)), claim("rival", kinds=("reserved",), priority=1000)]
    result = planned(group(*free), successor(), *others, entitlements=entitlements)
    assert chosen(result)["next"] == f"{AT}cr-1" and "rival" not in chosen(result)


@pytest.mark.covers("FUL-03")
@pytest.mark.parametrize(
    ("free", "borrow", "launched"),
    [(0, 0, []), (1, 1, ["a"]), (2, 2, ["a", "b"])],
    ids=["none", "one", "both"],
)
def test_lent_slot_that_ec2_does_not_count_as_free_yet_is_kept(
    free: int, borrow: int, launched: list[str]
) -> None:
    """Until then the node that is gone counts as the borrower: nothing more may be borrowed."""
    owner = SlotPool("training", "f")
    entitlements = Entitlements(
        slot_pools={"cr-1": owner},
        availability={owner: SlotAvailability(quota=2, room=borrow, lendable=borrow)},
        draws={"uid-a": "research", "uid-b": "research"},
        borrow={SlotPool("research", "f"): borrow},
        peers={"research": frozenset({"training", "research"})},
    )
    world = inventory(odcr("cr-1", total=2, free=free), groups={GROUP: ["cr-1"]})
    result = planned(world, successor("a"), successor("b"), entitlements=entitlements)
    assert chosen(result) == dict.fromkeys(launched, f"{AT}cr-1")
    assert refusals(result) == {name: "AwaitsReplaced" for name in ("a", "b") if name not in launched}


@pytest.mark.parametrize(
    ("scope", "class_"),
    [
        (Scope("pool", f"{AT}cr-1"), ErrorClass.CAPACITY),
        (Scope("reservation", "cr-1"), ErrorClass.RESERVATION_GONE),
        (Scope("subnet", "subnet-a"), ErrorClass.SUBNET),
    ],
)
def test_slot_that_ec2_refused_is_kept_and_not_asked_for_again(scope: Scope, class_: ErrorClass) -> None:
    short = Shortages().record(scope, class_=class_, code="Refused", now=NOW)
    rival = claim("rival", kinds=("reserved",), priority=1000)
    result = planned(group(1), successor(), rival, shortages=short)
    assert not chosen(result) and refusals(result)["next"] == BACKING_OFF
    waits = next(item for item in result.unplaced if item.claim.name == "next")
    assert waits.retry_at == next(iter(short.by_scope.values())).until and "is kept for it" in waits.message


@pytest.mark.parametrize("interruptible", [True, False])
def test_slot_that_its_owner_takes_back_is_not_kept(interruptible: bool) -> None:
    world = inventory(odcr("cr-1", interruptible=interruptible), groups={GROUP: ["cr-1"]})
    gone = Shortages().record(
        Scope("reservation", "cr-1"), class_=ErrorClass.RESERVATION_GONE, code="Unavailable", now=NOW
    )
    placed = chosen(planned(world, successor(), shortages=gone))
    assert [place.startswith("on-demand:") for place in placed.values()] == [True] * interruptible


def test_holds_of_a_gang_end_together_with_the_last() -> None:
    rival = claim("rival", kinds=("reserved",), priority=1000)
    for last in (None, NOW + HOLD):
        gang = [
            successor("g-1", "cr-1", gang="g", until=NOW - HOLD),
            successor("g-2", "cr-2", gang="g", until=last),
        ]
        assert not chosen(planned(group(1, 0), *gang, rival)), last
    gang = [successor(f"g-{n}", f"cr-{n}", gang="g", until=NOW) for n in (1, 2)]
    assert "rival" in chosen(planned(group(1, 0), *gang, rival))


def test_member_of_a_gang_without_a_slot_launches_beside_those_that_have_one() -> None:
    gang = [successor(f"g-{n}", f"cr-{n}", gang="g", gang_size=3, until=None) for n in (1, 2)]
    outside = claim("g-3", kinds=KINDS, gang="g", gang_size=3)
    result = planned(group(0, 0), *gang, outside)
    assert chosen(result)["g-3"].startswith("on-demand:")
    assert refusals(result) == {"g-1": "AwaitsReplaced", "g-2": "AwaitsReplaced"}


def test_slot_left_to_another_launcher_is_not_that_of_a_node_that_is_gone() -> None:
    """Its node may not even have ended: the free slot is the one that the successor's node left."""
    world = replace(group(1), left={"cr-1": 1})
    assert chosen(planned(world, successor())) == {"next": f"{AT}cr-1"}
    assert refusals(planned(world, successor(until=None))) == {"next": "AwaitsReplaced"}
