"""Converts ResourceFlavors for quota assignment."""

from __future__ import annotations

from broker.apis.kueue import ResourceFlavor
from broker.quota import flavors


def quota_flavor(flavor: ResourceFlavor) -> flavors.Flavor:
    """The flavor in the form that quota assignment reads."""
    return flavors.Flavor(
        name=flavor.name,
        labels=flavor.spec.node_labels,
        taints=tuple(
            flavors.FlavorTaint(key=taint.key, value=taint.value, effect=taint.effect)
            for taint in flavor.spec.node_taints
        ),
        tolerations=tuple(
            flavors.FlavorToleration(
                key=toleration.key,
                operator=toleration.operator,
                value=toleration.value,
                effect=toleration.effect,
            )
            for toleration in flavor.spec.tolerations
        ),
    )
