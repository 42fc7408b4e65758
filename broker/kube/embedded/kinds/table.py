"""Which rules each built-in kind has, by `plural.group`; a kind that is not here has none of its own."""

from __future__ import annotations

from ..crd import definition
from ..names import dns_1035_label, dns_label, path_segment
from ..wire import Obj
from . import budgets, configmaps, leases, nodes, pods
from .base import Rules


def _namespace(obj: Obj) -> None:
    # The label lets selectors name a namespace; the finalizer is taken away once it is empty.
    meta = obj["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta.get("name", "")}


def _new_namespace(obj: Obj) -> None:
    obj["status"] = {"phase": "Active"}
    spec = obj.setdefault("spec", {})
    spec["finalizers"] = list(dict.fromkeys([*(spec.get("finalizers") or ()), "kubernetes"]))


RULES: dict[str, Rules] = {
    "namespaces.": Rules(
        default=_namespace,
        create=_new_namespace,
        name=dns_label,
        selectable={"status.phase": "status.phase", "name": "metadata.name"},
    ),
    "pods.": pods.RULES,
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default=definition.default,
        create=definition.create,
        update=definition.update,
        validate=definition.validate,
        generation=True,
        unconditional=False,
    ),
    "nodes.": nodes.RULES,
    "configmaps.": configmaps.RULES,
    "poddisruptionbudgets.policy": budgets.RULES,
    "services.": Rules(name=dns_1035_label),
    "leases.coordination.k8s.io": leases.RULES,
    "roles.rbac.authorization.k8s.io": Rules(name=path_segment),
}
