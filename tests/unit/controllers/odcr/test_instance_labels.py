"""The claims and Nodes that are written after EC2's descriptions, without extra calls to EC2."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.odcr.instance_labels import InstanceLabelController
from broker.kube.errors import Forbidden, NotFound, Unavailable
from providers.model import Instance, Odcr
from tests.unit.capacity.builders import odcr
from tests.unit.controllers.odcr.world import OUTSIDE, World, inside, instance

OF_CLAIM = [("apply", "nodeclaims", "a"), ("patch", "nodeclaims", "a")]  # condition, then labels
BOTH = [*OF_CLAIM, ("patch", "nodes", "node-a")]


@pytest.mark.covers("KRP-27")
def test_claim_and_node_lose_all_three_labels(world: World) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.described(odcr("cr-1", state="cancelled"))
    world.listed(instance("a"))
    world.labeller.run()
    assert world.labels(world.claims, "a") == world.labels(world.nodes, "node-a") == OUTSIDE
    assert world.api.writes == BOTH
    assert world.recorded.of("DemotedToOnDemand") == ["a"]
    assert "On-Demand Instance: reservation cr-1 is cancelled" in world.recorded.events[0][-1]
    world.labeller.run()
    assert world.api.writes == BOTH
    assert world.recorded.of("DemotedToOnDemand") == ["a"]


@pytest.mark.covers("KRP-27")
def test_a_label_that_another_demotion_left_is_removed(world: World) -> None:
    left = {**OUTSIDE, "karpenter.k8s.aws/capacity-reservation-interruptible": "false"}
    world.claim("a", labels=left)
    world.described()
    world.listed(instance("a"))
    world.labeller.run()
    assert world.labels(world.claims, "a") == world.labels(world.nodes, "node-a") == OUTSIDE
    assert world.recorded.events == []


@pytest.mark.covers("KRP-28")
def test_a_claim_that_ec2_counts_in_a_reservation_is_promoted(world: World) -> None:
    world.claim("a", labels=OUTSIDE)
    world.described(odcr("cr-1"))
    world.listed(instance("a", "cr-1"))
    world.labeller.run()
    assert world.labels(world.claims, "a") == world.labels(world.nodes, "node-a") == inside("cr-1")
    assert world.recorded.of("PromotedToReserved") == ["a"]
    assert world.recorded.events[0][-1] == "EC2 counts instance i-a in reservation cr-1 now"


@pytest.mark.covers("KRP-27", "KRP-28")
def test_thousands_of_claims_cost_the_same_two_calls(world: World) -> None:
    for number in range(30):
        world.claim(f"c-{number}", labels=inside("cr-1"))
    world.described(odcr("cr-1", state="cancelled"))
    world.listed(*(instance(f"c-{number}") for number in range(30)))
    world.labeller.run()
    assert world.ec2.calls == ["reservations", "instances"]
    assert len(world.recorded.of("DemotedToOnDemand")) == 30


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(instance("a", described=False), id="launched, not described yet"),
        pytest.param(instance("a", state="shutting-down"), id="ends"),
        pytest.param(instance("a", "cr-2"), id="in one that was not described"),
        pytest.param(instance("b"), id="not listed"),
    ],
)
def test_labels_are_unchanged_while_ec2_has_no_description(world: World, shown: object) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.described(odcr("cr-1"))
    world.listed(shown)  # type: ignore[arg-type]
    world.labeller.run()
    assert world.api.writes == [] and world.relisted == 0


@pytest.mark.covers("KRP-27")
@pytest.mark.parametrize(
    ("then", "why"),
    [((odcr("cr-1"),), "EC2 counts it no longer"), ((), "cr-1 is gone")],
    ids=["lasts", "gone"],
)
def test_a_demotion_is_written_after_the_next_description(
    world: World, then: tuple[Odcr, ...], why: str
) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.described(odcr("cr-1"))
    world.listed(instance("a"))
    world.labeller.run()
    assert world.api.writes == []
    world.described(*then)
    world.labeller.run()
    assert world.labels(world.claims, "a") == OUTSIDE
    assert world.recorded.events[0][-1].endswith(why)


def test_labels_are_unchanged_before_both_descriptions(world: World) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.labeller.run()
    world.listed(instance("a"))
    world.labeller.run()
    assert world.api.writes == []


@pytest.mark.parametrize(
    "listed",
    [pytest.param([instance("a", "cr-1")], id="listed before"), pytest.param([], id="launched since")],
)
def test_instances_of_an_ended_reservation_are_listed_again_first(world: World, listed: list[object]) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.listed(*listed)  # type: ignore[arg-type]
    world.described(odcr("cr-1", state="expired"), odcr("cr-2"))
    world.labeller.run()
    assert world.api.writes == [] and world.relisted == 1
    world.ec2.listed = [instance("a", "cr-2")]
    world.clock.advance(1)
    world.view.refresh()  # its placement is in doubt
    world.labeller.run()
    assert world.labels(world.claims, "a") == inside("cr-2")
    assert world.recorded.of("ReservationChanged") == ["a"] and world.relisted == 1
    assert "cr-2 now, no longer in cr-1" in world.recorded.events[0][-1]


PLACE = {"node.kubernetes.io/instance-type": "m5.xlarge", "topology.kubernetes.io/zone": "us-east-1a"}
OPEN_TO_ALL = {"reservation_preference": "open"}


@pytest.mark.covers("FUL-10")
@pytest.mark.parametrize(
    ("listed", "reservation", "requests"),
    [
        pytest.param([instance("a", **OPEN_TO_ALL)], odcr("cr-1"), 1, id="listed outside"),
        pytest.param([instance("a", state="pending", **OPEN_TO_ALL)], odcr("cr-1"), 1, id="listed pending"),
        pytest.param([], odcr("cr-1"), 1, id="launched after the listing"),
        pytest.param([instance("a")], odcr("cr-1"), 0, id="matches none"),
        pytest.param([], odcr("cr-1", zone="us-east-1b"), 0, id="no reservation at its place"),
        pytest.param([], odcr("cr-1", state="expired"), 0, id="an ended reservation"),
    ],
)
def test_instances_that_a_reservation_may_take_in_are_listed_again(
    world: World, listed: list[Instance], reservation: Odcr, requests: int
) -> None:
    world.claim("a", labels={**OUTSIDE, **PLACE})
    world.listed(*listed)
    world.described(reservation)
    world.labeller.run()
    world.labeller.run()  # such as under a clock that was set back: the new listing seems older
    assert world.relisted == requests, "one request for each description"
    world.ec2.listed = [instance("a", "cr-1")]
    world.clock.advance(1)
    world.view.refresh()
    world.labeller.run()
    assert world.recorded.of("PromotedToReserved") == ["a"] * requests


def test_an_ended_reservation_counts_as_ended_although_ec2_names_it(world: World) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.described(odcr("cr-1", state="expired"))
    world.listed(instance("a", "cr-1"))
    world.labeller.run()
    assert world.labels(world.claims, "a") == OUTSIDE


def test_karpenters_claims_are_unchanged(world: World) -> None:
    world.claim("a", labels=inside("cr-1"), group="karpenter.k8s.aws")
    world.described(odcr("cr-1", state="cancelled"))
    world.listed(instance("a"))
    world.labeller.run()
    assert world.api.writes == []


@pytest.mark.parametrize(
    "metadata",
    [None, {"labels": inside("cr-1")}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}],
    ids=["none", "not registered", "going"],
)
def test_a_node_gets_its_labels_after_it_joined(world: World, metadata: dict[str, Any] | None) -> None:
    world.claim("a", labels=inside("cr-1"), node=metadata is not None)
    if metadata is not None:
        raw = world.api.objects["nodes", "node-a"]
        world.api.put(Node.KIND, {**raw, "metadata": raw["metadata"] | metadata})
    world.described(odcr("cr-1", state="cancelled"))
    world.listed(instance("a"))
    world.labeller.run()
    assert world.api.writes == OF_CLAIM


def test_a_failed_write_does_not_block_other_claims(world: World) -> None:
    for name in ("a", "b", "c"):
        world.claim(name, labels=inside("cr-1"))
    world.described(odcr("cr-1", state="cancelled"))
    world.listed(*map(instance, ("a", "b", "c")))
    world.api.refusals = {"a": Forbidden(403, "Forbidden", "no"), "b": NotFound(404, "NotFound", "gone")}
    with pytest.raises(Forbidden):
        world.labeller.run()
    assert world.labels(world.claims, "c") == world.labels(world.nodes, "node-c") == OUTSIDE
    world.api.refusals = {}
    world.labeller.run()
    assert world.labels(world.claims, "a") == world.labels(world.nodes, "node-a") == OUTSIDE


def test_an_unfinished_node_is_written_later_with_a_single_event(world: World) -> None:
    world.claim("a", labels=inside("cr-1"))
    world.described(odcr("cr-1", state="cancelled"))
    world.listed(instance("a"))
    world.api.refusals = {"node-a": Unavailable(0, "Lost", "the API server went away")}
    with pytest.raises(Unavailable):
        world.labeller.run()
    assert world.labels(world.claims, "a") == OUTSIDE
    assert world.labels(world.nodes, "node-a") == inside("cr-1")
    world.api.refusals = {}
    world.labeller.run()
    assert world.labels(world.nodes, "node-a") == OUTSIDE
    assert world.recorded.of("DemotedToOnDemand") == ["a"]


@pytest.mark.covers("SAF-50")
def test_claim_that_cannot_be_compared_is_left_out_and_the_others_are_labelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "bad", "c"):
        world.claim(name, labels=OUTSIDE)
    world.described(odcr("cr-1"))
    world.listed(*(instance(name, "cr-1") for name in ("a", "bad", "c")))

    def failing(_: object, claim: NodeClaim) -> list[Node]:
        if claim.name == "bad":
            raise ZeroDivisionError
        return []

    monkeypatch.setattr(InstanceLabelController, "_registered", failing)
    world.labeller.run()
    assert [world.labels(world.claims, name) for name in ("a", "c")] == [inside("cr-1")] * 2
    assert [*world.claims.broken] == ["bad"]
