"""The object that a failed pass leaves out, with any other objects in the scope of its code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.kube.bisection import bisected
from broker.kube.cache import Cache
from broker.kube.controller import ReconcileOutcome, attempt
from broker.kube.events import Recorder, Reference
from broker.kube.isolation import REASON, Isolation
from tests.support.clock import FakeClock

BAD = "bad"


class Events(Recorder):
    """A recorder that keeps its events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def event(self, obj: Any, type: str, reason: str, message: str, **_: Any) -> bool:  # noqa: A002
        assert isinstance(obj, Reference)
        self.seen.append((obj.kind, obj.name, reason))
        return True


class World:
    """Claims and nodes, each node of one claim; `done` are the claims that a pass completed."""

    def __init__(self, claims: Sequence[str], nodes: Sequence[str] = ()) -> None:
        self.claims = Cache(NodeClaim, indexes={"node": lambda claim: [claim.labels["node"]]})
        self.nodes = Cache(Node)
        nodes = nodes or [f"node-{name}" for name in claims]
        labels = [{"node": nodes[at % len(nodes)], "size": name} for at, name in enumerate(claims)]
        self.claims.replace(
            [_raw(*claim_and_labels) for claim_and_labels in zip(claims, labels, strict=True)], 1
        )
        self.nodes.replace([_raw(name, {"size": name}) for name in nodes], 1)
        self.events = Events()
        self.isolation = Isolation((self.nodes, self.claims), self.events, clock=FakeClock())
        self.done: list[str] = []

    def runs(self, work: Callable[[World], None], *, about: str = "") -> ReconcileOutcome:
        def once() -> None:
            self.done.clear()
            work(self)

        return attempt(
            "test", once, clock=FakeClock(), expected=(), isolate=self.isolation.search, about=about
        )

    @property
    def left_out(self) -> set[tuple[str, str]]:
        return {(kind.KIND.kind, name) for kind, cache in self._all for name in cache.broken}

    @property
    def _all(self) -> Sequence[tuple[Any, Cache[Any]]]:
        return (NodeClaim, self.claims), (Node, self.nodes)


def _raw(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}}


def number(text: str) -> int:
    if text.startswith(BAD):
        raise RecursionError(f"{text} has no end")
    return len(text)


def named_by_the_expression(world: World) -> None:
    for claim in world.claims.list():
        node = world.nodes.get(claim.labels["node"])
        assert node is None or node.name
        number(claim.labels["size"])
        world.done.append(claim.name)


def one_of_several_in_the_frame(world: World) -> None:
    for claim in world.claims.list():
        size = claim.labels["size"]
        node, other = world.nodes.get(claim.labels["node"]), next(iter(world.nodes.list()), None)
        number(size)
        world.done.append(claim.name)
        assert node is not other or node is not None


def in_a_comprehension(world: World) -> None:
    world.done += [claim.name for claim in world.claims.list() if number(claim.labels["size"])]


def by_a_value_that_has_its_name(world: World) -> None:
    @dataclass
    class Sized:
        name: str

    def judge(sized: Sized) -> str:
        number(sized.name)
        return sized.name

    world.done += map(judge, [Sized(claim.name) for claim in world.claims.list()])


def by_numbers_alone(world: World) -> None:
    def total(lengths: Sequence[int]) -> int:
        if len(BAD) in lengths:
            raise ZeroDivisionError
        return sum(lengths)

    def judge(claims: Sequence[NodeClaim]) -> int:
        return total([len(claim.labels["size"]) for claim in claims])

    claims = world.claims.list()
    bisected(judge, claims)
    world.done += [claim.name for claim in claims]


PASSES = (
    named_by_the_expression,
    one_of_several_in_the_frame,
    in_a_comprehension,
    by_a_value_that_has_its_name,
    by_numbers_alone,
)


@pytest.mark.parametrize("work", PASSES)
@pytest.mark.parametrize("nodes", [(), ("shared",)])
def test_only_the_object_that_fails_a_pass_is_left_out(
    work: Callable[[World], None], nodes: Sequence[str]
) -> None:
    world = World(["first", BAD, "last"], nodes)
    assert not world.runs(work).failed
    assert world.left_out == {("NodeClaim", BAD)}
    assert world.done == ["first", "last"]
    assert world.events.seen == [("NodeClaim", BAD, REASON)]


@pytest.mark.parametrize("work", PASSES)
def test_all_objects_with_the_same_failure_are_left_out(work: Callable[[World], None]) -> None:
    bad = [BAD] if work is by_numbers_alone else [f"{BAD}-{n}" for n in range(5)]
    world = World([*bad, "good"], ["shared"])
    assert not world.runs(work).failed
    assert world.left_out == {("NodeClaim", name) for name in bad}
    assert world.done == ["good"]


@pytest.mark.parametrize("work", PASSES)
def test_a_failure_without_a_culprit_leaves_no_object_out(
    work: Callable[[World], None],
) -> None:
    def fails(world: World) -> None:
        work(world)
        objects = [*world.claims.list(), *world.nodes.list()]
        claim = objects[0] if objects else None
        number(BAD)
        assert claim

    world = World(["first", "last"])
    assert world.runs(fails).failed
    assert not world.left_out and not world.events.seen


def test_a_reconciled_object_backs_off_and_a_failing_object_that_it_reads_is_left_out() -> None:
    def reads_its_node(world: World) -> None:
        node = world.nodes.get("bad-node")
        claim = world.claims.get("own")
        if node is not None:
            number(node.labels["size"])
        assert claim is not None

    world = World(["own"], ["bad-node"])
    assert not world.runs(reads_its_node, about="own").failed
    assert world.left_out == {("Node", "bad-node")}
    own = World([BAD])
    assert own.runs(named_by_the_expression, about=BAD).failed
    assert not own.left_out


def test_an_object_in_the_memory_of_a_pass_stays_left_out() -> None:
    world = World(["first", BAD, "last"], ["shared"])
    remembered = world.claims.list()

    def from_memory(world: World) -> None:
        for claim in remembered:
            number(claim.labels["size"])
            world.done.append(claim.name)

    assert world.runs(from_memory).failed
    assert world.left_out == {("NodeClaim", BAD)}
    assert world.runs(from_memory).failed and world.left_out == {("NodeClaim", BAD)}
    remembered = world.claims.list()
    assert not world.runs(from_memory).failed
    assert world.done == ["first", "last"]
