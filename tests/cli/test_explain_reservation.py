"""`explain reservation`: who is in the slots, by the name of the owner or by EC2's id."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation
from broker.text import format_time

from .kit import claim
from .town import DRAWS, P5, SINCE, A, Town


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize("by_id", [True, False])
def test_owner_and_its_id_show_the_users_of_its_slots(town: Town, by_id: bool) -> None:
    town.fill()
    page = town.explain("reservation", town.world.odcr if by_id else "ml/gpus")
    assert page["subject"] == "CapacityReservation ml/gpus"
    used, elsewhere = page["slots"]
    assert (used["claim"], used["pods"], used["draws_from"]) == ("holder-0", ["ml/old"], "ml/gpus")
    assert (used["since"], used["until"]) == (format_time(SINCE), format_time(SINCE + timedelta(hours=10)))
    assert elsewhere["holder"] == "1 instance of no claim of this cluster"


@pytest.mark.covers("ONC-02")
def test_reservation_of_no_owner_has_its_users_and_what_waits_for_its_classes(town: Town) -> None:
    town.fill()
    town.client.delete(CapacityReservation.KIND, "gpus", namespace="ml")
    town.pool("gpu")
    town.pod("train", annotations=DRAWS)
    town.client.create(NodeClaim.KIND, claim("new"))
    page = town.explain("reservation", town.world.odcr)
    assert page["subject"] == f"OnDemandCapacityReservation {town.world.odcr}"
    (state,) = (row for row in page["state"] if row["object"] == town.world.odcr)
    assert state["state"] == "active" and "full (2 of 2), held by claim holder-0 (ml/old)" in state["message"]
    assert [row["claim"] for row in page["slots"]] == ["holder-0", None]
    assert [row["pods"] for row in page["pods"]] == [["ml/train"]]
    assert [row["claim"] for row in page["waiting"]] == ["new"]
    shown = town.text("reservation", town.world.odcr)
    assert "Slots and their users" in shown and "THE POD" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_reservation_of_another_class_has_nothing_that_waits_for_this_one(town: Town) -> None:
    town.fill()
    town.client.delete(CapacityReservation.KIND, "gpus", namespace="ml")
    other = claim("new")
    other["spec"]["nodeClassRef"]["name"] = "serving"
    town.client.create(NodeClaim.KIND, other)
    page = town.explain("reservation", town.world.odcr)
    assert page["waiting"] == [] and [row["claim"] for row in page["slots"]] == ["holder-0", None]


@pytest.mark.covers("ONC-02")
def test_cancelled_reservation_has_its_state_and_the_classes_that_still_name_it(town: Town) -> None:
    town.fill()
    town.client.delete(CapacityReservation.KIND, "gpus", namespace="ml")
    status = {"type": P5, "zone": A, "total": 2, "available": 0, "state": "cancelled", "nodeClasses": []}
    town.client.patch(
        OnDemandCapacityReservation.KIND, town.world.odcr, {"status": status}, subresource="status"
    )
    misfits = [{"id": town.world.odcr, "reason": "ReservationCancelled", "message": "it is cancelled"}]
    stale = {"status": {"capacityReservationMisfits": misfits}}
    town.client.patch(EC2NodeClass.KIND, "training", stale, subresource="status")
    page = town.explain("reservation", town.world.odcr)
    (state,) = (row for row in page["state"] if row["object"] == town.world.odcr)
    assert state["state"] == "cancelled"
    assert state["message"].endswith("into it any more; still named by EC2NodeClass training")


@pytest.mark.covers("FLT-22", "ONC-02")
def test_pod_whose_nodepool_names_the_reservation_waits_for_it_while_slots_are_lent(town: Town) -> None:
    """The pod names none itself, and is of another namespace that the reservation serves."""
    town.fill()
    allowed = {"metadata": {"annotations": {names.ALLOWED_NAMESPACES: "web"}}}
    town.client.patch(CapacityReservation.KIND, "gpus", allowed, namespace="ml")
    borrows = {"metadata": {"annotations": {names.DRAWS_FROM: None}}}
    town.client.patch(NodeClaim.KIND, "holder-0", borrows)
    town.pool("gpu")
    names_it = {"spec": {"template": {"metadata": {"annotations": DRAWS}}}}
    town.client.patch(NodePool.KIND, "gpu", names_it)
    town.client.create(Namespace.KIND, {"metadata": {"name": "web"}})
    town.pod("train", namespace="web")
    page = town.explain("reservation", "ml/gpus")
    assert [row["pods"] for row in page["pods"]] == [["web/train"]]
    reasons = " ".join(str(row["why"]) for row in page["do"])
    assert "1 pod of the owner waits (web/train) while 1 slot of ml/gpus is lent to holder-0" in reasons
