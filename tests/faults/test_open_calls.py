"""Fleet calls without a response: how far they are believed, which are sent again, and EC2's final state."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import ConfigMap
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition
from broker.controllers.launch.calls import RECORDS
from broker.kube.errors import NotFound, Unavailable
from broker.kube.identity import NAMESPACE
from tests.cluster.account import B, pools
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.faults.walk import Gate, Killed, Point, Process, World, held, records

Json = dict[str, Any]
BOTH = (RESERVED, ON_DEMAND)


def started(world: World) -> Process:
    process = world.start()
    process.until(lambda: process.broker.inventory.described, "EC2 is described")
    process.turn()
    return process


def claim(world: World, name: str) -> NodeClaim:
    return next(claim_ for claim_ in world.all_claims() if claim_.name == name)


def whole(world: World) -> bool:
    claims = world.all_claims()
    running = sorted(i["InstanceId"] for i in world.instances())
    return len(held(claims)) == len(claims) and sorted(held(claims).values()) == running


def launched_text(world: World, name: str) -> str:
    launched = condition(claim(world, name).status.conditions, names.LAUNCHED)
    return f"{launched.reason}: {launched.message}" if launched is not None else ""


def killed_at_fleet(world: World, when: str, act: Callable[[], object]) -> None:
    """A process that ends at its first CreateFleet: before EC2 gets it, or after EC2 has carried it out."""

    class AtFleet(Gate):
        def before(self, call: str) -> None:
            if call == "CreateFleet" and self.armed:
                self.kill = Point(len(self.calls), when)  # type: ignore[arg-type]
            super().before(call)

    gate = AtFleet()
    process = world.start(gate)
    process.until(lambda: process.broker.inventory.described, "EC2 is described")
    process.turn()
    act()
    gate.armed = True
    with pytest.raises(Killed):
        process.run(60.0)


def fleets(world: World) -> list[Json]:
    return world.aws.fleets()


# ---- records that tenants may write are not believed


@pytest.mark.covers("SAF-53")
def test_launch_request_of_a_tenant_is_never_sent(world: World) -> None:
    """The forgery of old: a call of 100 m7i.48xlarge from another class's template, on a claim of its own."""
    world.node_class("gpu", preference="none")
    world.node_class("theirs", preference="none")
    process = started(world)
    world.claim("other", node_class="theirs", capacity=(ON_DEMAND,))
    process.until(lambda: whole(world), "the other claim is launched")
    template = world.aws.templates()[0]
    before = len(fleets(world))
    forged = {
        "launch": "f" * 32,
        "claims": ["00000000-0000-0000-0000-000000000000", claim(world, "other").uid],
        "node_class": "gpu",
        "generation": 1,
        "request": {
            "token": "f" * 32,
            "template": {"name": template["LaunchTemplateName"], "id": template["LaunchTemplateId"]},
            "overrides": [
                {"instance_type": "m7i.48xlarge", "zone": "us-east-1a", "subnet_id": world.aws.subnets[B]}
            ],
            "count": 100,
        },
    }
    noted = {names.LAUNCH: "f" * 32, "capacity-broker.io/launch-request": json.dumps(forged)}
    world.claim("mine", capacity=(ON_DEMAND,), annotations=noted)
    world.claim("victim", capacity=(ON_DEMAND,))
    process.until(lambda: whole(world), "the claims are launched as requested")
    sent = fleets(world)[before:]
    assert {pool["InstanceType"] for fleet in sent for pool in pools(fleet)} == {"m5.large"}
    assert sum(f["TargetCapacitySpecification"]["TotalTargetCapacity"] for f in sent) == 2
    assert "f" * 32 not in {f["ClientToken"] for f in sent}
    assert len(world.instances(ended=True)) == 3


@pytest.mark.covers("SAF-53")
def test_claim_that_names_the_call_of_others_gets_nothing_of_it(world: World) -> None:
    """It would come first by its priority, names the open call, and is adopted into nothing."""
    odcr = world.aws.odcr(count=2)
    world.node_class(id_=odcr)
    killed_at_fleet(world, "after", lambda: world.claims(2))
    [launch] = records(world)
    thief = world.claim("thief", priority=1000, annotations={names.LAUNCH: launch})
    process = world.start()
    process.until(lambda: {"c-0", "c-1"} <= held(world.all_claims()).keys(), "those it is for have it")
    process.run(30.0)
    assert thief not in held(world.all_claims())
    assert len(world.instances(ended=True)) == 2


def rewrite(world: World, **changes: Any) -> None:
    """Another record in the place of the one that is there."""
    [(launch, text)] = records(world).items()
    call = json.loads(text)
    call |= {key: value for key, value in changes.items() if key != "request"}
    call["request"] |= changes.get("request", {})
    for name in RECORDS:
        with suppress(NotFound):
            if launch in world.client.get(ConfigMap.KIND, name, namespace=NAMESPACE)["data"]:
                world.client.patch(
                    ConfigMap.KIND, name, {"data": {launch: json.dumps(call)}}, namespace=NAMESPACE
                )


def more_claims(world: World) -> None:
    [text] = records(world).values()
    rewrite(world, claims=[*json.loads(text)["claims"], "00000000-0000-0000-0000-000000000000"])


def _override(world: World, **changes: Any) -> Json:
    [text] = records(world).values()
    [override, *_] = json.loads(text)["request"]["overrides"]
    return {"overrides": [override | changes]}


