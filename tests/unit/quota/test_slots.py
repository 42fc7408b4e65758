"""Slots as a quota tree: the free slots of each queue, the order of victims, and no victims on their own
slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.model import UNLIMITED, Policy, Preemption, QuotaCohort
from broker.quota.slot_model import Member, OwnedSlots, PendingSlots, SlotHolder, SlotRequest
from broker.quota.slots import SlotTree
from tests.support.examples import examples

ANY: Policy = "Any"


def owned_slots(owner: str, quota: int = 4, lend: int | None = None, **slots: int) -> OwnedSlots:
    places = {name.replace("_", "-"): count for name, count in slots.items()} or {f"cr-{owner}": quota}
    return OwnedSlots(owner=owner, flavor="f", slots=places, quota=quota, lending_limit=lend)


def member(
    name: str, *, reclaim: Policy = ANY, borrow: int | None = None, cohort: str = "ml", **more: object
) -> Member:
    rule = Preemption(reclaim=reclaim, **more)  # type: ignore[arg-type]
    return Member(name=name, cohort=cohort, borrowing_limit={"f": borrow}, preemption=rule)


def holder(name: str, queue: str, odcr_id: str = "cr-a", **more: object) -> SlotHolder:
    return SlotHolder(name=name, queue=queue, odcr_id=odcr_id, **more)  # type: ignore[arg-type]


def slot_request(name: str = "w", queue: str = "a", *odcr_ids: str, priority: int = 0) -> SlotRequest:
    return SlotRequest(name=name, queue=queue, odcr_ids=odcr_ids or ("cr-a",), priority=priority)


def victim_names(slots: SlotTree, *requests: SlotRequest) -> list[str]:
    return [victim.holder.name for victim in slots.reclaim(requests)]


def test_free_lendable_and_borrowable_slots_of_each_queue() -> None:
    held = [holder("own", "a"), holder("b0", "b"), holder("b1", "b")]
    slots = SlotTree([owned_slots("a", lend=3)], [member("a"), member("b", borrow=3), member("c")], held)
    (slot_pool,) = slots.owned_slots.values()
    assert (slots.quota(slot_pool), slots.room(slot_pool), slots.lendable(slot_pool)) == (3, 1, 1)
    assert (slots.borrowable("b", "f"), slots.borrowable("c", "f")) == (1, UNLIMITED)
    assert slots.borrowable("b", "another") == 0
    assert slots.peers("b") == {"a", "b", "c"}


@pytest.mark.covers("OME-040")
def test_queue_without_borrowing_still_lends() -> None:
    slots = SlotTree([owned_slots("a")], [Member(name="a", cohort="ml"), member("b")], [])
    assert slots.peers("a") == frozenset()
    assert slots.lendable(slots.owned_slots["a", "f"]) == 4
    nothing = SlotTree([owned_slots("a")], [member("a", borrow=0), member("b")], [])
    assert (nothing.peers("a"), nothing.borrowable("a", "f")) == (frozenset(), 0)
    partly = SlotTree([owned_slots("a", lend=2)], [member("a"), member("b")], [holder("b0", "b")])
    assert partly.lendable(partly.owned_slots["a", "f"]) == 1


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
    slots = SlotTree([owned_slots("a", 2, cr_a=1, cr_x=1)], [member("a"), member("b"), c], held)
    assert victim_names(slots, slot_request("w", "c", "cr-x", priority=9)) == expected


@pytest.mark.covers("OME-046", "OME-053")
@pytest.mark.parametrize("reach", [("cr-a", "cr-x"), ("cr-x", "cr-a")])
def test_least_important_of_several_lent_slots_is_reclaimed(reach: tuple[str, ...]) -> None:
    held = [holder("high", "b", "cr-a", priority=5), holder("low", "b", "cr-x")]
    slots = SlotTree([owned_slots("a", 2, cr_a=1, cr_x=1)], [member("a"), member("b")], held)
    assert victim_names(slots, slot_request("w", "a", *reach)) == ["low"]


def test_quota_beyond_the_hardware_entitles_to_the_hardware_only() -> None:
    slots = SlotTree([owned_slots("a", 4, cr_a=2)], [member("a"), member("b")], [holder("b0", "b")])
    assert slots.quota(slots.owned_slots["a", "f"]) == 2
    assert victim_names(slots, slot_request("w0"), slot_request("w1"), slot_request("w2")) == ["b0"]


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
def test_victims_are_ordered_by_priority_then_age(
    rule: Policy, priority: int, expected: Sequence[str]
) -> None:
    held = [
        holder("high", "b", priority=5, since=1.0),
        holder("low-old", "b", since=1.0),
        holder("low-new", "b", since=2.0),
    ]
    slots = SlotTree([owned_slots("a", 3)], [member("a", reclaim=rule), member("b")], held)
    assert victim_names(slots, *(slot_request(f"w{n}", priority=priority) for n in range(3))) == expected


@pytest.mark.parametrize("non_preemptible", [False, True], ids=["", "non-preemptible"])
def test_terminating_holder_or_free_slot_needs_no_victim(non_preemptible: bool) -> None:
    held = [holder("b0", "b", terminating=True, non_preemptible=non_preemptible), holder("b1", "b")]
    members = [member("a"), member("b")]
    assert victim_names(SlotTree([owned_slots("a", 2)], members, held), slot_request()) == []
    assert victim_names(
        SlotTree([owned_slots("a", 2)], members, held), slot_request(), slot_request("more")
    ) == ["b1"]
    assert (
        victim_names(SlotTree([owned_slots("a", 3)], members, held), slot_request(), slot_request("more"))
        == []
    )


def test_pending_slots_of_a_cluster_stay_within_its_queues_borrowing_limit() -> None:
    promise = PendingSlots(cluster="x", queue="b", flavor="f", count=2)
    slots = SlotTree([owned_slots("a")], [member("a"), member("b", borrow=1)], [], pending_slots=[promise])
    assert slots.lendable(slots.owned_slots["a", "f"]) == 3


def test_only_slots_that_the_claim_can_use_are_reclaimed() -> None:
    held = [holder("here", "b", "cr-a", priority=9), holder("there", "b", "cr-z")]
    slots = SlotTree([owned_slots("a", 2, cr_a=1, cr_z=1)], [member("a"), member("b")], held)
    assert victim_names(slots, slot_request()) == ["here"]


def test_non_preemptible_holders_and_other_cohorts_are_no_victims() -> None:
    held = [holder("protected", "b", non_preemptible=True), holder("far", "x"), holder("none", "")]
    slots = SlotTree([owned_slots("a", 3)], [member("a"), member("b"), member("x", cohort="other")], held)
    assert victim_names(slots, slot_request()) == []
    assert slots.victim_candidates(slots.owned_slots["a", "f"]) == ()
    # Two of three have unattributed holders, one a non-preemptible holder.
    assert (slots.owned_slots["a", "f"].slots, slots.room(slots.owned_slots["a", "f"])) == ({"cr-a": 1}, 0)


def test_victim_and_preemptor_are_named_with_their_paths() -> None:
    slots = SlotTree([owned_slots("a", 1)], [member("a"), member("b")], [holder("b0", "b")])
    (victim,) = slots.reclaim([slot_request()])
    assert (victim.preemptor_path, victim.preemptee_path) == ("/ml/a", "/ml/b")
    assert str(victim.reason) == "InCohortReclamation"


def test_cycle_of_cohorts_entitles_no_queue_and_is_reported() -> None:
    ring = [QuotaCohort(name="ml", parent="top"), QuotaCohort(name="top", parent="ml")]
    slots = SlotTree([owned_slots("a")], [member("a"), member("b")], [holder("b0", "b")], cohorts=ring)
    assert "cohorts form a cycle: ml → top → ml" in slots.inactive["a"]
    slot_pool = slots.owned_slots["a", "f"]
    assert (slots.quota(slot_pool), slots.room(slot_pool), slots.lendable(slot_pool)) == (0, 0, 0)
    assert victim_names(slots, slot_request()) == []


@examples(100)
@given(st.data())
def test_holders_of_own_slots_are_no_victims_and_every_victim_is_needed(data: st.DataObject) -> None:
    few = st.integers(0, 3)
    queues = ("a", "b", "c")
    owned = [owned_slots(queue, data.draw(few), **{f"cr_{queue}": data.draw(few)}) for queue in queues]
    held = []
    for reservation in owned:
        (place,) = reservation.slots
        for number in range(data.draw(st.integers(0, reservation.slots[place]))):
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
    slots = SlotTree(owned, [member(queue, reclaim=rules[queue]) for queue in queues], held)
    quota = {queue: slots.quota(slots.owned_slots[queue, "f"]) for queue in queues}
    room = {queue: slots.room(slots.owned_slots[queue, "f"]) for queue in queues}
    requests = [
        slot_request(
            f"w{n}", queue := data.draw(st.sampled_from(queues)), f"cr-{queue}", priority=data.draw(few)
        )
        for n in range(data.draw(st.integers(0, 5)))
    ]
    victims = slots.reclaim(requests)
    assert len({victim.holder.name for victim in victims}) == len(victims)
    for victim in victims:
        owner = victim.request.queue
        assert victim.holder.odcr_id == f"cr-{owner}"
        assert victim.holder.queue != owner
        assert not victim.holder.non_preemptible
        assert not victim.holder.terminating
        assert rules[owner] == "Any" or victim.holder.priority < victim.request.priority
    for queue in queues:
        queue_requests = [request for request in requests if request.queue == queue]
        taken = [victim for victim in victims if victim.request.queue == queue]
        terminating = [holder for holder in held if holder.odcr_id == f"cr-{queue}" and holder.terminating]
        own = [holder for holder in terminating if holder.queue == queue]
        assert len(taken) <= max(0, min(len(queue_requests), quota[queue]) - room[queue])
        assert len(taken) <= max(0, len(queue_requests) - min(len(terminating) - len(own), quota[queue])) or (
            rules[queue] != "Any"
        )
