"""The counts of now: claims that wait, by pool and platform."""

from __future__ import annotations

import json

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.model import NodeClass, Selection
from broker.history.counts import levels
from providers.model import Image, InstanceType
from tests.unit.history.facts import OTHER

TYPE = InstanceType(name="p5.48xlarge", vcpus=192, memory_mib=2_097_152)


@pytest.mark.parametrize("platform", ["Windows", "Red Hat Enterprise Linux"])
def test_a_wait_without_a_reservation_has_the_platform_of_its_image(platform: str) -> None:
    attempt = {
        "pool": [OTHER.capacity_type, OTHER.instance_type, OTHER.zone],
        "outcome": "Refused",
        "at": "2026-03-01T03:00:00Z",
        "code": "InsufficientInstanceCapacity",
        "class": "capacity",
    }
    spec = {
        "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"},
        "requirements": [],
    }
    annotations = {names.ATTEMPTS: json.dumps([attempt])}
    claim = NodeClaim.decode({"metadata": {"name": "c-0", "annotations": annotations}, "spec": spec})
    resolved = NodeClass(
        name="gpu", selection=Selection(), subnets=(), images=(Image(id="ami-1", platform=platform),)
    )
    classes = {"gpu": resolved}
    (level,) = levels({}, (), [claim], (), {TYPE.name: TYPE}, classes.get)
    assert (level.reservation, level.place, level.waiting) == (
        "",
        (TYPE.name, "us-east-1b", platform),
        1,
    )
