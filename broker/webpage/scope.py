"""The part of the cluster that a person may read, and the state and history within it.

Invariant: a page gets its rows from `visible` and `VisibleHistory` alone, so counts, totals, timelines and
messages about missing objects contain nothing from outside the scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from broker.history.advice import AdviceQuery, AdviceRow, advice_of_minute
from broker.history.entries import Entry
from broker.history.hours import HourOfUse, hours_of_minute
from broker.history.store import HistoryStore
from broker.history.tables import SLOT, EntryFilter
from broker.oncall.idle_matches import Shown
from broker.oncall.pod_facts import pod_command
from broker.oncall.slot_marks import SlotMark, SlotRow
from broker.oncall.waiters import Waiter
from broker.oncall.waiting_pods import WaitingPod
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_view import OdcrView
from broker.webpage.lending import LoanRow
from broker.webpage.live import LiveState
from broker.webpage.render import ELSEWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleScope:
    """`cluster` admits objects without a namespace, and EC2's; `namespaces` None admits every namespace."""

    cluster: bool
    namespaces: frozenset[str] | None

    def admits(self, namespace: str) -> bool:
        if not namespace:
            return self.cluster
        return self.namespaces is None or namespace in self.namespaces

    def owner(self, key: str) -> str:
        """The reservation by its key, or that it is of another namespace; empty for none."""
        return key if not key or self.admits(ReservationKey.parse(key).namespace) else ELSEWHERE

    def pods(self, keys: Iterable[str]) -> tuple[str, ...]:
        """The keys of pods in namespaces that it admits."""
        return tuple(key for key in keys if self.admits(key.partition("/")[0]))

    @property
    def whole(self) -> bool:
        return self.cluster and self.namespaces is None


EVERYTHING: Final = VisibleScope(cluster=True, namespaces=None)
NOTHING: Final = VisibleScope(cluster=False, namespaces=frozenset())


def visible(live: LiveState, scope: VisibleScope) -> LiveState:
    """The present state within the scope. An owner outside of it has no name."""
    if scope.whole:
        return live
    reservations = [row for row in live.reservations if scope.admits(row.namespace)]
    shown = {row.key for row in reservations}
    loans = [
        _parties(loan, shown, claims=scope.cluster)
        for loan in live.loans
        if loan.owner in shown or loan.borrower in shown
    ]
    rooms = [row for row in live.rooms if scope.admits(row.namespace)]
    waiters = [waiter for waiter in live.waiters if scope.admits(waiter.namespace)]
    pods = [_own(pod, scope) for pod in live.waiting_pods if scope.admits(pod.namespace)]
    if not scope.cluster:
        waiters = [_without_claim(pod) for pod in waiters]
        return LiveState(
            now=live.now,
            reservations=reservations,
            loans=loans,
            rooms=rooms,
            waiters=waiters,
            waiting_pods=pods,
            idle_slots=[slots for slots in live.idle_slots if str(slots.owner) in shown],
        )
    odcrs = [_owned(view, scope) for view in live.odcrs]
    return replace(
        live,
        reservations=reservations,
        odcrs=odcrs,
        loans=loans,
        rooms=rooms,
        waiters=waiters,
        waiting_pods=pods,
        slots=[_slots(row, scope) for row in live.slots],
    )


def shown_names(scope: VisibleScope) -> Shown:
    """The names that the matches of idle slots have within the scope."""
    return Shown(lambda reserved: scope.owner(str(reserved)), scope.cluster)


def _own(pod: WaitingPod, scope: VisibleScope) -> WaitingPod:
    """The pod without the names of claims, NodePools and pods that the reader may not see."""
    pod = replace(pod, message=pod.own_message)
    return pod if scope.cluster else replace(pod, claim="", node_pool="")


def _without_claim(pod: Waiter) -> Waiter:
    """The pod for a person who may read neither claims nor NodePools."""
    pod = replace(pod, held=pod.held and (pod.report or pod.message))
    return replace(pod, claim="its own", command=pod_command(pod.name)) if pod.claim else pod


def _parties(loan: LoanRow, shown: Set[str], *, claims: bool) -> LoanRow:
    """The loan; a reservation outside of the scope has no name, nor have claims without `claims`."""
    if loan.owner not in shown:
        loan = replace(loan, owner=ELSEWHERE)
    if loan.borrower and loan.borrower not in shown:
        loan = replace(loan, borrower=ELSEWHERE)
    return loan if claims else replace(loan, claims=())


def _owned(view: OdcrView, scope: VisibleScope) -> OdcrView:
    namespace, divided, _ = view.owner.partition("/")
    if not divided or scope.admits(namespace):
        return view
    return replace(view, owner=ELSEWHERE, owned=False)


def _slots(row: SlotRow, scope: VisibleScope) -> SlotRow:
    """The row without the names of owners and pods that the reader may not see."""

    def mark(known: SlotMark) -> SlotMark:
        if known.user is None:
            return known
        ends = "it ends" if known.user.ends else ""
        user = replace(
            known.user,
            owner=scope.owner(known.user.owner),
            pods=scope.pods(known.user.pods),
            ends=ends,
            why=ends if known.user.why == known.user.ends else known.user.why,
        )
        return replace(known, user=user)

    return replace(row, owner=scope.owner(row.owner), marks=tuple(map(mark, row.marks)))


class VisibleHistory:
    """The statements of the history, within a scope."""

    def __init__(self, store: HistoryStore, scope: VisibleScope) -> None:
        self._store, self._scope = store, scope

    def find(
        self, entry_filter: EntryFilter, *, before: tuple[int, str] | None = None, limit: int = 100
    ) -> list[Entry]:
        return self._store.find(self._within(entry_filter), before=before, limit=limit)

    def count(self, entry_filter: EntryFilter, *, by: str) -> list[tuple[str, int]]:
        return self._store.count(self._within(entry_filter), by=by)

    def refusals(self, *, since: int, width: int = SLOT) -> list[tuple[int, str, int]]:
        return self._store.refusals(since=since, width=width) if self._scope.cluster else []

    def uses(self, reservations: Iterable[str], *, since: int) -> dict[str, list[tuple[int, int, int]]]:
        return self._store.uses(reservations, since=since) if self._scope.cluster else {}

    def advice(self, query: AdviceQuery, now: datetime) -> tuple[AdviceRow, ...]:
        """The advice of this minute."""
        minute = int(now.timestamp()) // 60
        return advice_of_minute(self._store, query, minute) if self._scope.cluster else ()

    def hours(self, now: datetime) -> tuple[HourOfUse, ...]:
        """The use of all reservations by the hour, up to this minute."""
        minute = int(now.timestamp()) // 60
        return hours_of_minute(self._store, minute) if self._scope.cluster else ()

    def _within(self, entry_filter: EntryFilter) -> EntryFilter:
        namespaces = self._scope.namespaces
        return replace(
            entry_filter,
            cluster=self._scope.cluster,
            namespaces=None if namespaces is None else tuple(sorted(namespaces)),
        )
