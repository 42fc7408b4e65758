"""Which pods, claims and namespaces may draw from which reservation."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import NOT_ALLOWED, DrawRights, allowed_namespaces

TEAM, POOL, LISTED, OPEN = (
    ReservationKey("team", "gpus"),
    ReservationKey("", "pool"),
    ReservationKey("", "listed"),
    ReservationKey("ops", "spare"),
)


def reservation(allowed: str | None = None) -> CapacityReservation:
    annotations = {} if allowed is None else {names.ALLOWED_NAMESPACES: allowed}
    return CapacityReservation.decode({"metadata": {"name": "r", "annotations": annotations}})


def rights() -> DrawRights:
    spaces = [("bound", "pool"), ("bound-to-listed", "listed"), ("bound-to-team", "team/gpus"), ("free", "")]
    return DrawRights(
        {TEAM: reservation(), POOL: reservation(), LISTED: reservation("red, blue"), OPEN: reservation("*")},
        [
            Namespace.decode({"metadata": {"name": name, "annotations": {names.DRAWS_FROM: named}}})
            for name, named in spaces
        ],
    )


@pytest.mark.covers("FLT-62")
@pytest.mark.parametrize(
    ("named", "namespaces", "served"),
    [
        ("team/gpus", ["team"], True),
        ("gpus", ["team"], True),
        ("team/gpus", ["red"], False),
        ("gpus", ["red"], False),
        ("team/gpus", ["team", "red"], False),
        ("team/gpus", [""], False),
        ("team/gpus", [], True),  # a claim for no pods has its author's right
        ("team/gpus", ["bound-to-team"], False),  # of another namespace only the list counts
        ("pool", ["red"], False),
        ("pool", [""], False),
        ("pool", ["free"], False),
        ("pool", ["bound"], True),
        ("pool", ["bound", "red"], False),
        ("listed", ["red", "blue"], True),
        ("listed", ["bound-to-listed"], False),  # the list says which
        ("ops/spare", ["red", "free", "ops"], True),
    ],
)
def test_a_reservation_serves_its_namespace_and_those_that_it_lists(
    named: str, namespaces: Iterable[str], served: bool
) -> None:
    decided = rights().decide(named, namespaces)
    assert isinstance(decided, ReservationKey) is served
    if isinstance(decided, UnresolvedName):
        assert decided.reason == NOT_ALLOWED and names.ALLOWED_NAMESPACES in decided.message


@pytest.mark.covers("FLT-62")
@pytest.mark.parametrize(
    ("text", "listed", "invalid"),
    [
        (None, None, ""),
        ("", set(), ""),
        ("red", {"red"}, ""),
        (" red ,\n blue,", {"red", "blue"}, ""),
        ("*", {"*"}, ""),
        ("red,*", {"red", "*"}, ""),
        ("Red", set(), "'Red'"),
        ("red,te*,a/b", {"red"}, "'a/b', 'te*'"),
        ("a" * 64, set(), "write names"),
    ],
)
def test_an_invalid_namespace_in_the_list_allows_nothing(
    text: str | None, listed: set[str] | None, invalid: str
) -> None:
    namespaces, problem = allowed_namespaces(reservation(text))
    assert namespaces == (None if listed is None else frozenset(listed))
    assert bool(problem) is bool(invalid) and invalid in problem


@pytest.mark.covers("FLT-62")
def test_the_annotation_of_the_namespace_comes_before_those_of_pod_and_pools() -> None:
    given = rights()
    assert given.of_pod("bound", "team/gpus", {"ops/spare"}) == ("pool", ("pool",))
    assert given.of_pod("red", "team/gpus", {"ops/spare"}) == ("team/gpus", ())
    assert given.of_pod("red", "", {"ops/spare", "team/gpus", ""}) == ("", ("ops/spare",))
    assert given.of_pod("red", "", {"ops/spare", "team/gpus", ""}).refused("team/gpus") == "team/gpus"
    assert given.of_pod("team", "", {"team/gpus"}).refused("team/gpus") == ""


def test_a_claim_is_judged_by_the_namespaces_of_its_pods() -> None:
    def claim(pods: str) -> NodeClaim:
        annotations = {names.DRAWS_FROM: "team/gpus", names.PODS: pods}
        return NodeClaim.decode({"metadata": {"name": "c", "annotations": annotations}, "spec": {}})

    assert rights().of_claim(claim("")) == TEAM
    assert rights().of_claim(claim("team/a, team/b")) == TEAM
    assert rights().of_claim(claim("team/reservation/kept")) == TEAM  # a Koordinator reservation's claim
    assert isinstance(rights().of_claim(claim("red/reservation/team")), UnresolvedName)
    assert isinstance(rights().of_claim(claim("team")), UnresolvedName)
    assert isinstance(rights().of_claim(claim("team/a,red/b")), UnresolvedName)
    assert isinstance(rights().of_claim(claim("no-namespace")), UnresolvedName)
