"""The current shortages and the odds of pools in a ConfigMap: for the next leader, for `explain` and `plan`,
and for a person with kubectl.

Invariant: the ConfigMap has every shortage that the leader remembers after each pass, since a later refusal
continues it. It is written only if these differ from the written ones that are still remembered, or if the
odds differ. The end of a shortage by time alone costs no write: each entry has its end, and readers leave out
what is over. A new leader begins with these
shortages, so that a restart neither requests a pool before its time nor forgets why a launch failed. An entry
that the broker cannot have written is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, get_args

import structlog

from broker.capacity.shortages import Scope, ScopeKind, Shortage, Shortages
from broker.kube.client import Client
from broker.kube.errors import ApiError
from broker.kube.published import read_data, write_data
from broker.text import decode_object, decode_time, format_time
from providers.errors import CLASSES

NAME: Final = "capacity-broker-shortages"
KEY: Final = "shortages"
ODDS: Final = "odds"
# A ConfigMap has room for 1 MiB (https://kubernetes.io/docs/concepts/configuration/configmap/).
MOST_PUBLISHED: Final = 1000
MESSAGE: Final = 400

Entries = Mapping[str, Mapping[str, str]]  # by scope

_log = structlog.get_logger("shortages")


class PublishedShortages:
    """For the launch loop alone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._written: Shortages | None = None
        self._odds: Mapping[str, int] | None = None

    def restored(self, now: datetime) -> Shortages:
        """The shortages of the leader before; none if they cannot be read."""
        try:
            self._written = read_shortages(self._client)
        except ApiError as error:
            _log.warning("shortages of the leader before not read", configmap=NAME, error=str(error))
            return Shortages()
        return Shortages({s.scope: s for s in self._written.by_scope.values() if s.plausible(now)})

    def publish(self, shortages: Shortages, odds: Mapping[str, int], now: datetime) -> None:
        """Writes the current shortages and odds if they have changed. A failed write is repeated by the next
        pass.
        """
        try:
            if self._written is None:
                self._written = read_shortages(self._client)
            if self._odds is None:
                self._odds = read_odds(self._client)
            current = _entries(shortages, now)
            if current == _entries(self._written, now) and odds == self._odds:
                return
            data = {KEY: json.dumps(current, indent=2, sort_keys=True)}
            if odds:
                data[ODDS] = json.dumps(dict(list(odds.items())[:MOST_PUBLISHED]), indent=2, sort_keys=True)
            write_data(self._client, NAME, data)
            self._written, self._odds = shortages, odds
        except ApiError as error:
            _log.warning("shortages not published", configmap=NAME, error=str(error))


def read_shortages(client: Client) -> Shortages:
    """The published shortages, also those that are over; without unreadable entries. Raises ApiError."""
    return Shortages({shortage.scope: shortage for shortage in _decoded(_read(client, KEY))})


def read_odds(client: Client) -> dict[str, int]:
    """The published ranks of pools (see `forecast.odds`), without unreadable entries. Raises ApiError."""
    return {pool: rank for pool, rank in _read(client, ODDS).items() if isinstance(rank, int)}


def _read(client: Client, key: str) -> Mapping[str, Any]:
    try:
        return decode_object(read_data(client, NAME).get(key) or "{}")
    except ValueError:
        return {}


def _decoded(entries: Mapping[str, Any]) -> Iterable[Shortage]:
    for text, entry in entries.items():
        kind, _, key = text.partition(":")
        if kind not in get_args(ScopeKind):
            continue
        try:
            yield Shortage(
                scope=Scope(kind, key),  # type: ignore[arg-type]
                class_=CLASSES[entry["class"]],
                code=str(entry["code"]),
                since=decode_time(entry["since"]),
                last=decode_time(entry.get("last", entry["since"])),  # 0.1.0 wrote the last one as `since`
                until=decode_time(entry["until"]),
                step=int(entry.get("step", 0)),
                free=int(entry.get("free", 0)),
                message=str(entry.get("message", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue


def _entries(shortages: Shortages, now: datetime) -> Entries:
    """The remembered shortages; of too many, those that end last."""
    last = sorted(shortages.remembered(now), key=lambda shortage: shortage.until, reverse=True)[
        :MOST_PUBLISHED
    ]
    return {
        str(shortage.scope): {
            "class": shortage.class_.value,
            "code": shortage.code,
            "since": format_time(shortage.since),
            "last": format_time(shortage.last),
            "nextTry": format_time(shortage.next_try),
            "until": format_time(shortage.until),
            "step": str(shortage.step),
            "free": str(shortage.free),
            "message": shortage.message[:MESSAGE],
        }
        for shortage in last
    }
