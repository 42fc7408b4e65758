"""Decoded objects in compact form keep their content."""

from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.kube.lean import KEPT, _specs, decode, lean

RAW = {
    "metadata": {"name": "n-1", "labels": {"zone": "us-east-1a"}, "finalizers": ["karpenter.sh/termination"]},
    "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": 4}},
}


def fresh() -> Node:
    """A node decoded from bytes, so that it shares no string with another object."""
    return Node.decode(orjson.loads(orjson.dumps(RAW)))


def test_a_lean_object_is_equal_and_has_the_same_wire_form() -> None:
    before, after = fresh(), lean(fresh())
    assert after == before
    assert after.wire() == before.wire()
    assert "unschedulable" not in after.wire()["spec"]


def test_equal_objects_share_their_strings_and_field_sets() -> None:
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


def claim(number: int, size: str = "m5.large") -> dict[str, Any]:
    """A claim as it comes from the API server, so that it shares no string with another object."""
    required = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [size]}
    raw: dict[str, Any] = {
        "metadata": {"name": f"c-{number}", "labels": {"karpenter.sh/nodepool": "general"}},
        "spec": {"nodeClassRef": {"group": "capacity-broker.io", "name": "gpu"}, "requirements": [required]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-05T08:00:00Z"}]
        },
    }
    decoded: dict[str, Any] = orjson.loads(orjson.dumps(raw))
    return decoded


def test_claims_with_equal_requirements_share_their_spec() -> None:
    first, second, other = (
        decode(NodeClaim, claim(1)),
        decode(NodeClaim, claim(2)),
        decode(NodeClaim, claim(3, "c5")),
    )
    assert first.spec is second.spec
    assert first.labels is second.labels
    assert other.spec != first.spec
    for number, read in enumerate((first, second), 1):
        assert read == NodeClaim.decode(claim(number))
        assert read.wire() == NodeClaim.decode(claim(number)).wire()


def test_a_time_is_the_same_moment_in_utc() -> None:
    raw = claim(1)
    raw["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-05T10:00:00+02:00"
    assert decode(NodeClaim, raw) == NodeClaim.decode(claim(1))


def test_the_memory_of_shared_specs_is_bounded() -> None:
    sizes = [f"size-{number}" for number in range(KEPT + 10)]
    read = [decode(NodeClaim, claim(number, size)) for number, size in enumerate(sizes)]
    assert [claim_.spec.requirements[0].values[0] for claim_ in read] == sizes
    assert len(_specs) <= KEPT


@given(labels=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3))
def test_equal_maps_are_shared(labels: dict[str, str]) -> None:
    raw = {"metadata": {"name": "n", "labels": labels}}
    first, second = decode(Node, raw), decode(Node, orjson.loads(orjson.dumps(raw)))
    assert first.labels == labels
    assert list(first.labels) == list(Node.decode(raw).labels)
    assert first.labels is second.labels


def test_a_waiting_claim_takes_less_than_a_kilobyte() -> None:
    many = 500
    raws = [claim(number) for number in range(many)]
    decode(NodeClaim, claim(many))

    def taken() -> int:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            read = [decode(NodeClaim, raw) for raw in raws]
            return (tracemalloc.get_traced_memory()[0] - before) // len(read)
        finally:
            tracemalloc.stop()

    # Threads of other tests may allocate meanwhile, so the least counts.
    assert min(taken() for _ in range(3)) < 1000  # pydantic objects take 5,000
