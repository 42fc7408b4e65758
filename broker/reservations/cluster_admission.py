"""The quota that a cluster holds, as recorded in its status.

Invariant: the recorded amounts are read back unchanged. The record is in the status, not in an annotation:
otherwise the right to edit a cluster would be the right to give it quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from broker.apis.ome import FlavorUsage, ResourceUsage
from broker.apis.ome_clusters import DedicatedAdmission, DedicatedAICluster
from broker.apis.units import units, written
from broker.quota.model import Amounts, FlavorResource
from broker.quota.usage import ReservationKey

EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAdmission:
    """Held quota: its reservation, its start and its amounts. `priority`: the last one known."""

    reserved: ReservationKey
    since: datetime
    usage: Amounts
    priority: int = 0


def held(cluster: DedicatedAICluster) -> ClusterAdmission | None:
    """The quota recorded in the cluster's status. Raises ValueError for amounts that cannot be read."""
    admission = cluster.status.admission
    if admission is None:
        return None
    return ClusterAdmission(
        reserved=ReservationKey.parse(admission.reservation),
        since=admission.reserved_at or EPOCH,
        usage={
            FlavorResource(flavor.name, resource.name): units(resource.name, resource.total or "0")
            for flavor in admission.flavors
            for resource in flavor.resources
        },
        priority=admission.priority or 0,
    )


def status(admission: ClusterAdmission) -> DedicatedAdmission:
    """The status field, sorted by the names of flavors and resources."""
    return DedicatedAdmission(
        reservation=str(admission.reserved),
        reserved_at=admission.since,
        priority=admission.priority,
        flavors=tuple(
            FlavorUsage(
                name=flavor,
                resources=tuple(
                    ResourceUsage(name=resource, total=written(resource, value))
                    for resource, value in sorted(amounts.items())
                ),
            )
            for flavor, amounts in sorted(by_flavor(admission.usage).items())
        ),
    )


def by_flavor(usage: Amounts) -> Mapping[str, Mapping[str, int]]:
    """The amounts by flavor and resource, without zeros."""
    result: dict[str, dict[str, int]] = {}
    for key, value in usage.items():
        if value:
            result.setdefault(key.flavor, {})[key.resource] = value
    return result


def usage_text(usage: Amounts) -> str:
    """The text for messages: `8Ti of memory and 32 of nvidia.com/gpu in h100`."""
    return "; ".join(
        f"{' and '.join(f'{written(name, value)} of {name}' for name, value in sorted(amounts.items()))} "
        f"in {flavor}"
        for flavor, amounts in sorted(by_flavor(usage).items())
    )
