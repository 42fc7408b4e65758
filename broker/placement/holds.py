"""Room on a node that is kept for pods to come: the values of a hold, and the sums over it.

Invariant: a node's room is the larger of reserved and used, per resource, for each hold. Room that an owner
uses is thus counted once, and an assumed owner gives nothing away before its bind is confirmed.

A partial hold (Koordinator) is consumed by the sum of its owners' requests. A whole hold (Gödel) is one
placeholder: its only owner takes it as it stands, whatever the sizes. Neither rule is written in terms of
the other. Sources: Koordinator, pkg/scheduler/plugins/reservation; Gödel, reservation_store.go.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from broker.placement.holds_match import HoldMatcher, OwnerMatcher
from broker.placement.model import NodeTaint, PodInfo
from broker.placement.quantities import PODS
from broker.placement.selectors import Labels

Amounts = Mapping[str, int]


class Consumption(Enum):
    """The owners of a hold: the first one only, all that fit, one that replaces it whole, or one at a time.

    `TURNS`: the hold is a pod that runs, so it stays for as long as its pod.
    """

    ONCE = "once"
    SHARED = "shared"
    WHOLE = "whole"
    TURNS = "turns"


# Owners end these holds.
_ENDED_BY_OWNERS = (Consumption.ONCE, Consumption.WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Room on a node for the pods of `matcher`. Amounts as in `quantities`, with `pods` for its places."""

    id: str
    name: str
    node: str
    amount: Amounts
    matcher: HoldMatcher = field(default_factory=OwnerMatcher)
    consumption: Consumption = Consumption.ONCE
    # Resources that owners may take from this hold only; the rest may come from the node. Empty: none.
    restricted: frozenset[str] = frozenset()
    # Reserved room that no owner gets.
    inner: Amounts = field(default_factory=dict)
    deadline: datetime | None = None
    # The lowest number above zero is taken first; 0 has no order.
    order: int = 0
    labels: Labels = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    # Owners (by uid) that its status records.
    recorded: frozenset[str] = frozenset()
    # Closed to new owners, except those that name it.
    unschedulable: bool = False
    # The pod that holds the place: its labels, affinity and ports count as those of a pod on the node.
    template: PodInfo | None = None

    @property
    def limits_pods(self) -> bool:
        """Whether the hold sets the number of its owners. Otherwise its one place is the next owner's."""
        return PODS in self.amount


class HoldOwner(NamedTuple):
    """A pod that takes from a hold. `assumed`: its bind is not confirmed, and may be undone."""

    uid: str
    requests: Amounts
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class HoldState:
    """A hold with its owners, by uid."""

    hold: Hold
    owners: Mapping[str, HoldOwner] = field(default_factory=dict)

    @property
    def used(self) -> dict[str, int]:
        """The owners' requests for the hold's resources. It may exceed the hold, where the node adds room."""
        total = dict.fromkeys(self.hold.amount, 0)
        for owner in self.owners.values():
            for name, amount in owner.requests.items():
                if name in total and name != PODS:
                    total[name] += amount
        if PODS in total:
            total[PODS] = len(self.owners)
        return total

    @property
    def idle(self) -> dict[str, int]:
        """Reserved room that owners do not use: it is closed to all other pods."""
        used = self.used
        return {name: max(0, amount - used[name]) for name, amount in self.hold.amount.items()}

    @property
    def places(self) -> int:
        """Pods that the node must keep room for, beside its own."""
        return self.idle[PODS] if self.hold.limits_pods else max(0, 1 - len(self.owners))

    @property
    def consumed(self) -> bool:
        """Whether the bind of an owner that leaves nothing to others is confirmed."""
        exclusive = self.hold.consumption in _ENDED_BY_OWNERS
        return exclusive and any(not owner.assumed for owner in self.owners.values())

    @property
    def open(self) -> bool:
        """Whether another owner may come at all."""
        return self.hold.consumption is Consumption.SHARED or not self.owners

    def with_owner(self, owner: HoldOwner) -> HoldState:
        return replace(self, owners={**self.owners, owner.uid: owner})

    def without_owners(self, uids: Container[str]) -> HoldState:
        """The same state if none of them is an owner."""
        owners = {uid: owner for uid, owner in self.owners.items() if uid not in uids}
        return self if len(owners) == len(self.owners) else replace(self, owners=owners)


def placeholder(state: HoldState) -> PodInfo:
    """The pod that stands for a hold's idle room in a snapshot.

    It has the labels, anti-affinity and ports of the hold's template, so that filters see them. They are kept
    for as long as the hold lasts, also once owners use all amounts: the next owner needs them too.
    """
    idle = {name: amount for name, amount in state.idle.items() if amount and name != PODS}
    hold = state.hold
    base = hold.template or PodInfo(namespace="", name=hold.name)
    return replace(base, uid=hold.id, node_name=hold.node, requests=idle, places=state.places)
