"""`capacity-broker explain class|reservation|cluster`: capacity that is short, and the remedy, on one page.

An on-call person reads it from the top: the state, the shortages and their age, the claims that wait, the
attempts, the next step of the broker, the cost, and the commands that help. Each part is a list of rows,
which a table and JSON show alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import Condition, Object, condition
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.reasons import CLASS_NOT_FOUND, WITHOUT_OPTION
from broker.commands.explain.advice import advice
from broker.commands.explain.costs import costs
from broker.commands.explain.event_facts import event_rows
from broker.commands.explain.shown_rows import full_of, full_row, relative, shown_rows, situation_pools
from broker.commands.explain.slot_rows import slot_state, users_of_slots
from broker.commands.output import age, shortage_row
from broker.oncall.broken import BrokenNode
from broker.oncall.pod_facts import created
from broker.oncall.situation import Situation
from broker.oncall.state import launch_state
from broker.oncall.waiting_pods import WaitingGroup, WaitingPod, grouped
from broker.reservations.spec import Reservation
from broker.text import counted, format_time, with_unpriced

ATTEMPTS: Final = 12  # rows; the history and `errors` have all of them
CLAIMS: Final = 12
EVENTS: Final = 8
OPTION_COLUMNS: Final[Mapping[str, str]] = {
    "step": "#",
    "verdict": "VERDICT",
    "free": "FREE",
    "lent": "LENT",
    "price": "$/H",
    "what": "OPTION, AND WHY NOT",
}
# By part: the columns for a person. Machines get every key of a row.
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "state": {"object": "OBJECT", "state": "STATE", "since": "SINCE", "message": "WHY"},
    "broken": {
        "claim": "CLAIM",
        "slot": "SLOT",
        "for": "FOR",
        "what": "WHAT, AND NEXT STEP",
        "usd_hour": "$/H",
        "usd": "$ SO FAR",
    },
    "short": {
        "pool": "POOL",
        "code": "CODE",
        "for": "FOR",
        "next_try": "NEXT TRY",
        "who": "WHO WAITS, AND WHO HOLDS IT",
    },
    "pods": {"who": "PODS THAT WAIT", "count": "COUNT", "for": "FOR", "what": "NODEPOOL, AND WHY"},
    "why": {"reason": "REASON", "message": "MESSAGE"},
    "nodepools": {
        "verdict": "VERDICT",
        "nodepool": "NODEPOOL",
        "weight": "WEIGHT",
        "class": "CLASS",
        "message": "WHY",
    },
    "options": OPTION_COLUMNS,
    "slots": {"role": "THE POD", "place": "SLOT", "holder": "USED BY", "for": "FOR", "end": "UNTIL"},
    "placed": {
        "where": "CLAIM",
        "slot": "SLOT",
        "usd_hour": "$/H",
        "beside": "PODS",
        "count": "COUNT",
        "end": "UNTIL",
    },
    "waiting": {"claim": "CLAIM", "class": "CLASS", "for": "FOR", "message": "WHY"},
    "tried": {
        "last": "LAST",
        "times": "TIMES",
        "outcome": "OUTCOME",
        "result": "POOL, AND RESULT",
    },
    "events": {"at": "WHEN", "times": "COUNT", "reason": "REASON", "message": "MESSAGE"},
    "costs": {"what": "WHAT", "count": "COUNT", "usd_hour": "$/H"},
}
HEADINGS: Final[Mapping[str, str]] = {
    "state": "State",
    "broken": "Broken",
    "short": "Short now",
    "pods": "Pods that wait",
    "why": "Why it waits",
    "nodepools": "NodePools",
    "options": "Options of its claim, in order",
    "slots": "Slots and their users",
    "placed": "Slot that it has",
    "waiting": "Claims that wait",
    "tried": "Tried",
    "events": "Last events",
    "costs": "Cost, with slots as EC2 last described them",
    "do": "You can",
}
NOTHING: Final[Mapping[str, str]] = {
    "state": "all is well",
    "short": "nothing is short",
    "waiting": "no claim waits",
    "tried": "no attempt is recorded",
    "costs": "no slot is idle, and no instance runs outside reservations",
    "do": "nothing needs to be done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`next` are sentences, the other parts rows; `headline` has the numbers in a line. `shown`: the rows of
    a part for a person, if they are others than for a machine. `now`: the time that ages count to, if a
    person's times are relative.
    """

    subject: str
    headline: str
    parts: Mapping[str, Sequence[Mapping[str, Any]]]
    next: Sequence[str]
    unread: Sequence[str] = ()
    shown: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    now: datetime | None = None

    def document(self) -> dict[str, Any]:
        """Everything, for a machine."""
        parts = {part: [dict(row) for row in rows] for part, rows in self.parts.items()}
        return {
            "subject": self.subject,
            "headline": self.headline,
            **parts,
            "next": list(self.next),
            "unread": list(self.unread),
        }


