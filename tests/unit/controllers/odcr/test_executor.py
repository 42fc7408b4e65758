"""Purchases that are not sent: their object differs from the one that was read, or the Lease is lost."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from broker.apis import names
from broker.apis.ome import CapacityReservation
from broker.controllers.assumed import AssumptionStore
from broker.controllers.odcr.executor import ObjectChanged, OdcrExecutor
from broker.kube.lease import NotLeading
from broker.quota.usage import ReservationKey
from broker.reservations.desired import PurchaseSpec
from broker.reservations.purchases import Purchase
from providers.model import Odcr
from tests.support.clock import FakeClock

Json = dict[str, Any]
READ: Json = {
    "name": "team",
    "namespace": "default",
    "uid": "u-1",
    "generation": 2,
    "resourceVersion": "7",
    "labels": {"cost": "a"},
    "annotations": {names.RESERVATION_POLICY: "Manage"},
}


def bought(
    fresh: Json, *, known: Collection[str] = (), events: Any = None, loses_lease: bool = False
) -> list[str]:
    """The calls to EC2 for a purchase that was decided on `READ`, if the API server has `fresh`.

    EC2 shows reservations with the ids `known`, and answers with `cr-1`. `loses_lease`: while the ledger is
    written.
    """
    client, provider, ledger = MagicMock(), MagicMock(), MagicMock(intents={})
    if loses_lease:
        lost = NotLeading(0, "NotLeading", "the Lease is not held")
        ledger.flush.side_effect = lambda: setattr(client.check, "side_effect", lost)
    client.list.return_value = [{"metadata": fresh, "spec": {}}], ""
    odcr = Odcr(
        id="cr-1", instance_type="p5.48xlarge", zone="us-east-1a", total=1, available=1, state="active"
    )
    provider.create_reservation.return_value = odcr
    executor = OdcrExecutor(
        client, provider, MagicMock(), ledger, AssumptionStore(FakeClock()), recorder=MagicMock()
    )
    reserved = ReservationKey("default", "team")
    reservation = CapacityReservation.decode({"metadata": READ, "spec": {}})
    reading: Any = SimpleNamespace(
        reservation=reservation,
        rules=(reservation,),
        desired=SimpleNamespace(terms=PurchaseSpec()),
        reserved=reserved,
    )
    purchase = Purchase(
        reserved=reserved, flavor="h100", instance_type="p5.48xlarge", zone="us-east-1a", count=1
    )
    executor.events = events or MagicMock()
    try:
        executor.buy(purchase, reading, dict.fromkeys(known, odcr))
    except ObjectChanged:
        assert not ledger.intents
        return ["changed", *(call[0] for call in provider.method_calls)]
    except NotLeading:
        assert ledger.intents  # the next leader finds the purchase, and sends it if it is still wanted
        return ["not leading", *(call[0] for call in provider.method_calls)]
    return [call[0] for call in provider.method_calls]


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    "changed",
    [
        {"generation": 3},
        {"uid": "u-2"},
        {"annotations": {names.RESERVATION_POLICY: "Observe"}},
        {"annotations": {}},
        {"labels": {"cost": "b"}},
        {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.RESERVED_FINALIZER]},
    ],
)
def test_nothing_is_bought_for_an_object_that_changed_since_it_was_read(changed: Json) -> None:
    assert bought({**READ, **changed}) == ["changed"]


@pytest.mark.covers("FLT-70")
def test_a_status_that_changed_since_does_not_stop_a_purchase() -> None:
    assert bought({**READ, "resourceVersion": "9"}) == ["create_reservation"]


@pytest.mark.covers("FLT-70")
def test_nothing_is_bought_after_the_lease_was_lost_while_the_purchase_was_recorded() -> None:
    assert bought(READ, loses_lease=True) == ["not leading"]


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(("known", "reported"), [((), True), (("cr-2",), True), (("cr-1",), False)])
def test_an_answer_with_a_reservation_that_was_known_before_is_no_purchase(
    known: tuple[str, ...], reported: bool
) -> None:
    """EC2 answers a repeated token with what the first call made."""
    events = MagicMock()
    assert bought(READ, known=known, events=events) == ["create_reservation"]
    assert events.bought.called is reported
