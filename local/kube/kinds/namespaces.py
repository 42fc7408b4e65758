"""Namespaces: a label with their name, and a finalizer that a controller takes away once they are empty.

Rule: k8s.io/kubernetes/pkg/registry/core/namespace (strategy.go).
"""

from __future__ import annotations

from local.kube.kind import KindRules
from local.kube.names import dns_label
from local.kube.wire import Obj

FINALIZER = "kubernetes"
_NAME_LABEL = "kubernetes.io/metadata.name"


def default(obj: Obj) -> None:
    meta = obj["metadata"]
    if name := meta.get("name"):
        meta["labels"] = {**(meta.get("labels") or {}), _NAME_LABEL: name}


def _create(obj: Obj) -> None:
    obj["status"] = {"phase": "Active"}
    spec = obj.get("spec") or {}
    spec["finalizers"] = list(dict.fromkeys([*(spec.get("finalizers") or ()), FINALIZER]))
    obj["spec"] = spec
    default(obj)


def _update(obj: Obj, old: Obj) -> None:
    # Its finalizers are changed through a subresource of their own.
    obj["spec"] = old.get("spec") or {}


RULES = KindRules(
    default=default,
    create=_create,
    update=_update,
    core=True,
    name=dns_label,
    selectable={"status.phase": "status.phase", "name": "metadata.name"},
)
