"""Which pools are static, and which numbers of nodes cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.static_pools import follows, number_of_nodes, replicas_problem, static


def pool(text: str | None = None, **spec: Any) -> NodePool:
    annotations = {} if text is None else {names.REPLICAS: text}
    meta = {"name": "web", "annotations": annotations}
    return NodePool.decode({"metadata": meta, "spec": {"template": {"spec": {}}, **spec}})


@pytest.mark.covers("FUL-30", "FUL-31")
@pytest.mark.parametrize(
    ("given", "is_static", "is_following", "problem"),
    [
        (pool(), False, False, ""),
        (pool(replicas=0), True, False, ""),
        (pool("all-reserved"), True, True, ""),
        (pool("all-reserved", limits={"nodes": "3"}), True, True, ""),
        (pool("all-reserved", limits={"cpu": "3"}), True, True, "spec.limits has cpu"),
        (pool("all-reserved", replicas=3), True, False, "spec.replicas is 3: remove the annotation"),
        (pool("7"), True, False, "is '7': write all-reserved, or remove it"),
        (pool(""), True, False, "write all-reserved"),
    ],
)
def test_a_pool_is_static_by_its_spec_or_by_the_annotation(
    given: NodePool, is_static: bool, is_following: bool, problem: str
) -> None:
    assert (static(given), follows(given)) == (is_static, is_following)
    text = replicas_problem(given)
    assert problem in text and bool(text) == bool(problem)
    assert bool(number_of_nodes(given)) == is_static
    if problem and "limits" not in problem:
        assert names.REPLICAS in text
