"""`capacity-broker explain claim NAME`: the attempts for a claim, in order, and the reason of its state.

The attempts are read from the claim alone: its conditions, and the attempts that the broker wrote on it. So
that part works for every reader of NodeClaims, with the broker up or down. A waiting claim is also planned
again with present data, which calls EC2. If EC2 cannot be called, the answer reports it and leaves that
part out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Protocol

from broker.apis import names
from broker.apis.capacity_broker import (
    OnDemandCapacityReservation,
    OnDemandCapacityReservationStatus,
)
from broker.apis.core import Event, Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition
from broker.capacity.attempts import Outcome
from broker.capacity.model import LAUNCH_DEFAULTS, LaunchDefaults
from broker.commands.dry_run import AccountReads, Entitle
from broker.commands.explain.decision import because
from broker.commands.explain.event_facts import KARPENTER, concerned, event_rows, written_by
from broker.commands.explain.options import ClaimForecast, blocking, forecast_claim
from broker.commands.explain.permitted import ODDS, SHORTAGES, listed, published
from broker.commands.explain.unknown_names import unknown
from broker.commands.inventory.prices import shipped_price, shown_price
from broker.commands.output import shortage_name, shortage_row
from broker.controllers.claim_status import BROKER_CONDITIONS
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound
from broker.oncall.journal import attempt_id, recorded
from broker.oncall.slot_holders import workloads_on
from broker.oncall.state import is_brokers
from broker.reservations.claims import occupied_odcr
from broker.text import abridged, counted, format_time, plain
from providers.errors import ProviderError
from providers.names import MANAGER

ATTEMPT_COLUMNS = {"step": "#", "when": "WHEN", "outcome": "OUTCOME", "what": "POOL, AND RESULT"}
EVENT_COLUMNS = {"at": "WHEN", "times": "COUNT", "reason": "EVENT", "message": "MESSAGE"}
SHORTAGE_COLUMNS = {
    "pool": "SHORT",
    "code": "CODE",
    "since": "SINCE",
    "next_try": "NEXT TRY",
    "until": "UNTIL",
}
# The labels of the parts of a pool's key.
_POOL = (names.CAPACITY_TYPE, names.INSTANCE_TYPE, names.ZONE, names.RESERVATION_ID)
# Alike options and attempts beyond this are one line with a count.
ALIKE = 3
MOST_PODS = 8
MOST_EVENTS = 50


def claim(client: Client, name: str) -> NodeClaim:
    """Raises ValueError, which names those that are meant perhaps, and ApiError."""
    try:
        return NodeClaim.decode(client.get(NodeClaim.KIND, name))
    except NotFound as error:
        existing = [raw["metadata"]["name"] for raw in client.list(NodeClaim.KIND)[0]]
        command = "kubectl get nodeclaims; they have no namespace"
        raise ValueError(unknown("NodeClaim", name, existing, command)) from error


def attempts(claim: NodeClaim, reported: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """One row an attempt, oldest first. `reported`: the events about a claim that Karpenter launches."""
    if not is_brokers(claim):
        return [*_attempts_of_karpenter(claim, reported)]
    return [
        {
            "at": format_time(attempt.at),
            "pool": str(attempt.pool),
            "also": [str(pool) for pool in attempt.also],
            "outcome": str(attempt.outcome),
            "code": attempt.code,
            "class": str(attempt.class_ or ""),
            "message": attempt.message,
            "instance": attempt.instance_id,
            "id": attempt_id(attempt),
            "request_id": attempt.request_id,
            "next": attempt.next_step,
        }
        for attempt in recorded(claim)
    ]


def _attempts_of_karpenter(
    claim: NodeClaim, reported: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The attempts that Karpenter's events and its condition Launched report."""
    launched = condition(claim.status.conditions, names.LAUNCHED)
    rows = [(row["at"], row["reason"], row["message"], False) for row in reported if row["type"] == "Warning"]
    if launched is not None and launched.reason and launched.last_transition_time is not None:
        done = launched.status == "True"
        rows.append((format_time(launched.last_transition_time), launched.reason, launched.message, done))
    labels = claim.labels
    pool = ":".join(filter(None, (labels.get(key, "") for key in _POOL)))
    for at, reason, message, done in rows:
        yield {
            "at": at,
            "pool": pool or "Karpenter",
            "also": [],
            "outcome": str(Outcome.LAUNCHED if done else Outcome.REFUSED),
            "code": "" if done else reason,
            "class": "",
            "message": message,
            "instance": claim.instance_id if done else "",
            "id": "",
            "request_id": "",
            "next": "",
        }


