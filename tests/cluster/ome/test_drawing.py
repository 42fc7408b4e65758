"""Who may draw from a reservation: its own namespace, and those that it lists. Not who names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.reservations.drawing import NOT_ALLOWED
from tests.cluster.ome.bought import P5
from tests.cluster.ome.pods import (
    ON_DEMAND,
    RESERVED,
    claim_for,
    gpu_pod,
    gpu_pool,
    namespace,
    until_pod_event,
)
from tests.cluster.ome.reserved import GPU, reservation_status, reserve, spec
from tests.cluster.ome.test_borrowing import BORROWER, OWNER, claim, lending, owned
from tests.cluster.stack import Stack

RED = "red"  # the namespace of a tenant without a reservation


def owner_of_slots(stack: Stack, slots: int, **annotations: str) -> str:
    """A reservation of `default` with this many slots, and another namespace. Returns EC2's reservation."""
    odcr = owned(stack, slots)
    reserve(stack, "training", flavor=P5, quotas={GPU: str(8 * slots)}, annotations=annotations)
    namespace(stack, RED)
    stack.node_class(id_=odcr)
    return odcr


def used(stack: Stack) -> str:
    allocated = reservation_status(stack).get("allocated", [{}])
    return str(allocated[0].get("resources", [{}])[0].get("total", "0")) if allocated else "0"


@pytest.mark.covers("FLT-62")
def test_pods_of_another_namespace_take_no_slot_by_naming_its_owner(stack: Stack) -> None:
    odcr = owner_of_slots(stack, 2)
    gpu_pool(stack, capacity=(RESERVED, ON_DEMAND))
    stack.start()
    named = {names.DRAWS_FROM: OWNER}
    for number in range(2):
        gpu_pod(stack, f"thief-{number}", space=RED, annotations=named)
    message = until_pod_event(stack, "red/thief-0", NOT_ALLOWED)
    assert "CapacityReservation default/training does not serve pods of namespace red" in message
    assert names.ALLOWED_NAMESPACES in message
    # The pods get what any pod gets that names no reservation: machines outside the owned slots.
    thieves = [claim_for(stack, f"red/thief-{number}").name for number in range(2)]
    stack.until_ready(*thieves)
    assert [stack.reservation_of(name) for name in thieves] == ["", ""]
    assert stack.aws.free(odcr) == 2
    assert stack.until_event(thieves[0], NOT_ALLOWED)
    gpu_pod(stack, "mine", annotations=named)
    own = claim_for(stack, "default/mine").name
    stack.until_ready(own)
    assert stack.reservation_of(own) == odcr
    stack.until(lambda: used(stack) == "8", "the owner's pod alone counts in the status")


@pytest.mark.covers("FLT-62")
def test_pods_draw_from_the_reservation_of_their_namespace_whatever_others_call_theirs(stack: Stack) -> None:
    odcr = owner_of_slots(stack, 1)
    metadata = {"name": "training", "namespace": RED, "annotations": {names.ALLOWED_NAMESPACES: "*"}}
    stack.client.create(CapacityReservation.KIND, {"metadata": metadata, "spec": spec(P5, quotas={GPU: "0"})})
    gpu_pool(stack, capacity=(RESERVED, ON_DEMAND))
    stack.start()
    gpu_pod(stack, "mine", annotations={names.DRAWS_FROM: "training"})
    own = claim_for(stack, "default/mine").name
    stack.until_ready(own)
    assert stack.reservation_of(own) == odcr


