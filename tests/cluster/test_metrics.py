"""The series of a running broker at /metrics, from a shortage to the end of its objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.oncall.metrics import REGISTRY
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

SHORT = "InsufficientInstanceCapacity"
POOL = {"kind": "pool", "scope": f"on-demand:m5.large:{A}", "class": "capacity", "code": SHORT}


def read(name: str, labels: Mapping[str, str]) -> float | None:
    return REGISTRY.get_sample_value(f"capacity_broker_{name}", dict(labels))


def fallbacks() -> Counter[tuple[str, str]]:
    """How often claims of the class fell back, by both capacity types."""
    family = next(f for f in REGISTRY.collect() if f.name == "capacity_broker_launch_fallbacks")
    counts = Counter[tuple[str, str]]()
    for sample in family.samples:
        if sample.labels["nodeclass"] == "gpu" and sample.name.endswith("_total"):
            counts[sample.labels["from"], sample.labels["to"]] += int(sample.value)
    return counts


@pytest.mark.covers("CAP-14")
@pytest.mark.both_servers
def test_series_of_a_shortage_and_a_fallback_appear_and_disappear(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 2)
    stack.aws.rival(odcr, 1)
    stack.node_class(id_=odcr)
    stack.control.fault(action="CreateFleet", stage="launch", code=SHORT, message="none left", times=-1)
    stack.start()
    slot = {"odcr": odcr, "instance_type": "m5.large", "zone": A}
    active = {**slot, "state": "active"}
    stack.until(lambda: read("odcr_slots", active) == 2, "the reservation is measured")
    stack.until(lambda: read("idle_slots", slot) == 1, "its free slot is measured")
    assert read("odcr_used_slots", active) == 1
    price = stack.provider().instance_types()["m5.large"].on_demand_price
    assert price
    assert read("odcr_cost_dollars_per_hour", slot) == pytest.approx(2 * price)
    assert read("idle_cost_dollars_per_hour", slot) == pytest.approx(price)

    stack.claim(types=("m5.large",), zones=(A,), capacity=(ON_DEMAND,))
    stack.until_waiting("c-0", "InsufficientCapacity")
    waiting = {"nodeclass": "gpu", "reason": "InsufficientCapacity"}
    stack.until(lambda: read("shortage_repeats", POOL) == 0, "the shortage is measured")
    since, until = (read(f"shortage_{end}_timestamp_seconds", POOL) for end in ("since", "until"))
    assert since is not None and until is not None and until - since == 180
    assert read("shortages", {"kind": "pool", "class": "capacity"}) == 1
    stack.until(lambda: read("claims_waiting", waiting) == 1, "the claim is measured")
    created = stack.get(NodeClaim, "c-0").metadata.creation_timestamp
    assert created and read("claims_waiting_since_timestamp_seconds", waiting) == created.timestamp()

    # The shortage is over: its series are gone, and so is that of the claim.
    stack.control.clear_faults()
    stack.advance(181)
    stack.until_launched("c-0")
    stack.until(lambda: read("shortage_repeats", POOL) is None, "the shortage is gone")
    stack.until(lambda: read("claims_waiting", waiting) is None, "the claim is gone")

    # The reservation is full: the next claim falls back.
    before = fallbacks()  # of other tests' brokers in this process
    stack.aws.rival(odcr, 1)
    stack.claim("c-1", types=("m5.large",), zones=(A,), capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-1")
    assert {way for way, count in fallbacks().items() if count > before.get(way, 0)} == {
        ("reserved", "on-demand")
    }

    # Series end with their object, and with the leader's term.
    for claim in ("c-0", "c-1"):
        stack.delete(NodeClaim, claim)
        stack.until(lambda name=claim: stack.find(NodeClaim, name) is None, f"{claim} gone", step=1.0)  # type: ignore[misc]
    stack.delete(EC2NodeClass, "gpu")

    def of_class() -> bool:
        return any(s.labels.get("nodeclass") == "gpu" for f in REGISTRY.collect() for s in f.samples)

    stack.until(lambda: not of_class(), "no series of the class is left", step=1.0)
    stack.stop()
    assert read("odcr_slots", active) is read("idle_slots", slot) is None
