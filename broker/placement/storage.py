"""Persistent volumes at one moment: claims, volumes, classes, and the limits of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.apis import storage as api
from broker.placement.model import NodeTerm, PodVolume
from broker.placement.reading import node_terms
from broker.placement.selectors import Labels

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
ONE_POD: Final = "ReadWriteOncePod"


class CsiVolume(NamedTuple):
    """A volume as its driver knows it."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClaim:
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    volume: str = ""
    storage_class: str = ""
    bound: bool = False
    lost: bool = False
    deleted: bool = False
    one_pod: bool = False
    selected_node: str | None = None
    owner: str = ""  # the uid of the controller


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVolume:
    """A PersistentVolume. `terms` None: any node can have it."""

    name: str
    labels: Labels = field(default_factory=dict)
    csi: CsiVolume | None = None
    terms: tuple[NodeTerm, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeClass:
    """A StorageClass. `topologies` empty: any node will do."""

    provisioner: str = ""
    waits: bool = False
    topologies: tuple[tuple[tuple[str, frozenset[str]], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Storage:
    claims: Mapping[tuple[str, str], StoredClaim] = field(default_factory=dict)
    volumes: Mapping[str, StoredVolume] = field(default_factory=dict)
    classes: Mapping[str, VolumeClass] = field(default_factory=dict)
    # By node: how many volumes of each driver it may have.
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        claims: Iterable[api.PersistentVolumeClaim] = (),
        volumes: Iterable[api.PersistentVolume] = (),
        classes: Iterable[api.StorageClass] = (),
        nodes: Iterable[api.CsiNode] = (),
    ) -> Storage:
        """Builds it from Kubernetes' objects."""
        return cls(
            {(claim.namespace, claim.name): _claim(claim) for claim in claims},
            {volume.name: _volume(volume) for volume in volumes},
            {item.name: _class(item) for item in classes},
            {node.name: _limits(node) for node in nodes},
        )

    def bound(self, namespace: str, volumes: Iterable[PodVolume]) -> Iterator[StoredVolume | None]:
        """The volume of each of a pod's; None if it is not known, or not bound."""
        claims = (self.claims.get((namespace, item.claim)) for item in volumes)
        return (self.volumes.get(claim.volume) if claim is not None else None for claim in claims)

    def csi_volume(self, claim: StoredClaim) -> CsiVolume | None:
        """The volume that the claim has, or will have from its class; None if no driver counts it."""
        volume = self.volumes.get(claim.volume) if claim.volume else None
        if volume is not None:
            return volume.csi if volume.csi and all(volume.csi) else None
        item = self.classes.get(claim.storage_class)
        if item is None or not item.provisioner:
            return None
        return CsiVolume(item.provisioner, f"unbound-{claim.namespace}/{claim.name}")


def _claim(claim: api.PersistentVolumeClaim) -> StoredClaim:
    meta, spec = claim.metadata, claim.spec
    owner = next((owner.uid for owner in meta.owner_references if owner.controller), "")
    return StoredClaim(
        namespace=claim.namespace,
        name=claim.name,
        volume=spec.volume_name,
        storage_class=meta.annotations.get(BETA_CLASS, spec.storage_class_name),
        bound=bool(spec.volume_name) and BIND_COMPLETED in meta.annotations,
        lost=claim.status.phase == "Lost",
        deleted=meta.deletion_timestamp is not None,
        one_pod=ONE_POD in spec.access_modes,
        selected_node=meta.annotations.get(SELECTED_NODE),
        owner=owner,
    )


def _volume(volume: api.PersistentVolume) -> StoredVolume:
    csi, affinity = volume.spec.csi, volume.spec.node_affinity
    required = affinity.required if affinity else None
    return StoredVolume(
        name=volume.name,
        labels=volume.metadata.labels,
        csi=CsiVolume(csi.driver, csi.volume_handle) if csi else None,
        terms=node_terms(required) if required else None,
    )


def _class(item: api.StorageClass) -> VolumeClass:
    return VolumeClass(
        provisioner=item.provisioner,
        waits=item.volume_binding_mode == api.WAIT_FOR_FIRST_CONSUMER,
        topologies=tuple(
            tuple((rule.key, frozenset(rule.values)) for rule in term.match_label_expressions)
            for term in item.allowed_topologies
        ),
    )


def _limits(node: api.CsiNode) -> dict[str, int]:
    return {
        driver.name: driver.allocatable.count
        for driver in node.spec.drivers
        if driver.allocatable.count is not None
    }
