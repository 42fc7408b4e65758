"""A broker is stopped, killed or cut off, and another continues: each instance has one claim."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.hashes import class_hash
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity import adopt
from broker.capacity.adopt import satisfies
from broker.capacity.attempts import Outcome
from broker.capacity.model import Claim
from broker.controllers.launch import launcher
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.kube.manager import REASON
from broker.oncall.journal import recorded
from broker.placement import claims as translation
from providers.model import Instance
from providers.names import TAG_CLUSTER
from tests.cluster.account import A, tags
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT
from tests.cluster.stack import Stack
from tests.cluster.taps import status_of, writes_of


def one_each(stack: Stack, claims: Sequence[str]) -> bool:
    """Whether every living instance belongs to exactly one of the claims, and every claim has one."""
    held = sorted(stack.get(NodeClaim, name).instance_id for name in claims)
    return held == sorted(i["InstanceId"] for i in stack.aws.instances()) and "" not in held


@pytest.mark.covers("KRP-25")
def test_a_restart_at_rest_changes_nothing(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    claims = stack.claims(3)
    stack.start()
    stack.until_ready("c-0", "c-1")
    stack.until_shown("c-0", "c-1")
    stack.until_waiting("c-2", "AllReservationsFull")
    stack.until(
        lambda: stack.claim_condition("c-2", names.CAPACITY_RESERVATION), "its condition names the limit"
    )
    stack.polls(2)
    stack.passes()
    stack.stop()
    before = {name: stack.client.get(NodeClaim.KIND, name) for name in claims}
    stack.tap.forget()
    stack.start()
    stack.polls(2)
    stack.passes()
    kinds = ("/nodeclaims/c-", "/ec2nodeclasses/", "/nodes/")
    assert not [path for _, path in stack.tap.writes() if any(kind in path for kind in kinds)]
    assert {name: stack.client.get(NodeClaim.KIND, name) for name in claims} == before
    assert stack.calls("CreateFleet") == 1
    assert len(stack.aws.instances()) == 2


def test_a_class_that_resolves_during_a_pass_takes_no_claim_out_of_its_turn(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.claims(3)
    translated: list[str] = []  # names of claims, from the first pass with the class on

    def planned(claim: NodeClaim, *args: Any, **more: Any) -> Claim:
        translated.append(claim.name)
        return translation.planned(claim, *args, **more)

    def ready(controller: NodeClassController, name: str) -> LaunchClass:
        outcome = resolved(controller, name)
        if not begun.is_set():
            begun.set()
            translated.clear()
        if len(translated) < 2:  # the class gets ready after the first claim was looked at
            raise Unresolved("NotResolvedYet", "in a moment", passing=True)
        return outcome

    begun = threading.Event()
    resolved = NodeClassController.ready
    monkeypatch.setattr(launcher, "planned", planned)
    monkeypatch.setattr(NodeClassController, "ready", ready)
    stack.start()
    stack.until(begun.is_set, "the class is resolved")
    stack.passes()
    stack.until_ready("c-0", "c-1")
    stack.until_waiting("c-2", "AllReservationsFull")


@pytest.mark.covers("KRP-25")
def test_a_lost_reply_launches_nothing_twice(stack: Stack) -> None:
    """The work is done and the connection drops: the same call is repeated, with the same token."""
    odcr = stack.aws.odcr(count=4)
    stack.node_class(id_=odcr)
    claims = stack.claims(3)
    stack.control.fault(action="CreateFleet", stage="response", times=2)
    stack.start()
    stack.until_ready(*claims)
    assert one_each(stack, claims)
    assert stack.aws.free(odcr) == 1
    assert len({fleet["ClientToken"] for fleet in stack.aws.fleets()}) == 1


@pytest.mark.covers("KRP-25")
def test_instances_of_lost_replies_are_adopted_by_their_claims(stack: Stack) -> None:
    """Every reply is lost, despite all retries; the instances exist all the same."""
    odcr = stack.aws.odcr(count=3)
    stack.node_class(id_=odcr)
    claims = stack.claims(3)
    stack.control.fault(action="CreateFleet", stage="response", times=4)
    stack.start()
    stack.until_ready(*claims)
    assert one_each(stack, claims)
    assert all("instance of this cluster that had no claim" in attempts(stack, name) for name in claims)


def attempts(stack: Stack, name: str) -> str:
    return stack.get(NodeClaim, name).annotations.get("capacity-broker.io/attempts", "")


@pytest.mark.covers("KRP-25")
def test_killed_between_launch_and_status(stack: Stack) -> None:
    """The instances run, and no claim records them: the next broker binds each claim to one of them."""
    odcr = stack.aws.odcr(count=3)
    stack.node_class(id_=odcr)
    claims = stack.claims(3)
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: len(stack.aws.instances()) == 3, "the launch")
    stack.until(lambda: stack.tap.lost >= 3, "status writes lost")
    stack.stop()
    assert not any(stack.get(NodeClaim, name).status.provider_id for name in claims)
    stack.tap.heal()
    stack.start()
    stack.until_ready(*claims)
    assert one_each(stack, claims)
    assert stack.calls("CreateFleet") == 1


@pytest.mark.covers("KRP-25")
def test_killed_while_ec2_launches(stack: Stack) -> None:
    """After EC2 has launched, before the broker gets the reply, its writes no longer arrive."""
    odcr = stack.aws.odcr(count=3)
    stack.node_class(id_=odcr)
    claims = stack.claims(3)
    stack.start(kubelets=False)
    stack.after_launch(lambda: stack.tap.lose(lambda request: request.method != "GET"))
    stack.until(lambda: len(stack.aws.instances()) == 3, "the launch")
    stack.stop()
    stack.tap.heal()
    stack.start()
    stack.until_ready(*claims)
    assert one_each(stack, claims)
    assert stack.calls("CreateFleet") == 1


@pytest.mark.covers("KRP-25")
def test_killed_before_the_launch(stack: Stack) -> None:
    """The claims are marked, but the call did not reach EC2."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    claims = stack.claims(2)
    stack.control.fault(action="CreateFleet", code="ServiceUnavailable", status=503, times=-1)
    stack.start()
    stack.until_waiting("c-0", "InternalError")
    stack.stop()
    assert all(stack.get(NodeClaim, name).metadata.finalizers for name in claims)
    stack.control.clear_faults()
    stack.start()
    stack.until_ready(*claims)
    assert one_each(stack, claims)


