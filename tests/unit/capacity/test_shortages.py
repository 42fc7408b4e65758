"""Remembered refusals: their length, their end, and the options that they block."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.inventory import Inventory
from broker.capacity.model import Option
from broker.capacity.shortages import CAP, FIRST, MEMORY, Scope, Shortages, quota_family, quota_scope
from providers.errors import ErrorClass
from providers.odcr_states import OdcrState

from .builders import GROUP, NOW, inventory, minutes, odcr, on_demand, reserved, spot

POOL = Scope("pool", "on-demand:m5.xlarge:us-east-1a")
RESERVATION = Scope("reservation", "cr-1")
CAPACITY, FULL, GONE = ErrorClass.CAPACITY, ErrorClass.RESERVATION_FULL, ErrorClass.RESERVATION_GONE


def short(
    scope: Scope = POOL,
    *,
    class_: ErrorClass = CAPACITY,
    now: datetime = NOW,
    free: int = 0,
    known: Shortages | None = None,
) -> Shortages:
    return (known or Shortages()).record(scope, class_=class_, code="Code", now=now, free=free)


def described(free: int, *, at: datetime) -> Inventory:
    return inventory(odcr("cr-1", total=9, free=free), described=at)


@pytest.mark.covers("KRP-19")
def test_a_shortage_lasts_three_minutes_and_doubles_up_to_thirty_while_it_repeats() -> None:
    known, now, lasted = Shortages(), NOW, []
    for _ in range(6):
        known = short(known=known, now=now)
        shortage = known.get(POOL, now)
        assert shortage is not None
        lasted.append(shortage.until - now)
        assert known.get(POOL, shortage.until - timedelta(seconds=1)) is not None
        assert known.get(POOL, shortage.until) is None
        now = shortage.until
    assert lasted == [minutes(count) for count in (3, 6, 12, 24, 30, 30)]


@pytest.mark.covers("FLT-50")
@pytest.mark.parametrize("scope", [POOL, RESERVATION, quota_scope(on_demand().pool)])
@pytest.mark.parametrize("class_", [CAPACITY, FULL, ErrorClass.QUOTA, ErrorClass.NOT_OFFERED])
def test_a_shortage_is_as_old_as_its_first_refusal(scope: Scope, class_: ErrorClass) -> None:
    known, now = Shortages(), NOW
    for _ in range(8):
        known = short(scope, known=known, class_=class_, now=now)
        shortage = known.by_scope[scope]
        assert (shortage.since, shortage.last) == (NOW, now)
        now = shortage.until + timedelta(seconds=30)
    # A launch ends it; so does a time without a request that is longer than its back-off.
    back_off = shortage.until - shortage.last
    late = shortage.until + back_off + timedelta(seconds=1)
    assert short(scope, known=known, class_=class_, now=late).by_scope[scope].since == late
    cleared = known.succeeded([scope])
    assert short(scope, known=cleared, class_=class_, now=now).by_scope[scope].since == now


@pytest.mark.covers("FLT-50")
def test_another_code_and_a_free_slot_between_keep_the_beginning() -> None:
    known = short(RESERVATION, class_=FULL)
    known = known.observed(described(1, at=NOW + minutes(1)), NOW + minutes(1))
    assert known.get(RESERVATION, NOW + minutes(1)) is None
    known = short(RESERVATION, known=known, class_=GONE, now=NOW + minutes(2), free=1)
    assert known.by_scope[RESERVATION].since == NOW


@pytest.mark.covers("KRP-19")
def test_a_repeat_long_after_the_last_one_starts_over() -> None:
    known = short(known=short(), now=NOW + FIRST + MEMORY)
    shortage = known.get(POOL, NOW + FIRST + MEMORY)
    assert shortage is not None
    assert shortage.until == NOW + FIRST + MEMORY + FIRST


@pytest.mark.covers("KRP-19")
def test_answers_to_calls_made_before_the_refusal_do_not_lengthen_it() -> None:
    known = short()
    for seconds in (0, 1, 100):
        known = short(known=known, now=NOW + timedelta(seconds=seconds))
    shortage = known.get(POOL, NOW)
    assert shortage is not None
    assert shortage.until == NOW + FIRST


def test_a_refusal_for_a_reason_that_lasts_longer_takes_over() -> None:
    known = short(known=short(), class_=ErrorClass.NOT_OFFERED, now=NOW + minutes(1))
    shortage = known.get(POOL, NOW + minutes(5))
    assert shortage is not None
    assert shortage.class_ is ErrorClass.NOT_OFFERED


@pytest.mark.parametrize(
    ("class_", "length"),
    [
        (CAPACITY, minutes(3)),
        (FULL, minutes(3)),
        (GONE, minutes(3)),
        (ErrorClass.SUBNET, minutes(3)),
        (ErrorClass.QUOTA, minutes(15)),
        (ErrorClass.NOT_OFFERED, timedelta(hours=6)),
        (ErrorClass.UNSUPPORTED, minutes(3)),
        (ErrorClass.SPREAD_FULL, minutes(3)),
    ],
)
@pytest.mark.covers("KRP-18")
def test_each_class_has_its_own_length(class_: ErrorClass, length: timedelta) -> None:
    shortage = short(class_=class_).get(POOL, NOW)
    assert shortage is not None
    assert shortage.until - NOW == length


@pytest.mark.covers("KRP-18", "KRP-19")
def test_unsupported_launch_in_a_reservation_is_retried_soon() -> None:
    """Its type is offered there: the request was invalid and may be corrected, and the slots are paid for."""
    known = short(RESERVATION, class_=ErrorClass.NOT_OFFERED, free=2)
    for length in (3, 6, 12, 24, 30, 30):
        shortage = known.by_scope[RESERVATION]
        assert shortage.until - shortage.last == minutes(length)
        known = short(RESERVATION, known=known, class_=ErrorClass.NOT_OFFERED, free=2, now=shortage.until)


@pytest.mark.covers("KRP-19")
def test_success_ends_a_shortage_and_doubling_starts_over() -> None:
    twice = short(known=short(), now=NOW + FIRST)
    cleared = twice.succeeded([POOL])
    assert cleared.get(POOL, NOW + FIRST) is None
    again = short(known=cleared, now=NOW + minutes(5)).get(POOL, NOW + minutes(5))
    assert again is not None
    assert again.until == NOW + minutes(5) + FIRST


@pytest.mark.covers("KRP-19")
@pytest.mark.parametrize(
    ("class_", "free_then", "free_now", "described_after", "ended"),
    [
        (FULL, 0, 1, 1, True),
        (FULL, 3, 1, 1, True),  # EC2 reported it as full, against the older description
        (FULL, 0, 0, 1, False),
        (FULL, 0, 1, 0, False),  # the description is no newer than the refusal
        (FULL, 0, 1, -1, False),
        (CAPACITY, 2, 2, 1, False),  # it showed room then as well and still refused
        (CAPACITY, 2, 3, 1, True),
        (GONE, 2, 2, 1, False),
        (ErrorClass.NOT_OFFERED, 2, 2, 1, False),
    ],
)
def test_a_reservations_shortage_ends_at_once_when_ec2_reports_free_slots(
    class_: ErrorClass, free_then: int, free_now: int, described_after: int, ended: bool
) -> None:
    known = short(RESERVATION, class_=class_, free=free_then)
    seen = known.observed(described(free_now, at=NOW + minutes(described_after)), NOW + minutes(2))
    assert (seen.get(RESERVATION, NOW + minutes(2)) is None) == ended


@pytest.mark.covers("KRP-19")
def test_slots_that_went_and_came_back_end_a_shortage() -> None:
    known = short(RESERVATION, free=2)
    known = known.observed(described(0, at=NOW + minutes(1)), NOW + minutes(1))
    assert known.get(RESERVATION, NOW + minutes(1)) is not None
    known = known.observed(described(2, at=NOW + minutes(2)), NOW + minutes(2))
    assert known.get(RESERVATION, NOW + minutes(2)) is None


@pytest.mark.covers("KRP-19")
def test_slots_of_launches_not_yet_described_do_not_end_a_shortage() -> None:
    known = short(RESERVATION, class_=FULL)
    world = inventory(odcr("cr-1", free=1), described=NOW + minutes(1), debits={"cr-1": 1})
    assert known.observed(world, NOW + minutes(1)).get(RESERVATION, NOW + minutes(1)) is not None


@pytest.mark.covers("KRP-19")
def test_reservation_that_shows_room_but_keeps_refusing_backs_off() -> None:
    known, now = Shortages(), NOW
    for step in range(4):
        known = short(RESERVATION, class_=FULL, known=known, now=now)
        shortage = known.get(RESERVATION, now)
        assert shortage is not None
        assert shortage.step == step
        now += minutes(1)
        known = known.observed(described(1, at=now), now)
        assert known.get(RESERVATION, now) is None


@pytest.mark.covers("KRP-19")
def test_slots_that_are_shown_and_refused_each_time_are_believed_once() -> None:
    """EC2's description and its launches disagree for an hour. The reservation is requested at 0, once
    more after the first description, and then only after doubling waits."""
    known, requested_at = Shortages(), []
    for second in range(0, 3600, 30):
        now = NOW + timedelta(seconds=second)
        known = known.observed(described(4, at=now), now)
        if known.get(RESERVATION, now) is None:
            requested_at.append(second / 60)
            known = short(RESERVATION, class_=FULL, now=now, free=4, known=known)
    assert requested_at == [0, 0.5, 6.5, 18.5, 42.5]


@pytest.mark.covers("KRP-19")
def test_slots_end_a_repeated_shortage_if_none_misled_before() -> None:
    later = NOW + minutes(3)
    known = short(RESERVATION, class_=FULL, free=2)
    known = short(RESERVATION, class_=FULL, free=2, known=known, now=later)
    known = known.observed(described(2, at=later + minutes(1)), later + minutes(1))
    assert known.get(RESERVATION, later + minutes(1)) is None


@pytest.mark.covers("KRP-19")
def test_expired_shortage_is_not_ended_again_by_slots() -> None:
    known = short(RESERVATION, class_=FULL)
    known = known.observed(described(1, at=NOW + minutes(20)), NOW + minutes(20))
    again = short(RESERVATION, class_=FULL, known=known, now=NOW + minutes(40))
    assert again.by_scope[RESERVATION].step == 0  # more than half an hour after the first ended


@pytest.mark.covers("KRP-19")
@pytest.mark.parametrize("state", ["cancelled", "expired", "scheduled"])
def test_reservation_that_is_not_active_is_not_short(state: OdcrState) -> None:
    """No launch names it, so a time of the next try would be wrong."""
    known, later = short(RESERVATION, class_=GONE), NOW + minutes(1)
    over = inventory(odcr("cr-1", total=9, free=0, state=state), described=later)
    assert known.get(RESERVATION, later) and not known.observed(over, later).get(RESERVATION, later)


def test_other_scopes_do_not_end_by_a_description() -> None:
    known = short()
    assert known.observed(described(5, at=NOW + minutes(1)), NOW + minutes(1)).get(POOL, NOW + minutes(1))
    assert known.observed(Inventory(), NOW) is known


@pytest.mark.covers("KRP-19")
@pytest.mark.parametrize(
    ("recorded", "option", "is_short"),
    [
        ([POOL], on_demand(), True),
        ([POOL], on_demand("m5.large"), False),
        ([POOL], on_demand(zone="us-east-1b"), False),
        ([POOL], spot("m5.xlarge"), False),
        ([POOL], reserved("cr-1"), False),
        ([RESERVATION], reserved("cr-1"), True),
        ([RESERVATION], reserved("cr-2"), False),
        ([RESERVATION], reserved(GROUP, "cr-1"), True),
        ([RESERVATION], reserved(GROUP, "cr-1", "cr-2"), False),
        ([RESERVATION, Scope("reservation", "cr-2")], reserved(GROUP, "cr-1", "cr-2"), True),
        ([RESERVATION], reserved("", "cr-1", "cr-2"), False),
        ([RESERVATION], on_demand(), False),
        ([Scope("quota", "on-demand:standard")], on_demand("c5.large"), True),
        ([Scope("quota", "on-demand:standard")], on_demand("p5.48xlarge"), False),
        ([Scope("quota", "on-demand:standard")], reserved("cr-1"), False),
        ([Scope("subnet", "subnet-1")], on_demand(), False),
        ([Scope("subnet", "subnet-1"), Scope("subnet", "subnet-2")], on_demand(), True),
    ],
)
def test_shortage_blocks_its_options(recorded: list[Scope], option: Option, is_short: bool) -> None:
    known = Shortages()
    for scope in recorded:
        known = short(scope, known=known)
    shortage = known.active(option, NOW, subnet_ids=["subnet-1", "subnet-2"])
    assert (shortage is not None) == is_short
    assert known.active(option, NOW + FIRST, subnet_ids=["subnet-1", "subnet-2"]) is None


def test_first_ending_reservation_and_last_ending_reason_decide() -> None:
    known = short(RESERVATION)
    known = short(Scope("reservation", "cr-2"), known=known, now=NOW + minutes(1))
    group = reserved(GROUP, "cr-1", "cr-2")
    shortage = known.active(group, NOW + minutes(1))
    assert shortage is not None
    assert shortage.scope == RESERVATION
    known = short(quota_scope(group.pool), class_=ErrorClass.QUOTA, known=known, now=NOW + minutes(1))
    shortage = known.active(group, NOW + minutes(1))
    assert shortage is not None
    assert shortage.scope.kind == "quota"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("m5.large", "standard"),
        ("c7gn.large", "standard"),
        ("t3.micro", "standard"),
        ("i4i.large", "standard"),
        ("g5.xlarge", "g"),
        ("gr6.4xlarge", "g"),
        ("vt1.3xlarge", "g"),
        ("is4gen.large", "standard"),
        ("p5.48xlarge", "p"),
        ("trn2.48xlarge", "trn"),
        ("inf2.xlarge", "inf"),
        ("x2idn.32xlarge", "x"),
        ("u-6tb1.metal", "u"),
        ("hpc7a.96xlarge", "hpc"),
    ],
)
def test_vcpu_limits_are_counted_by_ec2s_groups_of_families(name: str, family: str) -> None:
    assert quota_family(name) == family


def test_current_shortages_have_a_fixed_order() -> None:
    known = short(RESERVATION, class_=FULL, known=short())
    assert [str(shortage.scope) for shortage in known.lasting(NOW + minutes(1))] == [
        "pool:on-demand:m5.xlarge:us-east-1a",
        "reservation:cr-1",
    ]
    assert [*known.lasting(NOW + FIRST)] == []


def test_old_shortages_are_forgotten() -> None:
    known = short()
    later = short(Scope("subnet", "subnet-1"), known=known, now=NOW + FIRST + MEMORY)
    assert list(later.by_scope) == [Scope("subnet", "subnet-1")]


_scopes = st.sampled_from([POOL, RESERVATION, Scope("subnet", "subnet-1"), Scope("quota", "spot:p")])
_classes = st.sampled_from(
    [CAPACITY, FULL, GONE, ErrorClass.SUBNET, ErrorClass.QUOTA, ErrorClass.NOT_OFFERED]
)
_steps = st.one_of(
    st.tuples(st.just("refused"), _scopes, _classes),
    st.tuples(st.just("succeeded"), _scopes, _classes),
    st.tuples(st.just("described"), st.integers(0, 3), st.just(None)),
    st.tuples(st.just("later"), st.integers(1, 2000), st.just(None)),
)


@pytest.mark.covers("KRP-19")
@given(st.lists(_steps, max_size=30))
def test_shortage_length_is_bounded_by_class_and_step(
    steps: list[tuple[str, object, ErrorClass | None]],
) -> None:
    known, now = Shortages(), NOW
    for event, about, class_ in steps:
        if event == "later":
            assert isinstance(about, int)
            now += timedelta(seconds=about)
        elif event == "described":
            assert isinstance(about, int)
            known = known.observed(described(about, at=now), now)
        elif event == "succeeded":
            assert isinstance(about, Scope)
            known = known.succeeded([about])
            assert known.get(about, now) is None
        else:
            assert isinstance(about, Scope) and class_ is not None
            before = known.get(about, now)
            known = known.record(about, class_=class_, code="Code", now=now)
            after = known.get(about, now)
            assert after is not None
            if before is not None:
                assert after.until >= before.until
        for shortage in known.lasting(now):
            length = shortage.until - shortage.last
            assert shortage.since <= shortage.last <= now
            fixed = shortage.class_ in (ErrorClass.QUOTA, ErrorClass.NOT_OFFERED)
            if not fixed or shortage.scope.kind == "reservation":
                assert length == min(CAP, FIRST * 2**shortage.step)


@pytest.mark.covers("KRP-19")
def test_last_resort_is_requested_after_three_minutes_and_then_every_six() -> None:
    known, now, waits = Shortages(), NOW, []
    for _ in range(6):
        known = short(known=known, now=now)
        shortage = known.by_scope[POOL]
        option = on_demand()
        assert known.active(option, shortage.next_try - timedelta(seconds=1), last_resort=True) == shortage
        assert known.active(option, shortage.next_try, last_resort=True) is None
        waits.append((shortage.next_try - now, shortage.until - now))
        now = shortage.next_try
    assert waits == [(minutes(min(6, length)), minutes(length)) for length in (3, 6, 12, 24, 30, 30)]


@pytest.mark.covers("KRP-19")
@pytest.mark.parametrize(
    ("scope", "class_"),
    [
        (RESERVATION, FULL),
        (quota_scope(on_demand().pool), ErrorClass.QUOTA),
        (POOL, ErrorClass.NOT_OFFERED),
    ],
)
def test_shortage_that_a_request_does_not_end_is_no_last_resort(scope: Scope, class_: ErrorClass) -> None:
    known = Shortages()
    for _ in range(3):
        now = NOW if scope not in known.by_scope else known.by_scope[scope].until
        known = short(scope, class_=class_, known=known, now=now)
    assert known.by_scope[scope].next_try == known.by_scope[scope].until
