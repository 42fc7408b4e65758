"""Decoded objects made small say what they said."""

from __future__ import annotations

import orjson

from broker.apis.core import Node
from broker.kube.lean import lean

RAW = {
    "metadata": {"name": "n-1", "labels": {"zone": "us-east-1a"}, "finalizers": ["karpenter.sh/termination"]},
    "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": 4}},
}


def fresh() -> Node:
    """Decoded from bytes, so that no word of it is anybody else's."""
    return Node.decode(orjson.loads(orjson.dumps(RAW)))


def test_a_lean_object_is_equal_and_is_written_the_same() -> None:
    before, after = fresh(), lean(fresh())
    assert after == before
    assert after.wire() == before.wire()
    assert "unschedulable" not in after.wire()["spec"]


def test_equal_objects_share_their_words_and_what_was_given() -> None:
    first, second = lean(fresh()), lean(fresh())
    assert first.labels["zone"] is second.labels["zone"]
    assert first.metadata.finalizers[0] is second.metadata.finalizers[0]
    ready, other = first.status.conditions[0], second.status.conditions[0]
    assert ready.type is other.type
    assert ready.model_fields_set is other.model_fields_set


def test_a_copy_of_a_lean_object_changes_no_other() -> None:
    first, second = lean(fresh()), lean(fresh())
    changed = first.spec.model_copy(update={"unschedulable": True})
    assert "unschedulable" in changed.wire()
    assert "unschedulable" not in second.spec.wire()
