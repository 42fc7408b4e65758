"""The alerts about reservations: shipped by the chart, over series that there are, with labels they have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker import monitoring
from broker.controllers.capacityreservation.metrics import TABLES, ReservationMetrics, show
from broker.oncall import dashboards, rules
from broker.oncall.catalog import UnknownSeries
from broker.quota.model import FlavorResource
from broker.quota.usage import Reserved
from tests.deploy import helm

CASES = Path(__file__).with_name("alerts.yaml")
RULES: Any = yaml.safe_load((helm.CHART / "rules" / "reservations.yaml").read_text())
ALERTS, BROKERS = ({rule["alert"]: rule for rule in group["rules"]} for group in RULES["groups"][:2])
GPU, CPU = FlavorResource("h100", "nvidia.com/gpu"), FlavorResource("h100", "cpu")


BRIM = ReservationMetrics(state="Failed", total={GPU: 64, CPU: 1_024_000}, used={GPU: 60, CPU: 1_000})


def samples(shown: ReservationMetrics = BRIM) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The series of a reservation; by default of one that is full and not Active."""
    show({Reserved("team", "gpus"): shown}, {("nvidia.com/gpu", "no flavor"): 8})
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in (family for table in TABLES for family in table.collect()):
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
    found = samples(ReservationMetrics(state="Active", total={GPU: 64}, used={CPU: 500}))
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
    assert failed["expr"].startswith('capacity_reservation_lifecycle_state{state="Active"} == 0 unless on ')
    for rule in ALERTS.values():
        assert rule["labels"].keys() == {"severity"}
        named = re.findall(r"capacity_reservation_[a-z_]+", rule["expr"])
        assert named and set(named) <= set(found)
        labels = set.intersection(*({*labels} for name in named for labels, _ in found[name]))
        used = set(re.findall(r"\$labels\.([a-z_]+)", yaml.safe_dump(rule, width=1000)))
        assert used <= labels | {"state"}


@pytest.mark.covers("USR-10", "CAP-15")
@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is in Debian's package prometheus")
def test_alerts_fire_for_what_needs_a_person_and_page_for_nothing_else() -> None:
    """The cases of alerts.yaml, as Prometheus evaluates them: Creating and Updating do not page."""
    for command in (
        ["check", "rules", str(helm.CHART / "rules" / "reservations.yaml")],
        ["test", "rules", str(CASES)],
    ):
        ran = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.covers("CAP-15")
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [
        check for each in yaml.safe_load(CASES.read_text())["tests"] for check in each["alert_rule_test"]
    ]
    alerts = {each.name for each in rules.ALERTS}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert alerts - quiet <= {"CapacityBrokerMassLoss"}


@pytest.mark.covers("CAP-15")
def test_deployed_rules_and_dashboards_are_generated_from_the_metric_definitions() -> None:
    assert monitoring.main(["--check"]) == 0
    catalog = monitoring.catalog()
    lost = {name: each for name, each in catalog.items() if name != "capacity_broker_leading"}
    with pytest.raises(UnknownSeries, match="capacity_broker_leading"):
        rules.rules(lost)
    with pytest.raises((UnknownSeries, KeyError), match="capacity_broker_leading"):
        dashboards.files(lost)
    for each in dashboards.DASHBOARDS:
        for panel in dashboards.model(each, catalog)["panels"]:
            assert panel["description"] in {defined.meaning for defined in catalog.values()}


def test_the_chart_has_the_dashboards_where_they_are_asked_for() -> None:
    assert not [each for each in helm.render() if each["metadata"]["name"].endswith("-dashboard")]
    found = [
        each
        for each in helm.render({**helm.GIVEN, "dashboards": {"enabled": True}})
        if each["metadata"]["name"].endswith("-dashboard")
    ]
    texts = {name: text for each in found for name, text in each["data"].items()}
    assert texts == dict(dashboards.files(monitoring.catalog()))
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in found} == {"1"}


def test_the_chart_has_them_where_the_operator_is_asked_to() -> None:
    assert not [each for each in helm.render() if each["kind"] == "PrometheusRule"]
    asked = {**helm.GIVEN, "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}
    rule = helm.one(helm.render(asked), "PrometheusRule")
    assert rule["spec"] == RULES
    moved = {**asked, "prometheusRule": {"enabled": True, "runbooks": "https://wiki.example/runbooks/"}}
    first = helm.one(helm.render(moved), "PrometheusRule")["spec"]["groups"][0]["rules"][0]
    url = "https://wiki.example/runbooks/capacity-reservation-utilization-high.md"
    assert first["annotations"]["runbook_url"] == url
    assert rule["metadata"]["labels"]["release"] == "prometheus"
