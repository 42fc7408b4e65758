"""EventBridge's messages: each shape that AWS documents, and everything else without a guess."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.notices import parse
from providers.notices import Notice, NoticeKind
from tests.support import events

ONE, OTHER, CR = "i-0123456789abcdef0", "i-0fedcba9876543210", "cr-0123456789abcdef0"


@pytest.mark.parametrize(
    ("body", "kind", "instances", "reservations"),
    [
        (events.spot_interruption(ONE), NoticeKind.SPOT_INTERRUPTION, (ONE,), ()),
        (events.rebalance(ONE), NoticeKind.REBALANCE, (ONE,), ()),
        (events.reservation_interruption(ONE), NoticeKind.RESERVATION_INTERRUPTION, (ONE,), ()),
        (
            events.reservation_interruption(ONE, word="Interruptible "),
            NoticeKind.RESERVATION_INTERRUPTION,
            (ONE,),
            (),
        ),
        (events.block_interruption(ONE), NoticeKind.BLOCK_EXPIRATION, (ONE,), ()),
        (events.block_expiration(CR), NoticeKind.BLOCK_EXPIRATION, (), (CR,)),
        (events.block_expiration(CR, word=""), NoticeKind.BLOCK_EXPIRATION, (), (CR,)),
        (events.health(ONE, OTHER), NoticeKind.SCHEDULED_CHANGE, (ONE, OTHER), ()),
        (events.health(ONE, category="issue"), NoticeKind.OTHER, (), ()),
        (events.health(ONE, service="RDS"), NoticeKind.OTHER, (), ()),
        (events.health("vol-1", ONE), NoticeKind.SCHEDULED_CHANGE, (ONE,), ()),
        (events.state_change(ONE, "stopping"), NoticeKind.STOPPED, (ONE,), ()),
        (events.state_change(ONE, "stopped"), NoticeKind.STOPPED, (ONE,), ()),
        (events.state_change(ONE, "shutting-down"), NoticeKind.TERMINATED, (ONE,), ()),
        (events.state_change(ONE, "terminated"), NoticeKind.TERMINATED, (ONE,), ()),
        (events.state_change(ONE, "running"), NoticeKind.OTHER, (ONE,), ()),
        (
            events.event("EC2 Capacity Reservation Delayed", {"capacity-reservation-id": CR}),
            NoticeKind.RESERVATION_CHANGED,
            (),
            (CR,),
        ),
        (
            events.event("EC2 Interruptible Capacity Reservation Allocation Reclamation Completed", {}),
            NoticeKind.RESERVATION_CHANGED,
            (),
            (),
        ),
        (events.event("EC2 AMI State Change", {}), NoticeKind.OTHER, (), ()),
    ],
)
def test_each_notice_format_is_read(
    body: str, kind: NoticeKind, instances: tuple[str, ...], reservations: tuple[str, ...]
) -> None:
    notice = parse(body)
    assert (notice.kind, notice.instance_ids, notice.reservation_ids) == (kind, instances, reservations)
    assert notice.at == events.AT


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "detail-type, source and detail"),
        (events.event("EC2 Spot Instance Interruption Warning", None), "detail-type, source and detail"),
        (events.event("EC2 Spot Instance Interruption Warning", {}), "detail.instance-id is None"),
        (
            events.event("EC2 Spot Instance Interruption Warning", {"instance-id": 7}),
            "detail.instance-id is 7",
        ),
        (events.block_expiration("lab"), "detail.capacity-reservation-id is 'lab'"),
        (
            events.event(
                "AWS Health Event",
                {"service": "EC2", "eventTypeCategory": "scheduledChange"},
                source="aws.health",
            ),
            "affectedEntities",
        ),
    ],
)
def test_an_invalid_notice_is_reported(body: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(body)
    assert words in str(caught.value)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.sampled_from([ONE, CR]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "detail-type",
                    "source",
                    "detail",
                    "time",
                    "instance-id",
                    "state",
                    "service",
                    "eventTypeCategory",
                    "affectedEntities",
                ]
            ),
            inner
            | st.sampled_from(["aws.ec2", "aws.health", "AWS Health Event", "EC2", "scheduledChange"])
            | st.just("EC2 Instance State-change Notification"),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(values)
def test_any_json_is_a_notice_or_a_problem(value: object) -> None:
    try:
        assert isinstance(parse(json.dumps(value)), Notice)
    except ValueError as error:
        assert str(error)
