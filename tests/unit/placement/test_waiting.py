"""The time since which a claim's pods wait: the annotation counts only within the times of Kubernetes."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.placement.claims import waiting_since
from broker.text import decode_time


def at(minute: int) -> str:
    return f"2026-11-23T00:{minute:02}:00Z"


@pytest.mark.parametrize(
    ("text", "pods", "minute"),
    [
        (None, {"n/a": 1}, 30),
        (at(10), {"n/a": 1, "n/b": 20}, 10),
        (at(10), {"n/a": 25, "n/b": 20}, 20),
        (at(10), {"n/a": 40}, 30),
        (at(10), {}, 30),
        (at(50), {"n/a": 1}, 30),
        ("long ago", {"n/a": 1}, 30),
    ],
    ids=["none", "carried", "before the pods", "newer pods", "no pod known", "future", "no time"],
)
def test_waiting_since_counts_only_within_the_life_of_the_pods(
    text: str | None, pods: dict[str, int], minute: int
) -> None:
    carried = {names.WAITING_SINCE: text} if text is not None else {}
    meta = {"name": "c", "creationTimestamp": at(30), "annotations": {names.PODS: "n/a,n/b", **carried}}
    existing = {
        key: Pod.decode({"metadata": {"name": key[2:], "namespace": "n", "creationTimestamp": at(created)}})
        for key, created in pods.items()
    }
    assert waiting_since(NodeClaim.decode({"metadata": meta}), existing.get) == decode_time(at(minute))
