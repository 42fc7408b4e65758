"""Converts ResourceFlavors for quota assignment."""

from __future__ import annotations

from broker.apis.kueue import ResourceFlavor
from broker.quota import flavors


def rule(one: ResourceFlavor) -> flavors.Flavor:
    """The flavor in the form that quota assignment reads."""
    return flavors.Flavor(
        name=one.name,
        labels=one.spec.node_labels,
        taints=tuple(
            flavors.FlavorTaint(key=each.key, value=each.value, effect=each.effect)
            for each in one.spec.node_taints
        ),
        tolerations=tuple(
            flavors.FlavorToleration(
                key=each.key, operator=each.operator, value=each.value, effect=each.effect
            )
            for each in one.spec.tolerations
        ),
    )
