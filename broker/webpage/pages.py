"""The values of each page: from the live state and the history to its template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any, Final, TypeVar

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.chances import ChanceNow, SlotTurnover, chance_now, reservation_of
from broker.capacity.forecast import PoolForecast
from broker.history.entries import Entry, Topic, microseconds
from broker.history.tables import SLOT, EntryFilter
from broker.oncall.idle_matches import IdleMatch, idle_matches
from broker.oncall.slot_marks import USES, Group, by_group
from broker.oncall.waiting_pods import WaitingPod, grouped
from broker.oncall.wording import SEVERITIES
from broker.placement.node_prices import Cost, total
from broker.webpage.advice import advice_values, chart
from broker.webpage.charts import DOLLARS, SLOTS, bar_chart
from broker.webpage.details import NO_DETAILS, Details
from broker.webpage.heat import heat_map
from broker.webpage.live import LiveState, ReservationRow, idle_cost, slots_held
from broker.webpage.nodes import total_fills
from broker.webpage.problems import last_problems
from broker.webpage.queries import FIELDS, PAGE, SPANS, RecordQuery, parse_query, place
from broker.webpage.scope import VisibleHistory, VisibleScope, shown_names
from broker.webpage.teams import team

RECENT: Final = 10
FEW_MARKS: Final = 16  # slots of each reservation, for a picture beside the charts
MOST_PROBLEMS: Final = 5
CLAIMS_OF_POOL: Final = 200
MOST_LOANS: Final = 500
MOST_MATCHES: Final = 20
MOST_ROWS: Final = 24  # reservations of the picture
MOST_MARKS: Final = 64  # slots of a reservation in the picture
_T = TypeVar("_T")
_Row = TypeVar("_Row", NodeClaim, EC2NodeClass, NodePool, ReservationRow)


class PageNotFound(Exception):
    """No object of this name, neither now nor in the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request. `live`, `details`, `store` and `forecasts` contain the part that `scope` admits.

    `live` is None on a standby.
    """

    path: str
    query: Mapping[str, str]
    match: Mapping[str, str]
    store: VisibleHistory
    scope: VisibleScope
    live: LiveState | None
    forecasts: Mapping[str, PoolForecast]  # by the key of a pool
    turnovers: Mapping[str, SlotTurnover]  # by the id of an EC2 reservation
    now: datetime
    details: Details = NO_DETAILS

    @property
    def state(self) -> LiveState:
        """`live`; nothing on a standby."""
        return self.live or LiveState(now=self.now)

    @property
    def chances(self) -> Mapping[str, ChanceNow]:
        """The chance of each pool that was requested, by its key."""
        short = {pool for shortage in self.state.shortages for pool in shortage.pools}
        return {pool: self._chance(pool, short=pool in short) for pool in self.forecasts}

    def _chance(self, pool: str, *, short: bool) -> ChanceNow:
        forecast, id_ = self.forecasts[pool], reservation_of(pool)
        if not pool.startswith("reserved:"):
            return chance_now(forecast, short=short)
        if id_:
            odcr = next((view.odcr for view in self.state.odcrs if view.odcr.id == id_), None)
            state, free = (odcr.state, odcr.idle) if odcr is not None else ("active", None)
            return chance_now(forecast, self.turnovers.get(id_), free=free, state=state, short=short)
        # A group, or any open one: it is certainly full if all reservations of the type and zone are.
        place = ":".join(pool.split(":")[:3]) + ":"
        alike = [view.odcr.idle for view in self.state.odcrs if view.pool.startswith(place)]
        return chance_now(forecast, free=0 if alike and not any(alike) else None, short=short)


def overview(request: PageRequest) -> Mapping[str, Any]:
    hour = microseconds(request.now - timedelta(hours=1))
    problems = EntryFilter(warning=True, since=hour)
    group: Group = "zone" if request.query.get("by") == "zone" else "owner"
    rows, idle = request.state.slots, request.state.idle[:RECENT]
    drawn = rows[:MOST_ROWS]
    groups = by_group(drawn, group)
    used = {use for held in groups.values() for row in held for use, _ in row.counts}
    hours = request.store.hours(request.now)
    shown, are_told = last_problems(request.store, request.state.shortages, most=MOST_PROBLEMS)
    return {
        "title": "Overview",
        "group": group,
        "groups": groups,
        "more_rows": max(0, len(rows) - MOST_ROWS),
        "most_marks": MOST_MARKS,
        "held": slots_held(request.state.odcrs),
        "beside": max((len(row.marks) for row in drawn), default=0) <= FEW_MARKS,
        "meanings": {use: USES[use] for use in USES if use in used},
        "recorded": any(hour.recorded for hour in hours),
        "charts": [
            bar_chart("Slots and instances by the hour", SLOTS, hours),
            bar_chart("Dollars an hour", DOLLARS, hours),
        ],
        "severities": SEVERITIES,
        "problems": shown,
        "told": are_told,
        "codes": [(code, n) for code, n in request.store.count(problems, by="code") if code][:RECENT],
        "topics": dict(request.store.count(EntryFilter(since=hour), by="topic")),
        "most": RECENT,
        "chances": request.chances,
        "matches": [*islice(_matches(request), MOST_MATCHES)],
    } | _uses(request, [view.odcr.id for view in idle])


def _matches(request: PageRequest) -> Iterator[IdleMatch]:
    state = request.state
    return idle_matches(state.waiters, state.idle_slots, shown=shown_names(request.scope))


def record(request: PageRequest) -> Mapping[str, Any]:
    query = parse_query(request.query, request.now)
    return {"title": "Record"} | _rows(request, query) | _form(query)


def shortages(request: PageRequest) -> Mapping[str, Any]:
    query = parse_query(request.query, request.now, span="6h")
    span = SPANS[query.span or "6h"]
    width = max(SLOT, _rounded(span.total_seconds() / 48))
    first, last = int((request.now - span).timestamp()), int(request.now.timestamp())
    refusals = request.store.refusals(since=first - first % width, width=width)
    return {
        "title": "Shortages",
        "map": heat_map(refusals, request.chances, first=first, last=last, width=width),
        "width": width,
        "minutes": width // 60,
    } | _form(replace(query, span=query.span or "6h"))


def reservations(request: PageRequest) -> Mapping[str, Any]:
    page, pages = _cut(request.state.odcrs, request.query)
    uses = _uses(request, [view.odcr.id for view in page])
    return {"title": "Reservations", "odcrs": page} | uses | pages


def cohorts(request: PageRequest) -> Mapping[str, Any]:
    """The members of each cohort, and the slots that they lend to each other."""
    state, chosen = request.state, request.query.get("cohort", "")
    members = [row for row in state.reservations if row.cohort]
    members.sort(key=lambda row: (row.cohort, row.key))
    of = {row.key: row.cohort for row in members}
    loans = state.loans
    if chosen:
        members = [row for row in members if row.cohort == chosen]
        loans = [loan for loan in loans if chosen in (of.get(loan.owner), of.get(loan.borrower))]
    page, pages = _cut(members, request.query)
    odcrs = {view.odcr.id: view for view in state.odcrs}
    own = {row.key: [odcrs[id_] for id_ in row.odcrs if id_ in odcrs] for row in page}
    return {
        "title": "Cohorts",
        "cohort": chosen,
        "cohorts": sorted({*of.values()}),
        "members": page,
        "slots": {key: slots_held(held) for key, held in own.items()},
        "idle": {key: sum(view.odcr.idle for view in held) for key, held in own.items()},
        "lent": _sums((loan.owner, loan.slots) for loan in loans),
        "borrowed": _sums((loan.borrower, loan.slots) for loan in loans),
        "loans": loans[:MOST_LOANS],
        "more_loans": max(0, len(loans) - MOST_LOANS),
    } | pages


def _sums(amounts: Iterable[tuple[str, int]]) -> Counter[str]:
    sums = Counter[str]()
    for key, amount in amounts:
        sums[key] += amount
    return sums


def rooms(request: PageRequest) -> Mapping[str, Any]:
    page, pages = _cut(request.state.rooms, request.query)
    return {"title": "Rooms", "rooms": page} | pages


def advice(request: PageRequest) -> Mapping[str, Any]:
    values, rows = advice_values(request.store, request.query, request.now)
    page, pages = _cut(rows, request.query)
    return {"title": "Advice", "rows": [(row, chart(row)) for row in page]} | values | pages


def waiting(request: PageRequest) -> Mapping[str, Any]:
    rows = request.state.waiting
    chosen = {name: request.query.get(name, "") for name in ("reason", "node_class", "node_pool")}
    for name, value in chosen.items():
        rows = [claim for claim in rows if not value or getattr(claim, name) == value]
    page, pages = _cut(rows, request.query)
    pods = [pod for pod in request.state.waiting_pods if _chosen(pod, chosen)]
    groups = grouped(pods)
    others = [] if any(chosen.values()) else request.state.others
    shown = {
        "others": others[:PAGE],
        "groups": groups[:PAGE],
        "more_groups": max(0, len(groups) - PAGE),
    }
    return {"title": "Waiting", "claims": page, "chosen": chosen} | shown | pages


def _chosen(pod: WaitingPod, chosen: Mapping[str, str]) -> bool:
    """Whether the filters admit the pod. A pod without a claim has no class."""
    given = {"reason": pod.reason, "node_pool": pod.node_pool, "node_class": ""}
    return all(not value or given[name] == value for name, value in chosen.items())


def claim(request: PageRequest) -> Mapping[str, Any]:
    name = request.match["name"]
    known = _named(request.state.claims, name)
    row = request.state.row(known) if known is not None else None
    rows = _timeline(request, EntryFilter(kind="NodeClaim", name=name))
    broken = [item for item in request.state.broken if item.claim == name]
    shown = {"claim": row, "broken": broken, "explained": request.details.claim(name) if row else None}
    return _object(request, "NodeClaim", name, row, rows) | shown


def nodes(request: PageRequest) -> Mapping[str, Any]:
    """The nodes, those with the dearest unused part first."""
    chosen = request.query.get("node_pool", "")
    rows = [row for row in request.details.nodes() if chosen in ("", row.node_pool)]
    page, pages = _cut(rows, request.query)
    return {
        "title": "Nodes",
        "nodes": page,
        "node_pool": chosen,
        "fills": total_fills(rows),
        "pod_count": sum(row.pods for row in rows),
        "cost": total(row.usd_hour for row in rows),
        "reserved": sum(bool(row.reservation) for row in rows),
    } | pages


def pod(request: PageRequest) -> Mapping[str, Any]:
    namespace, name = request.match["namespace"], request.match["name"]
    key = f"{namespace}/{name}"
    if not request.scope.admits(namespace):
        raise PageNotFound(f"No Pod {key} is among the objects that you may read.")
    explained = request.details.pod(key)
    rows = _timeline(request, EntryFilter(kind="Pod", namespace=namespace, name=name))
    values = _object(request, "Pod", key, explained, rows)
    return values | {"explained": explained, "namespace": namespace, "name": name}


def namespace(request: PageRequest) -> Mapping[str, Any]:
    """A namespace as a team: its pods, the loans of its reservations, and the cost of its pods."""
    name = request.match["name"]
    pods = request.details.pods(name, "")
    own = [row for row in request.state.reservations if row.namespace == name]
    rows = _timeline(request, EntryFilter(namespace=name))
    values = _object(request, "Namespace", name, pods or own or None, rows)
    held = {id_ for row in own for id_ in row.odcrs}
    idle = idle_cost(view for view in request.state.odcrs if view.odcr.id in held)
    shown = team(pods, request.state, [row.key for row in own], idle=_idle(request, idle))
    return values | {"own": own} | shown


def _idle(request: PageRequest, idle: Cost) -> Cost | None:
    return idle if request.scope.cluster else None


def node_class(request: PageRequest) -> Mapping[str, Any]:
    name = request.match["name"]
    row = _named(request.state.classes, name)
    rows = _timeline(request, EntryFilter(kind="EC2NodeClass", name=name), EntryFilter(node_class=name))
    return _object(request, "EC2NodeClass", name, row, rows) | {"owner": row}


def node_pool(request: PageRequest) -> Mapping[str, Any]:
    name = request.match["name"]
    row = _named(request.state.pools, name)
    claims = [c.name for c in request.state.claims if c.node_pool == name][:CLAIMS_OF_POOL]
    rows = _timeline(
        request,
        EntryFilter(kind="NodePool", name=name),
        EntryFilter(names=tuple(claims)),
        EntryFilter(node_pool=name),
    )
    return _object(request, "NodePool", name, row, rows) | {"owner": row}


def odcr(request: PageRequest) -> Mapping[str, Any]:
    id_ = request.match["name"]
    row = next((view for view in request.state.odcrs if view.odcr.id == id_), None)
    rows = _timeline(
        request, EntryFilter(reservation=id_), EntryFilter(kind="OnDemandCapacityReservation", name=id_)
    )
    chance = request.chances.get(row.pool) if row else None
    broken = [item for item in request.state.broken if item.reservation == id_]
    slots = next((slots for slots in request.state.slots if slots.id == id_), None)
    shown = {"odcr": row, "chance": chance, "broken": broken, "slots": slots}
    return _object(request, "EC2 reservation", id_, row, rows) | _uses(request, [id_]) | shown


def reservation(request: PageRequest) -> Mapping[str, Any]:
    namespace, name = request.match["namespace"].removeprefix("-"), request.match["name"]
    kind = "CapacityReservation" if namespace else "ClusterCapacityReservation"
    state = request.state
    row = _named((r for r in state.reservations if r.namespace == namespace), name)
    own = EntryFilter(kind=kind, namespace=namespace, name=name)
    of_odcrs = [EntryFilter(reservation=id_) for id_ in (row.odcrs if row else ())]
    title = f"{namespace}/{name}" if namespace else name
    shown = [view for view in state.odcrs if row and view.odcr.id in row.odcrs]
    rows = _timeline(request, own, *of_odcrs)
    values = _object(request, kind, title, row, rows) | {"reservation": row, "odcrs": shown}
    pods = request.details.pods("", title) if row else ()
    idle = _idle(request, idle_cost(shown))
    team_values = team(pods, state, [title] if row else [], idle=idle)
    return values | _uses(request, [view.odcr.id for view in shown]) | team_values


def _named(rows: Iterable[_Row], name: str) -> _Row | None:
    return next((row for row in rows if row.name == name), None)


def _uses(request: PageRequest, ids: Sequence[str]) -> dict[str, Any]:
    """The use of these EC2 reservations over 24 hours, and the begin and end of that time."""
    since = int((request.now - timedelta(hours=24)).timestamp())
    uses = request.store.uses(ids, since=since) if ids else {}
    return {"uses": uses, "since": since, "until": int(request.now.timestamp())}


def _object(
    request: PageRequest, kind: str, name: str, row: object, rows: Mapping[str, Any]
) -> dict[str, Any]:
    """Raises NotThere for an object that neither the cluster nor the history has."""
    if row is None and not rows["entries"] and not request.query.get("before"):
        where = "in this cluster" if request.scope.whole else "among the objects that you may read"
        raise PageNotFound(f"No {kind} {name} is {where}, and the history has nothing about it.")
    return {"title": name, "kind": kind, **rows}


def _rows(request: PageRequest, query: RecordQuery) -> dict[str, Any]:
    return _timeline(request, query.filter, query=query)


def _timeline(
    request: PageRequest, *filters: EntryFilter, query: RecordQuery | None = None
) -> dict[str, Any]:
    """A page of the entries that any of these filters finds, the newest first, and the link to older ones."""
    query = query or parse_query(request.query, request.now)
    results = [
        request.store.find(entry_filter, before=query.before, limit=PAGE + 1) for entry_filter in filters
    ]
    entries = list(_distinct(merge(*results, key=lambda e: (e.at, e.id), reverse=True)))[: PAGE + 1]
    older = ""
    if len(entries) > PAGE:
        last = entries[PAGE - 1]
        older = query.url(request.path, before=place(last.at, last.id))
    newest = query.url(request.path) if query.before else ""
    return {"entries": entries[:PAGE], "older": older, "newest": newest}


def _distinct(entries: Iterable[Entry]) -> Iterable[Entry]:
    last = ""
    for entry in entries:
        if entry.id != last:
            yield entry
        last = entry.id


def _form(query: RecordQuery) -> dict[str, Any]:
    return {"query": query, "fields": FIELDS, "spans": [*SPANS], "topic_names": [*Topic]}


def _cut(rows: Sequence[_T], query: Mapping[str, str]) -> tuple[Sequence[_T], dict[str, Any]]:
    """The rows of the page with this number, and the numbers of its neighbours."""
    text = query.get("page", "")
    last = max(1, -(-len(rows) // PAGE))
    number = min(max(1, int(text)), last) if text.isdecimal() and len(text) < 9 else 1
    here = rows[(number - 1) * PAGE : number * PAGE]
    return here, {"number": number, "last": last, "total": len(rows)}


def _rounded(seconds: float) -> int:
    """The span of a column: a whole number of slots."""
    return -(-int(seconds) // SLOT) * SLOT
