"""The counting decisions of static pools: what is lacking, what is too much, who leaves first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.provisioning.usage import node_room
from broker.controllers.staticpools.census import OutsideClaims, PoolCensus, census, outside
from broker.controllers.staticpools.leaving import ScaleInCandidate, first_to_end
from broker.placement.disruption_cost import DELETION_COST, lifetime_remaining, rescheduling_cost
from providers.model import Odcr

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
POOL = NodePool.decode({"metadata": {"name": "web"}, "spec": {"replicas": 3, "template": {"spec": {}}}})


def claim(
    name: str,
    *,
    ends: bool = False,
    replaces: str = "",
    odcr: str = "",
    kind: str = "",
    started: bool = True,
    conditions: tuple[str, ...] = (),
    pool: str = "web",
    **spec: Any,
) -> NodeClaim:
    kind = kind or ("reserved" if odcr else "on-demand")
    labels = {names.NODEPOOL: pool, names.CAPACITY_TYPE: kind, names.RESERVATION_ID: odcr}
    meta: dict[str, Any] = {
        "name": name,
        "uid": name,
        "labels": {
            key: value for key, value in labels.items() if value and (started or key == names.NODEPOOL)
        },
        "annotations": {names.REPLACES: f"{replaces}/{replaces}"} if replaces else {},
        "creationTimestamp": NOW.isoformat(),
    }
    if ends:
        meta["deletionTimestamp"] = NOW.isoformat()
    status = {
        "providerID": f"aws:///a/i-{name}" if started else "",
        "conditions": [{"type": type_, "status": "True"} for type_ in conditions],
    }
    return NodeClaim.decode({"metadata": meta, "spec": spec, "status": status})


def of(*claims: NodeClaim) -> PoolCensus:
    return census(POOL, claims, owns=lambda item: item.name != "karpenters")


@pytest.mark.covers("FUL-30")
@pytest.mark.parametrize(
    ("claims", "wanted", "lacks", "excess"),
    [
        ((), 3, 3, 0),
        ((claim("a"), claim("b"), claim("c")), 3, 0, 0),
        ((claim("a"), claim("b", ends=True)), 3, 2, 0),
        ((claim("a"), claim("b"), claim("c"), claim("d", started=False)), 3, 0, 1),
        ((claim("a"), claim("b"), claim("c")), 0, 0, 3),
        # c is replaced by d: as in Karpenter it counts until it has ended, but is not too much.
        ((claim("a"), claim("b"), claim("c"), claim("d", replaces="c")), 3, 0, 0),
        ((claim("a"), claim("c"), claim("d", replaces="c")), 3, 0, 0),
        ((claim("a"), claim("c"), claim("d", replaces="c")), 4, 2, 0),
        # b ends, and its slot is not left to others meanwhile.
        ((claim("a"), claim("c"), claim("d", replaces="c"), claim("b", odcr="cr-1", ends=True)), 3, 1, 0),
        ((claim("c", ends=True), claim("d", replaces="c", started=False)), 1, 0, 0),
        ((claim("other", pool="db"),), 1, 1, 0),
        ((claim("karpenters"), claim("a")), 1, 0, 0),
        ((claim("karpenters"), claim("a")), 2, 1, 0),
    ],
)
def test_ending_and_replaced_claims_count_as_in_karpenter(
    claims: tuple[NodeClaim, ...], wanted: int, lacks: int, excess: int
) -> None:
    counts = of(*claims)
    assert (counts.lacks(wanted), counts.excess(wanted)) == (lacks, excess)


@pytest.mark.covers("FUL-30", "FUL-32")
def test_a_slot_is_left_to_one_successor_and_a_reclaimed_one_to_none() -> None:
    counts = of(
        claim("a", ends=True, odcr="cr-1"),
        claim("b", ends=True, odcr="cr-1"),
        claim("c", replaces="b", started=False),
        claim("d", ends=True, odcr="cr-1", conditions=(names.PREEMPTED,)),
        claim("e", ends=True),
        claim("f", odcr="cr-1"),
    )
    assert left(counts, {"cr-1"}) == (["a"], 0)
    assert left(counts, {"cr-2"}) == ([], 0)


@pytest.mark.covers("FLT-61", "FUL-04")
@pytest.mark.parametrize(
    ("free", "room", "expected"),
    [
        (0, 0, (["a", "b"], 0)),  # each waits until its node has left
        (1, None, (["a", "b"], 1)),
        (1, 1, (["a", "b"], 1)),
        (1, 0, ([], 0)),
        (2, 1, (["a"], 1)),
    ],
)
def test_successors_that_find_a_slot_free_are_bounded_by_the_limit_of_nodes(
    free: int, room: int | None, expected: tuple[list[str], int]
) -> None:
    counts = of(claim("a", ends=True, odcr="cr-1"), claim("b", ends=True, odcr="cr-1"))
    assert left(counts, {"cr-1"}, free=free, room=room) == expected


def left(
    counts: PoolCensus, odcr_ids: set[str], *, free: int = 0, room: int | None = None
) -> tuple[list[str], int]:
    claims, beside = counts.left_by(odcr_ids, free=lambda _: free, room=room)
    return [claim.name for claim in claims], beside


@pytest.mark.covers("FUL-31")
def test_a_node_is_outside_only_once_ec2_shows_where_it_is() -> None:
    odcrs = {id_: Odcr(id=id_, instance_type="m", zone="a", total=1, available=0) for id_ in ("cr-1", "cr-2")}
    claims = (
        claim("in", odcr="cr-1"),
        claim("bought"),
        claim("elsewhere", odcr="cr-2"),
        claim("undescribed", odcr="cr-404"),
        claim("unlabelled", kind="reserved"),
        claim("waits", started=False),
    )
    assert [item.name for item in outside(claims, {"cr-1"}, odcrs)] == ["bought", "elsewhere"]


@pytest.mark.covers("FUL-31")
def test_a_claim_ends_once_two_descriptions_in_a_row_put_it_outside() -> None:
    seen, times = OutsideClaims(), [NOW + timedelta(minutes=number) for number in range(4)]
    a, b = claim("a"), claim("b")
    assert seen.confirmed("web", [a], times[0]) == []
    assert seen.confirmed("web", [a], times[0]) == []  # the same description again
    assert seen.confirmed("db", [b], times[1]) == []
    assert seen.confirmed("web", [a, b], times[1]) == [a]
    assert seen.confirmed("web", [], times[2]) == []
    assert seen.confirmed("web", [a], times[3]) == []


@pytest.mark.covers("FUL-30")
def test_claims_that_end_or_are_replaced_count_for_the_limit() -> None:
    claims = [claim("a", ends=True), claim("b"), claim("c", replaces="b"), claim("other", pool="db")]
    assert node_room(POOL, claims) is None
    spec = {"template": {"spec": {}}, "replicas": 9}
    for limit, room in (("5", 2), ("3", 0), ("1", 0)):
        body = {"metadata": {"name": "web"}, "spec": {**spec, "limits": {"nodes": limit}}}
        assert node_room(NodePool.decode(body), claims) == room


@pytest.mark.covers("FUL-30")
def test_the_order_of_those_that_leave() -> None:
    ordered = [
        ScaleInCandidate(claim=claim("waits", started=False), cost=9),
        ScaleInCandidate(claim=claim("empty-bought"), empty=True),
        ScaleInCandidate(claim=claim("bought-cheap"), cost=1),
        ScaleInCandidate(claim=claim("bought-dear"), cost=2),
        ScaleInCandidate(claim=claim("empty-slot", odcr="cr-1"), empty=True),
        ScaleInCandidate(claim=claim("slot-cheap", odcr="cr-1"), cost=0.5),
        ScaleInCandidate(claim=claim("kept"), protected=True),
        ScaleInCandidate(claim=claim("kept-slot", odcr="cr-1"), protected=True),
    ]
    newest = {item.claim.name: item for item in ordered}
    leaving = first_to_end(reversed(ordered), 99, lambda claim: newest[claim.name])
    assert [item.name for item in leaving] == [item.claim.name for item in ordered]
    assert [item.name for item in first_to_end(ordered, 1, lambda claim: newest[claim.name])] == ["waits"]


def test_those_that_leave_are_chosen_by_what_the_api_server_has() -> None:
    cached = [ScaleInCandidate(claim=claim(name), empty=True) for name in ("a", "b", "c", "d")]
    changed = {
        "a": ScaleInCandidate(claim=claim("a"), cost=1),
        "b": ScaleInCandidate(claim=claim("b"), protected=True),
        "d": ScaleInCandidate(claim=claim("d"), ending=True),
    }
    read: list[str] = []

    def newest(item: NodeClaim) -> ScaleInCandidate:
        read.append(item.name)
        return changed.get(item.name) or ScaleInCandidate(claim=item, empty=True)

    assert [item.name for item in first_to_end(cached, 1, newest)] == ["c"]
    assert read == ["a", "b", "c"]
    assert [item.name for item in first_to_end(cached, 3, newest)] == ["c", "d", "a"]


def pod(priority: int = 0, cost: str = "") -> Pod:
    annotations = {DELETION_COST: cost} if cost else {}
    return Pod.decode({"metadata": {"name": "p", "annotations": annotations}, "spec": {"priority": priority}})


@pytest.mark.covers("FUL-30")
@pytest.mark.parametrize(
    ("pods", "cost"),
    [
        ([], 0.0),
        ([pod(), pod()], 2.0),
        ([pod(priority=2**25)], 2.0),
        ([pod(cost=str(2**27 - 1))], 2.0),
        ([pod(priority=2**30)], 10.0),
        ([pod(priority=-(2**30))], -10.0),
        ([pod(cost="dear")], 1.0),
    ],
)
def test_the_cost_of_moving_pods(pods: list[Pod], cost: float) -> None:
    assert rescheduling_cost(pods) == pytest.approx(cost, abs=1e-6)


@pytest.mark.parametrize(("text", "left"), [("Never", 1.0), ("100h", 0.75), ("10h", 0.0), ("soon", 1.0)])
def test_the_share_of_life_that_is_left(text: str, left: float) -> None:
    assert lifetime_remaining(claim("a", expireAfter=text), NOW + timedelta(hours=25)) == left
