"""A claim's life: launched, joined, ready, drained, ended; what EC2 and Kubernetes show at each step."""

from __future__ import annotations

import pytest

from tests.cluster.stack import Stack


@pytest.mark.covers("KRP-05", "KRP-23")
def test_a_claim_by_id_gets_an_instance_in_that_reservation_and_a_node(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    assert stack.reservation_of("c-0") == odcr
