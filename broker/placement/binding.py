"""VolumeBinding and VolumeZone: nodes from which the pod's persistent volumes can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from broker.apis.core import Pod
from broker.placement.affinity import any_term
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.reading import volumes
from broker.placement.selectors import Labels
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot
from broker.placement.storage import Storage, StoredClaim, VolumeClass

UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
OTHER_NODES: Final = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME: Final = "node(s) didn't find available persistent volumes to bind"
GONE: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
OTHER_ZONE: Final = "node(s) had no available volume zone"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
# A label of the beta in a volume stands for the stable one in a node.
STABLE: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
TOPOLOGY: Final = (*STABLE, *STABLE.values())


def volume_binding(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | str | None:
    """Rejects nodes that a bound claim's volume excludes, or where an unbound claim can get no volume.

    Claims that are bound at once, and are not, reject all nodes: another controller has to bind them first.
    """
    storage = snapshot.storage
    bound: list[StoredClaim] = []
    waiting: list[StoredClaim] = []
    claims = list(_usable(pod, storage))
    for claim in claims:
        if isinstance(claim, str):
            return claim
    for claim in claims:
        assert isinstance(claim, StoredClaim)
        item = storage.classes.get(claim.storage_class)
        if claim.bound:
            bound.append(claim)
        elif item is not None and item.waits and not claim.volume:
            waiting.append(claim)
        else:
            return UNBOUND
    if not bound and not waiting:
        return None

    def check(state: NodeState) -> tuple[str, ...]:
        return (*_bound_reasons(bound, state.node, storage), *_waiting_reasons(waiting, state.node, storage))

    return check


def _usable(pod: PodInfo, storage: Storage) -> Iterator[StoredClaim | str]:
    """The pod's claims, with a reason in place of one that it cannot use."""
    for volume in pod.volumes:
        claim = storage.claims.get((pod.namespace, volume.claim))
        if claim is None and volume.ephemeral:
            yield (
                "waiting for ephemeral volume controller to create the persistentvolumeclaim "
                f'"{volume.claim}"'
            )
        elif claim is None:
            yield f'persistentvolumeclaim "{volume.claim}" not found'
        elif claim.lost:
            yield (
                f'persistentvolumeclaim "{claim.name}" bound to non-existent persistentvolume '
                f'"{claim.volume}"'
            )
        elif claim.deleted:
            yield f'persistentvolumeclaim "{claim.name}" is being deleted'
        elif volume.ephemeral and claim.owner != pod.uid:
            yield (
                f"PVC {claim.namespace}/{claim.name} was not created for pod {pod.namespace}/{pod.name} "
                "(pod is not owner)"
            )
        else:
            yield claim


def _bound_reasons(claims: Iterable[StoredClaim], node: NodeInfo, storage: Storage) -> tuple[str, ...]:
    for claim in claims:
        volume = storage.volumes.get(claim.volume)
        if volume is None:
            return (GONE,)
        if volume.terms is not None and not any_term(volume.terms, node.labels):
            return (OTHER_NODES,)
    return ()


def _waiting_reasons(claims: Iterable[StoredClaim], node: NodeInfo, storage: Storage) -> tuple[str, ...]:
    """A claim that was promised to a node is made there only."""
    for claim in claims:
        if claim.selected_node is not None and claim.selected_node != node.name:
            return (NO_VOLUME,)
        if not _can_provision(storage.classes[claim.storage_class], node.labels):
            return (NO_VOLUME,)
    return ()


def _can_provision(item: VolumeClass, labels: Labels) -> bool:
    if item.provisioner in ("", NO_PROVISIONER):
        return False
    return not item.topologies or any(
        term and all(labels.get(key) in values for key, values in term) for term in item.topologies
    )


def volume_zone(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | str | None:
    """Rejects nodes outside the zone or region that a bound volume's labels name.

    Nodes without any label of zone or region are in all of them.
    """
    storage = snapshot.storage
    rules: list[tuple[str, frozenset[str]]] = []
    for claim in (
        storage.claims.get((pod.namespace, item.claim)) for item in pod.volumes if not item.ephemeral
    ):
        if claim is None:
            continue  # VolumeBinding rejects it
        if not claim.volume:
            reason = _unnamed(claim, storage)
            if reason is not None:
                return reason
            continue
        volume = storage.volumes.get(claim.volume)
        if volume is None:
            return f'persistentvolume "{claim.volume}" not found'
        rules += _zones(volume.labels)
    if not rules:
        return None

    def check(state: NodeState) -> tuple[str, ...]:
        labels = state.node.labels
        if not any(key in labels for key in TOPOLOGY):
            return ()
        inside = (labels.get(key, labels.get(STABLE.get(key, key))) in values for key, values in rules)
        return () if all(inside) else (OTHER_ZONE,)

    return check


def tied(pod: Pod, storage: Storage) -> bool:
    """Whether a persistent volume of the pod is for some nodes alone, or is not known."""
    bound = storage.bound(pod.namespace, (item for item in volumes(pod) if not item.ephemeral))
    return any(item is None or item.terms is not None or any(_zones(item.labels)) for item in bound)


def _zones(labels: Labels) -> Iterator[tuple[str, frozenset[str]]]:
    """The zones and regions of a volume, `a__b` for two. A label with an empty part is ignored."""
    for key in TOPOLOGY:
        if key in labels:
            zones = frozenset(zone.strip() for zone in labels[key].split("__"))
            if "" not in zones:
                yield key, zones


def _unnamed(claim: StoredClaim, storage: Storage) -> str | None:
    """Why a claim without a volume has none; None if one is made once the pod has a node."""
    if not claim.storage_class:
        return "PersistentVolumeClaim had no pv name and storageClass name"
    item = storage.classes.get(claim.storage_class)
    if item is None:
        return f'storageclass.storage.k8s.io "{claim.storage_class}" not found'
    return None if item.waits else "PersistentVolume had no name"
