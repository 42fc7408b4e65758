"""Purchases that the broker never makes: beside hidden ones, beyond a cap, or because of an annotation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import ConfigMap
from broker.apis.ome import CapacityReservation
from broker.kube.identity import NAMESPACE
from broker.quota.usage import ReservationKey
from broker.reservations.purchases import LEDGER
from local.aws import LocalAws
from tests.cluster.account import A
from tests.cluster.ome import bought
from tests.cluster.ome.bought import CANCEL, MANAGE, P5
from tests.cluster.ome.reserved import KIND
from tests.faults import walk
from tests.faults.test_odcr_life import LOOPS, RESERVED, Team
from tests.faults.walk import Process, account, share_clients
from tests.support.odcr_counts import counts

HOUR = 55.04  # of a p5.48xlarge
PART = MANAGE | {names.MINIMUM: "1"}  # as much as the caps allow


@pytest.fixture
def team(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    share_clients(monkeypatch)
    monkeypatch.setattr(walk, "LOOPS", LOOPS)
    account(local_aws, fresh=True)
    yield Team(local_aws, 0)
    local_aws.control.reset()


def obtained(process: Process) -> int:
    return counts(process.broker.reads.snapshot().odcrs.status(RESERVED)).obtained


def problems(process: Process, name: str = "training") -> dict[str, str]:
    state = process.broker.reads.snapshot().odcrs.status(ReservationKey("default", name))
    return {problem.reason: problem.message for problem in state.problems}


def purchase_calls(team: Team) -> int:
    """The number of CreateCapacityReservation calls of the broker."""
    return len(team.control.log("CreateCapacityReservation")) - len(team.others)


def patched(team: Team, body: dict[str, Any], name: str = "training") -> None:
    team.client.patch(KIND, name, body, namespace="default")


# ---- purchases that EC2 does not show


def retained(team: Team) -> None:
    team.end()


def observed(team: Team) -> None:
    patched(team, {"metadata": {"annotations": {names.RESERVATION_POLICY: "Observe"}}})


def lowered(team: Team) -> None:
    team.change_quota(0)


def stripped(team: Team) -> None:
    """Gone without a trace, as any writer of its finalizers can make it."""
    team.end()
    patched(team, {"metadata": {"finalizers": None}})


@pytest.mark.covers("SAF-23")
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize("meanwhile", [retained, observed, lowered, stripped])
def test_purchase_with_a_lost_answer_counts_whatever_happens_to_its_object(
    team: Team, meanwhile: Callable[[Team], None], restarted: bool
) -> None:
    """Two instances may be held in all; two were bought, and the purchase was never recorded."""
    team.settings = replace(team.settings, buy_instances=2, buy_instances_each=2, buy_instances_namespace=2)
    team.hidden = 420.0
    process = team.start()
    process.turn()
    team.control.fault(action="CreateCapacityReservation", stage="response", times=12)
    team.create_reservation(2, annotations=MANAGE)
    process.until(lambda: len(team.purchases()) == 1, "it is made, and no process knows")
    meanwhile(team)
    team.control.clear_faults()
    if restarted:
        process = team.start()
    team.client.create(KIND, bought.reservation_body(2, name="serving"))
    process.run(400.0)
    assert "with 2 that EC2 does not show" in problems(process, "serving")["SpendingCapReached"]
    process.run(900.0)  # shown by now
    assert team.held() == {A: 2} and len(team.purchases()) == 1
    assert "SpendingCapReached" in problems(process, "serving")


@pytest.mark.covers("SAF-23")
def test_purchase_that_was_never_made_stops_counting(team: Team) -> None:
    team.settings = replace(team.settings, buy_instances=2, buy_instances_each=2, buy_instances_namespace=2)
    process = team.start()
    process.turn()
    team.control.fault(action="CreateCapacityReservation", code="InternalError", status=500, times=12)
    team.create_reservation(2)
    process.until(lambda: purchase_calls(team) >= 1, "it was sent")
    team.end()
    team.control.clear_faults()
    team.client.create(KIND, bought.reservation_body(2, name="serving"))
    process.run(3000.0)
    assert team.purchases() == []
    process.until(lambda: team.held() == {A: 2}, "an hour without a sign of it is enough", seconds=2400.0)


@pytest.mark.covers("SAF-23", "SAF-55")
def test_purchases_count_and_are_given_back_by_the_cluster_uid_whatever_its_name(team: Team) -> None:
    team.settings = replace(team.settings, buy_instances=2, buy_instances_each=2, buy_instances_namespace=2)
    process = team.start()
    team.create_reservation(2, annotations=CANCEL)
    process.until(lambda: team.quiet({A: 2}), "it is bought")
    process.run(60.0)
    (purchase,) = team.purchases()
    team.settings = replace(team.settings, cluster_name="renamed")
    process = team.start()
    team.client.create(KIND, bought.reservation_body(2, name="serving"))
    process.run(120.0)
    assert "SpendingCapReached" in problems(process, "serving")
    assert purchase_calls(team) == 1 and obtained(process) == 2
    team.end()
    process.until(
        lambda: purchase_calls(team) == 2, "the capacity that is given back leaves room for the other"
    )
    assert team.aws.reservation(purchase["CapacityReservationId"])["State"] == "cancelled"


# ---- held amounts that are not described


class Hides:
    """EC2 does not describe this reservation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.id = ""
        described = walk._Behind.reservations

        def reservations(provider: walk._Behind) -> Any:
            return [odcr for odcr in described(provider) if odcr.id != self.id]

        monkeypatch.setattr(walk._Behind, "reservations", reservations)