@pytest.mark.covers("KRP-25", "KRP-23")
def test_killed_before_registration(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.claim(capacity=(ON_DEMAND,))
    stack.start(kubelets=False)
    stack.until_launched("c-0")
    stack.stop()
    stack.kubelets_again()
    stack.until(lambda: stack.all(Node), "the node joins nobody")
    stack.start(kubelets=False)
    stack.until_ready("c-0")


@pytest.mark.covers("KRP-25")
def test_an_orphan_goes_to_a_claim_that_it_satisfies(stack: Stack) -> None:
    """Its own claim is already gone; another claim of the class takes it."""
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.claim("first")
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: stack.aws.instances(), "the launch")
    stack.stop()
    stack.tap.heal()
    [orphan] = stack.aws.instances()
    stack.edit(NodeClaim, "first", {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, "first")
    stack.claim("unlike", types=("m5.xlarge",))
    stack.claim("second")
    stack.start()
    stack.until_ready("second")
    assert stack.get(NodeClaim, "second").instance_id == orphan["InstanceId"]
    assert "Adopted" in attempts(stack, "second")
    assert stack.calls("CreateFleet") == 1
    assert stack.get(NodeClaim, "second").labels[names.RESERVATION_ID] == odcr


@pytest.mark.covers("KRP-25")
def test_a_repeated_call_does_not_give_an_instance_that_another_claim_has(stack: Stack) -> None:
    """EC2 returns the same instances for the same token, whichever claims have adopted them meanwhile."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.claim("late")
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: stack.aws.instances(), "the launch")
    stack.stop()
    stack.tap.heal()
    stack.edit(NodeClaim, "late", {"metadata": {"annotations": {names.PRIORITY: "soon"}}})
    stack.claim("early")
    stack.start()
    stack.until_ready("early")
    assert "Adopted" in attempts(stack, "early")
    stack.edit(NodeClaim, "late", {"metadata": {"annotations": {names.PRIORITY: "1"}}})
    stack.until_ready("late")
    assert one_each(stack, ["early", "late"])


@pytest.mark.covers("KRP-25")
def test_orphans_go_back_to_the_claims_that_they_were_launched_for(stack: Stack) -> None:
    """Unlike claims that all lost their replies: each gets its own instance, not just any that fits it."""
    stack.node_class(preference="none", zones=(A,))
    stack.claim("small", types=("m5.large",), capacity=(ON_DEMAND,))
    stack.claim("any", types=("m5.large", "m5.xlarge"), capacity=(ON_DEMAND,), priority=5)
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: len(stack.aws.instances()) == 2, "two launches")
    stack.stop()
    stack.tap.heal()
    launched = {tags(i)[names.TAG_LAUNCH]: i["InstanceId"] for i in stack.aws.instances()}
    assert len(launched) == 2
    stack.start()
    stack.until_ready("small", "any")
    for name in ("small", "any"):
        claim = stack.get(NodeClaim, name)
        assert claim.instance_id == launched[claim.annotations[names.LAUNCH]]


@pytest.mark.covers("SAF-50")
def test_claim_on_which_adoption_fails_is_left_out_and_keeps_its_instance(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.node_class(preference="none", zones=(A,))
    stack.claim("bad", types=("m5.large",), capacity=(ON_DEMAND,))
    stack.claim("good", types=("m5.xlarge",), capacity=(ON_DEMAND,))
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: len(stack.aws.instances()) == 2, "two launches")
    stack.stop()
    stack.tap.heal()

    def failing(instance: Instance, claim: Claim, *args: Any, **more: Any) -> bool:
        if claim.name == "bad":
            raise ZeroDivisionError
        return satisfies(instance, claim, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(adopt, "satisfies", failing)
        stack.start(orphan_grace_seconds=1.0)
        stack.until_ready("good")
        stack.until_event("bad", REASON)
        stack.advance(30.0)
        stack.passes()
        assert len(stack.aws.instances()) == 2
    stack.edit(NodeClaim, "bad", {"metadata": {"annotations": {"test": "mended"}}})
    stack.until_ready("bad")
    assert one_each(stack, ["bad", "good"])


def launch_unrecorded(stack: Stack, capacity_type: str) -> None:
    """Claim `c-0` has an instance that its status does not have, and the broker is stopped."""
    stack.node_class(preference="none")
    stack.claim(capacity=(capacity_type,))
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: stack.aws.instances(), "the launch")
    stack.stop()
    stack.tap.heal()


@pytest.mark.covers("KRP-25")
def test_adopted_instance_keeps_the_hash_of_the_class_that_it_was_launched_with(stack: Stack) -> None:
    launch_unrecorded(stack, ON_DEMAND)
    launched = class_hash(stack.get(EC2NodeClass, "gpu"))
    stack.edit(EC2NodeClass, "gpu", {"spec": {"userData": "#!/bin/sh\ntrue\n"}})
    assert class_hash(stack.get(EC2NodeClass, "gpu")) != launched
    stack.start()
    stack.until_ready("c-0")
    assert "Adopted" in attempts(stack, "c-0")
    assert stack.get(NodeClaim, "c-0").annotations[names.NODECLASS_HASH] == launched


@pytest.mark.covers("KRP-25")
def test_adopted_spot_instance_is_recorded_as_one(stack: Stack) -> None:
    launch_unrecorded(stack, SPOT)
    stack.start()
    stack.until_ready("c-0")
    adopted = recorded(stack.get(NodeClaim, "c-0"))[-1]
    assert (adopted.outcome, adopted.pool.capacity_type) == (Outcome.ADOPTED, SPOT)


@pytest.mark.covers("KRP-25")
def test_orphan_that_fits_no_claim_ends_after_its_grace_time(stack: Stack) -> None:
    stack.node_class(preference="none", zones=(A,))
    stack.claim("first", capacity=(ON_DEMAND,))
    stack.tap.lose(status_of("nodeclaims"))
    stack.start()
    stack.until(lambda: stack.aws.instances(), "the launch")
    stack.stop()
    stack.tap.heal()
    stack.edit(NodeClaim, "first", {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, "first")
    stack.start(orphan_grace_seconds=900.0)
    stack.claim("unlike", types=("m5.xlarge",), capacity=(RESERVED,))
    stack.until_waiting("unlike")
    stack.advance(61)
    stack.passes()
    assert len(stack.aws.instances()) == 1
    stack.until(lambda: not stack.aws.instances(), "the instance terminated", step=90)


@pytest.mark.covers("KRP-25")
def test_an_orphan_is_kept_for_a_claim_that_could_not_be_written(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.claim()
    stack.tap.lose(status_of("nodeclaims"))
    stack.start(orphan_grace_seconds=0.0)
    stack.until(lambda: stack.tap.lost >= 3, "status writes lost")
    stack.until(lambda: stack.tap.lost >= 6, "more status writes lost", step=1)
    assert len(stack.aws.instances()) == 1
    stack.tap.heal()
    stack.advance(60)
    stack.until_ready("c-0")
    assert stack.calls("CreateFleet") == 1
    assert one_each(stack, ["c-0"])


@pytest.mark.covers("KRP-25")
def test_nothing_ends_while_a_claim_cannot_be_marked_or_read(stack: Stack) -> None:
    """The API server accepts no writes: nothing is launched, and running instances are not harmed."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.claim("c-0")
    stack.start(orphan_grace_seconds=0.0)
    stack.until_ready("c-0")
    stack.tap.lose(lambda request: request.method != "GET")
    stack.claim("c-1")
    stack.until(lambda: stack.tap.lost >= 2, "writes lost")
    stack.advance(70)
    stack.polls(2)
    assert len(stack.aws.instances()) == 1
    assert stack.calls("CreateFleet") == 1
    stack.tap.heal()
    stack.advance(70)
    stack.until_ready("c-1")


@pytest.mark.covers("KRP-25")
def test_instances_of_another_cluster_are_never_touched(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    foreign = stack.aws.rival(odcr)
    stack.aws.ec2.create_tags(Resources=foreign, Tags=[{"Key": TAG_CLUSTER, "Value": "green"}])
    stack.node_class(id_=odcr)
    stack.start(orphan_grace_seconds=0.0)
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.claim("c-1")
    stack.until_waiting("c-1")
    stack.advance(70)
    stack.passes()
    left = stack.aws.instance(foreign[0])
    assert left["State"]["Name"] == "running" and tags(left)[TAG_CLUSTER] == "green"


@pytest.mark.covers("KRP-25")
@pytest.mark.both_servers
def test_a_write_that_conflicts_is_made_anew(stack: Stack) -> None:
    """Another client writes to the claim just before the broker does, each time."""
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    turns = iter(range(100))

    def meddle(_: object) -> None:
        stack.edit(NodeClaim, "c-0", {"metadata": {"annotations": {"example.com/turn": str(next(turns))}}})

    stack.tap.on(writes_of("nodeclaims", "c-0"), meddle, times=2)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    assert stack.calls("CreateFleet") == 1
    assert one_each(stack, ["c-0"])
    assert stack.get(NodeClaim, "c-0").annotations["example.com/turn"] == "1"
