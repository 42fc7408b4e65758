"""A pod that insists on a reserved slot, in a NodePool that also buys on demand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis import names
from broker.oncall.pod_reports import FAILED
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import P5
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import bound, claims, pods, pool, start


@pytest.mark.covers("ONC-01", "FLT-52")
def test_pod_that_takes_reserved_slots_only_is_told_which_are_full(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr)
    pool(stack)
    start(stack)
    chosen = {"nodeSelector": {names.CAPACITY_TYPE: RESERVED}}
    pods(stack, 2, cpu="1500m", spec=chosen)
    event = stack.until_event("p-1", FAILED, kind="Pod", text="no free slot")
    assert odcr in event.message and "didn't match" not in event.message
    stack.passes()
    assert len(claims(stack)) == 1


@pytest.mark.covers("KRP-38", "SAF-10")
def test_plain_pods_do_not_wait_for_the_block_of_a_pod_with_accelerators(stack: Stack) -> None:
    slots = stack.aws.odcr(count=2)
    block = stack.aws.capacity_block(starts=timedelta(minutes=3), state="scheduled")
    stack.node_class(group=stack.aws.group(slots, block), zones=(A,))
    types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large", P5]}
    both = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND]}
    pool(stack, template={"requirements": [both, types]})
    pods(stack, 1, "large", cpu="64")
    plain = pods(stack, 3, "plain", cpu="1500m")  # the third one has a machine outside
    start(stack)
    stack.until(lambda: bound(stack, plain), "the plain pods run", step=0.2)
    (waiting,) = [claim for claim in claims(stack) if "large-0" in claim.annotations[names.PODS]]
    assert waiting.annotations[names.PODS] == "default/large-0"
    stack.until_waiting(waiting.name, "ReservationPending")
