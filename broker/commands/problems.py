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
from broker.capacity.forecast import WINDOW, PoolForecast, forecasts
from broker.capacity.model import Attempt, Outcome
from broker.commands.problems_by import GroupBy
from broker.commands.situation import Situation, happened
from broker.commands.stored_history import opened
from broker.history.entries import Entry, microseconds
from broker.history.store import MEMORY
from broker.history.tables import EntryFilter
from broker.kube.conditions import timestamp
from broker.oncall.journal import attempt_id
from broker.text import plain

COLUMNS: Final = {"count": "COUNT", "first": "FIRST", "last": "LAST", "key": ""}
MOST: Final = 100_000  # entries of the history that are counted
_LAUNCHES: Final = frozenset({Outcome.LAUNCHED, Outcome.ADOPTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`pool` is the object of a problem without a pool; `class_` is the event's reason without a class."""

    at: datetime
    pool: str
    class_: str
    code: str
    message: str
    request_id: str = ""

    def key(self, by: GroupBy) -> str:
        return {GroupBy.POOL: self.pool, GroupBy.CLASS: self.class_, GroupBy.CODE: self.code}[by]


def stored(
    location: str, since: datetime, now: datetime
) -> tuple[list[Problem], Mapping[str, PoolForecast]] | None:
    """The problems in the history, and the forecast of each pool; None without one.

    Raises HistoryUnreadable.
    """
    if location in ("", MEMORY):
        return None
    with opened(location) as history:
        warnings = EntryFilter(warning=True, since=microseconds(since))
        problems = [_of_entry(entry) for entry in history.find(warnings, limit=MOST)]
        return problems, forecasts(history.outcomes(since=int((now - WINDOW).timestamp())), now)


def published(situation: Situation, since: datetime) -> list[Problem]:
    """The problems that Kubernetes still has."""
    attempts = [a for a in situation.attempts if a.outcome not in _LAUNCHES]
    recorded_ = {(timestamp(attempt.at), attempt.code) for attempt in attempts}
    ids = {attempt_id(attempt) for attempt in attempts}
    problems = [_of_attempt(attempt) for attempt in attempts]
    for shortage in situation.shortages:
        if (timestamp(shortage.since), shortage.code) not in recorded_:
            problems.append(
                Problem(
                    at=shortage.since,
                    pool=shortage.scope.key,
                    class_=shortage.class_.value,
                    code=shortage.code,
                    message=shortage.message,
                )
            )
    for event in situation.events:
        counted = {id_.strip() for id_ in event.annotations.get(names.ATTEMPT_IDS, "").split(",")}
        if event.type != "Warning" or counted & ids:
            continue
        about = event.involved_object
        name = "/".join(filter(None, (about.namespace, about.name)))
        problems.append(
            Problem(
                at=happened(event) or situation.now,
                pool=f"{about.kind} {name}",
                class_=event.reason,
                code=event.reason,
                message=event.message,
                request_id=event.annotations.get(names.AWS_REQUESTS, ""),
            )
        )
    return [problem for problem in problems if problem.at >= since]


def rows(
    problems: Iterable[Problem], by: GroupBy, pools: Mapping[str, PoolForecast] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """One row a key, the most frequent first. `pools` are the forecasts, which rows of pools have."""
    groups: dict[str, list[Problem]] = {}
    for problem in sorted(problems, key=lambda problem: problem.at):
        groups.setdefault(problem.key(by), []).append(problem)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    known = pools if by is GroupBy.POOL else {}
    return [_row(key, group) | (known[key].view() if key in known else {}) for key, group in ordered]


def format_rows(rows_: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows for a person."""
    for row in rows_:
        times = {key: row[key].replace("T", " ") for key in ("first", "last")}
        result = ": ".join(filter(None, (row["code"], plain(row["message"]))))
        request = row["request_id"] and f"AWS request {row['request_id']}"
        lines = filter(None, (plain(row["key"]), result, request, _forecast_text(row)))
        yield {**row, **times, "key": "\n".join(dict.fromkeys(lines))}


def _forecast_text(row: Mapping[str, Any]) -> str:
    if "chance" not in row:
        return ""
    minutes = max(1, round(row["wait_seconds"] / 60))
    return f"chance to launch now {row['chance']:.0%}, else about {minutes} min"


def beginning(now: datetime, since: timedelta) -> datetime:
    """The earliest time that counts. Raises ValueError for a duration that is not positive."""
    if since <= timedelta():
        raise ValueError("--since is not a positive duration: write one such as 30m or 1h")
    return now - since


def _row(key: str, group: list[Problem]) -> dict[str, Any]:
    last = group[-1]
    return {
        "key": key,
        "count": len(group),
        "first": timestamp(group[0].at),
        "last": timestamp(last.at),
        "pools": sorted({problem.pool for problem in group}),
        "class": last.class_,
        "code": last.code,
        "message": last.message,
        "request_id": last.request_id,
    }


def _of_attempt(attempt: Attempt) -> Problem:
    return Problem(
        at=attempt.at,
        pool=str(attempt.pool),
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
        class_=entry.error_class or entry.outcome,
        code=entry.code or entry.outcome,
        message=entry.message,
        request_id=entry.request_id,
    )