FORGERIES: dict[str, Callable[[World], object]] = {
    "count": lambda w: rewrite(w, request={"count": 100}),
    "claims": more_claims,
    "type": lambda w: rewrite(w, request=_override(w, instance_type="m5.2xlarge")),
    "subnet": lambda w: rewrite(w, request=_override(w, subnet_id=w.aws.subnets[B])),
    "template": lambda w: rewrite(w, request={"template": {"name": "another", "id": "lt-0"}}),
    "market": lambda w: rewrite(w, request={"market": "spot"}),
    "tags": lambda w: rewrite(w, request={"tags": {"owner": "another"}}),
    "token": lambda w: rewrite(w, request={"token": "e" * 32}),
    "reservation": lambda w: rewrite(w, capacity_type="on-demand", reservation=""),
    "class": lambda w: rewrite(w, node_class="theirs"),
    "nothing that can be read": lambda w: rewrite(w, request={"count": "many"}),
}


@pytest.mark.covers("SAF-53")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_record_that_claims_and_class_do_not_give_is_never_sent(world: World, forgery: str) -> None:
    """Even a record in the broker's namespace is compared with the request of its claims.

    It is reported, and the claims are launched as requested once EC2 would have shown the call's instances.
    """
    odcr = world.aws.odcr(count=2)
    world.node_class(id_=odcr)
    world.node_class("theirs", preference="none")
    killed_at_fleet(world, "before", lambda: world.claims(2))
    FORGERIES[forgery](world)
    [launch] = records(world)
    process = world.start()
    process.until(lambda: "LaunchNotConfirmed" in launched_text(world, "c-0"), "it is reported")
    assert "it is not repeated, since" in launched_text(world, "c-0")
    process.until(lambda: whole(world), "the claims are launched as requested")
    assert len(world.instances(ended=True)) == 2
    assert {i["CapacityReservationId"] for i in world.instances()} == {odcr}
    assert launch not in {fleet["ClientToken"] for fleet in fleets(world)}
    process.until(lambda: not records(world), "nothing is left of the call")


@pytest.mark.covers("SAF-53")
def test_claim_or_class_that_changed_is_not_launched_by_the_old_call(world: World) -> None:
    """The claim's label would be in the user data; the class's tags on the instance."""
    changes = (
        (NodeClaim.KIND, "c-0", {"metadata": {"labels": {"example.com/team": "blue"}}}),
        (EC2NodeClass.KIND, "gpu", {"spec": {"tags": {"team": "blue"}}}),
    )
    world.node_class(id_=world.aws.odcr(count=2))
    for number, change in enumerate(changes):
        killed_at_fleet(world, "before", lambda n=number: world.claim(f"c-{n}"))  # type: ignore[misc]
        [launch] = records(world)
        world.client.patch(*change)
        process = world.start()
        process.until(lambda: whole(world), "it is launched anew")
        assert launch not in {fleet["ClientToken"] for fleet in fleets(world)}


# ---- records that survive


@pytest.mark.covers("SAF-25")
@pytest.mark.parametrize("forced", ["c-0", "c-1", "c-2"])
def test_open_call_survives_when_a_claim_of_it_is_forced_away(world: World, forced: str) -> None:
    """EC2 has carried the call out and shows it late; if a claim is torn out, the others get instances."""
    odcr = world.aws.odcr(count=6)
    world.node_class(id_=odcr)
    world.tick(240.0)
    world.late(60.0)
    killed_at_fleet(world, "after", lambda: world.claims(3))
    world.client.patch(NodeClaim.KIND, forced, {"metadata": {"finalizers": None}})
    world.delete(forced)
    assert forced not in {claim_.name for claim_ in world.all_claims()}
    process = world.start()
    process.until(lambda: len(held(world.all_claims())) == 2, "the others have their instances")
    assert len(world.instances(ended=True)) == 3, "nothing is launched twice"
    assert len(fleets(world)) == 1
    process.until(lambda: whole(world), "the instance that no claim has is ended")
    process.until(lambda: not records(world), "nothing is left of the call")


@pytest.mark.covers("SAF-25")
def test_claim_finds_out_about_its_own_call_before_it_adopts(world: World) -> None:
    """An instance of another claim is free; the waiting claim has one of its own, which EC2 does not show."""
    odcr = world.aws.odcr(count=3)
    world.node_class(id_=odcr)
    process = started(world)
    world.claim("old")
    process.until(lambda: whole(world), "the old claim is launched")
    orphan = held(world.all_claims())["old"]
    world.tick(240.0)
    world.late(60.0)
    killed_at_fleet(world, "after", lambda: world.claim("mine"))
    world.client.patch(NodeClaim.KIND, "old", {"metadata": {"finalizers": None}})
    world.delete("old")
    process = world.start()
    process.until(lambda: "mine" in held(world.all_claims()), "it has an instance")
    assert held(world.all_claims())["mine"] != orphan
    assert len(world.instances(ended=True)) == 2


@pytest.mark.covers("SAF-25")
def test_nothing_is_sent_that_could_not_be_recorded(world: World) -> None:
    world.node_class(id_=world.aws.odcr(count=1))
    process = started(world)

    def away() -> None:
        raise Unavailable(0, "Away", "no answer, as ordered by the test")

    path = f"PATCH /api/v1/namespaces/{NAMESPACE}/configmaps"
    process.gate.at(path, *[away] * 6)
    world.claim("c-0")
    process.until(
        lambda: "LaunchNotRecorded" in launched_text(world, "c-0"), "its condition shows why it waits"
    )
    assert not fleets(world)
    process.until(lambda: whole(world), "it is launched")
    process.until(lambda: not records(world), "nothing is left")
    assert len(fleets(world)) == 1