def explain(situation: Situation, subject: Object | None = None) -> Explanation:
    """`found`: the part of the situation about the subject; all of it for a cluster."""
    parts: dict[str, list[dict[str, Any]]] = {
        "state": list(_state(situation, subject)),
        "broken": [_broken(row, situation.now) for row in situation.broken],
        "short": [
            shortage_row(shortage) | {"for": age(situation.now - shortage.since)}
            for shortage in situation.shortages
        ]
        + [full_row(row, situation.now) for row in full_of(situation)],
        "pods": [_group(group, situation.now) for group in grouped(situation.waiting_pods)],
        "slots": [*users_of_slots(situation, subject)],
        "waiting": [_waits(claim, situation.now) for claim in situation.waiting_claims],
        "tried": _tried(situation.attempts),
        "events": event_rows(situation.events, EVENTS),
        "costs": list(costs(situation)),
    }
    parts["do"] = advice(situation, subject)
    return Explanation(
        subject=f"{subject.KIND.kind} {subject.key}" if subject else "the cluster",
        headline=_headline(situation, parts["costs"]),
        parts=parts,
        next=list(_next(situation)),
        unread=situation.unread,
        shown=shown_rows(situation, parts, brief=subject is None),
        now=situation.now,
    )


def _headline(situation: Situation, rows: Iterable[Mapping[str, Any]]) -> str:
    waiting, short = situation.waiting_claims, list(situation.shortages)
    waits = counted(len(waiting), "claim waits", "claims wait")
    if waiting:
        waits += f", the oldest for {age(situation.now - min(created(c, situation.now) for c in waiting))}"
    if pods := situation.waiting_pods:
        waits = f"{counted(len(pods), 'pod waits', 'pods wait')}; {waits}"
    since = f", since {format_time(short[0].since)}" if short else ""
    listed = [*rows]
    dollars = f"{sum(row['usd_hour'] or 0 for row in listed):.2f} $/h"
    cost = f"{with_unpriced(dollars, sum(row['unpriced'] for row in listed))} idle or outside reservations"
    broken = counted(len(situation.broken), "node is broken", "nodes are broken")
    first = f"{broken}; " if situation.broken else ""
    if full := sum(len(row.ids) for row in full_of(situation)):
        since += f"; {counted(full, 'full reservation')} that pods wait for"
    return f"{first}{counted(len(short), 'shortage')}{since}; {waits}; {cost}"


def _state(situation: Situation, subject: Object | None) -> Iterator[dict[str, Any]]:
    """The conditions of the subject; of a cluster, those of every object that is not well, each cause once.

    Those of the NodePools of a class belong to it.
    """
    yield from _broken_state(situation)
    yield from _pod_state(situation)
    if isinstance(subject, OnDemandCapacityReservation):
        yield from slot_state(situation, subject)
    for obj in (*situation.classes, *situation.reservations):
        state = obj.status.capacity_reservation_lifecycle_state if isinstance(obj, Reservation) else None
        if isinstance(obj, Reservation) and state and (subject or state in ("Failed", "Deleting")):
            detail = _amounts(obj) if subject else obj.status.lifecycle_detail
            kind = obj.KIND.kind
            yield {"kind": kind, "object": obj.key, "state": state, "since": None, "message": detail}
        causes: set[tuple[str, str]] = set()
        for condition_ in obj.status.conditions:
            cause = condition_.reason, condition_.message
            if subject is not None or (condition_.status == "False" and cause not in causes):
                causes.add(cause)
                yield _condition(obj, condition_)
    for pool, problem in situation.pool_problems:
        yield _condition(pool, problem)


def _broken_state(situation: Situation) -> Iterator[dict[str, Any]]:
    """One row about all broken nodes."""
    if rows := situation.broken:
        paid = counted(sum(bool(row.reservation) for row in rows), "paid slot")
        state = counted(len(rows), "node is broken", "nodes are broken")
        since = format_time(min(row.since for row in rows))
        where = f"in {paid}: see Broken"
        yield {"kind": "", "object": "nodes", "state": state, "since": since, "message": where}


def _pod_state(situation: Situation) -> Iterator[dict[str, Any]]:
    """One row about all pods that wait, also for something else than the subject."""
    own, every = situation.waiting_pods, (situation.whole or situation).waiting_pods
    if rows := own or every:
        count = counted(len(rows), "pod waits", "pods wait")
        oldest = rows[0].since
        where = "see Pods that wait" if own else "for something else: capacity-broker explain cluster"
        yield {
            "kind": "",
            "object": "pods",
            "state": count,
            "since": oldest and format_time(oldest),
            "message": where,
        }


def _amounts(reservation: Reservation) -> str:
    """The accelerators of a reservation in a sentence, and the detail of its state."""
    summary, detail = reservation.status.summary, reservation.status.lifecycle_detail
    if summary is None:
        return detail
    return f"{summary.text}; {detail}" if detail else summary.text


def _condition(obj: Object, condition_: Condition) -> dict[str, Any]:
    since = condition_.last_transition_time
    return {
        "kind": obj.KIND.kind,
        "object": obj.key,
        "state": f"{condition_.type}={condition_.status} {condition_.reason}",
        "since": since and format_time(since),
        "message": condition_.message,
    }


