"""Slots as a quota tree: the free slots of each queue, the order of victims, and no victims on their own
slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.quota.model import UNLIMITED, Policy, Preemption, QuotaCohort
from broker.quota.slot_model import Member, OwnedSlots, Promise, SlotHolder, SlotRequest
from broker.quota.slots import SlotTree

ANY: Policy = "Any"


def lot(owner: str, quota: int = 4, lend: int | None = None, **slots: int) -> OwnedSlots:
    places = {name.replace("_", "-"): count for name, count in slots.items()} or {f"cr-{owner}": quota}
    return OwnedSlots(owner=owner, flavor="f", slots=places, quota=quota, lending_limit=lend)


def member(
    name: str, *, reclaim: Policy = ANY, borrow: int | None = None, cohort: str = "ml", **more: object
) -> Member:
    rule = Preemption(reclaim=reclaim, **more)  # type: ignore[arg-type]
    return Member(name=name, cohort=cohort, borrowing_limit={"f": borrow}, preemption=rule)


def holder(name: str, queue: str, odcr_id: str = "cr-a", **more: object) -> SlotHolder:
    return SlotHolder(name=name, queue=queue, odcr_id=odcr_id, **more)  # type: ignore[arg-type]


def want(name: str = "w", queue: str = "a", *odcr_ids: str, priority: int = 0) -> SlotRequest:
    return SlotRequest(name=name, queue=queue, odcr_ids=odcr_ids or ("cr-a",), priority=priority)


def asked(slots: SlotTree, *wants: SlotRequest) -> list[str]:
    return [each.holder.name for each in slots.reclaim(wants)]


def test_slots_left_to_each_queue() -> None:
    held = [holder("own", "a"), holder("b0", "b"), holder("b1", "b")]
    slots = SlotTree([lot("a", lend=3)], [member("a"), member("b", borrow=3), member("c")], held)
    (made,) = slots.lots.values()
    assert (slots.quota(made), slots.room(made), slots.lendable(made)) == (3, 1, 1)
    assert (slots.borrowable("b", "f"), slots.borrowable("c", "f")) == (1, UNLIMITED)
    assert slots.borrowable("b", "another") == 0
    assert slots.peers("b") == {"a", "b", "c"}


@pytest.mark.covers("OME-040")
def test_queue_without_borrowing_still_lends() -> None:
    slots = SlotTree([lot("a")], [Member(name="a", cohort="ml"), member("b")], [])
    assert slots.peers("a") == frozenset()
    assert slots.lendable(slots.lots["a", "f"]) == 4
    nothing = SlotTree([lot("a")], [member("a", borrow=0), member("b")], [])
    assert (nothing.peers("a"), nothing.borrowable("a", "f")) == (frozenset(), 0)
    some = SlotTree([lot("a", lend=2)], [member("a"), member("b")], [holder("b0", "b")])
    assert some.lendable(some.lots["a", "f"]) == 1


@pytest.mark.covers("OME-036", "OME-048")
@pytest.mark.parametrize(("limit", "expected"), [(1, []), (2, ["b0"])])
def test_no_victim_if_one_slot_would_need_two(limit: int, expected: Sequence[str]) -> None:
    """One of its own for its limit, and another for the slot."""
    c = Member(
        name="c",
        cohort="ml",
        borrowing_limit={"f": limit},
        preemption=Preemption(reclaim=ANY, within="LowerPriority", borrow="LowerPriority"),
    )
    held = [holder("c0", "c", "cr-a"), holder("b0", "b", "cr-x")]
    slots = SlotTree([lot("a", 2, cr_a=1, cr_x=1)], [member("a"), member("b"), c], held)
    assert asked(slots, want("w", "c", "cr-x", priority=9)) == expected


@pytest.mark.covers("OME-046", "OME-053")
@pytest.mark.parametrize("reach", [("cr-a", "cr-x"), ("cr-x", "cr-a")])
def test_of_several_places_that_are_lent_the_least_important_comes_back(reach: tuple[str, ...]) -> None:
    held = [holder("high", "b", "cr-a", priority=5), holder("low", "b", "cr-x")]
    slots = SlotTree([lot("a", 2, cr_a=1, cr_x=1)], [member("a"), member("b")], held)
    assert asked(slots, want("w", "a", *reach)) == ["low"]


def test_quota_beyond_the_hardware_entitles_to_no_more_than_there_is() -> None:
    slots = SlotTree([lot("a", 4, cr_a=2)], [member("a"), member("b")], [holder("b0", "b")])
    assert slots.quota(slots.lots["a", "f"]) == 2
    assert asked(slots, want("w0"), want("w1"), want("w2")) == ["b0"]


@pytest.mark.covers("OME-046", "OME-047", "OME-053")
@pytest.mark.parametrize(
    ("rule", "priority", "expected"),
    [
        ("Any", 0, ["low-new", "low-old", "high"]),
        ("LowerPriority", 5, ["low-new", "low-old"]),
        ("LowerPriority", 0, []),
        ("Never", 9, []),
    ],
)
def test_order_of_victims(rule: Policy, priority: int, expected: Sequence[str]) -> None:
    held = [
        holder("high", "b", priority=5, since=1.0),
        holder("low-old", "b", since=1.0),
        holder("low-new", "b", since=2.0),
    ]
    slots = SlotTree([lot("a", 3)], [member("a", reclaim=rule), member("b")], held)
    assert asked(slots, *(want(f"w{n}", priority=priority) for n in range(3))) == expected


@pytest.mark.parametrize("non_preemptible", [False, True], ids=["", "though it might not be asked"])
def test_terminating_holder_or_free_slot_needs_no_victim(non_preemptible: bool) -> None:
    held = [holder("b0", "b", terminating=True, non_preemptible=non_preemptible), holder("b1", "b")]
    members = [member("a"), member("b")]
    assert asked(SlotTree([lot("a", 2)], members, held), want()) == []
    assert asked(SlotTree([lot("a", 2)], members, held), want(), want("more")) == ["b1"]
    assert asked(SlotTree([lot("a", 3)], members, held), want(), want("more")) == []


def test_a_cluster_is_promised_of_others_no_more_than_its_queue_may_borrow() -> None:
    promise = Promise(cluster="x", queue="b", flavor="f", count=2)
    slots = SlotTree([lot("a")], [member("a"), member("b", borrow=1)], [], promises=[promise])
    assert slots.lendable(slots.lots["a", "f"]) == 3


def test_only_slots_that_the_claim_can_use_are_taken_back() -> None:
    held = [holder("here", "b", "cr-a", priority=9), holder("there", "b", "cr-z")]
    slots = SlotTree([lot("a", 2, cr_a=1, cr_z=1)], [member("a"), member("b")], held)
    assert asked(slots, want()) == ["here"]


def test_non_preemptible_holders_and_other_cohorts_are_no_victims() -> None:
    held = [holder("spared", "b", non_preemptible=True), holder("far", "x"), holder("none", "")]
    slots = SlotTree([lot("a", 3)], [member("a"), member("b"), member("x", cohort="other")], held)
    assert asked(slots, want()) == []
    assert slots.takers(slots.lots["a", "f"]) == ()
    # Two of three have unattributed holders, one a non-preemptible holder.
    assert (slots.lots["a", "f"].slots, slots.room(slots.lots["a", "f"])) == ({"cr-a": 1}, 0)


def test_both_are_named_with_their_paths() -> None:
    slots = SlotTree([lot("a", 1)], [member("a"), member("b")], [holder("b0", "b")])
    (victim,) = slots.reclaim([want()])
    assert (victim.preemptor_path, victim.preemptee_path) == ("/ml/a", "/ml/b")
    assert str(victim.reason) == "InCohortReclamation"


def test_cycle_of_cohorts_entitles_no_queue_and_is_reported() -> None:
    ring = [QuotaCohort(name="ml", parent="top"), QuotaCohort(name="top", parent="ml")]
    slots = SlotTree([lot("a")], [member("a"), member("b")], [holder("b0", "b")], cohorts=ring)
    assert "cohorts form a cycle: ml → top → ml" in slots.inactive["a"]
    made = slots.lots["a", "f"]
    assert (slots.quota(made), slots.room(made), slots.lendable(made)) == (0, 0, 0)
    assert asked(slots, want()) == []


@settings(max_examples=300)
@given(st.data())
def test_holders_of_own_slots_are_no_victims_and_no_victim_is_in_vain(data: st.DataObject) -> None:
    few = st.integers(0, 3)
    queues = ("a", "b", "c")
    lots = [lot(queue, data.draw(few), **{f"cr_{queue}": data.draw(few)}) for queue in queues]
    held = []
    for one in lots:
        (place,) = one.slots
        for number in range(data.draw(st.integers(0, one.slots[place]))):
            held.append(
                holder(
                    f"{place}-{number}",
                    data.draw(st.sampled_from(queues)),
                    place,
                    priority=data.draw(few),
                    terminating=data.draw(st.booleans()),
                    non_preemptible=data.draw(st.booleans()),
                )
            )
    rules: dict[str, Policy] = {
        queue: data.draw(st.sampled_from(["Never", "LowerPriority", "Any"])) for queue in queues
    }
    slots = SlotTree(lots, [member(queue, reclaim=rules[queue]) for queue in queues], held)
    quota = {queue: slots.quota(slots.lots[queue, "f"]) for queue in queues}
    room = {queue: slots.room(slots.lots[queue, "f"]) for queue in queues}
    wants = [
        want(f"w{n}", queue := data.draw(st.sampled_from(queues)), f"cr-{queue}", priority=data.draw(few))
        for n in range(data.draw(st.integers(0, 5)))
    ]
    victims = slots.reclaim(wants)
    assert len({each.holder.name for each in victims}) == len(victims)
    for each in victims:
        owner = each.want.queue
        assert each.holder.odcr_id == f"cr-{owner}"
        assert each.holder.queue != owner
        assert not each.holder.non_preemptible
        assert not each.holder.terminating
        assert rules[owner] == "Any" or each.holder.priority < each.want.priority
    for queue in queues:
        asks = [each for each in wants if each.queue == queue]
        taken = [each for each in victims if each.want.queue == queue]
        leave = [each for each in held if each.odcr_id == f"cr-{queue}" and each.terminating]
        own = [each for each in leave if each.queue == queue]
        assert len(taken) <= max(0, min(len(asks), quota[queue]) - room[queue])
        assert len(taken) <= max(0, len(asks) - min(len(leave) - len(own), quota[queue])) or (
            rules[queue] != "Any"
        )
