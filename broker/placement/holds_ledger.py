"""All holds of a cluster with their owners, indexed by node and by the pods that may take them.

Invariant: a ledger is a function of the Reservations and the pods. It is rebuilt from them alone, and it
never changes: `assume` and `forget` return another. A hold counts until its deadline, and a hold that one
confirmed owner consumed counts no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from broker.placement.holds import Amounts, Hold, HoldOwner, HoldState, placeholder
from broker.placement.holds_fit import exactly, shares_resource
from broker.placement.holds_match import HoldKey, HoldRequest, IndexMatcher, affinity_allows
from broker.placement.model import PodInfo
from broker.placement.quantities import PODS


class HoldLink(NamedTuple):
    """A bound or assumed pod that names its hold, by its annotation."""

    hold: str
    node: str
    owner: HoldOwner


@dataclass(frozen=True, slots=True)
class HoldLedger:
    """The live holds by id. `by_node` and `by_key` index the same ids."""

    states: Mapping[str, HoldState] = field(default_factory=dict)
    by_node: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_key: Mapping[HoldKey, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, holds: Iterable[Hold], links: Iterable[HoldLink], now: datetime) -> HoldLedger:
        """From live holds and the pods that name one.

        A pod on another node than its hold is none of its owners: it counts as any other pod.
        """
        by_hold: dict[str, list[HoldLink]] = {}
        for link in links:
            by_hold.setdefault(link.hold, []).append(link)
        states: dict[str, HoldState] = {}
        by_node: dict[str, list[str]] = {}
        by_key: dict[HoldKey, list[str]] = {}
        for hold in sorted(holds, key=lambda item: (item.name, item.id)):
            if hold.deadline is not None and hold.deadline <= now:
                continue
            owners = {
                link.owner.uid: link.owner
                for link in sorted(by_hold.get(hold.id, ()), key=lambda item: item.owner.uid)
                if link.node == hold.node
            }
            state = HoldState(hold, owners)
            if state.consumed:
                continue
            states[hold.id] = state
            by_node.setdefault(hold.node, []).append(hold.id)
            for key in hold.matcher.index_keys():
                by_key.setdefault(key, []).append(hold.id)
        return cls(
            states,
            {node: tuple(ids) for node, ids in by_node.items()},
            {key: tuple(ids) for key, ids in by_key.items()},
        )

    def on(self, node: str) -> tuple[HoldState, ...]:
        """The holds of a node."""
        return tuple(self.states[id_] for id_ in self.by_node.get(node, ()))

    def placeholders(self) -> tuple[PodInfo, ...]:
        """The pods that stand for the idle room of all holds."""
        return tuple(pod for state in self.states.values() if (pod := placeholder(state)) is not None)

    def matching(self, request: HoldRequest) -> tuple[HoldState, ...]:
        """The open holds that the pod may take, by name. Whether it fits there is another question."""
        ids = dict.fromkeys(id_ for key in request.index_keys() for id_ in self.by_key.get(key, ()))
        states = (self.states[id_] for id_ in ids)
        matching = (state for state in states if state.open and matches_hold(request, state.hold))
        return tuple(sorted(matching, key=lambda state: (state.hold.name, state.hold.id)))

    def assume(self, id_: str, owner: HoldOwner) -> HoldLedger:
        """With an owner. Raises KeyError for an unknown hold, HoldTakenError for one that is taken."""
        return self._with(self.states[id_].with_owner(owner))

    def forget(self, id_: str, uid: str) -> HoldLedger:
        """Without the owner, as if it had never come. A hold that is gone stays gone."""
        state = self.states.get(id_)
        return self if state is None else self._with(state.without_owner(uid))

    def _with(self, state: HoldState) -> HoldLedger:
        return HoldLedger({**self.states, state.hold.id: state}, self.by_node, self.by_key)


def matches_hold(request: HoldRequest, hold: Hold) -> bool:
    """Whether the pod may be an owner of the hold, its room aside."""
    if not hold.matcher.matches(request):
        return False
    if isinstance(hold.matcher, IndexMatcher):
        return request.affinity is None
    if not affinity_allows(
        request, name=hold.name, labels=hold.labels, taints=hold.taints, unschedulable=hold.unschedulable
    ):
        return False
    if request.affinity is None and not shares_resource(request.requests, hold):
        return False
    return exactly(request.requests, hold, request.exact)


def occupied(pods: Iterable[Amounts], states: Iterable[HoldState]) -> dict[str, int]:
    """The room that a node's pods and the idle room of its holds take, with `pods`."""
    total = {PODS: 0}
    for requests in pods:
        _add(total, requests)
        total[PODS] += 1
    for state in states:
        _add(total, {name: amount for name, amount in state.idle.items() if name != PODS})
        total[PODS] += state.places
    return total


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
