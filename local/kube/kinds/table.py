"""Which rules each built-in kind has, by `plural.group`; a kind that is not here has none of its own."""

from __future__ import annotations

from local.kube.crd import definition
from local.kube.kind import KindRules
from local.kube.kinds import (
    budgets,
    configmaps,
    events,
    leases,
    namespaces,
    nodes,
    pods,
    services,
    simple,
    webhooks,
    workloads,
)

RULES: dict[str, KindRules] = {
    **simple.RULES,
    **workloads.RULES,
    "namespaces.": namespaces.RULES,
    "pods.": pods.RULES,
    "customresourcedefinitions.apiextensions.k8s.io": KindRules(
        default=definition.default,
        create=definition.create,
        update=definition.update,
        validate=definition.validate,
        validate_update=definition.validate_update,
        warnings=definition.warnings,
        generation=True,
        unconditional=False,
    ),
    "nodes.": nodes.RULES,
    "configmaps.": configmaps.RULES,
    "poddisruptionbudgets.policy": budgets.RULES,
    "services.": services.RULES,
    "leases.coordination.k8s.io": leases.RULES,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": webhooks.VALIDATING,
    "events.": events.CORE,
    "events.events.k8s.io": events.NEW,
}