class Forecasts(Protocol):
    """Plans claims: `of` one that waits, None for any other; `among` these, one that waits or that would."""

    def of(self, claim: NodeClaim) -> ClaimForecast | None: ...

    def among(self, claim: NodeClaim, claims: Sequence[NodeClaim]) -> ClaimForecast: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecaster:
    """Plans a claim with present data. `provider` connects to EC2 when it is needed."""

    client: Client
    provider: Callable[[], AccountReads]
    now: datetime
    defaults: LaunchDefaults = LAUNCH_DEFAULTS
    entitle: Callable[[AccountReads], Entitle] | None = None

    def of(self, claim: NodeClaim) -> ClaimForecast | None:
        """The options of a waiting claim; None for a claim with an instance, or of another launcher."""
        if not (claim.waits and is_brokers(claim)):
            return None
        return self.among(claim, [NodeClaim.decode(raw) for raw in self.client.list(NodeClaim.KIND)[0]])

    def among(self, claim: NodeClaim, claims: Sequence[NodeClaim]) -> ClaimForecast:
        """The options of a claim that waits among these, or that would."""
        classes, _ = self.client.list(EC2NodeClass.KIND)
        unread: list[str] = []
        current = published(self.client, SHORTAGES, unread)
        try:
            connected = self.provider()
            forecast = forecast_claim(
                claim,
                claims,
                (EC2NodeClass.decode(raw) for raw in classes),
                connected,
                now=self.now,
                defaults=self.defaults,
                entitle=self.entitle(connected) if self.entitle is not None else None,
                published=current,
                odds=published(self.client, ODDS),
                pods=lambda: listed(self.client, Pod),
            )
            return replace(forecast, decision="; ".join(filter(None, (forecast.decision, *unread))))
        except ProviderError as error:
            node_class = claim.spec.node_class_ref.name
            pools = (pool for attempt in recorded(claim) for pool in (attempt.pool, *attempt.also))
            return ClaimForecast(
                decision=f"unknown, because EC2 cannot be read: {error}",
                shortages=blocking(current.active(pool, self.now, node_class=node_class) for pool in pools),
            )


def shortages(forecast: ClaimForecast) -> list[dict[str, Any]]:
    """One row a shortage that keeps the claim from an option."""
    return [shortage_row(shortage) for shortage in forecast.shortages]


def format_shortages(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Formats shortages for a person: a scope by its name."""
    return [{**row, "pool": shortage_name(row)} for row in rows]


def events(client: Client, claim: NodeClaim) -> list[dict[str, Any]]:
    """The last events of its launcher about the claim, oldest first, without those that repeat attempts."""
    about = (NodeClaim.KIND.kind, claim.name)
    writers = (MANAGER,) if is_brokers(claim) else (MANAGER, KARPENTER)
    its_own = (
        event
        for event in listed(client, Event)
        if concerned(event) == about and any(written_by(event, writer) for writer in writers)
    )
    return event_rows(its_own, MOST_EVENTS)[::-1]


def pods_on(client: Client, claim: NodeClaim) -> list[Pod]:
    """The pods on the claim's node; empty without a node, or without the right to list them."""
    node = claim.status.node_name
    if not node:
        return []
    try:
        return [Pod.decode(raw) for raw in client.list(Pod.KIND, field_selector=f"spec.nodeName={node}")[0]]
    except Forbidden:
        return []


def price(client: Client, claim: NodeClaim) -> float | None:
    """The price of the claim's instance by the shipped table; None if it is unknown."""
    mirrors: dict[str, OnDemandCapacityReservationStatus] = {}
    if id_ := claim.labels.get(names.RESERVATION_ID):
        try:
            raw = client.get(OnDemandCapacityReservation.KIND, id_)
            mirrors[id_] = OnDemandCapacityReservation.decode(raw).status
        except (NotFound, Forbidden):
            pass  # its labels decide
    return shipped_price(mirrors)(claim)


def document(
    claim: NodeClaim,
    forecast: ClaimForecast | None,
    events_: Sequence[Mapping[str, Any]] = (),
    *,
    pods: Iterable[Pod],
    usd_hour: float | None,
) -> dict[str, Any]:
    """Everything, for a machine. `pods`: those on its node; before, those that it was made for are shown."""
    result: dict[str, Any] = {
        "claim": claim.name,
        "class": claim.spec.node_class_ref.name,
        "instance": claim.instance_id,
        "provider_id": claim.status.provider_id,
        "node": claim.status.node_name,
        "capacity_type": claim.labels.get(names.CAPACITY_TYPE, ""),
        "reservation": occupied_odcr(claim),
        "usd_hour": usd_hour,
        "pods": shown_pods(claim, pods),
        "requirements": [requirement.wire() for requirement in claim.spec.requirements],
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
            for type_ in BROKER_CONDITIONS
            if (c := condition(claim.status.conditions, type_))
        ],
        "attempts": attempts(claim, events_),
        "events": list(events_),
    }
    if forecast is not None:
        result |= {
            "decision": forecast.decision,
            "options": list(forecast.rows),
            "shortages": shortages(forecast),
        }
    return result


