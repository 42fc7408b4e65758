"""All holds of a cluster with their owners, indexed by the pods that may take them.

Invariant: a ledger is a function of the Reservations and the pods. It is rebuilt from them alone, and it
never changes: `assume` returns another. A hold counts until its deadline, and a hold that one
confirmed owner consumed counts no longer.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from broker.lists import lists_by_key
from broker.placement.affinity import any_term
from broker.placement.holds import Hold, HoldOwner, HoldState, placeholder
from broker.placement.holds_fit import exactly, shares_resource
from broker.placement.holds_match import (
    HoldAffinity,
    HoldKey,
    HoldMatcher,
    HoldRequest,
    IndexMatcher,
    NamingPod,
)
from broker.placement.model import PodInfo
from broker.placement.selectors import matches
from broker.placement.taints import CORDON, tolerates_all
from broker.quota.flavors import tolerates


class HoldLink(NamedTuple):
    """A bound or assumed pod that names its hold.

    `naming`: the pod, if only its own annotation names the hold; None if the scheduler chose the hold.
    """

    hold: str
    node: str
    owner: HoldOwner
    naming: NamingPod | None = None

    def proven(self, matcher: HoldMatcher, recorded: Collection[str]) -> bool:
        """Whether the pod owns the hold, since people who write pods can write the annotation too.

        A hold's owners match it, or its status records them (`recorded`, by uid).
        """
        return self.naming is None or self.owner.uid in recorded or matcher.owned_by(self.naming)


@dataclass(frozen=True, slots=True)
class HoldLedger:
    """The live holds by id. `by_key` indexes the same ids."""

    states: Mapping[str, HoldState] = field(default_factory=dict)
    by_key: Mapping[HoldKey, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, holds: Iterable[Hold], links: Iterable[HoldLink], now: datetime) -> HoldLedger:
        """Builds it from live holds and the pods that name one.

        A pod on another node than its hold does not own it, nor does one that the hold is not for: it counts
        as any other pod.
        """
        by_hold = lists_by_key((link.hold, link) for link in links)
        states: dict[str, HoldState] = {}
        by_key: dict[HoldKey, list[str]] = {}
        for hold in sorted(holds, key=lambda item: (item.name, item.id)):
            if hold.deadline is not None and hold.deadline <= now:
                continue
            owners = {
                link.owner.uid: link.owner
                for link in sorted(by_hold.get(hold.id, ()), key=lambda item: item.owner.uid)
                if link.node == hold.node and link.proven(hold.matcher, hold.recorded)
            }
            state = HoldState(hold, owners)
            if state.consumed:
                continue
            states[hold.id] = state
            for key in hold.matcher.index_keys():
                by_key.setdefault(key, []).append(hold.id)
        return cls(states, {key: tuple(ids) for key, ids in by_key.items()})

    def placeholders(self) -> tuple[PodInfo, ...]:
        """The pods that stand for the idle room of all holds; a pod that is a hold is replaced by its own."""
        return tuple(map(placeholder, self.states.values()))

    def matching(self, request: HoldRequest) -> tuple[HoldState, ...]:
        """The open holds that the pod may take, by name. Whether it fits there is another question."""
        ids = dict.fromkeys(id_ for key in request.index_keys() for id_ in self.by_key.get(key, ()))
        states = (self.states[id_] for id_ in ids if id_ in self.states)
        matching = (state for state in states if state.open and matches_hold(request, state.hold))
        return tuple(sorted(matching, key=lambda state: (state.hold.name, state.hold.id)))

    def assume(self, id_: str, owner: HoldOwner) -> HoldLedger:
        """Adds an owner of a hold that `matching` returned. Raises KeyError for an unknown hold."""
        return HoldLedger({**self.states, id_: self.states[id_].with_owner(owner)}, self.by_key)

    def left(self, uids: Container[str], kept: Iterable[Hold]) -> HoldLedger:
        """Without these owners, which leave their room to their holds, and with new holds without owners.

        A hold that is one of these pods itself ends with it.
        """
        states = {id_: state.without_owners(uids) for id_, state in self.states.items() if id_ not in uids}
        by_key = {**self.by_key}
        for hold in kept:
            states[hold.id] = HoldState(hold)
            for key in hold.matcher.index_keys():
                by_key[key] = (*by_key.get(key, ()), hold.id)
        return HoldLedger(states, by_key)


def matches_hold(request: HoldRequest, hold: Hold) -> bool:
    """Whether the pod may be an owner of the hold, its room aside."""
    if not hold.matcher.matches(request):
        return False
    if isinstance(hold.matcher, IndexMatcher):
        return request.affinity is None
    if not _affinity_allows(request.affinity or HoldAffinity(), hold):
        return False
    if request.affinity is None and not shares_resource(request.requests, hold):
        return False
    return exactly(request.requests, hold, request.exact)


def _affinity_allows(affinity: HoldAffinity, hold: Hold) -> bool:
    """Whether a reservation's name, closure, taints and labels allow a pod with this affinity, or none.

    A name in the affinity passes closure, taints and selectors. Otherwise taints reject pods with and
    without affinity, and only the tolerations of the affinity count.
    """
    if affinity.name:
        return affinity.name == hold.name
    if hold.unschedulable and not tolerates(affinity.tolerations, CORDON):
        return False
    if not tolerates_all(affinity.tolerations, hold.taints):
        return False
    if affinity.selector and not matches(affinity.selector, hold.labels):
        return False
    return affinity.terms is None or any_term(affinity.terms, hold.labels, hold.name)
