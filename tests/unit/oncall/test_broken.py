"""Rows of broken nodes, which `explain cluster` and the web page share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.oncall.broken import BrokenNode, broken_nodes
from broker.placement.reboots import Reboot
from broker.text import format_time

NOW = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)
BROKE = NOW - timedelta(minutes=1)
GPU = "AcceleratedHardwareReady"


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    at = format_time(BROKE)
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def rows(
    *on_claim: dict[str, Any],
    annotations: dict[str, str] | None = None,
    pool: dict[str, Any] | None = None,
    group: str = names.BROKER,
    deleting: bool = False,
    **labels: str,
) -> list[BrokenNode]:
    known = {
        names.NODEPOOL: "train",
        names.CAPACITY_TYPE: "reserved",
        names.RESERVATION_ID: "cr-1",
        names.INSTANCE_TYPE: "p5.48xlarge",
    }
    metadata: dict[str, Any] = {
        "name": "c",
        "uid": "c",
        "labels": known | labels,
        "annotations": annotations or {},
    }
    if deleting:
        metadata |= {"deletionTimestamp": format_time(NOW), "finalizers": ["x"]}
    claim = NodeClaim.decode(
        {
            "metadata": metadata,
            "spec": {"nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "train"}},
            "status": {
                "providerID": "aws:///us-east-1a/i-1",
                "conditions": [condition(names.INITIALIZED_CONDITION, "True", "Initialized"), *on_claim],
            },
        }
    )
    node = Node.decode(
        {
            "metadata": {"name": "n", "creationTimestamp": format_time(NOW - timedelta(days=1))},
            "spec": {"providerID": "aws:///us-east-1a/i-1"},
            "status": {
                "conditions": [condition(GPU, "False", "NvidiaXID48Error", "GPU 3 is lost")],
                "nodeInfo": {"bootID": "b-1"},
            },
        }
    )
    pools = [NodePool.decode({"metadata": {"name": "train"}, **(pool or {})})]
    return broken_nodes([claim], [node], pools, NOW, price=lambda _: 60.0)


@pytest.mark.covers("FUL-22")
def test_broken_node_is_shown_from_its_first_minute_with_its_next_step_and_cost() -> None:
    (row,) = rows()
    assert (row.sign, row.message) == (f"{GPU}=False NvidiaXID48Error", "GPU 3 is lost")
    assert (row.reservation, row.since) == ("cr-1", BROKE)
    assert (row.next, row.next_at) == ("rebooted, if it is still broken then", BROKE + timedelta(minutes=10))
    assert (row.usd_hour, row.usd) == (60.0, 1.0)


def record(phase: Any, until: datetime | None = None) -> dict[str, str]:
    return {names.REBOOTS: str(Reboot(phase=phase, began=NOW, boot_id="b-1", until=until))}


STOPPED = {"status": {"conditions": [condition(names.REPAIR_ALLOWED, "False", "TooManyUnhealthy", "3 of 4")]}}
SUCCESSOR = condition(names.DISRUPTION_REASON, "True", "Unhealthy", "it ends first")


@pytest.mark.covers("FUL-22")
@pytest.mark.parametrize(
    ("given", "text", "at"),
    [
        ({"annotations": record("Draining", NOW + timedelta(minutes=5))}, "rebooted after its drain", 5),
        ({"annotations": record("Requested")}, "rebooted at 2026-11-23T03:00:00Z; replaced", 20),
        ({"annotations": {names.DO_NOT_REPAIR: "true"}}, "not repaired: NodeClaim c has", None),
        (
            {"pool": {"metadata": {"name": "train", "annotations": {names.REPAIR: "off"}}}},
            "repair: off",
            None,
        ),
        ({"pool": STOPPED}, "not repaired: 3 of 4", None),
        ({"group": "karpenter.k8s.aws"}, "not repaired: another launcher serves its claim", None),
        ({names.NODEPOOL: "gone"}, "not repaired: its claim is of no NodePool", None),
        ({"deleting": True}, "its claim ends", None),
    ],
)
def test_next_step_is_that_of_the_broker(given: dict[str, Any], text: str, at: int | None) -> None:
    (row,) = rows(**given)
    assert text in row.next
    assert row.next_at == (None if at is None else NOW + timedelta(minutes=at))


@pytest.mark.covers("FUL-22")
def test_node_that_is_replaced_names_the_replacement() -> None:
    (row,) = rows(SUCCESSOR)
    assert row.next == "its claim is replaced: it ends first"


@pytest.mark.covers("FUL-22")
def test_spot_price_is_not_known() -> None:
    labels: dict[str, Any] = {names.CAPACITY_TYPE: "spot", names.RESERVATION_ID: ""}
    (row,) = rows(**labels)
    assert (row.usd_hour, row.usd, row.reservation) == (None, None, "")
