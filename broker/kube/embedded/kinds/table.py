"""Which rules each built-in kind has, by `plural.group`; a kind that is not here has none of its own."""

from __future__ import annotations

from ..crd import definition
from ..names import dns_1035_label, path_segment
from . import budgets, configmaps, leases, namespaces, nodes, pods
from .base import Rules

RULES: dict[str, Rules] = {
    "namespaces.": namespaces.RULES,
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