def _broken(row: BrokenNode, now: datetime) -> dict[str, Any]:
    """A broken node: what is broken, what is next and when, and what its slot costs meanwhile."""
    at = row.next_at and format_time(row.next_at)
    when = f" ({relative(row.next_at, now)})" if row.next_at else ""
    sign = f"{row.sign}: {row.message}" if row.message else row.sign
    return {
        "claim": row.claim,
        "node": row.node,
        "node_pool": row.node_pool,
        "instance_type": row.instance_type,
        "zone": row.zone,
        "slot": row.reservation or "outside reservations",
        "sign": row.sign,
        "message": row.message,
        "since": format_time(row.since),
        "for": age(now - row.since),
        "next": row.next,
        "next_at": at,
        "what": f"{sign}\nnext: {row.next}{when}",
        "usd_hour": row.usd_hour,
        "usd": row.usd,
    }


def _waits(claim: NodeClaim, now: datetime) -> dict[str, Any]:
    reason, message = launch_state(claim)
    return {
        "claim": claim.name,
        "class": claim.spec.node_class_ref.name,
        "nodepool": claim.node_pool,
        "pods": pods_of(claim),
        "since": claim.metadata.creation_timestamp and format_time(claim.metadata.creation_timestamp),
        "for": age(now - created(claim, now)),
        "reason": reason,
        "message": message,
    }


def pod_waits(pod: WaitingPod, now: datetime) -> dict[str, Any]:
    """A pod that waits, with its reason."""
    return {
        "pod": pod.key,
        "owner": pod.owner,
        "nodepool": pod.node_pool,
        "claim": pod.claim,
        "since": pod.since and format_time(pod.since),
        "for": age(now - (pod.since or now)),
        "reason": pod.reason,
        "message": pod.message,
        "own_message": pod.own_message,
    }


def _group(group: WaitingGroup, now: datetime) -> dict[str, Any]:
    """Equal pods of one owner, with the reason of the one that waits longest."""
    first = group.first
    pool = f"{first.node_pool}: " if first.node_pool else ""
    return {
        **pod_waits(first, now),
        "pods": [pod.key for pod in group.pods],
        "count": len(group.pods),
        "who": group.named,
        "what": f"{pool}{first.reason}: {first.message}",
    }


def _tried(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """One row for equal answers of a pool, the newest first."""

    def alike(attempt: Attempt) -> tuple[str, str, str]:
        return str(attempt.pool), str(attempt.outcome), attempt.code

    rows = []
    for (pool, outcome, code), members in groupby(sorted(attempts, key=alike), key=alike):
        group = sorted(members, key=lambda attempt: attempt.at)
        last = group[-1]
        rows.append(
            {
                "pool": pool,
                "zone": last.pool.zone,
                "outcome": outcome,
                "code": code,
                "class": str(last.class_ or ""),
                "times": len(group),
                "first": format_time(group[0].at),
                "last": format_time(last.at),
                "message": last.message,
                "result": ": ".join(filter(None, (code, last.instance_id or last.message))),
                "request_id": last.request_id,
                "next": last.next_step,
                "claims": sorted({attempt.claim for attempt in group}),
            }
        )
    return sorted(rows, key=lambda row: (row["last"], row["pool"]), reverse=True)


def _next(situation: Situation) -> Iterator[str]:
    """The next steps of the broker, in the words of the last attempts and of the shortages.

    A refusal has its step until the claim has no option any more.
    """
    waiting = situation.waiting
    by_step: dict[str, list[str]] = {}
    for name, claims in groupby(sorted(waiting, key=_class_name), key=_class_name):
        group = list(claims)
        reasons = {claim.name: launch_state(claim)[0] for claim in group}
        steps = dict.fromkeys(
            attempt.next_step
            for attempt in situation.attempts
            if attempt.next_step
            and attempt.outcome is not Outcome.LAUNCHED
            and reasons.get(attempt.claim, CLASS_NOT_FOUND) not in WITHOUT_OPTION
        )
        reports = dict.fromkeys(
            f"{launched.reason}: {launched.message}"
            for claim in group
            if (launched := condition(claim.status.conditions, names.LAUNCHED)) and launched.message
        )
        then = "; ".join([*steps][-2:] or [*reports][-2:]) or "launched at the next pass that has room"
        by_step.setdefault(then, []).append(f"{counted(len(group), 'claim')} of class {name}")
    yield from (f"{', '.join(claims)}: {then}" for then, claims in by_step.items())
    if waiting and situation.shortages:
        first = min(situation.shortages, key=lambda shortage: shortage.next_try)
        pool, when = situation_pools(situation), relative(first.next_try, situation.now)
        name = next((row.scope for row in pool if row.until == first.next_try), first.scope.key)
        yield f"{name}: tried again {when}, the first of those that are short"


def _class_name(claim: NodeClaim) -> str:
    return claim.spec.node_class_ref.name
