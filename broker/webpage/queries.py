"""The filters of a page, which are its URL: a link shows another person the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from broker.history.entries import Topic, microseconds
from broker.history.tables import EntryFilter

PAGE: Final = 100
# The fields that the form of the record offers, with labels.
FIELDS: Final = {
    "name": "Object",
    "request_id": "AWS request id",
    "code": "Code",
    "error_class": "Error class",
    "instance_type": "Instance type",
    "zone": "Zone",
    "reservation": "EC2 reservation",
    "node_class": "EC2NodeClass",
    "instance_id": "Instance",
    "namespace": "Namespace",
}
_HIDDEN: Final = ("kind", "id", "outcome")
SPANS: Final = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
LONGEST_QUERY: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """The filters of a URL. `unknown` are the parts of it that are not understood and left out."""

    filter: EntryFilter
    span: str = ""
    before: tuple[int, str] | None = None
    unknown: tuple[str, ...] = ()

    def values(self) -> dict[str, str]:
        """The query of a link to the same rows."""
        given = {name: getattr(self.filter, name) for name in (*FIELDS, *_HIDDEN, "topic")}
        given |= {"since": self.span, "show": "problems" if self.filter.warning else ""}
        return {name: value for name, value in given.items() if value}

    def url(self, path: str, **changed: str) -> str:
        query = urlencode({name: value for name, value in (self.values() | changed).items() if value})
        return f"{path}?{query}" if query else path


def parse_query(query: Mapping[str, str], now: datetime, *, span: str = "") -> RecordQuery:
    """The filters of this query; `span` is the default time."""
    names = (name for name in (*FIELDS, *_HIDDEN) if query.get(name))
    given: dict[str, Any] = {name: query[name].strip()[:LONGEST_QUERY] for name in names}
    chosen = query.get("since", span)
    span = chosen if chosen in SPANS else ""
    topic = query.get("topic", "")
    entry_filter = EntryFilter(
        topic=topic if topic in [*Topic] else "",
        warning=query.get("show") == "problems",
        since=microseconds(now - SPANS[span]) if span else 0,
        **given,
    )
    before = _place(query.get("before", ""))
    understood = {
        **dict.fromkeys((*FIELDS, *_HIDDEN), True),
        "since": bool(span),
        "topic": bool(entry_filter.topic),
        "show": entry_filter.warning,
        "before": before is not None,
    }
    unknown = [
        f"{name}={value}"[:LONGEST_QUERY]
        for name, value in query.items()
        if value and not understood.get(name)
    ]
    return RecordQuery(filter=entry_filter, span=span, before=before, unknown=tuple(unknown))


def place(at: int, id_: str) -> str:
    return f"{at}-{id_}"


def _place(text: str) -> tuple[int, str] | None:
    at, _, id_ = text.partition("-")
    return (int(at), id_[:LONGEST_QUERY]) if at.isdecimal() and len(at) < 19 and id_ else None
