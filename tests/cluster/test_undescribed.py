"""A reservation whose counts lack the newest instances, as EC2 may show it for a time."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import is_true
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_static_pools import FOLLOWS, own, quiet, static_pool


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_a_pool_of_all_slots_makes_no_node_beyond_them_while_ec2_shows_them_free(
    stack: Stack, sizes: tuple[int, ...]
) -> None:
    odcrs = [stack.aws.odcr(count=size) for size in sizes]
    stack.node_class("web", group=stack.aws.group(*odcrs))
    stack.start()
    stack.until(lambda: is_true(stack.get(EC2NodeClass, "web"), "Launchable"), "the class launches")
    stack.advance(4000)
    stack.control.lag(3600)
    stack.passes(1)
    static_pool(stack, annotations=FOLLOWS)
    stack.until(lambda: sum(bool(claim.status.provider_id) for claim in own(stack)) == 2, "two nodes launch")
    claims = sorted(claim.name for claim in own(stack))
    assert not any(names.CAPACITY_TYPE in claim.labels for claim in own(stack))
    assert {claim.annotations[names.LAUNCHED_INTO] for claim in own(stack)} == {*odcrs}
    quiet(stack, 100)
    assert sorted(claim.name for claim in stack.all(NodeClaim)) == claims
    stack.control.lag(0)
    quiet(stack, 60)
    assert sorted(claim.name for claim in stack.all(NodeClaim)) == claims


def test_no_launch_is_tried_in_a_slot_that_a_claim_holds_after_ec2_shows_it_free_again(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr)
    stack.start()
    stack.until_class("Launchable", "True")
    stack.advance(4000)
    stack.claim("first")
    stack.until_ready("first")
    stack.until_shown("first")
    stack.control.lag(3600)
    stack.advance(100)
    stack.passes()
    stack.claim("second", capacity=(RESERVED, ON_DEMAND))
    stack.until_ready("second")
    assert not stack.reservation_of("second")
    assert stack.calls("CreateFleet") == 2
