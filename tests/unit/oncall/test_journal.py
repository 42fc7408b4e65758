"""The record of attempts: every reader gets the written content, also through an annotation."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.oncall.journal import ON_CLAIM, Journal, dump, recorded
from providers.errors import ErrorClass

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
POOL = Pool(capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation="cr-1")
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


def attempt(**more: object) -> Attempt:
    base: dict[str, object] = {
        "claim": "train-0",
        "node_class": "by-id",
        "pool": POOL,
        "outcome": Outcome.REFUSED,
        "at": NOW,
    }
    return Attempt(**{**base, **more})  # type: ignore[arg-type]


def _claim(text: str) -> NodeClaim:
    return NodeClaim.decode(
        {
            "metadata": {"name": "train-0", "annotations": {names.ATTEMPTS: text}},
            "spec": {"nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "by-id"}},
        }
    )


POOLS = st.builds(
    Pool,
    capacity_type=st.sampled_from(["reserved", "on-demand", "spot"]),
    instance_type=st.sampled_from(["p5.48xlarge", "m5.large"]),
    zone=st.sampled_from(["us-east-1a", "us-east-1b"]),
    reservation=st.sampled_from(["", "cr-1", "arn:aws:resource-groups:us-east-1:123456789012:group/gpus"]),
    placement=st.sampled_from(["", "mpi", "dedicated,mpi"]),
)


@given(
    st.lists(
        st.builds(
            attempt,
            outcome=st.sampled_from(Outcome),
            code=TEXT,
            class_=st.none() | st.sampled_from(ErrorClass),
            message=TEXT,
            request_id=TEXT,
            next_step=TEXT,
            instance_id=TEXT,
            pool=POOLS,
            also=st.lists(POOLS, max_size=3).map(tuple),
            at=st.datetimes(datetime(300, 1, 1), datetime(9699, 12, 31), timezones=st.just(UTC)),
        ),
        max_size=30,
    )
)
def test_a_claim_carries_its_last_attempts(attempts: list[Attempt]) -> None:
    assert recorded(_claim(dump(attempts))) == attempts[-ON_CLAIM:]


@pytest.mark.parametrize(
    "text",
    [
        *["", "null", "{", "[{}]", '[{"pool": 1}]', '["x"]', "7", '{"a": []}'],
        *(
            f'[{{"pool":{pool},"outcome":"Launched","at":"2026-11-21T03:00:00Z"}}]'
            for pool in (
                '"spot:m5.large:us-east-1a"',
                '["spot","m5.large"]',
                '["borrowed","m5.large","us-east-1a"]',
            )
        ),
    ],
)
def test_an_edited_annotation_gives_no_attempts(text: str) -> None:
    assert recorded(_claim(text)) == []


def test_readers_get_each_attempt_once_and_in_order() -> None:
    received: list[Attempt] = []
    journal = Journal()
    journal.subscribe(received.append)
    attempts = [attempt(code=str(n)) for n in range(3)]
    for attempt_ in attempts:
        journal.write(attempt_)
    assert received == attempts
