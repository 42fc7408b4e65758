"""`capacity-broker errors --since 1h --by pool|class|code`: refusals and problems, counted.

With a history the rows are its entries. Without one they come from the cluster: the attempts on the claims,
the shortages that the running broker published, and its Warning events. Kubernetes keeps events for an hour,
and a deleted claim takes its attempts along; the published shortages outlive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from broker.apis import names
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.chances import ChanceNow, chance_now, reservation_of
from broker.commands.errors.problems_by import GroupBy
from broker.commands.errors.stored_history import opened
from broker.commands.explain.event_facts import concerned, happened
from broker.history.entries import Entry, is_turn, microseconds
from broker.history.recorder import forecasts_of
from broker.history.store import MEMORY
from broker.history.tables import EntryFilter
from broker.lists import lists_by_key
from broker.oncall.journal import attempt_id
from broker.oncall.situation import Situation
from broker.option_rules import wrong
from broker.options import BadOptions
from broker.text import InvalidText, counted, decode_duration, format_time, plain

COLUMNS: Final = {
    "count": "COUNT",
    "refused": "REFUSED",
    "skipped": "SKIPPED",
    "times": "FIRST AND LAST",
    "key": "",
}
MOST_ENTRIES: Final = 100_000  # entries of the history that are counted
_LAUNCHES: Final = frozenset({Outcome.LAUNCHED, Outcome.ADOPTED})
# Answers of EC2; a spilled instance did not get its slot in the reservation.
_REFUSALS: Final = frozenset({Outcome.REFUSED, Outcome.SPILLED})
_POD: Final = "Pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`pool` is the object of a problem without a pool; `class_` is the event's reason without a class.

    `kind` is the object's kind, empty for a problem of a pool. `outcome` is empty for an event.
    """

    at: datetime
    pool: str
    kind: str = ""
    outcome: str = ""
    class_: str
    code: str
    message: str
    request_id: str = ""

    def key(self, by: GroupBy) -> str:
        return {GroupBy.POOL: self.pool, GroupBy.CLASS: self.class_, GroupBy.CODE: self.code}[by]

    @property
    def skipped(self) -> bool:
        """Whether the broker did not ask EC2."""
        return self.outcome == Outcome.SKIPPED


def stored(
    location: str, since: datetime, now: datetime
) -> tuple[list[Problem], Mapping[str, ChanceNow]] | None:
    """The problems in the history, and the chance of each pool; None without one.

    Raises HistoryUnreadable.
    """
    if location in ("", MEMORY):
        return None
    with opened(location) as history:
        warnings = EntryFilter(warning=True, since=microseconds(since))
        problems = [_of_entry(entry) for entry in history.find(warnings, limit=MOST_ENTRIES)]
        known, slots = forecasts_of(history, now)
        return problems, {pool: chance_now(f, slots.get(reservation_of(pool))) for pool, f in known.items()}


def published(situation: Situation, since: datetime) -> list[Problem]:
    """The problems that Kubernetes still has."""
    attempts = [a for a in situation.attempts if a.outcome not in _LAUNCHES and not is_turn(a)]
    recorded_ = {(format_time(attempt.at), attempt.code) for attempt in attempts}
    ids = {attempt_id(attempt) for attempt in attempts}
    problems = [_of_attempt(attempt) for attempt in attempts]
    for shortage in situation.shortages:
        if (format_time(shortage.last), shortage.code) not in recorded_:
            problems.append(
                Problem(
                    at=shortage.last,
                    pool=shortage.scope.key,
                    outcome=Outcome.REFUSED,
                    class_=shortage.class_.value,
                    code=shortage.code,
                    message=shortage.message,
                )
            )
    for event in situation.events:
        attempt_ids = {id_.strip() for id_ in event.annotations.get(names.ATTEMPT_IDS, "").split(",")}
        if event.type != "Warning" or attempt_ids & ids:
            continue
        kind, key = concerned(event)
        problems.append(
            Problem(
                at=happened(event) or situation.now,
                pool=f"{kind} {key}",
                kind=kind,
                class_=event.reason,
                code=event.reason,
                message=event.message,
                request_id=event.annotations.get(names.AWS_REQUESTS, ""),
            )
        )
    return [problem for problem in problems if problem.at >= since]