@pytest.mark.covers("SAF-07")
def test_reservation_that_is_no_longer_described_counts_and_is_not_bought_again(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    hides = Hides(monkeypatch)
    team.settings = replace(team.settings, buy_instances=3, buy_instances_each=3, buy_instances_namespace=3)
    process = team.start()
    team.create_reservation(2, annotations=CANCEL)
    process.until(lambda: team.quiet({A: 2}), "it is bought")
    process.run(60.0)
    (odcr_id,) = [purchase["CapacityReservationId"] for purchase in team.purchases()]
    hides.id = odcr_id
    # Its name sorts after "training": both may be created in the same second.
    team.client.create(KIND, bought.reservation_body(2, name="tuning", annotations=PART))
    for _ in range(2):
        process.run(1800.0)
        assert (
            f"{odcr_id} was held and EC2 does not describe it at all" in problems(process)["PurchaseSkipped"]
        )
        assert purchase_calls(team) == 2, "the second is the rest of the cap, for the other one"
        assert sum(team.held().values()) == 3
        process = team.start()
    status = team.status()
    assert status.capacity_reservation_lifecycle_state != "Active"
    # EC2 shows it again: all is as it was.
    hides.id = ""
    process.until(lambda: obtained(process) == 2, "it is there")
    assert "PurchaseSkipped" not in problems(process)
    # Or it is gone for good, and the operator confirms it.
    hides.id = odcr_id
    process.until(lambda: "PurchaseSkipped" in problems(process), "it is missed again")
    ledger = ConfigMap.decode(team.client.get(ConfigMap.KIND, LEDGER, namespace=NAMESPACE))
    assert odcr_id in ledger.data
    team.client.patch(ConfigMap.KIND, LEDGER, {"data": {odcr_id: None}}, namespace=NAMESPACE)
    process.until(lambda: purchase_calls(team) > 2, "it is bought anew")


def shown_again(team: Team, hides: Hides) -> None:
    hides.id = ""


def forgotten(team: Team, hides: Hides) -> None:
    """An operator looked in EC2."""
    team.client.patch(ConfigMap.KIND, LEDGER, {"data": {hides.id: None}}, namespace=NAMESPACE)


def past_its_end(team: Team, hides: Hides) -> None:
    team.tick(2 * 86400.0)


@pytest.mark.covers("SAF-07")
@pytest.mark.parametrize("ends", [shown_again, forgotten, past_its_end])
def test_deleted_object_stays_while_its_reservation_is_not_described(
    team: Team, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Team, Hides], None]
) -> None:
    hides = Hides(monkeypatch)
    process = team.start()
    end = team.clock.now() + timedelta(days=2)
    team.create_reservation(2, annotations={**CANCEL, names.END_DATE: f"{end:%Y-%m-%dT%H:%M:%SZ}"})
    process.until(lambda: team.quiet({A: 2}), "it is bought")
    process.run(900.0)  # no longer known from having been made
    (odcr_id,) = [purchase["CapacityReservationId"] for purchase in team.purchases()]
    hides.id = odcr_id
    team.end()
    process.run(600.0)
    process = team.start()
    process.run(3600.0)
    message = problems(process)["ReservationNotDescribed"]
    assert message.startswith(odcr_id) and f"ConfigMap kube-system/{LEDGER}" in message
    assert odcr_id in team.status().lifecycle_detail and team.held() == {A: 2}
    ends(team, hides)
    process.until(lambda: team.object() is None, "the object is gone")
    if ends is shown_again:
        assert team.held() == {}


# ---- an entry of the ledger that is not understood


def test_deleted_object_stays_while_the_ledger_is_not_understood(team: Team) -> None:
    """The entry may be of an amount that the object is to give back."""
    process = team.start()
    team.create_reservation(2, annotations=CANCEL)
    process.until(lambda: team.quiet({A: 2}), "it is bought")
    process.run(60.0)
    key = "cr-0123456789abcdef0"
    team.client.patch(ConfigMap.KIND, LEDGER, {"data": {key: "{"}}, namespace=NAMESPACE)
    process = team.start()
    team.end()
    process.run(600.0)
    assert key in problems(process)["PurchaseSkipped"] and team.object() is not None
    team.client.patch(ConfigMap.KIND, LEDGER, {"data": {key: None}}, namespace=NAMESPACE)
    process.until(lambda: team.object() is None, "the object is gone")
    assert team.held() == {}


# ---- limits of annotations


