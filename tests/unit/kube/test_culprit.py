"""Which object a traceback leads to."""

from __future__ import annotations

import pytest

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Object, ObjectMeta
from broker.kube.bugs import contained


def claim(name: str) -> NodeClaim:
    return NodeClaim(metadata=ObjectMeta(name=name))


def judge(value: str) -> str:
    raise RuntimeError(f"cannot judge {value}")


def over_all(claims: list[NodeClaim], node: Node) -> None:
    for other in claims[:1]:
        assert other.name != node.name
    for each in claims:
        if each.name == "bad":
            judge(each.name)


def in_a_comprehension(claims: list[NodeClaim], node: Node) -> None:
    assert node.name
    assert [judge(each.name) for each in claims if each.name == "bad"]


def by_value(_: list[NodeClaim], __: Node) -> None:
    judge("5000")


@pytest.mark.parametrize(("fails", "name"), [(over_all, "bad"), (in_a_comprehension, "bad"), (by_value, "")])
def test_the_object_that_the_failing_code_names_is_the_culprit(fails: object, name: str) -> None:
    claims, node = [claim("a"), claim("bad"), claim("c")], Node(metadata=ObjectMeta(name="n"))
    with contained("test") as bug:
        fails(claims, node)  # type: ignore[operator]
    found = bug.culprit
    # Nothing but the test itself has an object where no object was worked on.
    assert (found.name if isinstance(found, Object) and found is not node else "") == name
