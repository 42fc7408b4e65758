"""Grafana dashboards for platform, team and on-call, generated from the metric definitions.

A panel names a metric: title, unit, legend and query follow from the metric's definition. A query that a
definition alone cannot give is written out, and checked against the definitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.notifications.alerts import PAGE, RUNBOOKS, runbook_page
from local.generators.metric_catalog import Catalog, Definition
from local.generators.rules import check_query

_WIDTH, _HEIGHT = 12, 8  # two panels a row of Grafana's 24 columns
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `by`: the labels that split the series; `where`: a selector; `expr` replaces the query."""

    metric: str
    title: str
    by: tuple[str, ...] = ()
    where: str = ""
    expr: str = ""
    unit: str = ""
    stacked: bool = False
    page: str = ""  # path of the broker's page with the objects behind the figures
    alert: str = ""  # with the runbook that the panel links to


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """`uid` is also the file's name. `filters` are labels to choose from, by the metric that has them."""

    uid: str
    title: str
    panels: Sequence[Panel]
    filters: Mapping[str, str]


_TEAM: Final = 'namespace=~"$namespace",reservation=~"$reservation"'

DASHBOARDS: Final[Sequence[Dashboard]] = (
    Dashboard(
        uid="capacity-broker-oncall",
        title="Capacity broker: on call",
        filters={"nodeclass": "capacity_broker_launch_attempts_total"},
        panels=(
            Panel(
                metric="capacity_broker_pods_waiting",
                title="Pods without a node",
                by=("nodepool", "reason"),
                page="/waiting",
                alert="CapacityBrokerPodsWaiting",
            ),
            Panel(
                metric="capacity_broker_claims_waiting",
                title="Claims without an instance",
                by=("nodeclass", "reason"),
                page="/waiting",
                alert="CapacityBrokerClaimsWaiting",
            ),
            Panel(
                metric="capacity_broker_slots",
                title="Slots by use",
                by=("use",),
                where='use!="borrowed"',
                stacked=True,
                page="/",
            ),
            Panel(
                metric="capacity_broker_slots",
                title="Borrowed slots by borrower",
                by=("owner",),
                where='use="borrowed"',
                page="/cohorts",
            ),
            Panel(
                metric="capacity_broker_outside_cost_dollars_per_hour",
                title="Dollars an hour outside reservations",
                by=("instance_type", "zone"),
                stacked=True,
                page="/advice",
            ),
            Panel(
                metric="capacity_broker_idle_cost_dollars_per_hour",
                title="Dollars an hour of idle slots",
                by=("instance_type", "zone"),
                stacked=True,
                page="/reservations",
            ),
            Panel(
                metric="capacity_broker_claims_waiting_since_timestamp_seconds",
                title="Longest wait",
                by=("nodeclass", "reason"),
                expr="time() - min by (nodeclass, reason) "
                "(capacity_broker_claims_waiting_since_timestamp_seconds)",
                unit="s",
            ),
            Panel(
                metric="capacity_broker_shortages",
                title="Remembered shortages",
                by=("kind", "class"),
                page="/shortages",
                alert="CapacityBrokerShortage",
            ),
            Panel(metric="capacity_broker_shortage_repeats", title="Repeated refusals", by=("kind", "scope")),
            Panel(
                metric="capacity_broker_shortage_next_try_timestamp_seconds",
                title="Time until the next request",
                by=("kind", "scope"),
                expr="max by (kind, scope) (capacity_broker_shortage_next_try_timestamp_seconds) - time()",
                unit="s",
            ),
            Panel(
                metric="capacity_broker_launch_attempts_total",
                title="Refusals",
                by=("class", "code"),
                where='outcome="Refused",nodeclass=~"$nodeclass"',
            ),
            Panel(
                metric="capacity_broker_launch_attempts_total",
                title="Launches",
                by=("nodeclass",),
                where='outcome="Launched",nodeclass=~"$nodeclass"',
            ),
            Panel(
                metric="capacity_broker_launch_fallbacks_total",
                title="Fallbacks",
                by=("from", "to", "reason"),
            ),
            Panel(
                metric="capacity_broker_inventory_unreadable",
                title="EC2's reservations unreadable",
                alert="CapacityBrokerReservationsNotDescribed",
            ),
            Panel(
                metric="capacity_broker_inventory_described_timestamp_seconds",
                title="Age of the last description",
                expr="time() - max(capacity_broker_inventory_described_timestamp_seconds)",
                unit="s",
            ),
            Panel(
                metric="capacity_broker_odcr_end_seconds",
                title="Reservations that end",
                by=("odcr", "reservation_type"),
                page="/reservations",
                alert="CapacityBrokerReservationEnding",
            ),
        ),
    ),
    Dashboard(
        uid="capacity-broker-platform",
        title="Capacity broker: platform",
        filters={"instance_type": "capacity_broker_odcr_slots"},
        panels=(
            Panel(
                metric="capacity_broker_odcr_slots",
                title="Slots",
                by=("instance_type", "zone"),
                where='instance_type=~"$instance_type"',
            ),
            Panel(
                metric="capacity_broker_odcr_used_slots",
                title="Use of reservations",
                by=("instance_type", "zone"),
                expr='instance_type_zone:capacity_broker_odcr_use:ratio{instance_type=~"$instance_type"}',
                unit="percentunit",
            ),
            Panel(metric="capacity_broker_idle_slots", title="Idle slots", by=("instance_type", "zone")),
            Panel(
                metric="capacity_broker_idle_cost_dollars_per_hour",
                title="Cost of idle slots an hour",
                by=("instance_type", "zone"),
            ),
            Panel(
                metric="capacity_broker_odcr_cost_dollars_per_hour",
                title="Price of all slots an hour",
                by=("instance_type", "zone"),
            ),
            Panel(metric="capacity_broker_leading", title="Leader", by=("lease",)),
            Panel(metric="capacity_broker_aws_calls_total", title="AWS calls", by=("operation", "code")),
            Panel(
                metric="capacity_broker_aws_throttled_total", title="Throttled AWS calls", by=("operation",)
            ),
            Panel(
                metric="capacity_broker_aws_call_seconds",
                title="AWS calls, 99th percentile",
                by=("operation",),
                expr="operation:capacity_broker_aws_call_seconds:p99_5m",
            ),
            Panel(metric="capacity_broker_reconciles_total", title="Reconciles", by=("controller", "result")),
            Panel(
                metric="capacity_broker_reconcile_seconds",
                title="Reconciles, 99th percentile",
                by=("controller",),
            ),
            Panel(metric="capacity_broker_kube_queue_depth", title="Queues", by=("queue",)),
            Panel(
                metric="capacity_broker_kube_queue_seconds",
                title="Wait in queues, 99th percentile",
                by=("queue",),
            ),
            Panel(metric="capacity_broker_kube_cache_staleness_seconds", title="Age of caches", by=("kind",)),
            Panel(metric="capacity_broker_kube_cache_objects", title="Objects", by=("kind", "state")),
        ),
    ),
    Dashboard(
        uid="capacity-broker-team",
        title="Capacity broker: team",
        filters={"namespace": "capacity_reservation_total", "reservation": "capacity_reservation_total"},
        panels=(
            Panel(
                metric="capacity_reservation_total",
                title="Quota",
                by=("reservation", "flavor", "resource"),
                where=_TEAM,
            ),
            Panel(
                metric="capacity_reservation_allocated",
                title="Quota in use",
                by=("reservation", "flavor", "resource"),
                where=_TEAM,
            ),
            Panel(
                metric="capacity_reservation_allocated",
                title="Utilization",
                by=("reservation", "flavor", "resource"),
                page="/reservations",
                alert="CapacityReservationUtilizationHigh",
                expr=f"capacity_reservation_allocated{{{_TEAM}}} / "
                f"(capacity_reservation_total{{{_TEAM}}} > 0)",
                unit="percentunit",
            ),
            Panel(
                metric="capacity_reservation_lifecycle_state",
                title="State",
                by=("reservation", "state"),
                page="/reservations",
                alert="CapacityReservationFailed",
                expr=f"max by (reservation, state) (capacity_reservation_lifecycle_state{{{_TEAM}}}) == 1",
            ),
        ),
    ),
)