@pytest.mark.covers("FLT-62")
def test_a_node_pool_gives_its_slots_to_pods_that_its_reservation_serves_only(stack: Stack) -> None:
    odcr = owner_of_slots(stack, 2)
    gpu_pool(stack, draws=OWNER, capacity=(RESERVED, ON_DEMAND))
    stack.start()
    gpu_pod(stack, "foreign", space=RED)
    gpu_pod(stack, "own")
    foreign, own = claim_for(stack, "red/foreign").name, claim_for(stack, "default/own").name
    stack.until_ready(foreign, own)
    assert (stack.reservation_of(foreign), stack.reservation_of(own)) == ("", odcr)
    assert "does not serve pods of namespace red" in until_pod_event(stack, "red/foreign", NOT_ALLOWED)

    def refused() -> str:
        condition = stack.condition(NodePool, "gpus", "ReservationAllowed")
        return condition.message if condition and condition.status == "False" else ""

    assert "does not serve pods of namespace red" in stack.until(refused, "the pool reports it")
    # Its owner lists the namespace: what is refused now is served from then on, and no right is kept back.
    listed = {"metadata": {"annotations": {names.ALLOWED_NAMESPACES: "blue, red"}}}
    stack.client.patch(CapacityReservation.KIND, "training", listed, namespace="default")
    stack.until(lambda: not refused(), "the pool reports that it is served")
    gpu_pod(stack, "welcome", space=RED)
    welcome = claim_for(stack, "red/welcome").name
    stack.until_ready(welcome)
    assert stack.reservation_of(welcome) == odcr


@pytest.mark.covers("FLT-62")
def test_a_pod_without_a_right_waits_for_no_slot_and_nominates_none(stack: Stack) -> None:
    """Reserved only: nothing is bought, and no borrower is drained for it."""
    odcr = owner_of_slots(stack, 1)
    reserve(
        stack,
        "research",
        flavor=P5,
        quotas={GPU: "0"},
        borrow="8",
        cohort="ml",
        allowBorrowing=True,
    )
    lends = spec(P5, quotas={GPU: "8"}, cohort="ml", preemptionRule={"reclaimWithinCohort": "Any"})
    stack.client.patch(CapacityReservation.KIND, "training", {"spec": lends}, namespace="default")
    gpu_pool(stack)
    stack.start()
    claim(stack, "borrower", "default/research")
    stack.until_ready("borrower")
    gpu_pod(stack, "work")  # on the borrower's node
    gpu_pod(stack, "thief", space=RED, annotations={names.DRAWS_FROM: OWNER})
    assert "does not serve pods" in until_pod_event(stack, "red/thief", NOT_ALLOWED)
    until_pod_event(stack, "red/thief", "FailedScheduling")
    stack.passes()
    assert [c.name for c in stack.all(NodeClaim) if not c.deleting] == ["borrower"]
    assert stack.reservation_of("borrower") == odcr


@pytest.mark.covers("FLT-62")
def test_a_claim_is_judged_by_the_pods_that_it_is_for(stack: Stack) -> None:
    odcr = owner_of_slots(stack, 2)
    stack.start()
    claim(stack, "foreign", OWNER, also={names.PODS: "default/a,red/b"})
    condition = stack.until_waiting("foreign")
    assert "does not serve pods of namespace red" in condition.message
    claim(stack, "own", OWNER, also={names.PODS: "default/a"})
    claim(stack, "bare", OWNER)  # claims are written by administrators
    stack.until_ready("own", "bare")
    assert stack.aws.free(odcr) == 0
    assert "red" in stack.until_event("foreign", NOT_ALLOWED).message


@pytest.mark.covers("FLT-62")
def test_the_namespace_decides_before_its_pods(stack: Stack) -> None:
    odcr = owner_of_slots(stack, 1, **{names.ALLOWED_NAMESPACES: "*"})
    namespace(stack, "blue", **{names.DRAWS_FROM: "elsewhere/gpus"})
    gpu_pool(stack, capacity=(RESERVED, ON_DEMAND))
    stack.start()
    gpu_pod(stack, "named", space="blue", annotations={names.DRAWS_FROM: OWNER})
    name = claim_for(stack, "blue/named").name
    stack.until_ready(name)
    assert stack.reservation_of(name) == "" and stack.aws.free(odcr) == 1
    assert stack.get(NodeClaim, name).annotations[names.DRAWS_FROM] == "elsewhere/gpus"
    assert "elsewhere" in until_pod_event(stack, "blue/named", "ReservationNotFound")