def shown_pods(claim: NodeClaim, pods: Iterable[Pod]) -> list[str]:
    """The pods on the claim's node, of these; before, those that it was made for."""
    if claim.status.node_name:
        return sorted(pod.key for pod in workloads_on(claim, pods))
    return list(pods_of(claim))


def headline(claim: NodeClaim, *, pods: Iterable[Pod], usd_hour: float | None) -> list[str]:
    """The state of the claim, in a few lines."""
    ref = claim.spec.node_class_ref
    lines = [f"NodeClaim {claim.name}, class {ref.name or '(none)'}"]
    if not is_brokers(claim):
        lines.append(f"  not the broker's: spec.nodeClassRef.group is {ref.group!r}, not {names.BROKER!r}")
    if deleted := claim.metadata.deletion_timestamp:
        lines.append(f"  deleted at {format_time(deleted)}")
    if claim.status.provider_id:
        lines.append(
            f"  instance {claim.instance_id} ({claim.status.provider_id}), "
            f"node {claim.status.node_name or '(none yet)'}"
        )
    kind, slot = claim.labels.get(names.CAPACITY_TYPE), occupied_odcr(claim)
    if kind or slot:
        price = "price unknown" if usd_hour is None else f"{usd_hour:.2f} $/h"
        shown = (kind, slot and f"in {slot}", price)
        lines.append(f"  {', '.join(filter(None, shown))}")
    if keys := shown_pods(claim, pods):
        lines.append(f"  pods {abridged(keys, MOST_PODS)}")
    for type_ in BROKER_CONDITIONS:
        if reported := condition(claim.status.conditions, type_):
            text = f"  {type_}={reported.status} {reported.reason}"
            lines.append(f"{text}: {reported.message}" if reported.message else text)
    return lines


def format_attempts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Formats attempts for a person: a pool's ARN, EC2's words and its request id get their own lines."""

    def alike(row: Mapping[str, Any]) -> tuple[object, ...]:
        return row["outcome"], row["code"], row["class"], row["next"], row["instance"]

    lines_ = []
    for step, group in _grouped(rows, alike):
        row = group[-1]
        more = len({pool for row_ in group for pool in (row_["pool"], *row_["also"])}) - 1
        times = f"{len(group)} times, last\n" if len(group) > 1 else ""
        lines = (
            plain(row["pool"]) + (f" and {counted(more, 'more pool')}" if more else ""),
            ": ".join(filter(None, (row["code"], row["instance"] or row["message"]))),
            row["request_id"] and f"AWS request {row['request_id']}",
            row["next"] and f"then: {row['next']}",
        )
        lines_.append(
            {
                "step": step,
                "when": times + _when(row),
                "outcome": row["outcome"],
                "what": "\n".join(filter(None, lines)),
            }
        )
    return lines_


def format_events(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Formats events for a person: their times as those of attempts."""
    return [{**row, "at": _when(row)} for row in rows]


def _when(row: Mapping[str, Any]) -> str:
    return str(row["at"]).replace("T", " ")


def format_options(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Formats options for a person: options that differ in their name only are one line."""

    def alike(row: Mapping[str, Any]) -> tuple[object, ...]:
        return row["verdict"], row["reason"], row["class"], row["capacity_type"]

    lines_ = []
    for step, group in _grouped(rows, alike):
        head, count = group[0], len(group)
        why = because(head["reason"], head["message"], pool=head["pool"])
        first, last = plain(head["pool"]), plain(group[-1]["pool"])
        option_text = f"{first} to {last}, {count} options" if count > 1 else first
        alike_too = f" (and {count - 1} alike)" if count > 1 else ""
        lines_.append(
            {
                "step": step,
                "verdict": head["verdict"],
                "free": None if head["free"] is None else sum(row["free"] for row in group),
                "lent": sum(row["lent"] for row in group) or None,
                "price": shown_price(head["capacity_type"], (row["usd_hour"] for row in group)),
                "what": "\n".join(filter(None, (option_text, why + alike_too if why else ""))),
            }
        )
    return lines_


def _grouped(
    rows: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], object]
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Step and rows of each line: one, or more than ALIKE neighbours of one key."""
    step = 1
    for _, members in groupby(rows, key=key):
        group = list(members)
        if len(group) > ALIKE:
            yield f"{step}-{step + len(group) - 1}", group
        else:
            yield from ((str(step + offset), [row]) for offset, row in enumerate(group))
        step += len(group)
