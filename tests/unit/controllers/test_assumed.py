"""An assumption counts from the action until a read shows it, and never twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.model import Assignment, Claim, Option, Plan, Pool, Unplaced
from broker.capacity.requirements import Requirements
from broker.controllers import assumed
from broker.controllers.assumed import AssumptionStore, Lifetime, expired
from broker.controllers.inventory import InventoryCache
from broker.controllers.slots.preemptor import Preemptor
from broker.kube.cache import Cache
from providers.model import Odcr
from tests.support.clock import FakeClock
from tests.support.examples import examples

NOW = datetime(2026, 11, 1, tzinfo=UTC)
HOUR, MINUTE, TICK = timedelta(hours=1), timedelta(minutes=1), timedelta.resolution


@pytest.mark.parametrize(
    ("lifetime", "age", "before", "after"),
    [
        (assumed.NEXT_READ, timedelta(0), False, True),
        (assumed.NEXT_READ, -TICK, False, False),
        (assumed.NEXT_READ, TICK, True, True),
        (assumed.LAST_ALIVE, HOUR - TICK, False, True),
        (assumed.LAST_ALIVE, HOUR, True, True),
        (assumed.PURCHASED, 5 * MINUTE - TICK, False, False),
        (assumed.PURCHASED, 5 * MINUTE, False, True),
        (assumed.PURCHASED, HOUR, True, True),
        (assumed.CHANGED, 5 * MINUTE - TICK, False, True),
        (assumed.CHANGED, 5 * MINUTE, True, True),
        (assumed.ENDED, MINUTE - TICK, False, True),
        (assumed.ENDED, MINUTE, True, True),
        (assumed.OPEN, 1000 * HOUR, False, True),
    ],
)
def test_assumption_expires_by_its_age_before_and_after_it_is_confirmed(
    lifetime: Lifetime, age: timedelta, before: bool, after: bool
) -> None:
    assert expired(lifetime, NOW, NOW + age) is before
    assert expired(lifetime, NOW, NOW + age, confirmed=True) is after


KEYS = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.sampled_from(("assume", "confirm", "forget")), KEYS),
    st.tuples(st.just("wait"), st.integers(1, 90)),
    st.tuples(st.just("read"), st.integers(0, 60)),  # a read that began so many minutes ago
)


@given(steps=st.lists(STEPS, max_size=30))
@examples(75)
def test_assumption_is_never_lost_before_it_is_confirmed_and_never_counted_twice(
    steps: Sequence[tuple[str, Any]],
) -> None:
    clock = FakeClock()
    table = AssumptionStore(clock).purchases
    done: dict[str, datetime] = {}
    shown: set[str] = set()
    for number, (step, value) in enumerate(steps):
        match step:
            case "assume":
                table.assume(value, Odcr(id=f"{number}", instance_type="t", zone="z", total=1, available=1))
                done[value] = clock.now()
                shown.discard(value)
            case "confirm":
                table.confirm({value})
                shown |= {value} & done.keys()
            case "forget":
                assert set(table.forget([value])) <= {value}
                done.pop(value, None)
                shown.discard(value)
            case "wait":
                clock.advance(60 * value)
            case "read":
                began = clock.now() - value * MINUTE
                table.expire(began)
                for key, at in [*done.items()]:
                    if began - at >= (5 * MINUTE if key in shown else HOUR):
                        del done[key]
                        shown.discard(key)
        assert table.values().keys() == done.keys()


class Ec2:
    """Describes one ODCR of eight slots, in which instances run."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def reservations(self) -> Sequence[Odcr]:
        free = 8 - len(self.running)
        return [Odcr(id="cr-1", instance_type="t", zone="z", total=8, available=free)]


class Endings(Ec2):
    """Instances that end, and are seen and reported late. A description answers between its own steps."""

    def __init__(self) -> None:
        super().__init__()
        self.running = {*"abcd"}
        self.clock = FakeClock()
        provider: Any = self
        self.cache = InventoryCache(provider, clock=self.clock, groups=tuple)
        self.seen: dict[str, tuple[bool, datetime]] = {}
        self.during: Sequence[Sequence[tuple[str, str]]] = ((), ())

    def reservations(self) -> Sequence[Odcr]:
        before, after = self.during
        self.all(before)
        answer = super().reservations()
        self.all(after)
        return answer

    def all(self, steps: Sequence[tuple[str, str]]) -> None:
        for step, instance in steps:
            self.clock.advance(1)
            if step == "end":
                self.running.discard(instance)
            elif step == "see":
                self.seen[instance] = instance in self.running, self.clock.now()
            elif instance in self.seen:
                alive, began = self.seen[instance]
                self.cache.ending(instance_id=instance, odcr_id="cr-1", alive=alive, began=began)


