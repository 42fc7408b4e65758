"""Templates and filters for times, costs and links. Text from objects and from EC2 is always escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from broker.capacity.chances import ChanceNow
from broker.history.entries import Entry
from broker.oncall.equal_rows import equal_rows, zone_names
from broker.placement.node_prices import Cost
from broker.quota.usage import ReservationKey
from broker.text import group_name, plain, with_unpriced

# The owner of a reservation in a namespace that the reader may not see.
ELSEWHERE: Final = "another namespace"
# The page of an object of this kind.
_PAGES: Final[Mapping[str, str]] = {
    "NodeClaim": "/claims",
    "EC2NodeClass": "/classes",
    "NodePool": "/pools",
    "OnDemandCapacityReservation": "/odcrs",
    "Namespace": "/namespaces",
}
# The kinds with pages in a namespace. `-` stands for no namespace of a reservation.
_NAMESPACED: Final[Mapping[str, str]] = {
    "CapacityReservation": "/reservations",
    "ClusterCapacityReservation": "/reservations",
    "Pod": "/pods",
}
# Of a Kubernetes label, and so of a claim, a pool and a node as they are usually named.
LONGEST_NAME: Final = 63
_WORDS: Final = re.compile(r"(\s+)")


def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("broker.webpage"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters |= {
        "format_time": format_time,
        "age": age,
        "ago": ago,
        "chance_text": chance_text,
        "has": has,
        "unbroken": unbroken,
        "dollars": dollars,
        "cost": cost,
        "query_of": query_of,
        "group_name": group_name,
        "plain": plain,
    }
    env.globals |= {
        "object_url": object_url,
        "entry_url": entry_url,
        "owner_url": owner_url,
        "pod_url": pod_url,
    }
    return env


def format_time(at: datetime | None) -> str:
    """A time of day and date in UTC, as in the logs."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at else ""


def age(at: datetime | None, now: datetime) -> str:
    """The time since then, in its two largest units."""
    if at is None:
        return "unknown"
    seconds = abs(int((now - at).total_seconds()))
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length}{unit}{f' {rest}{smaller}' if rest else ''}"
    return f"{seconds}s"


def ago(at: datetime | None, now: datetime) -> Markup:
    """`3m ago` or `in 3m`, with the time in UTC at hand."""
    if at is None:
        return Markup("unknown")
    text = f"in {age(at, now)}" if at > now else f"{age(at, now)} ago"
    stamp = f"{format_time(at)} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), stamp, text)


def has(rows: Iterable[object], name: str) -> bool:
    """Whether any row has a value there: a column without one is dropped. Dots name values of values."""
    return any(attrgetter(name)(row) not in (None, "", (), 0) for row in rows)


def chance_text(pools: Iterable[str], chances: Mapping[str, ChanceNow]) -> str:
    """The chance of pools that differ by zone; with the zones where they differ."""
    known = [(pool, chances[pool].text) for pool in pools if pool in chances]
    groups = equal_rows(known, cause=lambda row: row[1], zone=lambda row: row[0].split(":")[2])
    if len(groups) == 1:
        return groups[0].first[1]
    return "; ".join(f"{zone_names(group.zones)}: {group.first[1]}" for group in groups)


def unbroken(text: str) -> Markup:
    """The text with its ids and names kept on one line. Only what is longer than any name breaks."""
    return Markup("").join(map(_unbroken, _WORDS.split(text)))


def _unbroken(word: str) -> str | Markup:
    if word.isalnum() or word.isspace():
        return word
    kind = "id" if len(word) <= LONGEST_NAME else "long"
    return Markup('<span class="{}">{}</span>').format(kind, word)


def dollars(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}"


def cost(value: Cost) -> str:
    """A sum of dollars an hour, with the number of parts that are not in it."""
    return with_unpriced(f"{dollars(value[0])} $/h", value[1])


def object_url(kind: str, name: str, namespace: str = "") -> str:
    """The page of an object; empty for a kind without one."""
    if kind in _NAMESPACED:
        return f"{_NAMESPACED[kind]}/{quote(namespace or '-', safe='')}/{quote(name, safe='')}"
    return f"{_PAGES[kind]}/{quote(name, safe='')}" if kind in _PAGES else ""


def owner_url(owner: str) -> str:
    """The page of a reservation by its key; empty for one that the reader may not see."""
    if owner in ("", ELSEWHERE):
        return ""
    reserved = ReservationKey.parse(owner)
    return object_url("CapacityReservation", reserved.name, reserved.namespace)


def pod_url(key: str) -> str:
    """The page of a pod by its key."""
    namespace, _, name = key.partition("/")
    return object_url("Pod", name, namespace)


def entry_url(entry: Entry) -> str:
    return object_url(entry.kind, entry.name, entry.namespace)


def query_of(values: Mapping[str, str]) -> str:
    """The rest of a query, with these values that are not empty."""
    return "".join(f"&{name}={quote(value, safe='')}" for name, value in values.items() if value)
