"""Elastic quota: the arithmetic of guaranteed and borrowed resources over namespaces.

Invariant: a quota counts once, however many namespaces it has, and a pod counts once in it. Two sums are
kept apart: `used` of running pods, for status and labels, and `bound` of placed pods, for admission. A
quota that does not name a resource leaves it unconstrained; `absent_is_zero` gives nos's own behaviour.
Source: nos, pkg/scheduler/plugins/capacityscheduling/elasticquotainfo.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from broker.quota.model import summed

Amounts = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
# By nos.
_NEVER_COMPARED: Final = frozenset({"ephemeral-storage", "pods"})


class ElasticRefusal(Enum):
    """Why a quota rejects a pod."""

    OVER_MAX = "over-max"
    OVER_TOTAL_MIN = "over-total-min"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticShare:
    """A quota with the resources that its pods hold. `max` is None without an upper limit."""

    id: str
    namespaces: Collection[str]
    min: Amounts = field(default_factory=dict)
    max: Amounts | None = None
    used: Amounts = field(default_factory=dict)

    @property
    def over_min(self) -> bool:
        """Whether it borrows any resource that its min names."""
        return exceeds(self.used, self.min)


class ElasticSums(NamedTuple):
    """Sums over all quotas, by resource. `named`: used of the quotas with a min that names the resource."""

    used: Amounts
    named: Amounts
    guaranteed: Amounts

    @classmethod
    def of(cls, shares: Iterable[ElasticShare]) -> ElasticSums:
        listed = [*shares]
        named = ({name: share.used.get(name, 0) for name in share.min} for share in listed)
        return cls(
            summed(share.used for share in listed), summed(named), summed(share.min for share in listed)
        )

    def with_usage(self, share: ElasticShare, requests: Amounts, sign: int) -> ElasticSums:
        named = {name: amount for name, amount in requests.items() if name in share.min}
        return self._replace(used=added(self.used, requests, sign), named=added(self.named, named, sign))


@dataclass(frozen=True, slots=True)
class ElasticTotals:
    """All quotas, by namespace. A namespace without a quota is not limited.

    `by_namespace` and `sums` follow from the shares. Usage changes them without a look at all quotas.
    """

    shares: Mapping[str, ElasticShare] = field(default_factory=dict)
    absent_is_zero: bool = False
    by_namespace: Mapping[str, str] = field(default_factory=dict, compare=False)
    sums: ElasticSums = field(default=ElasticSums({}, {}, {}), compare=False)

    @classmethod
    def of(cls, shares: Iterable[ElasticShare], *, absent_is_zero: bool = False) -> ElasticTotals:
        by_id = {share.id: share for share in sorted(shares, key=lambda share: share.id)}
        index = {namespace: id_ for id_, share in by_id.items() for namespace in share.namespaces}
        return cls(by_id, absent_is_zero, index, ElasticSums.of(by_id.values()))

    def share_of(self, namespace: str) -> ElasticShare | None:
        id_ = self.by_namespace.get(namespace)
        return None if id_ is None else self.shares[id_]

    def with_usage(self, id_: str, requests: Amounts, sign: int = 1) -> ElasticTotals:
        """Adds a pod to the quota, or removes one."""
        share = self.shares[id_]
        used = replace(share, used=added(share.used, requests, sign))
        sums = self.sums.with_usage(share, requests, sign)
        return ElasticTotals({**self.shares, id_: used}, self.absent_is_zero, self.by_namespace, sums)

    def refusal(self, namespace: str, requests: Amounts) -> ElasticRefusal | None:
        """Why a pod may not be placed; None if it may.

        A namespace borrows all that others leave, up to its own max.
        """
        share = self.share_of(namespace)
        if share is None:
            return None
        if share.max is not None and self._exceeds(added(share.used, requests), share.max, requests):
            return ElasticRefusal.OVER_MAX
        used, guaranteed = self._totals(share)
        if self._exceeds(added(used, requests), guaranteed, requests):
            return ElasticRefusal.OVER_TOTAL_MIN
        return None

    def missing(self, namespace: str, requests: Amounts) -> dict[str, int]:
        """The amounts that must come free before a pod may be placed, by resource; empty if it may."""
        share = self.share_of(namespace)
        if share is None:
            return {}
        used, guaranteed = self._totals(share)
        limits = [(added(share.used, requests), share.max or {}), (added(used, requests), guaranteed)]
        missing: dict[str, int] = {}
        for amounts, limit in limits:
            for name in limit.keys() & requests.keys():
                missing[name] = max(missing.get(name, 0), amounts[name] - limit[name])
        return {name: amount for name, amount in missing.items() if amount > 0}

    def guaranteed_overquota(self, id_: str) -> dict[str, int]:
        """The part of the unused min of all quotas that this one may keep while it borrows.

        It is proportional to the quota's own min, rounded down.
        """
        unused = self.unused_min()
        own = self.shares[id_].min
        return {
            name: own.get(name, 0) * unused.get(name, 0) // amount if amount else 0
            for name, amount in self.sums.guaranteed.items()
        }

    def unused_min(self) -> dict[str, int]:
        """The guaranteed resources that no quota uses for itself, summed over quotas."""
        return summed(
            {name: max(0, amount - share.used.get(name, 0)) for name, amount in share.min.items()}
            for share in self.shares.values()
        )

    def _totals(self, share: ElasticShare) -> tuple[Amounts, Amounts]:
        """Used and guaranteed resources of all quotas that share the resources of this one's min."""
        if self.absent_is_zero:
            return self.sums.used, self.sums.guaranteed
        return (
            {name: self.sums.named.get(name, 0) for name in share.min},
            {name: self.sums.guaranteed[name] for name in share.min},
        )

    def _exceeds(self, amounts: Amounts, limit: Amounts, requests: Amounts) -> bool:
        return exceeds(amounts, limit, requests, absent_is_zero=self.absent_is_zero)


def exceeds(
    amounts: Amounts, limit: Amounts, requests: Amounts | None = None, *, absent_is_zero: bool = False
) -> bool:
    """Whether an amount is above its limit. Resources that the limit does not name are unconstrained.

    With `requests`, only the resources of the pod count: a quota that is exceeded in another resource does
    not reject it. `absent_is_zero`: all resources count, and CPU and memory without a limit have the limit 0.
    """
    names = set(limit)
    if absent_is_zero:
        names = (names - _NEVER_COMPARED) | {CPU, MEMORY}
    elif requests is not None:
        names = {name for name in names if requests.get(name, 0) > 0}
    return any(amounts.get(name, 0) > limit.get(name, 0) for name in names)


def added(amounts: Amounts, more: Amounts, sign: int = 1) -> dict[str, int]:
    """The sum, or the difference with `sign` -1."""
    return summed((amounts, {name: sign * amount for name, amount in more.items()}))
