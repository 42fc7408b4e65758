"""VolumeRestrictions and NodeVolumeLimits: volumes that pods share, and how many a node can attach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from broker.placement.model import PodDisk, PodInfo
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot
from broker.placement.storage import CsiVolume, Storage

NO_DISK: Final = "node(s) had no available disk"
IN_USE: Final = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
    "another pod"
)
LIMIT: Final = "node(s) exceed max volume count"


def volume_restrictions(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | str | None:
    """Rejects nodes with the same disk in another pod, and all nodes if a claim for one pod is in use."""
    used = False
    for volume in pod.volumes:
        if volume.ephemeral:
            continue
        key = pod.namespace, volume.claim
        claim = snapshot.storage.claims.get(key)
        if claim is None:
            return f'persistentvolumeclaim "{volume.claim}" not found'
        used = used or (claim.one_pod and key in snapshot.claims)
    if not used and not pod.disks:
        return None

    def check(state: NodeState) -> tuple[str, ...]:
        if pod.disks and any(_conflict(pod.disks, other.disks) for other in state.pods):
            return (NO_DISK,)
        return (IN_USE,) if used else ()

    return check


def _conflict(disks: Iterable[PodDisk], others: Iterable[PodDisk]) -> bool:
    """Whether both name a disk that not all of them only read. Images of Ceph share a monitor."""
    return any(
        disk.kind == other.kind
        and disk.id == other.id
        and not (disk.read_only and other.read_only)
        and (disk.kind != "rbd" or not disk.monitors.isdisjoint(other.monitors))
        for disk in disks
        for other in others
    )


def node_volume_limits(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects nodes that can attach no more volumes of a driver. A volume of several pods counts once."""
    storage = snapshot.storage
    needed = _csi_volumes(pod, storage)
    if not needed or not storage.limits:
        return None

    def check(state: NodeState) -> tuple[str, ...]:
        limits = storage.limits.get(state.node.name)
        if not limits:
            return ()
        used = {volume for other in state.pods for volume in _csi_volumes(other, storage)}
        attached = Counter(volume.driver for volume in used)
        new = Counter(volume.driver for volume in needed - used)
        over = (
            attached[driver] + count > limits[driver] for driver, count in new.items() if driver in limits
        )
        return (LIMIT,) if any(over) else ()

    return check


def _csi_volumes(pod: PodInfo, storage: Storage) -> set[CsiVolume]:
    claims = (storage.claims.get((pod.namespace, volume.claim)) for volume in pod.volumes)
    csi_volumes = (storage.csi_volume(claim) for claim in claims if claim is not None)
    return {volume for volume in csi_volumes if volume is not None}
