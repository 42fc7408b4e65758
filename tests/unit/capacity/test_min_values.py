"""minValues of requirements: a claim launches only if so many different values are possible."""

from __future__ import annotations

import pytest

from broker.apis.karpenter import NodeClaim
from broker.capacity.model import Selection
from broker.placement.claims import planned as translated

from .builders import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    ZONE,
    claim,
    inventory,
    node_class,
    odcr,
    planned,
    refusals,
)

FAMILY = "karpenter.k8s.aws/instance-family"
M5 = ["m5.large", "m5.xlarge", "m5.2xlarge"]


@pytest.mark.parametrize(
    ("key", "least", "message"),
    [
        (INSTANCE_TYPE, 3, ""),
        (INSTANCE_TYPE, 4, "3 values are possible (m5.2xlarge, m5.large, m5.xlarge)"),
        ("beta.kubernetes.io/instance-type", 4, "3 values are possible"),
        (FAMILY, 1, ""),
        (FAMILY, 2, "1 value is possible (m5)"),
        (ZONE, 2, ""),
        (ZONE, 3, "2 values are possible (us-east-1a, us-east-1b)"),
        (CAPACITY_TYPE, 2, ""),
        (CAPACITY_TYPE, 3, "2 values are possible (on-demand, reserved)"),
        ("example.com/none", 1, "0 values are possible: allow more"),
    ],
)
def test_claim_launches_only_if_so_many_values_are_possible(key: str, least: int, message: str) -> None:
    new_claim = claim(
        types=M5,
        zones=["us-east-1a", "us-east-1b"],
        kinds=["reserved", "on-demand"],
        min_values=((key, least),),
    )
    plan = planned([new_claim], node_class(), inventory())
    if not message:
        assert len(plan.assignments) == 1
        return
    (unplaced,) = plan.unplaced
    assert unplaced.reason == "MinValuesNotMet"
    assert f"minValues of {key} is {least}, and {message}" in unplaced.message


def test_types_of_no_accepted_zone_do_not_count_and_the_gang_waits_whole() -> None:
    world = inventory(odcr("cr-1", free=2))
    classes = node_class(Selection(reservation_id="cr-1"), world)
    least = ((INSTANCE_TYPE, 1),)
    far = claim("far", types=M5, zones=["us-east-1z"], gang="g", min_values=least)
    near = claim("near", types=M5, gang="g", min_values=least)
    assert refusals(planned([far, near], classes, world)) == {
        "far": "MinValuesNotMet",
        "near": "GangIncomplete",
    }
    assert not refusals(planned([near], classes, world))


def test_min_values_are_read_from_the_claim() -> None:
    requirements = [
        {"key": INSTANCE_TYPE, "operator": "Exists", "minValues": 5},
        {"key": INSTANCE_TYPE, "operator": "In", "values": M5},
    ]
    body = {
        "metadata": {"name": "c", "uid": "u"},
        "spec": {
            "nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "gpu"},
            "requirements": requirements,
        },
    }
    assert translated(NodeClaim.decode(body)).min_values == ((INSTANCE_TYPE, 5),)
