"""The reasons of a reservation's conditions, which the page about reservations explains."""

from __future__ import annotations

from broker.apis.ome import SPEC_NORMALIZED
from broker.reservations.conditions import DACS, PROVISIONED, READY, SUFFICIENT, WORKLOADS
from broker.reservations.queue_problems import BLOCKERS

# Every reason, by its condition. Controllers that buy or queue for a reservation add their own.
REASONS = {
    READY: (
        "ReservationActive",
        "ReservationUpdating",
        "Creating",
        "Deleting",
        "SpecInvalid",
        "QuotaExceeded",
        "FlavorNotFound",
        "ClusterQueueInactive",
        "InsufficientCapacity",
        "CloudReservationPending",
    ),
    SUFFICIENT: (
        "CapacityAvailable",
        "InsufficientCapacity",
        "HardwareUnavailable",
        "HardwareInUse",
        "ResourceRatioUnsatisfiable",
        "FlavorNotFound",
        "CloudReservationPending",
        "QuotaExceeded",
        "SpecInvalid",
        "Creating",
        "Deleting",
    ),
    PROVISIONED: ("CapacityProvisioned", "Creating", "Updating", "Deleting"),
    DACS: ("AllDACsHealthy", "DACFailed", "Creating"),
    WORKLOADS: (
        "AllWorkloadsHealthy",
        "WorkloadFailed",
        "PriorityClassNotFound",
        *BLOCKERS,
        "Creating",
    ),
    SPEC_NORMALIZED: ("Normalized",),
}
