"""Persistent volumes as far as a pod's node depends on them: claims, volumes, classes, limits of nodes.

https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from broker.apis.core import NodeSelector
from broker.apis.meta import Kind, Model, Object

STORAGE = "storage.k8s.io"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


def _kind(kind: str, plural: str) -> Kind:
    return Kind(group=STORAGE, version="v1", kind=kind, plural=plural)


class PersistentVolumeClaimSpec(Model):
    volume_name: str = ""
    storage_class_name: str = ""
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaimStatus(Model):
    phase: str = ""


class PersistentVolumeClaim(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="PersistentVolumeClaim", namespaced=True)

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class CsiVolumeSource(Model):
    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(Model):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Model):
    csi: CsiVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolume(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="PersistentVolume")

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class TopologySelectorRequirement(Model):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Model):
    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(Object):
    """The API server fills in the binding mode: it is never missing in a stored class."""

    KIND: ClassVar[Kind] = _kind("StorageClass", "storageclasses")

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class CsiAllocatable(Model):
    count: int | None = None


class CsiNodeDriver(Model):
    name: str = ""
    allocatable: CsiAllocatable = CsiAllocatable()


class CsiNodeSpec(Model):
    """The API server serves a node without drivers as `drivers: null`."""

    drivers: Annotated[tuple[CsiNodeDriver, ...], BeforeValidator(lambda drivers: drivers or ())] = ()


class CsiNode(Object):
    KIND: ClassVar[Kind] = _kind("CSINode", "csinodes")

    spec: CsiNodeSpec = CsiNodeSpec()
