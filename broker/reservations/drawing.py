"""Decides which reservation a pod, a claim or a namespace draws from, and whether it may.

Invariant: the annotation draws-from is a request. A reservation serves the pods of its own namespace, and of
the namespaces that its annotation allowed-namespaces lists. Without that annotation a
ClusterCapacityReservation serves the Namespaces that name it, since administrators write those. A Namespace's
annotation comes before a pod's.

A claim is judged by the namespaces of the pods that it was made for, so a NodePool gives foreign pods no
right. A claim that was made for no pods has the right of its author, because claims are cluster-scoped. A
refused request has no effect anywhere: every reader of draws-from asks `DrawRights`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.placement.packing_model import Drawing
from broker.quota.resolve import ReservationNames, UnresolvedName
from broker.quota.usage import ReservationKey
from broker.text import abridged, shortened

EVERY: Final = "*"
NOT_ALLOWED: Final = "ReservationNotAllowed"
_MOST_NAMED: Final = 5
# RFC 1123, as the API server checks the name of a Namespace.
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def allowed_namespaces(reservation: Object) -> tuple[frozenset[str] | None, str]:
    """The namespaces that a reservation's annotation lists, and the problem of invalid entries.

    None without the annotation. An invalid entry allows nothing.
    """
    given = reservation.annotations.get(names.ALLOWED_NAMESPACES)
    if given is None:
        return None, ""
    entries = [entry.strip() for entry in given.split(",")]
    invalid = sorted(
        {entry for entry in entries if entry not in ("", EVERY) and not _NAMESPACE.fullmatch(entry)}
    )
    problem = ""
    if invalid:
        shown = abridged([shortened(entry) for entry in invalid], _MOST_NAMED)
        problem = (
            f"annotation {names.ALLOWED_NAMESPACES} has {shown}: write names of namespaces, with commas, or "
            f"{EVERY} for all"
        )
    return frozenset(entries) - {*invalid, ""}, problem


def drawn_key(drawn: ReservationKey | UnresolvedName | None) -> str:
    """The key of the reservation that is drawn from; empty for none."""
    return str(drawn) if isinstance(drawn, ReservationKey) else ""


class DrawRequest(NamedTuple):
    """The reservation that is named for pods, as written, and the namespaces of these pods."""

    named: str
    namespaces: Collection[str]


def namespaces_of(claim: NodeClaim) -> frozenset[str]:
    """The namespaces of the pods that a claim was made for, and of Koordinator's reservations.

    The key of a reservation has another slash: `namespace/reservation/name`.
    """
    parts = (key.partition("/") for key in pods_of(claim))
    return frozenset(namespace if slash else "" for namespace, slash, _ in parts)


def draw_request(claim: NodeClaim) -> DrawRequest:
    return DrawRequest(claim.annotations.get(names.DRAWS_FROM, ""), namespaces_of(claim))


class DrawRights:
    """The reservations and Namespaces of one moment. `reservations` are the objects by name."""

    def __init__(
        self, reservations: Mapping[ReservationKey, Object], namespaces: Iterable[Namespace] = ()
    ) -> None:
        self._reservations = reservations
        self._named_by = {
            namespace.name: named
            for namespace in namespaces
            if (named := namespace.annotations.get(names.DRAWS_FROM, ""))
        }
        self._allowed: dict[ReservationKey, frozenset[str] | None] = {}

    @cached_property
    def names(self) -> ReservationNames:
        """The names of all reservations."""
        return ReservationNames(self._reservations)

    def of_claim(self, claim: NodeClaim) -> ReservationKey | UnresolvedName | None:
        """The reservation that the claim draws from, or why it may draw from none; None if it names none."""
        named = claim.annotations.get(names.DRAWS_FROM, "")
        return self.decide(named, namespaces_of(claim)) if named else None

    def of_namespace(self, namespace: Namespace) -> ReservationKey | UnresolvedName | None:
        """The reservation that the pods of the namespace draw from by its annotation."""
        named = namespace.annotations.get(names.DRAWS_FROM, "")
        return self.decide(self.named_for(namespace.name, named), (namespace.name,)) if named else None

    def named_for(self, namespace: str, named: str) -> str:
        """The reservation that is named for a pod of the namespace; `named`: the pod's annotation.

        By a name alone it is the cluster's, or else that of the namespace, whatever others call theirs.
        """
        named = self._named_by.get(namespace, named)
        own = ReservationKey(namespace, named)
        known = self._reservations
        return str(own) if own in known and ReservationKey("", named) not in known else named

    def of_pod(self, namespace: str, named: str, pools: Collection[str]) -> Drawing:
        """The reservation that a pod names, and those of it and of NodePools that serve its namespace.

        `named`: the pod's annotation. `pools`: the reservations that NodePools name.
        """
        named = self.named_for(namespace, named)
        requested = {named} if named else {*pools} - {""}
        admitted = (text for text in requested if isinstance(self.decide(text, (namespace,)), ReservationKey))
        return Drawing(named=named, admitted=tuple(sorted(admitted)))

    def of_pod_in(self, namespace: str, named: str, of_pool: str) -> ReservationKey | UnresolvedName | None:
        """The reservation that a pod draws from in a NodePool, or why it may not; None if neither names one.

        `named`: the pod's annotation, which comes before that of the NodePool, as in `of_pod`.
        """
        requested = self.named_for(namespace, named) or of_pool
        return self.decide(requested, (namespace,)) if requested else None

    def decide(self, named: str, namespaces: Iterable[str]) -> ReservationKey | UnresolvedName:
        """The reservation of this name if it serves pods of all these namespaces, or why it does not."""
        reserved = self.names.resolve(named)
        if isinstance(reserved, UnresolvedName):
            return reserved
        refused = sorted(namespace for namespace in {*namespaces} if not self._serves(reserved, namespace))
        if not refused:
            return reserved
        kind = "CapacityReservation" if reserved.namespace else "ClusterCapacityReservation"
        shown = abridged(refused, _MOST_NAMED)
        return UnresolvedName(
            NOT_ALLOWED,
            f"{kind} {reserved} does not serve pods of namespace {shown}: list it in the reservation's "
            f"annotation {names.ALLOWED_NAMESPACES}, or name a reservation of that namespace",
        )

    def _serves(self, reserved: ReservationKey, namespace: str) -> bool:
        if namespace and reserved.namespace == namespace:
            return True
        if reserved not in self._allowed:
            self._allowed[reserved], _ = allowed_namespaces(self._reservations[reserved])
        allowed = self._allowed[reserved]
        if allowed is not None:
            return EVERY in allowed or namespace in allowed
        if reserved.namespace or namespace not in self._named_by:
            return False
        return self.names.resolve(self._named_by[namespace]) == reserved
