"""A pod that insists on a reserved slot, in a NodePool that also buys on demand."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.controllers.provisioning.report import FAILED
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_provisioning import claims, pods, pool, start


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
