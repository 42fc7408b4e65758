"""The reason of a claim that is bought outside the reservations of its class."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.attempts import Outcome
from broker.oncall.journal import recorded
from tests.cluster.account import ACCOUNT, REGION
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

UNKNOWN_ID = "cr-0123456789abcdef0"
UNKNOWN_GROUP = f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group/nobody"
ELSEWHERE = UNKNOWN_GROUP.replace(REGION, "eu-west-1")


@pytest.mark.covers("KRP-09", "KRP-24")
@pytest.mark.parametrize(
    ("target", "reason", "words", "pool"),
    [
        ({"id_": UNKNOWN_ID}, "ReservationNotFound", "was not found, or is not shared", UNKNOWN_ID),
        (
            {"group": UNKNOWN_GROUP},
            "GroupNotFound",
            f"group {UNKNOWN_GROUP} could not be read",
            "group nobody",
        ),
        ({"group": ELSEWHERE}, "GroupNotFound", "is of Region eu-west-1", "group nobody"),
    ],
)
def test_claim_is_bought_on_demand_with_the_reason_in_its_record(
    stack: Stack, target: dict[str, Any], reason: str, words: str, pool: str
) -> None:
    stack.node_class(**target)
    stack.start()
    stack.until_class(names.RESERVATIONS_RESOLVED, "False", reason=reason)
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.calls("CreateFleet") == 1
    attempts = recorded(stack.get(NodeClaim, "c-0"))
    assert [attempt.outcome for attempt in attempts] == [Outcome.SKIPPED, Outcome.LAUNCHED]
    skip, launch = attempts
    assert (skip.code, skip.pool.shown, launch.pool.capacity_type) == (reason, pool, "on-demand")
    assert words in skip.message
    outside = stack.claim_condition("c-0", names.CAPACITY_RESERVATION)
    assert outside is not None and (outside.status, outside.reason) == ("False", reason)
    assert words in outside.message
    launched = stack.until_event("c-0", "Launched", text=f"outside reservations: {reason}: ")
    assert words in launched.message


@pytest.mark.covers("KRP-24")
def test_claim_bought_while_a_node_still_holds_the_slot_names_it(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    stack.until_shown("c-0")  # in which reservation EC2 counts its instance
    stack.control.fault(action="TerminateInstances", code="UnauthorizedOperation", status=403, times=-1)
    stack.delete(NodeClaim, "c-0")
    stack.claim("c-1", capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-1")
    full = recorded(stack.get(NodeClaim, "c-1"))[0]
    assert full.code == "ReservationFull"
    assert f"{odcr} 0 of 1; c-0 frees its slot as it ends, and the node may move there later" in full.message
    stack.until_event("c-1", "Launched", text="outside reservations: ReservationFull: ")


@pytest.mark.covers("KRP-24")
def test_claim_bought_beside_an_idle_slot_of_an_unknown_owner_names_the_owner(stack: Stack) -> None:
    tags = [{"Key": names.TAG_RESERVATION, "Value": "default/trainig"}]
    odcr = stack.aws.odcr(TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}])
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    launched = stack.until_event("c-0", "Launched", text="outside reservations: ReservedForOthers: ")
    assert f"reservation {odcr} belongs to default/trainig, which does not exist" in launched.message
