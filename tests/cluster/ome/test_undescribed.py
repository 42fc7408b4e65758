"""Instances that EC2 does not describe yet: their slots count as lent, taken and the owner's to reclaim."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.commands.explain import claims
from broker.commands.explain.parts import of_reservation
from broker.commands.explain.reading import read
from broker.commands.explain.slot_rows import users_of_slots
from broker.webpage.live import live_state
from tests.cluster.ome.bought import CANCEL, broker_odcrs, change_quota, create_reservation, flavored
from tests.cluster.ome.reserved import flavors_alone
from tests.cluster.ome.test_borrowing import BORROWER, OWNER, claim, lending, terminating_claims
from tests.cluster.stack import Stack
from tests.cluster.test_page_details import by_command, details


def undescribed(stack: Stack, *claims: str, draws: str = BORROWER) -> None:
    """Lends slots to these claims while EC2 shows no new instance."""
    stack.until_class("Launchable", "True")
    stack.advance(4000)
    stack.control.lag(3600)
    for name in claims:
        claim(stack, name, draws)
    stack.until_launched(*claims)
    for name in claims:
        assert names.CAPACITY_TYPE not in stack.get(NodeClaim, name).labels


def restart(stack: Stack) -> None:
    stack.stop()
    stack.start()


@pytest.mark.covers("OME-036")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_borrowed_slot_counts_before_ec2_shows_who_has_it(stack: Stack, restarted: bool) -> None:
    odcr = lending(stack, 2, borrow="8")
    undescribed(stack, "c-0")
    if restarted:
        restart(stack)
    claim(stack, "more", BORROWER)
    assert "may borrow no more" in stack.until_waiting("more").message
    assert stack.aws.free(odcr) == 1
    broker = stack.broker
    assert broker is not None
    (loan,) = stack.until(lambda: live_state(broker).loans, "a loan", step=1.0)
    assert (loan.borrower, loan.claims) == (BORROWER, ["c-0"])


def test_an_owner_reclaims_one_slot_that_ec2_does_not_show_after_a_restart(stack: Stack) -> None:
    odcr = lending(stack, 2)
    undescribed(stack, "b-0", "b-1")
    restart(stack)
    claim(stack, "owner", OWNER)
    (victim,) = stack.until(lambda: terminating_claims(stack), "one claim is evicted")
    stack.advance(100)
    stack.passes()
    assert terminating_claims(stack) == [victim]
    condition = stack.claim_condition(victim, names.PREEMPTED)
    assert condition is not None and f"it borrows a slot of {odcr}" in condition.message
    stack.control.lag(0)
    # EC2 refuses the slot while the victim, which it does not show either, still ends.
    stack.until(lambda: stack.is_true("owner", names.READY), "owner ready", step=5.0)
    assert stack.reservation_of("owner") == odcr
    stack.until_gone(NodeClaim, victim)
    assert [c.name for c in stack.all(NodeClaim) if c.name.startswith("b-")] == [
        name for name in ("b-0", "b-1") if name != victim
    ]


@pytest.mark.covers("ONC-05")
def test_every_page_names_the_reservation_of_an_instance_that_ec2_does_not_show(stack: Stack) -> None:
    odcr = lending(stack, 2)
    undescribed(stack, "c-0")
    broker = stack.broker
    assert broker is not None
    node = stack.until(lambda: stack.get(NodeClaim, "c-0").status.node_name, "the node joins")
    stack.pod("runs", node=node)
    now = stack.clock.now()
    page = details(broker)
    stack.until(lambda: page.pod("default/runs") and page.nodes(), "the page has the pod and its node")
    assert names.RESERVATION_ID not in {**stack.get(Node, node).labels, **stack.get(NodeClaim, "c-0").labels}

    situation = read(stack.client, now)
    subject, part = of_reservation(situation, odcr)
    (line,) = [row for row in users_of_slots(part, subject) if row["claim"]]
    pod, claim_page = by_command(stack, "default/runs", now), page.claim("c-0")
    assert claim_page is not None
    (place,) = pod["placed"]
    (node_row,), (pod_row,) = page.nodes(), page.pods("default", "")
    assert (line["slot"], line["claim"], line["pods"], line["owner"]) == (
        odcr,
        "c-0",
        ["default/runs"],
        OWNER,
    )
    assert (place["reservation"], place["owner"], place["slot"]) == (odcr, OWNER, f"{odcr} of {OWNER}")
    assert page.pod("default/runs") == pod
    assert (node_row.reservation, node_row.owner) == (odcr, OWNER)
    assert pod_row.reservation == claim_page["reservation"] == odcr
    live = live_state(broker)
    assert [live.row(claim).reservation for claim in live.claims] == [odcr]
    shown = claims.headline(stack.get(NodeClaim, "c-0"), pods=[], usd_hour=None)
    assert f"  in {odcr}, price unknown" in shown


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("restarted", [False, True])
def test_bought_slot_of_an_instance_that_ec2_does_not_show_is_not_given_back(
    stack: Stack, restarted: bool
) -> None:
    flavors_alone(stack)
    flavored(stack)
    stack.start(buy_dollars=1000.0)
    create_reservation(stack, 2, annotations=CANCEL)
    (bought,) = stack.until(lambda: broker_odcrs(stack.aws.ec2), "two are bought", step=1.0)
    odcr = bought["CapacityReservationId"]
    stack.node_class(id_=odcr)
    undescribed(stack, "c-0", draws=OWNER)
    if restarted:
        restart(stack)
    change_quota(stack, 0)

    def size() -> int:
        return int(stack.aws.reservation(odcr)["TotalInstanceCount"])

    stack.until(lambda: size() == 1, "the other slot is given back", step=2.0)
    for _ in range(30):
        stack.advance(2)
        stack.passes(1)
    assert stack.aws.reservation(odcr)["State"] == "active" and stack.reservation_of("c-0") == odcr