def rows(
    problems: Iterable[Problem], by: GroupBy, pools: Mapping[str, ChanceNow] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """One row a key, the most frequent first. `pools` are the chances, which rows of pools have.

    By pool, the rows of other objects come last, and those of pods are left out: see `of_pods`.
    """
    by_pool = by is GroupBy.POOL
    shown = (problem for problem in problems if not (by_pool and problem.kind == _POD))
    groups = lists_by_key((problem.key(by), problem) for problem in sorted(shown, key=lambda p: p.at))
    ordered = sorted(
        groups.items(), key=lambda item: (by_pool and bool(item[1][0].kind), -len(item[1]), item[0])
    )
    known = pools if by_pool else {}
    return [_row(key, group) | (known[key].view() if key in known else {}) for key, group in ordered]


def of_pods(problems: Iterable[Problem], by: GroupBy) -> str:
    """The sentence about the problems that `rows` leaves out; empty without one."""
    count = sum(problem.kind == _POD for problem in problems) if by is GroupBy.POOL else 0
    return f"{counted(count, 'event')} of pods: --by class and --by code count them" if count else ""


def headings(rows_: Iterable[Mapping[str, Any]], by: GroupBy) -> dict[str, str]:
    """The columns of a table, without COUNT if every problem is a refusal or a skip: 80 columns are few."""
    named = COLUMNS | {"key": f"{by.upper()}, AND LAST RESULT"}
    if all(row["count"] == row["refused"] + row["skipped"] for row in rows_):
        del named["count"]
    return named


def format_rows(rows_: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows for a person."""
    for row in rows_:
        times = "\n".join(row[key].replace("T", " ") for key in ("first", "last"))
        result = ": ".join(filter(None, (row["code"], plain(row["message"]))))
        request = row["request_id"] and f"AWS request {row['request_id']}"
        if row["result_at"] != row["last"]:
            request = f"{request} at {row['result_at'].replace('T', ' ')}".strip()
        lines = filter(None, (plain(row["key"]), result, request, _forecast_text(row)))
        yield {**row, "times": times, "key": "\n".join(dict.fromkeys(lines))}


def _forecast_text(row: Mapping[str, Any]) -> str:
    return f"chance to launch now: {row['forecast']}" if "forecast" in row else ""


def beginning(now: datetime, since: str) -> datetime:
    """The earliest time that counts. Raises BadOptions for text that is no positive duration."""
    try:
        length = decode_duration(since)
    except InvalidText:
        length = timedelta()
    if length <= timedelta():
        raise BadOptions([wrong("--since", since, "a positive duration such as 30m or 1h")])
    return now - length


def _row(key: str, group: list[Problem]) -> dict[str, Any]:
    """The result is the last one that is no skip: a skip is the broker's decision, without a request id."""
    result = next((problem for problem in reversed(group) if not problem.skipped), group[-1])
    return {
        "key": key,
        "count": len(group),
        "refused": sum(problem.outcome in _REFUSALS for problem in group),
        "skipped": sum(problem.skipped for problem in group),
        "first": format_time(group[0].at),
        "last": format_time(group[-1].at),
        "pools": sorted({problem.pool for problem in group}),
        "class": result.class_,
        "code": result.code,
        "message": result.message,
        "request_id": result.request_id,
        "result_at": format_time(result.at),
    }


def _of_attempt(attempt: Attempt) -> Problem:
    return Problem(
        at=attempt.at,
        pool=str(attempt.pool),
        outcome=attempt.outcome,
        class_=str(attempt.class_ or attempt.outcome),
        code=attempt.code or str(attempt.outcome),
        message=attempt.message,
        request_id=attempt.request_id,
    )


def _of_entry(entry: Entry) -> Problem:
    about = "/".join(filter(None, (entry.namespace, entry.name)))
    placed = f"@{entry.placement}" if entry.placement else ""
    return Problem(
        at=entry.time,
        pool=entry.pool + placed or f"{entry.kind} {about}",
        kind="" if entry.pool else entry.kind,
        outcome=entry.outcome if entry.pool else "",
        class_=entry.error_class or entry.outcome,
        code=entry.code or entry.outcome,
        message=entry.message,
        request_id=entry.request_id,
    )
