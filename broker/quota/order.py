"""The order in which waiting workloads get a cycle's quota.

Invariant: the shorter borrowing distance comes first, then higher priority, then the longer wait. The rule
is Kueue's without fair sharing (pkg/scheduler/scheduler.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker.quota.assign import FlavorAssignment
from broker.quota.flavors import FlavorRequest
from broker.quota.model import PreemptionTarget
from broker.quota.tree import QuotaNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request that waits for quota, the first of its queue."""

    name: str
    queue: str
    request: FlavorRequest
    priority: int = 0
    queued: float = 0.0

    @property
    def rank(self) -> tuple[int, float, str]:
        """Sort key in its queue: the higher priority, then the longer wait, then by name."""
        return -self.priority, self.queued, self.name


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """A head with its possible assignment, and the victims that this needs."""

    head: Head
    node: QuotaNode
    assignment: FlavorAssignment
    targets: tuple[PreemptionTarget, ...]


def classical(entries: Sequence[HeadEntry]) -> Iterator[HeadEntry]:
    """Shorter borrowing distance, higher priority, longer wait."""
    return iter(sorted(entries, key=lambda entry: (entry.assignment.level, *entry.head.rank)))
