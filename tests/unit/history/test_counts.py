"""The counts of now: claims that wait, by pool and platform, and prices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.model import NodeClass, Selection
from broker.history.counts import OutsideCounts, demands, levels
from broker.history.hours import HOUR, hours_of_use
from broker.oncall.outside import outside_cost
from broker.reservations.idle import idle_cost
from providers.model import Image, Instance, InstanceType, Odcr
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
    (level,) = levels({}, {}, demands([claim]), (), {TYPE.name: TYPE}, classes.get, "")
    assert (level.reservation, level.place, level.waiting) == (
        "",
        (TYPE.name, "us-east-1b", platform),
        1,
    )


LOCAL = "us-east-1-bos-1a"
PRICED = {
    TYPE.name: InstanceType(
        name=TYPE.name,
        vcpus=192,
        memory_mib=2_097_152,
        zones=frozenset({"us-east-1a", LOCAL}),
        on_demand_price=55.04,
        other_prices={"Windows": {"default": 63.87}},
    )
}


@pytest.mark.covers("SAF-11")
@pytest.mark.parametrize(
    ("more", "usd_hour", "idle_usd"),
    [
        ({}, 55.04, 110.08),
        ({"platform": "Windows"}, 63.87, 127.74),
        ({"zone": LOCAL}, 0.0, 0.0),
        ({"instance_type": "p9.48xlarge"}, 0.0, 0.0),
        ({"reservation_type": "capacity-block"}, 55.04, 0.0),
        ({"owner_id": "other"}, 55.04, 0.0),
        ({"billing_owner_id": "other"}, 55.04, 0.0),
        ({"owner_id": "other", "billing_owner_id": "own"}, 55.04, 110.08),
    ],
)
def test_recorded_slots_cost_what_idle_slots_cost_everywhere(
    more: dict[str, Any], usd_hour: float, idle_usd: float
) -> None:
    given = {"instance_type": TYPE.name, "zone": "us-east-1a", "owner_id": "own"} | more
    odcr = Odcr(id="cr-1", total=3, available=2, **given)
    (level,) = levels({odcr.id: odcr}, {}, {}, (), PRICED, lambda _: None, "own")
    assert (level.total, level.used, abs(level.price)) == (3, 1, round(usd_hour * 1_000_000))
    (hour,) = hours_of_use([level._replace(at=HOUR)], now=2 * HOUR - 1, count=1)
    whole = HOUR / (HOUR - 1)  # the last second is not over
    assert hour.idle_usd * whole == pytest.approx(idle_usd)
    cost = idle_cost(odcr, PRICED.get(odcr.instance_type), account="own")
    assert (cost or 0.0) == pytest.approx(idle_usd)


@pytest.mark.parametrize("more", [{}, {"zone": LOCAL}, {"platform": "Windows"}, {"platform": "BeOS"}])
def test_recorded_instances_outside_cost_what_the_metric_shows(more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"instance_type": TYPE.name, "zone": "us-east-1a"} | more
    instance = Instance(id="i-1", state="running", **given)
    (level,) = levels({}, OutsideCounts()({instance.id: instance}), {}, (), PRICED, lambda _: None, "")
    assert level.price / 1_000_000 == sum(outside_cost((), [instance], PRICED).values())
