"""Prices that `explain` shows: those of the instance's own Region, platform and tenancy, or unknown."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim

from .kit import claim
from .town import P5, A, Town


def placed(town: Town, **labels: str) -> None:
    held = claim("runs-0", "on-demand")
    own = {names.CAPACITY_TYPE: "on-demand", names.INSTANCE_TYPE: P5, names.ZONE: A} | labels
    held["metadata"] |= {"labels": own}
    town.put(NodeClaim, held, {"providerID": f"aws:///{own[names.ZONE]}/i-0abc", "nodeName": "ip-10-0-0-9"})
    town.pod("runs", node="ip-10-0-0-9")
    town.pod("beside", node="ip-10-0-0-9")


OTHERS = [
    {names.OS: "windows"},
    {names.INSTANCE_TENANCY: "dedicated"},
    {names.ZONE: "eu-west-1a"},
    {names.INSTANCE_TYPE: "p9.48xlarge"},
    {names.CAPACITY_TYPE: "spot"},
]


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize("labels", OTHERS, ids=["windows", "dedicated", "region", "type", "spot"])
def test_an_unknown_price_is_shown_as_unknown(town: Town, labels: dict[str, str]) -> None:
    placed(town, **labels)
    (place,) = town.explain("pod", "runs", "-n", "ml")["placed"]
    assert place["usd_hour"] is None
    assert "unknown" in town.text("pod", "runs", "-n", "ml")
    assert town.explain("claim", "runs-0")["usd_hour"] is None
    shown = town.text("claim", "runs-0")
    assert "price unknown" in shown and "$/h" not in shown
    cluster = town.explain("cluster")
    if labels.get(names.CAPACITY_TYPE) != "spot":
        assert "0.00 $/h and 1 without a price idle or outside reservations" in cluster["headline"]
        assert [(row["usd_hour"], row["unpriced"]) for row in cluster["costs"]] == [(None, 1)]


@pytest.mark.covers("ONC-01")
def test_a_known_price_is_shown_and_claim_lists_the_pods_on_its_node(town: Town) -> None:
    placed(town)
    assert town.explain("pod", "runs", "-n", "ml")["placed"][0]["usd_hour"] == 55.04
    shown = town.text("claim", "runs-0")
    assert "on-demand, 55.04 $/h" in shown and "pods ml/beside, ml/runs" in shown
    assert "55.04 $/h idle or outside" in town.explain("cluster")["headline"]


@pytest.mark.covers("ONC-01")
def test_slots_of_a_windows_reservation_have_no_linux_price(town: Town) -> None:
    town.mirror()
    windows = {"status": {"platform": "Windows", "tenancy": "default"}}
    town.client.patch(OnDemandCapacityReservation.KIND, town.world.odcr, windows, subresource="status")
    placed(town, **{names.CAPACITY_TYPE: "reserved", names.RESERVATION_ID: town.world.odcr})
    assert town.explain("pod", "runs", "-n", "ml")["placed"][0]["usd_hour"] is None
    assert town.explain("claim", "runs-0")["usd_hour"] is None