@pytest.mark.covers("FLT-62")
@pytest.mark.parametrize(
    ("annotations", "space", "served"),
    [
        ({}, RED, False),
        ({names.ALLOWED_NAMESPACES: "red"}, RED, True),
        ({}, "green", True),  # an administrator named the reservation on the Namespace
    ],
)
def test_a_cluster_reservation_serves_the_namespaces_that_are_listed_or_bound(
    stack: Stack, annotations: Mapping[str, str], space: str, served: bool
) -> None:
    odcr = owned(stack, 1, "pool")
    body: dict[str, Any] = {"metadata": {"name": "pool", "annotations": {**annotations}}}
    stack.client.create(ClusterCapacityReservation.KIND, {**body, "spec": spec(P5, quotas={GPU: "8"})})
    namespace(stack, RED)
    namespace(stack, "green", **{names.DRAWS_FROM: "pool"})
    stack.node_class(id_=odcr)
    gpu_pool(stack, capacity=(RESERVED, ON_DEMAND))
    stack.start()
    gpu_pod(stack, "p", space=space, annotations={names.DRAWS_FROM: "pool"})
    name = claim_for(stack, f"{space}/p").name
    stack.until_ready(name)
    assert stack.reservation_of(name) == (odcr if served else "")


@pytest.mark.covers("FLT-62")
def test_an_invalid_list_of_namespaces_is_reported_and_serves_the_valid_ones(stack: Stack) -> None:
    odcr = owner_of_slots(stack, 1, **{names.ALLOWED_NAMESPACES: "red, Team_B,*a"})
    gpu_pool(stack, capacity=(RESERVED, ON_DEMAND))
    stack.start()

    def reported() -> str:
        text = str(reservation_status(stack))
        return text if names.ALLOWED_NAMESPACES in text else ""

    assert "write names of namespaces, with commas, or * for all" in stack.until(reported, "it is reported")
    gpu_pod(stack, "p", space=RED, annotations={names.DRAWS_FROM: OWNER})
    name = claim_for(stack, "red/p").name
    stack.until_ready(name)
    assert stack.reservation_of(name) == odcr


@pytest.mark.covers("FLT-22")
@pytest.mark.parametrize("capacity", [(RESERVED,), (RESERVED, ON_DEMAND)])
@pytest.mark.parametrize("types", [(P5,), ()])
def test_a_pod_of_the_owner_gets_a_lent_slot_back_before_anything_is_bought(
    stack: Stack, capacity: tuple[str, ...], types: tuple[str, ...]
) -> None:
    odcr = lending(stack, 2)
    for number in range(2):
        claim(stack, f"borrower-{number}", BORROWER, also={names.PRIORITY: str(number)})
    stack.until_ready("borrower-0", "borrower-1")
    stack.until_shown("borrower-0", "borrower-1")
    for number in range(2):
        gpu_pod(stack, f"work-{number}")
    gpu_pool(stack, draws=OWNER, capacity=capacity, types=types)
    gpu_pod(stack, "own")
    own = claim_for(stack, "default/own").name
    stack.until_ready(own)
    assert stack.reservation_of(own) == odcr
    stack.until_gone(NodeClaim, "borrower-0")
    assert stack.reservation_of("borrower-1") == odcr
    assert "NodeClaim borrower-0" in stack.until_event(own, "Reclaiming").message
    assert {c.name for c in stack.all(NodeClaim)} == {"borrower-1", own}


