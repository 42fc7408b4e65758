"""The alerts about reservations: shipped by the chart, over series that there are, with labels they have."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from broker.controllers.capacityreservation.metrics import ReservationMetrics, Shown
from broker.controllers.nodeclaim import losses
from broker.quota.model import FlavorResource
from broker.quota.usage import Reserved
from tests.deploy import helm
from tests.support import exposition

RULES: Any = yaml.safe_load((helm.CHART / "rules" / "reservations.yaml").read_text())
ALERTS, BROKERS = ({rule["alert"]: rule for rule in group["rules"]} for group in RULES["groups"])
GPU, CPU = FlavorResource("h100", "nvidia.com/gpu"), FlavorResource("h100", "cpu")


BRIM = Shown(state="Failed", total={GPU: 64, CPU: 1_024_000}, used={GPU: 60, CPU: 1_000})


def samples(shown: Shown = BRIM) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The series of a reservation; by default of one that is full and not Active."""
    made = ReservationMetrics()
    made.show({Reserved("team", "gpus"): shown}, {("nvidia.com/gpu", "no flavor"): 8})
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in made.collect():
        found[family.name] = [(each.labels, each.value) for each in family.samples]
    return found


@pytest.mark.covers("OME-090", "OME-091", "OME-092")
def test_series_have_the_labels_and_units_that_a_ratio_needs() -> None:
    found = samples()
    who = {"namespace": "team", "reservation": "gpus", "flavor": "h100"}
    assert found["capacity_reservation_total"] == [
        ({**who, "resource": "nvidia.com/gpu"}, 64),
        ({**who, "resource": "cpu"}, 1024),
    ]
    assert found["capacity_reservation_allocated"] == [
        ({**who, "resource": "nvidia.com/gpu"}, 60),
        ({**who, "resource": "cpu"}, 1),
    ]
    states = {labels["state"]: value for labels, value in found["capacity_reservation_lifecycle_state"]}
    assert states == {"Active": 0, "Creating": 0, "Deleting": 0, "Failed": 1, "Updating": 0}


@pytest.mark.covers("OME-090", "OME-091")
def test_each_amount_has_both_series_where_one_of_them_is_nothing() -> None:
    found = samples(Shown(state="Active", total={GPU: 64}, used={CPU: 500}))
    told = {
        name.rpartition("_")[2]: {labels["resource"]: value for labels, value in found[name]}
        for name in ("capacity_reservation_total", "capacity_reservation_allocated")
    }
    assert told == {
        "total": {"nvidia.com/gpu": 64, "cpu": 0},
        "allocated": {"nvidia.com/gpu": 0, "cpu": 0.5},
    }


@pytest.mark.covers("OME-094")
def test_the_pages_alerts_are_shipped_in_a_form_that_works() -> None:
    found = samples()
    high, failed = ALERTS["CapacityReservationUtilizationHigh"], ALERTS["CapacityReservationFailed"]
    assert (high["for"], high["labels"]["severity"]) == ("5m", "warning")
    assert (failed["for"], failed["labels"]["severity"]) == ("1m", "critical")
    assert high["expr"] == "capacity_reservation_allocated / (capacity_reservation_total > 0) > 0.9"
    assert failed["expr"] == 'capacity_reservation_lifecycle_state{state="Active"} == 0'
    for rule in ALERTS.values():
        named = re.findall(r"capacity_reservation_[a-z_]+", rule["expr"])
        assert named and set(named) <= set(found)
        labels = set.intersection(*({*labels} for name in named for labels, _ in found[name]))
        used = set(re.findall(r"\$labels\.([a-z_]+)", yaml.safe_dump(rule, width=1000)))
        assert used <= labels | {"state"}


def test_alerts_about_the_broker_are_over_series_that_it_shows() -> None:
    series = {line.split()[2] for line in exposition.text().splitlines() if line.startswith("# TYPE")}
    for rule in BROKERS.values():
        (name,) = re.findall(r"capacity_broker_[a-z_]+", rule["expr"])
        assert name in series
        assert rule["labels"].keys() == {"severity"}
        assert rule["annotations"].keys() == {"summary", "description"}
    assert losses.MASS_LOSS in BROKERS["CapacityBrokerMassLoss"]["expr"]


def test_the_chart_has_them_where_the_operator_is_asked_to() -> None:
    assert not [each for each in helm.render() if each["kind"] == "PrometheusRule"]
    asked = {**helm.GIVEN, "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}
    rule = helm.one(helm.render(asked), "PrometheusRule")
    assert rule["spec"] == RULES
    assert rule["metadata"]["labels"]["release"] == "prometheus"
