"""Nodes in lent slots are replaced in them, unless the owner waits for its slot."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.reserved import reserve
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP
from tests.cluster.test_full_reservation import KINDS, TYPE, drift, launched, places, pool
from tests.cluster.test_repair import GPU, XID79, sign
from tests.cluster.test_standing import nodes, replicas

BORROWER = {names.DRAWS_FROM: "default/research"}
OWNER = {names.DRAWS_FROM: "default/training"}


def lent(stack: Stack, target: str, *kinds: str, reclaim: str = "Any") -> str:
    """Two slots of training, both with nodes of research: r-0 and r-1."""
    tags = [{"Key": names.TAG_RESERVATION, "Value": OWNER[names.DRAWS_FROM]}]
    odcr = stack.aws.odcr(
        count=2,
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
        criteria="targeted",
    )
    rule: dict[str, Any] = {"preemptionRule": {"reclaimWithinCohort": reclaim}, "cohort": "ml"}
    reserve(stack, "training", flavor=TYPE, quotas={"cpu": "4"}, **rule)
    reserve(stack, "research", flavor=TYPE, quotas={"cpu": "0"}, borrow="4", allowBorrowing=True, **rule)
    selects: dict[str, Any] = {"id_": odcr} if target == "id" else {"group": stack.aws.group(odcr)}
    pool(stack, *kinds, **selects)
    stack.edit(NodePool, "web", {"spec": {"template": {"metadata": {"annotations": BORROWER}}}})
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", annotations=BORROWER)
    stack.until_shown("r-0", "r-1")
    return odcr


def goes_on(stack: Stack, steps: int) -> None:
    for _ in range(steps):
        replicas(stack, 2)
        stack.advance(STEP)
        stack.passes(1)


def names_of(stack: Stack) -> set[str]:
    return {claim.name for claim in stack.all(NodeClaim)}


@pytest.mark.covers("FUL-01", "FUL-03")
@pytest.mark.parametrize("target", ["id", "group"])
@KINDS
def test_drifted_nodes_in_lent_slots_get_their_slots_again(
    stack: Stack, target: str, kinds: tuple[str, ...]
) -> None:
    odcr = lent(stack, target, *kinds)
    before = launched(stack)
    drift(stack, "r-0", "r-1")

    def over() -> bool:
        bound = [pod for pod in stack.all(Pod) if pod.spec.node_name and not pod.deleting]
        ready = [c for c in stack.all(NodeClaim) if stack.is_true(c.name, names.READY)]
        return not names_of(stack) & {"r-0", "r-1"} and len(ready) == len(bound) == 2

    for _ in range(80):
        goes_on(stack, 1)
        if over():
            break
    assert over() and launched(stack) - before == 2 and places(stack) == [odcr] * 2


@pytest.mark.covers("FUL-21")
@KINDS
def test_broken_accelerator_in_a_lent_slot_is_replaced_there(stack: Stack, kinds: tuple[str, ...]) -> None:
    odcr = lent(stack, "id", *kinds)
    sign(stack, "r-0", GPU, reason=XID79, age=3600)
    for _ in range(60):
        replicas(stack, 2)
        stack.advance(30)
        stack.passes(1)
        if "r-0" not in names_of(stack) and len(places(stack)) == 2:
            break
    assert "r-0" not in names_of(stack) and places(stack) == [odcr] * 2


@pytest.mark.covers("FUL-02", "FUL-04")
def test_no_node_ends_for_a_lent_slot_that_its_owner_waits_for(stack: Stack) -> None:
    """The owner may not reclaim, and would get the slot once the node has ended."""
    odcr = lent(stack, "id", RESERVED, reclaim="Never")
    owner = stack.claim("owner", node_class="web", capacity=(RESERVED,), annotations=OWNER)
    waiting = stack.until_waiting(owner, "AllReservationsFull")
    assert "default/training lends slots of it (reclaimWithinCohort: Never)" in waiting.message
    drift(stack, "r-0")
    blocked = stack.until_event("r-0", "DisruptionBlocked", text="of the owner gets its slot")
    assert odcr in blocked.message and "owner" in blocked.message
    goes_on(stack, 12)
    assert names_of(stack) == {"r-0", "r-1", "owner"} and places(stack) == [odcr] * 2


@pytest.mark.covers("FUL-02")
def test_event_of_a_launch_outside_names_the_full_reservation(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    pool(stack, RESERVED, ON_DEMAND, annotations={names.REPLACE: "launch-first"}, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    drift(stack, "r-0")
    message = stack.until_event("r-0", "DisruptionLaunching").message
    assert f"on-demand us-east-1a; no slot of {odcr} is free for it" in message


@pytest.mark.covers("FUL-02")
def test_event_of_a_launch_outside_calls_no_reservation_full_whose_slots_are_of_another_owner(
    stack: Stack,
) -> None:
    odcr = stack.aws.odcr(count=2)
    reserve(stack, "training", flavor=TYPE, quotas={"cpu": "4"})
    pool(stack, RESERVED, ON_DEMAND, id_=odcr)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    tags = [{"Key": names.TAG_RESERVATION, "Value": OWNER[names.DRAWS_FROM]}]
    stack.aws.ec2.create_tags(Resources=[odcr], Tags=tags)
    stack.polls(2)
    drift(stack, "r-0")
    message = stack.until_event("r-0", "DisruptionLaunching").message
    assert stack.aws.free(odcr) == 1 and "full" not in message
    assert f"on-demand us-east-1a; no slot of {odcr} is free for it" in message
