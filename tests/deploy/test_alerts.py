"""The alerts about reservations: shipped by the chart, over series that there are, with labels they have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.controllers.capacityreservation.metrics import TABLES, ReservationMetrics, show
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationKey
from local.generators import dashboards, monitoring, rules
from local.generators.metric_catalog import UnknownSeries
from tests.deploy import helm

CASES = Path(__file__).with_name("alerts.yaml")
RULES: Any = yaml.safe_load((helm.CHART / "rules" / "reservations.yaml").read_text())
ALERTS, BROKERS = ({rule["alert"]: rule for rule in group["rules"]} for group in RULES["groups"][:2])
GPU, CPU = FlavorResource("h100", "nvidia.com/gpu"), FlavorResource("h100", "cpu")


BRIM = ReservationMetrics(state="Failed", total={GPU: 64, CPU: 1_024_000}, used={GPU: 60, CPU: 1_000})


def samples(shown: ReservationMetrics = BRIM) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The series of a reservation; by default of one that is full and not Active."""
    show({ReservationKey("team", "gpus"): shown}, {("nvidia.com/gpu", "no flavor"): 8})
    by_series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in (family for table in TABLES for family in table.collect()):
        by_series[family.name] = [(sample.labels, sample.value) for sample in family.samples]
    return by_series


@pytest.mark.covers("OME-090", "OME-091", "OME-092")
def test_series_have_the_labels_and_units_that_a_ratio_needs() -> None:
    by_series = samples()
    common = {"namespace": "team", "reservation": "gpus", "flavor": "h100"}
    assert by_series["capacity_reservation_total"] == [
        ({**common, "resource": "nvidia.com/gpu"}, 64),
        ({**common, "resource": "cpu"}, 1024),
    ]
    assert by_series["capacity_reservation_allocated"] == [
        ({**common, "resource": "nvidia.com/gpu"}, 60),
        ({**common, "resource": "cpu"}, 1),
    ]
    states = {labels["state"]: value for labels, value in by_series["capacity_reservation_lifecycle_state"]}
    assert states == {"Active": 0, "Creating": 0, "Deleting": 0, "Failed": 1, "Updating": 0}


@pytest.mark.covers("OME-090", "OME-091")
def test_each_amount_has_both_series_where_one_of_them_is_nothing() -> None:
    by_series = samples(ReservationMetrics(state="Active", total={GPU: 64}, used={CPU: 500}))
    amounts = {
        name.rpartition("_")[2]: {labels["resource"]: value for labels, value in by_series[name]}
        for name in ("capacity_reservation_total", "capacity_reservation_allocated")
    }
    assert amounts == {
        "total": {"nvidia.com/gpu": 64, "cpu": 0},
        "allocated": {"nvidia.com/gpu": 0, "cpu": 0.5},
    }


@pytest.mark.covers("OME-094")
def test_the_pages_alerts_are_shipped_in_a_form_that_works() -> None:
    by_series = samples()
    high, failed = ALERTS["CapacityReservationUtilizationHigh"], ALERTS["CapacityReservationFailed"]
    assert (high["for"], high["labels"]["severity"]) == ("5m", "warning")
    assert (failed["for"], failed["labels"]["severity"]) == ("1m", "critical")
    assert high["expr"] == "capacity_reservation_allocated / (capacity_reservation_total > 0) > 0.9"
    assert failed["expr"].startswith('capacity_reservation_lifecycle_state{state="Active"} == 0 unless on ')
    for rule in ALERTS.values():
        assert rule["labels"].keys() == {"severity"}
        named = re.findall(r"capacity_reservation_[a-z_]+", rule["expr"])
        assert named and set(named) <= set(by_series)
        labels = set.intersection(*({*labels} for name in named for labels, _ in by_series[name]))
        used = set(re.findall(r"\$labels\.([a-z_]+)", yaml.safe_dump(rule, width=1000)))
        assert used <= labels | {"state"}


@pytest.mark.covers("USR-10", "CAP-15")
@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is in Debian's package prometheus")
def test_alerts_fire_for_problems_that_need_a_person_and_page_for_nothing_else() -> None:
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
        check
        for case_group in yaml.safe_load(CASES.read_text())["tests"]
        for check in case_group["alert_rule_test"]
    ]
    alerts = {alert.name for alert in rules.ALERTS}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    quiet = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert alerts - quiet <= {"CapacityBrokerMassLoss"}


@pytest.mark.covers("CAP-15")
def test_deployed_rules_and_dashboards_are_generated_from_the_metric_definitions() -> None:
    assert monitoring.main(["--check"]) == 0
    catalog = monitoring.catalog()
    lost = {name: series for name, series in catalog.items() if name != "capacity_broker_leading"}
    with pytest.raises(UnknownSeries, match="capacity_broker_leading"):
        rules.rules(lost)
    with pytest.raises((UnknownSeries, KeyError), match="capacity_broker_leading"):
        dashboards.files(lost)
    for dashboard in dashboards.DASHBOARDS:
        for panel in dashboards.model(dashboard, catalog)["panels"]:
            assert panel["description"] in {defined.meaning for defined in catalog.values()}


def test_chart_has_the_dashboards_if_enabled() -> None:
    assert not [manifest for manifest in helm.render() if manifest["metadata"]["name"].endswith("-dashboard")]
    config_maps = [
        manifest
        for manifest in helm.render({**helm.GIVEN, "dashboards": {"enabled": True}})
        if manifest["metadata"]["name"].endswith("-dashboard")
    ]
    texts = {name: text for config_map in config_maps for name, text in config_map["data"].items()}
    assert texts == dict(dashboards.files(monitoring.catalog()))
    assert {config_map["metadata"]["labels"]["grafana_dashboard"] for config_map in config_maps} == {"1"}


def test_chart_has_the_alerts_if_the_prometheus_rule_is_enabled() -> None:
    assert not [manifest for manifest in helm.render() if manifest["kind"] == "PrometheusRule"]
    values = {**helm.GIVEN, "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}
    rule = helm.only(helm.render(values), "PrometheusRule")
    assert rule["spec"] == RULES
    assert rule["metadata"]["labels"]["release"] == "prometheus"
