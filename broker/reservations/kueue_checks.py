"""The broker's AdmissionCheck on a Workload: its entry, and the evictions that it caused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.apis.kueue import EVICTED, AdmissionCheckState, Workload
from broker.apis.meta import Json, condition

CHECK: Final = "reserved-capacity.capacity-broker.io"
PARKED: Final = "parked"
WAITS: Final = "waits for reserved instances"
# Kueue's message when a check has evicted a workload (pkg/workload/evict/evict.go, resetChecksOnEviction).
RESET: Final = "Reset to Pending after eviction. Previously: Retry"
BY_CHECK: Final = "AdmissionCheck"  # Kueue's reason of Evicted


def identity(workload: Workload) -> Json:
    """The metadata of a write that applies only to this version of the workload."""
    return {
        "name": workload.name,
        "namespace": workload.namespace,
        "uid": workload.uid,
        "resourceVersion": workload.metadata.resource_version,
    }


def entry(workload: Workload, check: str) -> AdmissionCheckState | None:
    """The workload's entry for the check."""
    return next((state for state in workload.status.admission_checks if state.name == check), None)


def refused(workload: Workload, check: str) -> bool:
    """Whether the check has evicted the workload, and it has got no quota since."""
    state, evicted = entry(workload, check), condition(workload.status.conditions, EVICTED)
    return (
        state is not None
        and state.state == "Pending"
        and state.message.startswith((RESET, WAITS))
        and evicted is not None
        and (evicted.status, evicted.reason) == ("True", BY_CHECK)
        and workload.spec.active
    )


def is_parked(workload: Workload) -> bool:
    """Whether the broker has recorded the eviction. `requeueAt` is set from then until the release."""
    state = entry(workload, CHECK)
    return refused(workload, CHECK) and state is not None and state.message.startswith(WAITS)


def by_parked(workload: Workload) -> Iterable[str]:
    """For the index PARKED: the check that evicted the workload."""
    return [state.name for state in workload.status.admission_checks if refused(workload, state.name)]
