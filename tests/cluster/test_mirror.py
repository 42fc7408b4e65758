"""`kubectl get odcr`: an object for each reservation that the broker sees, and only for those."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from broker.apis.capacity_broker import MIRRORED, OnDemandCapacityReservation
from broker.apis.meta import condition
from broker.controllers.odcr import mirror
from broker.controllers.odcr.mirror import MANAGED_BY
from broker.kube.client import Request
from broker.kube.manager import REASON
from broker.kube.metrics import REGISTRY
from broker.reservations.odcr_view import OdcrView, view_of
from providers.model import Odcr
from providers.names import MANAGER
from tests.cluster.account import ACCOUNT, A, B
from tests.cluster.stack import Stack

KIND = OnDemandCapacityReservation.KIND
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def status(stack: Stack, odcr: str) -> dict[str, Any]:
    """The object's status, as the API server serves it; empty while there is no object."""
    object_ = stack.find(OnDemandCapacityReservation, odcr)
    return dict(stack.client.get(KIND, odcr).get("status", {})) if object_ else {}


def until_mirrored(stack: Stack, odcr: str, **fields: Any) -> dict[str, Any]:
    def mirrored() -> bool:
        fields_ = status(stack, odcr)
        return bool(fields_) and all(fields_.get(key) == value for key, value in fields.items())

    stack.until(mirrored, f"{odcr} mirrored with {fields}")
    return status(stack, odcr)


def printed(stack: Stack) -> dict[str, dict[str, Any]]:
    """The output of `kubectl get odcr -o wide`: the cells of each row by column, by name."""
    request = Request(method="GET", path=KIND.path(), query={}, headers={"Accept": TABLE})
    table = orjson.loads(stack.tap.inner.request(request, timeout=60).body)
    columns = [column["name"] for column in table["columnDefinitions"]]
    rows = [dict(zip(columns, row["cells"], strict=True)) for row in table["rows"]]
    return {row["Name"]: row for row in rows}


def writes(stack: Stack) -> list[tuple[str, str]]:
    return [entry for entry in stack.tap.writes() if f"/{KIND.plural}" in entry[1]]


def until_mirrored_again(stack: Stack) -> None:
    """Returns when the mirror, which only a timer triggers, has run."""

    def passes() -> float:
        labels = {"controller": "mirror", "result": "done"}
        return REGISTRY.get_sample_value("capacity_broker_reconciles_total", labels) or 0.0

    before = passes()
    stack.advance(600)
    stack.until(lambda: passes() > before, "the mirror looked again")


def tag(stack: Stack, odcr: str, tags: Mapping[str, str]) -> None:
    stack.aws.ec2.create_tags(Resources=[odcr], Tags=[{"Key": k, "Value": v} for k, v in tags.items()])


def shared(stack: Stack) -> str:
    """A reservation of another account, which may withdraw it."""
    reply = stack.control.reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=A,
        InstanceCount=2,
        owner_id="999999999999",
        shared_with=[ACCOUNT],
    )
    return str(reply["CapacityReservationId"])


@pytest.mark.covers("KRP-10")
def test_kubectl_shows_every_reservation(stack: Stack) -> None:
    end = (datetime.now(UTC) + timedelta(days=7)).replace(microsecond=0)
    used = stack.aws.odcr("m5.xlarge", B, 3, EndDateType="limited", EndDate=end)
    stack.aws.rival(used)
    tag(stack, used, {"ManagedBy": "Terraform"})
    idle = stack.aws.odcr("m5.large", A, 1, criteria="open")
    stack.node_class("training", id_=used)
    stack.node_class("batch", id_=used, amiFamily="AL2")  # only Karpenter launches it
    stack.start()
    price = stack.provider().instance_types()["m5.xlarge"].on_demand_price
    assert price
    until_mirrored(stack, used, nodeClasses=["batch", "training"])
    until_mirrored(stack, idle)
    rows = printed(stack)
    assert set(rows) == {used, idle}
    assert rows[used] == {
        "Name": used,
        "Type": "m5.xlarge",
        "Zone": B,
        "Total": 3,
        "Available": 2,
        "State": "active",
        "End": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "Source": "terraform",
        "NodeClasses": "batch,training",
        "Idle-USD/h": f"{2 * price:.2f}",
        "Stale": None,
        "Kind": "default",
        "Match": "targeted",
        "Platform": "Linux/UNIX",
        "Owner": ACCOUNT,
        "Mirrored": None,
        "Lent": 0,
        "Lent-To": "",
    }
    assert rows[idle]["End"] is None and rows[idle]["Source"] == "other" and rows[idle]["Match"] == "open"


@pytest.mark.covers("KRP-10", "KRP-11")
def test_a_change_in_ec2_is_written_to_its_object_alone(stack: Stack) -> None:
    changed, same = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    stack.start()
    until_mirrored(stack, changed, total=1, available=1)
    until_mirrored(stack, same, total=1)
    stack.tap.forget()
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=changed, InstanceCount=5)
    until_mirrored(stack, changed, total=5, available=5)
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=changed)
    until_mirrored(stack, changed, state="cancelled", idleCostPerHour="0.00")
    assert {path for _, path in writes(stack)} == {KIND.path(name=changed, subresource="status")}


