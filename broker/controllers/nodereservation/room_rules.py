"""Reads what each namespace may keep: its opt-in, and the limits of its kept room.

A namespace keeps no room of deleted pods until its Namespace has the annotation
`capacity-broker.io/kept-room`, which only an administrator of the cluster can write. The value `true` limits
the room by a share of the ResourceQuotas, and amounts such as `cpu=8,memory=32Gi` limit it by themselves. The
scheduler, provisioning and disruption all read kept room by these rules, so that a Reservation beyond them
closes no node to any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from broker.apis import godel, names
from broker.apis.core import ResourceQuota
from broker.apis.kueue import Namespace
from broker.kube.cache import Cache
from broker.lists import lists_by_key
from broker.placement.holds_bounds import NamespaceRoom, RoomBounds, within
from broker.placement.quantities import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGE_PAGES,
    MEMORY,
    PODS,
    amounts,
    spec_requests,
)
from broker.text import exact

_ON: Final = "true"
_OFF: Final = ("", "false")
_REQUESTS: Final = "requests."
_COMPUTE: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, PODS})
_DIVISIBLE: Final = _COMPUTE - {PODS}


class RoomRules:
    """`served`: whether the broker keeps Gödel's rooms. Those of Gödel's own scheduler are not refused."""

    def __init__(
        self,
        bounds: RoomBounds,
        namespaces: Cache[Namespace],
        quotas: Callable[[], Sequence[ResourceQuota]],
        *,
        served: Callable[[], bool],
    ) -> None:
        self.bounds, self.served = bounds, served
        self._namespaces, self._quotas = namespaces, quotas

    def refusal(self, namespace: str) -> str:
        """Why the namespace keeps no room; empty if it may."""
        text = self._grant(namespace)
        if text in _OFF:
            return (
                f"namespace {namespace} keeps no room of deleted pods until its Namespace has the annotation "
                f'{names.KEPT_ROOM}: "true"'
            )
        try:
            _own_limits(text)
        except ValueError as error:
            return f"annotation {names.KEPT_ROOM} of Namespace {namespace}: {error}"
        return ""

    def refused(self, reservations: Iterable[godel.GodelReservation]) -> Mapping[str, str]:
        """The reservations that keep no room, by UID, with the reason. Older ones come first."""
        if not self.served():
            return {}
        in_turn = sorted(reservations, key=lambda item: item.age)
        by_namespace = lists_by_key((item.namespace, item) for item in in_turn)
        refused: dict[str, str] = {}
        for namespace, items in by_namespace.items():
            if why := self.refusal(namespace):
                refused |= {item.uid: why for item in items}
            else:
                rooms = (NamespaceRoom(item.uid, _amount(item)) for item in items if not item.deleting)
                refused |= within(rooms, self.limits(namespace))
        return refused

    def limits(self, namespace: str) -> Mapping[str, int]:
        """The most that the namespace may keep, by resource. A resource without a limit is not in it."""
        own = _own_limits(self._grant(namespace))
        if own:
            return own
        limits: dict[str, int] = {}
        for quota in self._quotas():
            # A quota with scopes applies to some pods only.
            if quota.namespace != namespace or quota.spec.scopes or quota.spec.scope_selector:
                continue
            for key, text in quota.spec.hard.items():
                for name, hard in amounts(_requested(key, text)).items():
                    share = hard * self.bounds.share // 100
                    limits[name] = min(share, limits.get(name, share))
        return limits

    def _grant(self, namespace: str) -> str:
        space = self._namespaces.get(namespace)
        return space.annotations.get(names.KEPT_ROOM, "").strip() if space is not None else ""


def _own_limits(text: str) -> Mapping[str, int]:
    """The amounts of the annotation; none for `true`. Raises ValueError."""
    if text in (_ON, *_OFF):
        return {}
    written = dict[str, str]()
    for part in text.split(","):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not (name and equals and amount):
            raise ValueError(f'{text!r:.100} is neither "true" nor amounts such as cpu=8,memory=32Gi')
        if name in written:
            raise ValueError(f"{name!r:.100} is there twice: write one amount")
        written[name] = amount
    limits = amounts(written)
    if unknown := sorted(written.keys() - limits.keys()):
        raise ValueError(f"{unknown[0]!r:.100} is no resource of a node")
    for name, amount in written.items():
        if exact(amount) < 0:
            raise ValueError(f"{name}={amount:.100} is negative")
        if name not in _DIVISIBLE and exact(amount) % 1:
            raise ValueError(f"{name}={amount:.100} is no whole number")
    return limits


def _requested(key: str, text: str) -> dict[str, str]:
    """A quota's limit of requests, by the name of the resource: `cpu` and `requests.cpu` are two limits."""
    if key in _COMPUTE or key.startswith((_REQUESTS, HUGE_PAGES)):
        return {key.removeprefix(_REQUESTS): text}
    return {}


def _amount(reservation: godel.GodelReservation) -> dict[str, int]:
    template = reservation.spec.template
    return spec_requests(template.spec) if template is not None else {}
