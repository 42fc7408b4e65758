"""What a reclaim is decided by may be old: EC2's description, a rule, the preemptor. Nobody leaves by it.

Without lateness, `test_borrowing.py` shows the reclaims.
"""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.ome import CapacityReservation
from tests.cluster.ome.test_borrowing import (
    BORROWER,
    OWNER,
    claim,
    lending,
    owned,
    teams,
    terminating_claims,
)
from tests.cluster.stack import Stack


@pytest.mark.covers("CAP-09", "OME-032")
def test_slot_that_another_left_since_the_last_description_is_taken_before_anybody_is_evicted(
    stack: Stack,
) -> None:
    odcr = owned(stack, 2)
    teams(stack, 2)
    stack.node_class(id_=odcr)
    rivals = stack.aws.rival(odcr)
    stack.start(poll_seconds=3600)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.aws.ec2.terminate_instances(InstanceIds=rivals)
    stack.until(lambda: stack.aws.free(odcr) == 1, "the other's slot is free in EC2", step=1.0)
    claim(stack, "owner", OWNER)
    stack.until(lambda: stack.is_true("owner", names.LAUNCHED), "launched", step=1.0)
    stack.passes()
    assert stack.reservation_of("owner") == stack.reservation_of("borrower") == odcr
    assert not terminating_claims(stack)
    assert stack.claim_condition("borrower", names.PREEMPTED) is None


@pytest.mark.covers("CAP-09", "OME-032")
def test_owner_that_reclaims_no_more_while_the_watch_is_late_evicts_nobody(stack: Stack) -> None:
    watch = stack.tap.slow(CapacityReservation.KIND.path())
    lending(stack, 1)
    claim(stack, "borrower", BORROWER)
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    watch.clear()
    never = {"spec": {"preemptionRule": {"reclaimWithinCohort": "Never"}}}
    stack.client.patch(CapacityReservation.KIND, "training", never, namespace="default")
    claim(stack, "owner", OWNER)
    stack.until(lambda: stack.claim_condition("owner", names.LAUNCHED), "the owner's claim waits")
    stack.advance(10)
    stack.passes(4)
    assert not terminating_claims(stack)
    watch.set()
    stack.passes()
    assert not terminating_claims(stack)