@pytest.mark.covers("KRP-10", "KRP-11")
def test_a_steady_account_costs_one_call_a_poll_and_no_write(stack: Stack) -> None:
    odcrs = [stack.aws.odcr(kind, zone) for kind in ("m5.large", "m5.xlarge", "c5.large") for zone in (A, B)]
    broker = stack.start(poll_seconds=3600.0)
    for odcr in odcrs:
        until_mirrored(stack, odcr, total=1)
    stack.tap.forget()
    before = stack.calls("DescribeCapacityReservations")
    for _ in range(3):
        broker.inventory.refresh()
    until_mirrored_again(stack)
    assert stack.calls("DescribeCapacityReservations") == before + 3
    assert writes(stack) == []


@pytest.mark.covers("KRP-10")
def test_new_broker_writes_no_object_before_it_knows_the_classes_that_use_it(stack: Stack) -> None:
    used = stack.aws.odcr()
    stack.node_class("training", id_=used)
    stack.start()
    until_mirrored(stack, used, nodeClasses=["training"])
    stack.stop()
    stack.tap.forget()
    stack.start()
    until_mirrored_again(stack)
    assert writes(stack) == []


@pytest.mark.covers("KRP-10")
def test_a_reservation_that_ec2_no_longer_shows_has_no_object(stack: Stack) -> None:
    kept, gone = stack.aws.odcr(), shared(stack)
    stack.start()
    assert until_mirrored(stack, gone, total=2)["ownerID"] == "999999999999"
    stack.control.set_reservation(gone, shared_with=[])
    stack.until_gone(OnDemandCapacityReservation, gone)
    assert status(stack, kept)["state"] == "active"


@pytest.mark.covers("KRP-10")
@pytest.mark.both_servers
def test_leftovers_are_deleted_and_objects_of_a_person_are_reported(stack: Stack) -> None:
    left, by_person = "cr-00000000000000001", "cr-00000000000000002"
    stack.client.create(KIND, {"metadata": {"name": left, "labels": {MANAGED_BY: MANAGER}}})
    stack.client.create(KIND, {"metadata": {"name": by_person}})
    stack.start()
    stack.until_gone(OnDemandCapacityReservation, left)

    def condition_text() -> str:
        mirrored = condition(stack.get(OnDemandCapacityReservation, by_person).status.conditions, MIRRORED)
        return f"{mirrored.status} {mirrored.reason} {mirrored.message}" if mirrored else ""

    text = stack.until(condition_text, "the object has the condition")
    assert text.startswith("False ReservationNotFound") and by_person in text and "delete it" in text
    assert printed(stack)[by_person]["Mirrored"] == "False"
    stack.tap.forget()
    until_mirrored_again(stack)
    assert writes(stack) == []
    assert stack.find(OnDemandCapacityReservation, by_person) is not None


@pytest.mark.covers("KRP-10")
def test_broken_mirror_is_repaired(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=4)
    stack.start()
    until_mirrored(stack, odcr, total=4)
    stack.edit(OnDemandCapacityReservation, odcr, {"status": {"total": 40}}, subresource="status")
    until_mirrored(stack, odcr, total=4)
    uid = stack.get(OnDemandCapacityReservation, odcr).uid
    stack.delete(OnDemandCapacityReservation, odcr)
    stack.until(
        lambda: (mirror := stack.find(OnDemandCapacityReservation, odcr)) and mirror.uid != uid, "made anew"
    )
    until_mirrored(stack, odcr, total=4)


@pytest.mark.covers("KRP-10")
def test_an_object_that_a_person_named_after_a_reservation_mirrors_it(stack: Stack) -> None:
    odcr = shared(stack)
    stack.client.create(KIND, {"metadata": {"name": odcr}})
    stack.start()
    until_mirrored(stack, odcr, total=2)
    stack.control.set_reservation(odcr, shared_with=[])
    stack.until(
        lambda: condition(stack.get(OnDemandCapacityReservation, odcr).status.conditions, MIRRORED),
        "it mirrors nothing now",
    )
    assert "total" not in status(stack, odcr)
    stack.control.set_reservation(odcr, shared_with=[ACCOUNT])
    assert "conditions" not in until_mirrored(stack, odcr, total=2)


@pytest.mark.covers("SAF-50")
def test_reservation_that_cannot_be_mirrored_stops_no_other(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = stack.aws.odcr(count=1), stack.aws.odcr(count=1)
    stack.node_class(id_=good)
    stack.start()
    until_mirrored(stack, bad)
    until_mirrored(stack, good, available=1)

    def failing(odcr: Odcr, *args: Any, **more: Any) -> OdcrView:
        if odcr.id == bad:
            raise ZeroDivisionError
        return view_of(odcr, *args, **more)

    monkeypatch.setattr(mirror, "view_of", failing)
    stack.claim()
    stack.until_launched("c-0")
    until_mirrored(stack, good, available=0)
    stack.until_event(bad, REASON, kind=KIND.kind)