@pytest.mark.covers("SAF-53", "SAF-55")
def test_forged_marks_of_the_broker_count_for_nothing(team: Team) -> None:
    """Neither is anything bought less, nor does another one wait for a purchase that was never made."""
    forged = {
        "capacity-broker.io/buying": f"7 {team.clock.now().isoformat()}",
        "capacity-broker.io/released": '{"generation": 1, "flavors": {"h100": 2}}',
    }
    team.settings = replace(team.settings, buy_instances=3, buy_instances_each=2, buy_instances_namespace=3)
    process = team.start()
    team.create_reservation(2, annotations=CANCEL | forged)
    team.client.create(KIND, bought.reservation_body(1, name="serving"))
    process.until(lambda: sum(team.held().values()) == 3, "both have their instances", seconds=60.0)
    reservation = team.object()
    assert reservation is not None
    broker_annotations = {key for key in reservation.annotations if key.startswith(f"{names.BROKER}/")}
    assert broker_annotations == {*CANCEL, *forged}, "the broker writes nothing where its subjects do"
    assert "UnknownAnnotation" in problems(process)


@pytest.mark.covers("SAF-56")
@pytest.mark.parametrize(
    ("annotations", "option", "allowed"),
    [
        ({names.PLATFORM: "Windows with SQL Server Standard"}, "--buy-platforms", "Linux/UNIX"),
        ({names.TENANCY: "dedicated"}, "--buy-tenancies", "default"),
    ],
)
def test_platforms_and_tenancies_are_bought_only_from_the_operators_list(
    team: Team, annotations: dict[str, str], option: str, allowed: str
) -> None:
    process = team.start()
    team.create_reservation(1, annotations=CANCEL | annotations)
    process.run(600.0)
    (requested,) = annotations.values()
    assert (
        f"'{requested}' may not be bought: the broker's {option} allows {allowed}"
        in (problems(process)["PurchaseSkipped"])
    )
    assert team.purchases() == [] and purchase_calls(team) == 0

    # Allowed, its price is not known, so a cap in dollars buys nothing.
    team.settings = replace(
        team.settings,
        buy_platforms=f"Linux/UNIX, {annotations.get(names.PLATFORM, '')}",
        buy_tenancies="default, dedicated",
    )
    process = team.start()
    process.run(600.0)
    assert f"{P5} ({requested})" in problems(process)["PriceUnknown"]
    assert purchase_calls(team) == 0
    team.settings = replace(team.settings, buy_dollars=float("inf"))
    process = team.start()
    process.until(lambda: team.quiet({A: 1}), "without a cap in dollars it is bought")
    (purchase,) = team.purchases()
    assert requested in (purchase["InstancePlatform"], purchase["Tenancy"])


@pytest.mark.covers("SAF-08")
def test_windows_and_sql_server_do_not_pass_at_the_price_of_linux(team: Team) -> None:
    """Ten p5.48xlarge of another platform passed a cap that Linux's price kept."""
    team.settings = replace(
        team.settings,
        buy_dollars=10 * HOUR,
        buy_dollars_each=10 * HOUR,
        buy_dollars_namespace=10 * HOUR,
        buy_platforms="Linux/UNIX,Windows with SQL Server Enterprise",
    )
    process = team.start()
    team.create_reservation(10, annotations=CANCEL | {names.PLATFORM: "Windows with SQL Server Enterprise"})
    process.run(600.0)
    assert (team.purchases(), [*problems(process)]) == ([], ["PriceUnknown"])
    patched(team, {"metadata": {"annotations": {names.PLATFORM: None}}})
    process.until(lambda: team.quiet({A: 10}), "Linux is known and fits")


@pytest.mark.covers("SAF-55")
def test_no_single_object_or_namespace_can_use_up_the_caps(team: Team) -> None:
    """The operator sets one number: 16 instances' worth. Nothing else is set."""
    team.settings = replace(team.settings, buy_dollars=16 * HOUR)
    process = team.start()
    for name in ("a", "b", "c"):
        team.client.create(KIND, bought.reservation_body(16, name=name, annotations=PART))
    process.run(600.0)
    assert team.held() == {A: 8}, "half of it for one namespace"
    assert "--buy-dollars-namespace is 440.32" in problems(process, "c")["SpendingCapReached"]
    # Under other names it gets no more: the holdings of a deleted object count for its namespace.
    for name in ("a", "b", "c"):
        team.client.delete(KIND, name, namespace="default")
    for name in ("d", "e"):
        team.client.create(KIND, bought.reservation_body(16, name=name, annotations=PART))
    process.run(600.0)
    assert team.held() == {A: 8}
    other = bought.reservation_body(16, name="x", annotations=PART)
    other["metadata"]["namespace"] = "kube-public"
    team.client.create(KIND, other)
    process.until(lambda: team.held() == {A: 12}, "another namespace has its own")
    reservations = [CapacityReservation.decode(raw) for raw in team.client.list(KIND)[0]]
    assert {reservation.name for reservation in reservations} == {"d", "e", "x"}