_ENDINGS = st.lists(st.tuples(st.sampled_from(("end", "see", "report")), st.sampled_from("abcd")), max_size=5)


@given(rounds=st.lists(st.tuples(_ENDINGS, _ENDINGS, _ENDINGS), max_size=6))
@examples(300)
@pytest.mark.covers("KRP-20")
def test_no_more_slots_are_free_than_in_ec2_however_late_an_end_is_reported(
    rounds: Sequence[tuple[Sequence[tuple[str, str]], ...]],
) -> None:
    ec2 = Endings()
    for between, *during in rounds:
        ec2.during = during
        ec2.cache.refresh()
        assert ec2.cache.snapshot().free("cr-1") <= 8 - len(ec2.running)
        ec2.all(between)
        assert ec2.cache.snapshot().free("cr-1") <= 8 - len(ec2.running)


@given(steps=st.lists(st.tuples(st.sampled_from(("launch", "end", "read")), st.integers(0, 7)), max_size=40))
@examples(75)
def test_free_slots_are_those_of_ec2_after_every_launch_end_and_description(
    steps: Sequence[tuple[str, int]],
) -> None:
    ec2: Any = Ec2()
    clock = FakeClock()
    cache = InventoryCache(ec2, clock=clock, groups=tuple)
    cache.refresh()
    for step, number in [*steps, ("read", 0)]:
        clock.advance(1)
        instance = f"i-{number}"
        if step == "launch" and instance not in ec2.running:
            ec2.running.add(instance)
            cache.launched(instance_id=instance, odcr_id="cr-1")
        elif step == "end" and instance in ec2.running:
            cache.ending(instance_id=instance, odcr_id="cr-1", alive=True, began=clock.now())
            ec2.running.discard(instance)
            cache.ending(instance_id=instance, odcr_id="cr-1", alive=False, began=clock.now())
        elif step == "read":
            cache.refresh()
        assert cache.snapshot().free("cr-1") == 8 - len(ec2.running)


def plan(*, launched: Sequence[str] = (), left: Sequence[str] = ()) -> Plan:
    def claim(uid: str) -> Claim:
        return Claim(uid=uid, name=uid, node_class="gpu", requirements=Requirements())

    pool = Pool(capacity_type="reserved", instance_type="t", zone="z", reservation="cr-1")
    option = Option(pool=pool, odcr_ids=("cr-1",))
    return Plan(
        assignments=tuple(Assignment(claim=claim(uid), option=option) for uid in launched),
        unplaced=tuple(Unplaced(claim=claim(uid), reason="r", message="m") for uid in left),
    )


def test_launch_holds_its_slot_until_its_result_is_known_and_counts_until_the_next_plan() -> None:
    store = AssumptionStore(FakeClock())
    store.planned(plan(launched=["a", "b"], left=["c"]))
    assert store.slots().in_slots == {"a": "cr-1", "b": "cr-1"}
    store.begin_pass({"b", "c"})  # `a` has its instance, the launch of `b` was refused
    assert store.slots().launches == {"b": ""} and not store.slots().in_slots
    store.planned(plan())
    assert store.slots().launches == {"b": ""}
    store.planned(plan(left=["b", "c"]))
    assert not store.slots().launches


def test_the_slot_of_a_deleted_claim_is_free_for_a_while() -> None:
    clock = FakeClock()
    store, claims = AssumptionStore(clock), Cache(NodeClaim)
    no_calls: Any = None
    Preemptor(no_calls, claims, store, recorder=no_calls, non_preemptible=no_calls, wake=lambda: None)
    body = {
        "metadata": {
            "name": "a",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {names.RESERVATION_ID: "cr-1"},
        },
        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
        "status": {"providerID": "aws:///a/i-1"},
    }
    claims.apply("ADDED", body)
    store.deleted.assume("u", None)
    claims.apply("DELETED", body)
    assert not store.deleted.values()
    assert store.ended.values() == {"u": "cr-1"}
    clock.advance(assumed.CONVERGENCE.total_seconds())
    store.ended.expire(clock.now())
    assert not store.ended.values()