@pytest.mark.covers("FLT-22")
@pytest.mark.parametrize(("rule", "returned"), [("Any", True), ("LowerPriority", False), ("Never", False)])
def test_a_pod_reclaims_what_its_owners_rule_allows_and_buys_otherwise(
    stack: Stack, rule: str, returned: bool
) -> None:
    """The borrower's priority is higher than the pod's."""
    odcr = lending(stack, 1, reclaimWithinCohort=rule)
    claim(stack, "borrower", BORROWER, also={names.PRIORITY: "9"})
    stack.until_ready("borrower")
    stack.until_shown("borrower")
    gpu_pod(stack, "work")
    gpu_pool(stack, draws=OWNER, capacity=(RESERVED, ON_DEMAND))
    gpu_pod(stack, "own")
    own = claim_for(stack, "default/own").name
    stack.until_ready(own)
    assert stack.reservation_of(own) == (odcr if returned else "")
    assert ("borrower" in {c.name for c in stack.all(NodeClaim) if not c.deleting}) is not returned


@pytest.mark.covers("FLT-22")
def test_a_gang_of_the_owner_gets_all_its_lent_slots_back_at_once(stack: Stack) -> None:
    odcr = lending(stack, 3, borrow="24")
    names_of_borrowers = [f"borrower-{number}" for number in range(3)]
    for number, name in enumerate(names_of_borrowers):
        claim(stack, name, BORROWER, also={names.PRIORITY: str(number)})
    stack.until_ready(*names_of_borrowers)
    stack.until_shown(*names_of_borrowers)
    for number in range(3):
        gpu_pod(stack, f"work-{number}")
    gpu_pool(stack, draws=OWNER, capacity=(RESERVED, ON_DEMAND))
    for number in range(2):
        gpu_pod(stack, f"own-{number}", annotations={names.GANG: "train", names.GANG_SIZE: "2"})
    own = [claim_for(stack, f"default/own-{number}").name for number in range(2)]
    stack.until_ready(*own)
    assert [stack.reservation_of(name) for name in own] == [odcr, odcr]
    stack.until_gone(NodeClaim, "borrower-0")
    stack.until_gone(NodeClaim, "borrower-1")
    assert stack.reservation_of("borrower-2") == odcr
    assert {c.name for c in stack.all(NodeClaim)} == {"borrower-2", *own}


@pytest.mark.covers("FLT-64")
@pytest.mark.parametrize("comes", [True, False])
def test_a_tagged_reservation_is_kept_for_an_owner_that_does_not_exist_yet(stack: Stack, comes: bool) -> None:
    odcr = owned(stack, 1)
    stack.node_class(id_=odcr)
    stack.start()
    claim(stack, "stranger", "")
    assert "which does not exist" in stack.until_waiting("stranger").message
    stack.passes()
    assert stack.aws.free(odcr) == 1
    if comes:
        reserve(stack, "training", flavor=P5, quotas={GPU: "8"})
        claim(stack, "owner", OWNER)
        stack.until_ready("owner")
        assert stack.reservation_of("owner") == odcr
    else:
        stack.until(
            lambda: stack.is_true("stranger", names.LAUNCHED), "the slot is open in the end", step=60.0
        )
        assert stack.reservation_of("stranger") == odcr


@pytest.mark.covers("FLT-64", "FLT-53")
def test_a_typing_error_in_the_tag_is_named_to_the_owner_that_is_meant(stack: Stack) -> None:
    odcr = owned(stack, 1, "default/trainig")
    stack.node_class(id_=odcr)
    reserve(stack, "training", flavor=P5, quotas={GPU: "8"})
    stack.start()
    claim(stack, "own", OWNER)
    message = stack.until_waiting("own", "NoUsableReservation").message
    assert (
        f"{odcr} belongs to default/trainig, which does not exist; its tag {names.TAG_RESERVATION}: there is "
        f"no CapacityReservation trainig in namespace 'default': write {OWNER} if that is meant, or make it"
    ) in message
    stack.aws.ec2.create_tags(
        Resources=[odcr], Tags=[{"Key": names.TAG_RESERVATION, "Value": "default/training"}]
    )
    stack.until(lambda: stack.is_true("own", names.LAUNCHED), "the tag is corrected", step=1.0)
    assert stack.reservation_of("own") == odcr
