"""Prices of nodes and claims: EC2's description decides the product, else the labels do."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.placement.node_prices import node_price, total
from broker.reservations.idle import idle_cost
from providers.model import Instance, InstanceType, Odcr
from providers.prices import slot_price

ID, A = "i-0abc", "us-east-1a"
TYPES = {
    "m5.large": InstanceType(
        name="m5.large",
        vcpus=2,
        memory_mib=8192,
        zones=frozenset({A}),
        on_demand_price=0.096,
        other_prices={"Windows": {"default": 0.188}, "Linux/UNIX": {"dedicated": 0.106}},
        spot_prices={A: 0.04},
    )
}
LABELS = {names.INSTANCE_TYPE: "m5.large", names.ZONE: A, names.OS: "linux"}
ON_DEMAND = {names.CAPACITY_TYPE: "on-demand"}


def node(**labels: str) -> Node:
    spec = {"providerID": f"aws:///{A}/{ID}"}
    return Node.decode({"metadata": {"name": "n", "labels": LABELS | labels}, "spec": spec})


def instance(**more: Any) -> dict[str, Instance]:
    return {ID: Instance(id=ID, instance_type="m5.large", zone=A, state="running", **more)}


def price(item: Node | NodeClaim, **described: Any) -> float | None:
    return node_price(TYPES, described.get("odcrs", {}), described.get("instances", {}), item)


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize(
    ("labels", "usd_hour"),
    [
        (ON_DEMAND, 0.096),
        ({names.CAPACITY_TYPE: "reserved"}, 0.096),
        ({names.CAPACITY_TYPE: "spot"}, 0.04),
        (ON_DEMAND | {names.OS: "windows"}, 0.188),
        (ON_DEMAND | {names.OS: "plan9"}, None),
        (ON_DEMAND | {names.INSTANCE_TENANCY: "dedicated"}, 0.106),
        (ON_DEMAND | {names.INSTANCE_TENANCY: "dedicated", names.OS: "windows"}, None),
        (ON_DEMAND | {names.ZONE: "eu-west-1a"}, None),
        ({names.EKS_CAPACITY_TYPE: "ON_DEMAND"}, 0.096),
        ({names.EKS_CAPACITY_TYPE: "SPOT"}, 0.04),
        ({}, None),
    ],
)
def test_labels_decide_the_product(labels: dict[str, str], usd_hour: float | None) -> None:
    assert price(node(**labels)) == usd_hour
    claim = {"metadata": {"name": "c", "labels": LABELS | labels}}
    assert price(NodeClaim.decode(claim)) == usd_hour


def test_ec2_knows_better_than_the_labels() -> None:
    labelled = node(**ON_DEMAND)
    assert price(labelled, instances=instance(platform="Red Hat Enterprise Linux")) is None
    assert price(labelled, instances=instance(tenancy="dedicated")) == 0.106
    assert price(node(**ON_DEMAND, **{names.OS: "windows"}), instances=instance(described=False)) == 0.188
    odcr = Odcr(id="cr-1", instance_type="m5.large", zone=A, total=1, available=0, platform="Windows")
    held = node(**{names.CAPACITY_TYPE: "reserved", names.RESERVATION_ID: "cr-1"})
    assert price(held, odcrs={"cr-1": odcr}) == slot_price(TYPES, odcr) == 0.188


def test_what_runs_in_a_block_costs_nothing_by_the_hour_as_its_slot() -> None:
    block = Odcr(
        id="cr-1",
        instance_type="m5.large",
        zone=A,
        total=2,
        available=1,
        reservation_type="capacity-block",
    )
    labels = {names.CAPACITY_TYPE: "reserved", names.RESERVATION_ID: "cr-1"}
    held = node(**labels, **{names.RESERVATION_TYPE: "capacity-block"})
    assert price(held) == slot_price(TYPES, block) == idle_cost(block, TYPES["m5.large"], account="") == 0
    assert price(node(**{names.EKS_CAPACITY_TYPE: "CAPACITY_BLOCK"})) == 0


def test_a_slot_in_a_local_zone_has_no_known_price_anywhere() -> None:
    odcr = Odcr(id="cr-1", instance_type="m5.large", zone="us-east-1-bos-1a", total=2, available=1)
    assert slot_price(TYPES, odcr) is None and idle_cost(odcr, TYPES["m5.large"], account="") is None


def test_a_total_counts_what_has_no_price() -> None:
    assert total([1.5, None, 0.25, None]) == (1.75, 2)
    assert total([]) == (0, 0)