def files(catalog: Catalog) -> Mapping[str, str]:
    """Name and text of each dashboard's file. Raises UnknownSeries for a query that names no metric."""
    return {
        f"{dashboard.uid}.json": json.dumps(model(dashboard, catalog), indent=2, sort_keys=True) + "\n"
        for dashboard in DASHBOARDS
    }


def model(dashboard: Dashboard, catalog: Catalog) -> Mapping[str, Any]:
    """The dashboard as Grafana's JSON model (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/
    view-dashboard-json-model/)."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["capacity-broker"],
        "editable": False,
        "schemaVersion": 39,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [*_variables(dashboard)]},
        "links": [_link("Web page", PAGE), _link("Runbooks", f"{RUNBOOKS}/")],
        "panels": [_panel(n, panel, catalog) for n, panel in enumerate(dashboard.panels)],
    }


def query(panel: Panel, catalog: Catalog) -> str:
    """The panel's PromQL, by the kind of its metric: a rate, a 99th percentile, or the greatest value."""
    defined = catalog[panel.metric]
    expr = panel.expr or _query(panel, defined)
    check_query(expr, catalog)
    return expr


def _query(panel: Panel, defined: Definition) -> str:
    where = f"{{{panel.where}}}" if panel.where else ""
    by = f" by ({', '.join(panel.by)})" if panel.by else ""
    if defined.kind == "counter":
        return f"sum{by} (rate({defined.name}{where}[5m]))"
    if defined.kind == "histogram":
        le = f" by ({', '.join((*panel.by, 'le'))})"
        return f"histogram_quantile(0.99, sum{le} (rate({defined.name}_bucket{where}[5m])))"
    # A standby shows no table; two replicas may both show a gauge of the process.
    per_object = not set(defined.labels) <= {*panel.by} and "odcr" in defined.labels
    return f"{'sum' if per_object else 'max'}{by} ({defined.name}{where})"


