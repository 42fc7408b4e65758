"""Which elastic quotas are in force.

Invariant: a namespace has at most one quota. Of several, the oldest is in force and the others have no
effect, as has a quota with a max below its min. A composite is in force for all of its namespaces or for
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from broker.quota.elastic import ElasticShare

Problem = Literal["MaxBelowMin", "NamespaceTaken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticDeclaration(ElasticShare):
    """A quota as it was written. `shown`: its kind and name, for messages."""

    shown: str
    created: datetime


@dataclass(frozen=True, slots=True)
class ElasticProblem:
    """Why a quota has no effect."""

    reason: Problem
    message: str


def problem_of(quota: ElasticDeclaration, taken: Mapping[str, ElasticDeclaration]) -> ElasticProblem | None:
    """Why the quota cannot be in force beside those that have their namespaces; None if it can."""
    for name, amount in sorted((quota.max or {}).items()):
        if amount < quota.min.get(name, 0):
            message = f"spec.max: {name} is below spec.min; raise max, lower min, or leave {name} out of max"
            return ElasticProblem("MaxBelowMin", message)
    for namespace in quota.namespaces:
        other = taken.get(namespace)
        if other is not None and other.id != quota.id:
            message = f"namespace {namespace} has {other.shown} already; delete one of the two"
            return ElasticProblem("NamespaceTaken", message)
    return None


def in_force(
    quotas: Iterable[ElasticDeclaration],
) -> tuple[tuple[ElasticShare, ...], Mapping[str, ElasticProblem]]:
    """The quotas that have an effect, and the problems of all others by id."""
    taken: dict[str, ElasticDeclaration] = {}
    shares: list[ElasticShare] = []
    problems: dict[str, ElasticProblem] = {}
    for quota in sorted(quotas, key=lambda item: (item.created, item.id)):
        if problem := problem_of(quota, taken):
            problems[quota.id] = problem
            continue
        taken.update(dict.fromkeys(quota.namespaces, quota))
        shares.append(quota)
    return tuple(shares), problems
