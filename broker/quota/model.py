"""The values that the decisions about quota take and return.

Only data. Words and meaning are those of Kueue's v1beta2 API (ClusterQueue, Cohort, Workload,
ResourceFlavor): a queue has a nominal quota for each flavor and resource. It may borrow up to a limit
from its cohort, and lend up to a limit to it. Amounts are whole numbers in one unit a resource (cpu in
milli); times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Literal, NamedTuple, TypeVar

from broker.apis.units import add

# Larger than any sum of real quotas: Kueue treats amounts beyond 64 bits as unlimited.
UNLIMITED: Final = 1 << 100
_INT64: Final = (1 << 63) - 1

Policy = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any"]
BorrowPolicy = Literal["Never", "LowerPriority"]


class FlavorResource(NamedTuple):
    """The unit of quota: a resource of a flavor."""

    flavor: str
    resource: str

    def __str__(self) -> str:
        return f"{self.flavor}/{self.resource}"


Amounts = Mapping[FlavorResource, int]
K = TypeVar("K", bound=Hashable)


def summed(parts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: dict[K, int] = {}
    for part in parts:
        add(total, part)
    return total


def amount(value: int) -> int:
    """An amount as written; if it does not fit 64 bits, unlimited."""
    return UNLIMITED if value >= _INT64 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of one flavor and resource; a limit of None does not limit."""

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The workloads that a queue may preempt: in the queue itself, and in its cohort's other queues.

    `borrow`: whether it may preempt in other queues even if it borrows afterwards, and up to which
    priority of the victim (`threshold`).
    """

    within: Policy = "Never"
    reclaim: Policy = "Never"
    borrow: BorrowPolicy = "Never"
    threshold: int | None = None


@dataclass(frozen=True, slots=True)
class FlavorGroup:
    """Resources that share one flavor, chosen from these in order."""

    resources: frozenset[str]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A ClusterQueue of Kueue's default strategy: BestEffortFIFO, and the first flavor that fits."""

    name: str
    cohort: str = ""
    groups: tuple[FlavorGroup, ...] = ()
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)
    preemption: Preemption = Preemption()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaCohort:
    """A cohort; its nominal quota adds to that of its members and does not limit them."""

    name: str
    parent: str = ""
    quotas: Mapping[FlavorResource, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedWorkload:
    """A holder of quota. `reserved`: when it was admitted; without it the workload counts as newest.

    A `non_preemptible` workload is never a victim; one `on_own_slots` is never a victim of another queue.
    `occupied_queues`: the owners of the machines that it runs on, if known. For these it is preempted first.
    """

    name: str
    queue: str
    usage: Amounts
    priority: int = 0
    queued: float = 0.0
    reserved: float = float("inf")
    evicted: bool = False
    non_preemptible: bool = False
    on_own_slots: bool = False
    occupied_queues: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRequest:
    """A request for quota, in flavors that are already chosen."""

    queue: str
    amounts: Amounts
    priority: int = 0
    queued: float = 0.0


class Reason(StrEnum):
    """The reason of a preemption."""

    IN_QUEUE = "InClusterQueue"
    RECLAIM = "InCohortReclamation"
    RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"

    @property
    def text(self) -> str:
        """In Kueue's words, with the reason itself."""
        return f"{_REASON_WORDS[self]} ({self})"


_REASON_WORDS: Final = {
    Reason.IN_QUEUE: "prioritization in the reservation",
    Reason.RECLAIM: "reclamation within the cohort",
    Reason.RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
}


@dataclass(frozen=True, slots=True)
class PreemptionTarget:
    """A workload to preempt, and the reason."""

    workload: AdmittedWorkload
    reason: Reason


class Mode(IntEnum):
    """The ways to admit an assignment; a whole is as good as its worst part."""

    NO_FIT = 0
    PREEMPT = 1
    FIT = 2

    def __str__(self) -> str:
        return ("NoFit", "Preempt", "Fit")[self]


class Possibility(IntEnum):
    """The way in which a flavor can serve one resource; a higher one is better."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4

    @property
    def mode(self) -> Mode:
        if self is Possibility.NO_FIT:
            return Mode.NO_FIT
        return Mode.FIT if self is Possibility.FIT else Mode.PREEMPT
