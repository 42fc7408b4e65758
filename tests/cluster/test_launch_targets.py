"""EC2's choice of a reservation equals the plan's: overlapping classes, and open slots of an owner."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.capacity.time_budget import TimeBudget
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.reserved import reserve
from tests.cluster.stack import Stack


@pytest.mark.covers("SAF-42", "KRP-12")
def test_overlapping_groups_and_an_open_class_use_every_slot(stack: Stack) -> None:
    shared, targeted, other = (stack.aws.odcr(criteria=criteria) for criteria in ("open", "targeted", "open"))
    stack.node_class("wide", group=stack.aws.group(shared, targeted, name="wide"))
    stack.node_class("narrow", group=stack.aws.group(shared, name="narrow"))
    stack.node_class("open", preference="open")
    stack.start()
    for name in ("wide", "narrow", "open"):
        stack.until_class(names.RESERVATIONS_RESOLVED, "True", name=name)
    stack.stop()  # so that one plan has all three
    for name in ("open", "wide", "narrow"):
        stack.claim(name, node_class=name, zones=(A,), capacity=(RESERVED, ON_DEMAND))
    stack.start()
    stack.until_launched("wide", "narrow", "open")
    assert {name: stack.reservation_of(name) for name in ("wide", "narrow", "open")} == {
        "wide": targeted,
        "narrow": shared,
        "open": other,
    }


@pytest.mark.covers("SAF-41")
@pytest.mark.both_servers
def test_claim_that_falls_back_leaves_the_open_slot_of_an_owner_free(stack: Stack) -> None:
    tags = [{"Key": names.TAG_RESERVATION, "Value": "default/training"}]
    owned = stack.aws.odcr(
        criteria="open", TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}]
    )
    reserve(stack, "training", flavor="m5.large", quotas={"cpu": "2"})
    stack.node_class(preference="open")
    stack.start()
    both = (RESERVED, ON_DEMAND)
    stack.claim("stranger", zones=(A,), capacity=both)
    stack.until_launched("stranger")
    assert stack.reservation_of("stranger") == ""
    assert stack.aws.free(owned) == 1
    draws = {names.DRAWS_FROM: "default/training"}
    stack.claim("owner", zones=(A,), capacity=both, annotations=draws)
    stack.until_launched("owner")
    assert stack.reservation_of("owner") == owned


@pytest.mark.covers("SAF-44")
def test_claims_that_no_time_is_left_for_are_planned_in_the_same_pass(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each plan has time for one need; a claim that must wait does not keep the others from their turn."""
    monkeypatch.setattr(TimeBudget, "seconds_left", lambda *_: -1.0)
    stack.node_class(id_=stack.aws.odcr(count=1))
    stack.start()
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.claim("full", types=("c5.large",), capacity=(RESERVED,), priority=9)
    for number in range(3):
        stack.claim(f"c-{number}", capacity=(ON_DEMAND,), requests={"cpu": f"{100 + number}m"})
    stack.until_launched("c-0", "c-1", "c-2")
    stack.until_waiting("full", "NoUsableReservation")