def _panel(number: int, panel: Panel, catalog: Catalog) -> Mapping[str, Any]:
    defined = catalog[panel.metric]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": defined.meaning,
        "datasource": _SOURCE,
        "gridPos": {
            "x": _WIDTH * (number % 2),
            "y": _HEIGHT * (number // 2),
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "links": [*_links(panel)],
        "fieldConfig": {
            "defaults": {"unit": panel.unit or _unit(defined), "min": 0, "custom": _drawn(panel)},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}
        },
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": query(panel, catalog),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in panel.by) or panel.title,
            }
        ],
    }


def _drawn(panel: Panel) -> Mapping[str, Any]:
    return {"fillOpacity": 10} | ({"stacking": {"mode": "normal"}} if panel.stacked else {})


def _links(panel: Panel) -> Iterable[Mapping[str, Any]]:
    if panel.page:
        yield _link("Web page", f"{PAGE}{panel.page}")
    if panel.alert:
        yield _link("Runbook", f"{RUNBOOKS}/{runbook_page(panel.alert)}")


def _link(title: str, url: str) -> Mapping[str, Any]:
    return {"title": title, "type": "link", "url": url, "targetBlank": True}


def _unit(defined: Definition) -> str:
    return "ops" if defined.kind == "counter" and defined.unit == "short" else defined.unit


def _variables(dashboard: Dashboard) -> Iterable[Mapping[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for label, metric in dashboard.filters.items():
        yield {
            "name": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({metric}, {label})",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
