"""Applies a namespace's ResourceQuotas to its CapacityReservations.

Invariant: reservations get room in the order of their creation, each whole or not at all; one without
room takes nothing from those after it. A quota limits new promises: an existing reservation keeps its
quota, and the excess is reported. `ome.io/capacity-reservations` counts reservations, which Kubernetes
itself does not do under that key. `nvidia.com/gpu`, `requests.nvidia.com/gpu`, `requests.memory`,
`requests.cpu` and their like limit the sum of nominal quota, apart from pod requests
(https://kubernetes.io/docs/concepts/policy/resource-quotas/). A quota with scopes applies to pods only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis.core import ResourceQuota
from broker.apis.ome import CapacityReservation
from broker.apis.units import add, units, units_or_zero, written

COUNTED: Final = "ome.io/capacity-reservations"
_REQUESTS: Final = "requests."
# Names without a domain that limit reservations; extended resources have a domain.
_COMPUTE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})

Used = dict[str, int]


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound of a ResourceQuota: `hard` for the amount `name` of `amounts`, under the quota's `key`."""

    quota: str
    key: str
    name: str
    hard: str

    def free(self, used: int) -> int:
        return units(self.name, self.hard) - used

    def refusal(self, used: int, requested: int) -> str:
        """Why `wanted` does not fit beside `used`."""
        return (
            f"ResourceQuota {self.quota} allows {self.key} {self.hard}, of which "
            f"{written(self.name, max(self.free(used), 0))} is free and {written(self.name, requested)} is "
            f"requested: {self._way}, or have the ResourceQuota raised"
        )

    def brief_refusal(self, _used: int, requested: int) -> str:
        """Words a `refusal` without the namespace's numbers, which a reader may have no right to."""
        return (
            f"ResourceQuota {self.quota} has no room for {written(self.name, requested)} of {self.key}: "
            f"{self._way}, or have the ResourceQuota raised (kubectl describe resourcequota {self.quota})"
        )

    @property
    def _way(self) -> str:
        return "delete another reservation" if self.name == COUNTED else "reserve less"


def over_quota(
    namespace: str, reservations: Iterable[CapacityReservation], quotas: Iterable[ResourceQuota]
) -> Mapping[str, tuple[str, ...]]:
    """For each reservation without room in the namespace, by name: the reason."""
    limits = bounds(namespace, quotas)
    refused: dict[str, tuple[str, ...]] = {}
    used: Used = {}
    own = (
        [reservation for reservation in reservations if reservation.namespace == namespace] if limits else []
    )
    for reservation in sorted(own, key=lambda r: r.age):
        requested = amounts(reservation)
        if refusals := tuple(
            limit.refusal(*numbers) for limit, *numbers in _exceeded(limits, used, requested)
        ):
            refused[reservation.name] = refusals
        else:
            add(used, requested)
    return refused


def growth(
    old: CapacityReservation | None,
    new: CapacityReservation,
    reservations: Iterable[CapacityReservation],
    limits: Iterable[Limit],
) -> tuple[str, ...]:
    """Why the namespace has no room for the additions in `new`; unchanged or smaller amounts need none.

    The text has no numbers: the webhook does not know the sender of a review.
    """
    had: Mapping[str, int] = amounts(old) if old is not None else {}
    used: Used = {}
    for reservation in reservations:
        if reservation.namespace == new.namespace and reservation.name != new.name:
            add(used, amounts(reservation))
    requested = {name: amount for name, amount in amounts(new).items() if amount > had.get(name, 0)}
    return tuple(limit.brief_refusal(*numbers) for limit, *numbers in _exceeded(limits, used, requested))


def amounts(reservation: CapacityReservation) -> Mapping[str, int]:
    """The amounts that count against its namespace's quotas: itself, and its nominal quota over all
    flavors."""
    total: Used = {COUNTED: 1}
    for group in reservation.spec.resource_groups:
        for flavor in group.flavors:
            quotas = {quota.name: quota.nominal_quota for quota in flavor.resources}
            add(total, {name: units_or_zero(name, text) for name, text in quotas.items()})
    return total


def bounds(namespace: str, quotas: Iterable[ResourceQuota]) -> tuple[Limit, ...]:
    """The limits of the namespace's quotas on reservations, in a stable order."""
    own = (quota for quota in quotas if quota.namespace == namespace)
    return tuple(limit for quota in sorted(own, key=lambda q: q.name) for limit in _limits(quota))


def _limits(quota: ResourceQuota) -> Iterator[Limit]:
    if quota.spec.scopes or quota.spec.scope_selector is not None:
        return
    for key, hard in sorted(quota.spec.hard.items()):
        name = key.removeprefix(_REQUESTS)
        if name != key or "/" in key or key in _COMPUTE:
            yield Limit(quota.name, key, name, hard)


def _exceeded(
    limits: Iterable[Limit], used: Mapping[str, int], requested: Mapping[str, int]
) -> Iterator[tuple[Limit, int, int]]:
    """Each limit without room, with the used and the requested amount."""
    for limit in limits:
        taken, more = used.get(limit.name, 0), requested.get(limit.name)
        if more is not None and more > limit.free(taken):
            yield limit, taken, more
