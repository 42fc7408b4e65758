"""Kueue's kinds, as far as the broker reads and renders them, in the shape of v1beta2.

What v1beta1 spells otherwise is turned at the edge (`kueue_versions`); nothing else knows that there are
two. Their definitions are Kueue's own and are never shipped. Shapes: Kueue's apis/kueue/v1beta2
(resourceflavor_types.go, clusterqueue_types.go, localqueue_types.go, cohort_types.go, workload_types.go,
admissioncheck_types.go, workloadpriorityclass_types.go).
"""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field

from broker.apis.core import Taint, Toleration
from broker.apis.meta import Kind, Model, Object

KUEUE: Final = "kueue.x-k8s.io"
# Each version that the broker can speak, the one it prefers first.
VERSIONS: Final = ("v1beta2", "v1beta1")


def _kind(kind: str, plural: str, *, namespaced: bool = False) -> Kind:
    return Kind(group=KUEUE, version=VERSIONS[0], kind=kind, plural=plural, namespaced=namespaced)


class ResourceFlavorSpec(Model):
    node_labels: dict[str, str] = Field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ResourceFlavor(Object):
    """Nodes of one sort, by their labels."""

    KIND: ClassVar[Kind] = _kind("ResourceFlavor", "resourceflavors")

    spec: ResourceFlavorSpec = ResourceFlavorSpec()
