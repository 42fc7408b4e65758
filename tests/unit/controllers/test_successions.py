"""Ends of claims that wait for a decision about their successor."""

from __future__ import annotations

from datetime import timedelta

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.successions import LONGEST, Successions
from tests.support.clock import FakeClock


def test_a_claim_that_is_gone_is_forgotten_although_nothing_was_decided() -> None:
    metadata = {
        "name": "c-0",
        "uid": "u-0",
        "labels": {names.RESERVATION_ID: "cr-1"},
        "deletionTimestamp": "2026-03-01T03:00:00Z",
    }
    ending = NodeClaim.decode({"metadata": metadata, "status": {"providerID": "aws:///us-east-1a/i-1"}})
    successions, now = Successions(), FakeClock().now()
    late = now + LONGEST + timedelta(seconds=1)
    assert successions.undecided(ending, now)
    assert not successions.undecided(ending, late)
    successions.observe(ending, ending)
    assert not successions.undecided(ending, late)
    successions.observe(ending, None)
    assert successions.undecided(ending, late)  # as one that was never asked about
