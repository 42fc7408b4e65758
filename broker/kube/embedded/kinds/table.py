"""Which rules each built-in kind has, by `plural.group`; a kind that is not here has none of its own."""

from __future__ import annotations

from ..crd import definition
from ..names import dns_1035_label, dns_label, dns_subdomain, path_segment
from ..wire import Obj
from .base import Rules


def _namespace(obj: Obj) -> None:
    # The label lets selectors name a namespace; the finalizer is taken away once it is empty.
    meta = obj["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta.get("name", "")}


def _new_namespace(obj: Obj) -> None:
    obj["status"] = {"phase": "Active"}
    spec = obj.setdefault("spec", {})
    spec["finalizers"] = list(dict.fromkeys([*(spec.get("finalizers") or ()), "kubernetes"]))


def _new_pod(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


RULES: dict[str, Rules] = {
    "namespaces.": Rules(
        default=_namespace,
        create=_new_namespace,
        name=dns_label,
        selectable={"status.phase": "status.phase", "name": "metadata.name"},
    ),
    "pods.": Rules(
        create=_new_pod,
        generation=True,
        returns_deleted=True,
        selectable={
            path: path
            for path in (
                "spec.nodeName",
                "spec.restartPolicy",
                "spec.schedulerName",
                "spec.serviceAccountName",
                "spec.hostNetwork",
                "status.phase",
                "status.podIP",
                "status.nominatedNodeName",
            )
        },
    ),
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default=definition.default,
        create=definition.create,
        update=definition.update,
        validate=definition.validate,
        generation=True,
        unconditional=False,
    ),
    "nodes.": Rules(selectable={"spec.unschedulable": "spec.unschedulable"}),
    "services.": Rules(name=dns_1035_label),
    "leases.coordination.k8s.io": Rules(create_on_update=True, name=dns_subdomain),
    "roles.rbac.authorization.k8s.io": Rules(name=path_segment),
}
