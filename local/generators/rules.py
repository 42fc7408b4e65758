"""Prometheus' recording and alerting rules, which name the series of the metric catalog and no others.

Each alert has a page of the same name in docs/runbooks/. Thresholds are for one broker in one cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.notifications.alerts import RUNBOOKS, SUMMARIES, runbook_page
from local.generators.metric_catalog import Catalog, UnknownSeries, check

_RECORDED: Final = re.compile(r"\b[a-z_]+:capacity_[a-z_]+:[a-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording rule; `name` is level:metric:operation, as in Prometheus' practices."""

    name: str
    expr: str

    def rule(self) -> Mapping[str, Any]:
        return {"record": self.name, "expr": self.expr}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule. `lasts`: how long the expression must hold; empty for at once."""

    name: str
    expr: str
    summary: str
    description: str
    severity: Literal["warning", "critical"] = "warning"
    lasts: str = ""

    @property
    def page(self) -> str:
        """The file of its runbook."""
        return runbook_page(self.name)

    def rule(self) -> Mapping[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.lasts} if self.lasts else {}),
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{RUNBOOKS}/{self.page}",
            },
        }


RECORDINGS: Final[Sequence[Recording]] = (
    Recording(
        name="nodeclass:capacity_broker_launches:rate5m",
        expr='sum by (nodeclass) (rate(capacity_broker_launch_attempts_total{outcome="Launched"}[5m]))',
    ),
    Recording(
        name="nodeclass_class:capacity_broker_refusals:rate5m",
        expr='sum by (nodeclass, class) (rate(capacity_broker_launch_attempts_total{outcome="Refused"}[5m]))',
    ),
    Recording(
        name="instance_type_zone:capacity_broker_odcr_use:ratio",
        expr="sum by (instance_type, zone) (capacity_broker_odcr_used_slots) / "
        "(sum by (instance_type, zone) (capacity_broker_odcr_slots) > 0)",
    ),
    Recording(
        name="operation:capacity_broker_aws_call_seconds:p99_5m",
        expr="histogram_quantile(0.99, "
        "sum by (operation, le) (rate(capacity_broker_aws_call_seconds_bucket[5m])))",
    ),
)

RESERVATION_ALERTS: Final[Sequence[Alert]] = (
    Alert(
        name="CapacityReservationUtilizationHigh",
        # Of each flavor and resource by itself: GPUs, bytes and cores do not add up.
        expr="capacity_reservation_allocated / (capacity_reservation_total > 0) > 0.9",
        lasts="5m",
        summary="Capacity reservation utilization is high",
        description="{{ $labels.namespace }}/{{ $labels.reservation }} uses "
        "{{ $value | humanizePercentage }} of its {{ $labels.resource }} in flavor {{ $labels.flavor }}.",
    ),
    Alert(
        name="CapacityReservationFailed",
        # One that is being created, changed or deleted needs no person; CapacityReservationPending is for one
        # that stays so.
        expr='capacity_reservation_lifecycle_state{state="Active"} == 0 unless on (namespace, reservation) '
        'capacity_reservation_lifecycle_state{state=~"Creating|Updating|Deleting"} == 1',
        lasts="1m",
        severity="critical",
        summary="Capacity reservation is not in Active state",
        description="{{ $labels.namespace }}/{{ $labels.reservation }} is not Active: its "
        "status.lifecycleDetail has the reason.",
    ),
    Alert(
        name="CapacityReservationPending",
        expr='capacity_reservation_lifecycle_state{state=~"Creating|Updating|Deleting"} == 1',
        lasts="1h",
        summary="Capacity reservation has not become Active for an hour",
        description="{{ $labels.namespace }}/{{ $labels.reservation }} is {{ $labels.state }}: its "
        "status.lifecycleDetail has the cause of the wait and the time of the next attempt.",
    ),
    Alert(
        name="CapacityReservationHardwareUnattributed",
        expr="capacity_reservation_unattributed > 0",
        lasts="15m",
        summary="Accelerators count for no capacity reservation",
        description="{{ $value }} {{ $labels.resource }} are on nodes of {{ $labels.why }}: correct the "
        "labels of the nodes or of the ResourceFlavors.",
    ),
)

BROKER_ALERTS: Final[Sequence[Alert]] = (
    Alert(
        name="CapacityBrokerHasNoLeader",
        # No process that ever led shows no series at all.
        expr="(max(capacity_broker_leading) or vector(0)) < 1",
        lasts="2m",
        severity="critical",
        summary="No replica of the broker leads",
        description="Nothing is launched, drained or bought until a replica leads. Its log has the reason.",
    ),
    Alert(
        name="CapacityBrokerMassLoss",
        expr='max(capacity_broker_claims_unlisted{reason="MassLoss"}) > 0',
        lasts="1m",
        severity="critical",
        summary="EC2 does not list many of the broker's instances",
        description="{{ $value }} registered claims are kept although EC2 does not list their instances. "
        "Check Region, credentials and AWS's status before any claim is deleted.",
    ),
    Alert(
        name="CapacityBrokerReservationsNotDescribed",
        # The second part is for a broker that hangs.
        expr="max(capacity_broker_inventory_unreadable) > 0 "
        "or time() - max(capacity_broker_inventory_described_timestamp_seconds) > 300",
        summary="EC2's reservations cannot be described",
        description="AWS refuses the call or cannot be reached, so slots may have changed unseen. The "
        "condition ReservationsDescribed of each EC2NodeClass has the error.",
    ),
    Alert(
        name="CapacityBrokerObjectLeftOut",
        expr="sum by (kind) (increase(capacity_broker_objects_left_out_total[15m])) > 0",
        summary="The broker leaves an object out of every decision",
        description="A {{ $labels.kind }} cannot be decoded, or a pass failed on it. The event LeftOut on "
        "the object has the error.",
    ),
    Alert(
        name="CapacityBrokerLaunchForbidden",
        expr='sum(rate(capacity_broker_launch_attempts_total{outcome="Refused",class="permission"}[15m]))'
        " > 0",
        lasts="5m",
        summary="AWS denies the broker's launches",
        description="The condition Launchable of an EC2NodeClass names the missing action.",
    ),
    Alert(
        name="CapacityBrokerPanic",
        expr="sum(increase(capacity_broker_kube_panics_total[1h])) > 0",
        summary="The broker met an exception that no code expects",
        description="The log has the traceback. Please report it.",
    ),
    Alert(
        name="CapacityBrokerShortage",
        # Between the end of a shortage and the next refusal there is no series for a moment.
        expr="max by (kind, scope) (max_over_time(capacity_broker_shortage_repeats[5m])) >= 2",
        summary=SUMMARIES["CapacityBrokerShortage"],
        description="The {{ $labels.kind }} {{ $labels.scope }} refused at least three times in a row. "
        "Claims use their other options, and wait if there are none.",
    ),
    Alert(
        name="CapacityBrokerRepairStopped",
        expr="max by (nodepool) (max_over_time(capacity_broker_repair_stopped[5m])) > 0",
        lasts="5m",
        summary="Too many nodes of a NodePool are broken, so none is repaired",
        description="{{ $value }} nodes of NodePool {{ $labels.nodepool }} are broken at once. Its condition "
        "RepairAllowed has the limit: find their common cause first.",
    ),
    Alert(
        name="CapacityBrokerRolloutStopped",
        # Between two attempts of a launch there is no series for a moment.
        expr="max by (nodepool) (max_over_time(capacity_broker_rollout_stopped[5m])) > 0",
        lasts="5m",
        summary="A node has no replacement, so its rollout stopped",
        description="The condition NodesReplaced of NodePool {{ $labels.nodepool }} has the cause. The pods "
        "of the node wait, and no other node of its reservation is ended meanwhile.",
    ),
    Alert(
        name="CapacityBrokerNodesUnused",
        # Between the end of a wait and the next round there is no series for a moment.
        expr="max by (nodepool, made_for, cause) "
        "(max_over_time(capacity_broker_nodepool_backing_off_rounds[5m])) >= 3",
        summary="Nodes of a NodePool end without a pod again and again",
        description="NodePool {{ $labels.nodepool }} backs off after {{ $value }} rounds. The last node was "
        "made for pod {{ $labels.made_for }}: {{ $labels.cause }}.",
    ),
    Alert(
        name="CapacityBrokerClaimsWaiting",
        expr="time() - "
        "min by (nodeclass, reason) (capacity_broker_claims_waiting_since_timestamp_seconds) > 900",
        lasts="1m",
        summary="Claims have had no instance for a quarter of an hour",
        description="A claim of class {{ $labels.nodeclass }} waits for {{ $value | humanizeDuration }}, for "
        "{{ $labels.reason }}.",
    ),
    Alert(
        name="CapacityBrokerPodsWaiting",
        # A gated pod waits for the controller of its gate.
        expr="time() - min by (nodepool, reason) "
        '(capacity_broker_pods_waiting_since_timestamp_seconds{reason!="SchedulingGated"}) > 900',
        lasts="1m",
        summary=SUMMARIES["CapacityBrokerPodsWaiting"],
        description="A pod for NodePool {{ $labels.nodepool }} waits for {{ $value | humanizeDuration }}, "
        "for {{ $labels.reason }}.",
    ),
    Alert(
        name="CapacityBrokerReservationEnding",
        # Claims in a block drain 40 minutes before its end, in a block of UltraServers 70.
        expr='capacity_broker_odcr_end_seconds{reservation_type="capacity-block"} < 7200 '
        'or capacity_broker_odcr_end_seconds{reservation_type!="capacity-block"} < 3600',
        summary=SUMMARIES["CapacityBrokerReservationEnding"],
        description="{{ $labels.odcr }} ({{ $labels.instance_type }}, {{ $labels.zone }}, "
        "{{ $labels.reservation_type }}) ends in {{ $value | humanizeDuration }}.",
    ),
    Alert(
        name="CapacityBrokerSpendingCapReached",
        expr="max by (namespace, reservation) "
        '(capacity_broker_reservation_problems{reason="SpendingCapReached"}) > 0',
        lasts="1m",
        summary=SUMMARIES["CapacityBrokerSpendingCapReached"],
        description="{{ $labels.namespace }}/{{ $labels.reservation }} needs more than the cap allows. Its "
        "condition names the option.",
    ),
    Alert(
        name="CapacityBrokerAwsThrottled",
        expr="sum by (operation) (rate(capacity_broker_aws_throttled_total[5m])) > 0.1",
        lasts="10m",
        summary="AWS throttles the broker's calls",
        description="{{ $labels.operation }} is refused {{ $value | humanize }} times a second.",
    ),
)
ALERTS: Final = (*RESERVATION_ALERTS, *BROKER_ALERTS)


def rules(catalog: Catalog) -> Mapping[str, Any]:
    """The rule file. Raises UnknownSeries for a rule about a series that no metric defines."""
    for expr in (*(rule.expr for rule in RECORDINGS), *(rule.expr for rule in ALERTS)):
        check_query(expr, catalog)
    groups: Sequence[tuple[str, Sequence[Alert | Recording]]] = (
        ("capacity-reservations", RESERVATION_ALERTS),
        ("capacity-broker", BROKER_ALERTS),
        ("capacity-broker-recordings", RECORDINGS),
    )
    return {
        "groups": [{"name": name, "rules": [rule.rule() for rule in members]} for name, members in groups]
    }


def check_query(expr: str, catalog: Catalog) -> None:
    """Raises UnknownSeries if the expression names an unknown series, label or recording rule."""
    recorded = {recording.name for recording in RECORDINGS}
    if unknown := {*_RECORDED.findall(expr)} - recorded:
        raise UnknownSeries(f"{', '.join(sorted(unknown))} in {expr}")
    if not _RECORDED.search(expr):
        check(expr, catalog)
