"""Instance types that a class can never launch: EC2 refuses them, or no node joins.

Invariant: a type is not excluded if EC2 does not describe its network cards. A type without a hypervisor,
such as bare metal, is not Nitro here, and one without a described EFA has none. The checks are Karpenter's
(pkg/providers/instancetype/compatibility).
"""

from __future__ import annotations

from broker.capacity.model import NodeClass
from broker.text import counted
from providers.model import InstanceType


def incompatibility(type_: InstanceType, node_class: NodeClass) -> str:
    """Why the class cannot launch this type; empty if it can."""
    if node_class.family == "AL2023" and type_.name.startswith("a1."):
        return "AL2023 does not run on a1 instances"
    if node_class.tracks_connections and type_.hypervisor != "nitro":
        return "connectionTracking needs Nitro instances"
    if node_class.nested_virtualization and not type_.nested_virtualization:
        return "cpuOptions.nestedVirtualization is enabled, and its processors do not have it"
    if node_class.enclaves and not type_.enclaves:
        return "enclaveOptions is enabled, and it does not support Nitro Enclaves"
    if node_class.placement_strategy not in {"", *type_.placement_strategies}:
        return f"EC2 takes it into no placement group with the {node_class.placement_strategy} strategy"
    return _interfaces(type_, node_class)


def _interfaces(type_: InstanceType, node_class: NodeClass) -> str:
    if node_class.interfaces and not type_.ena:
        return "networkInterfaces needs instances with ENA"
    per_card = type_.interfaces_per_card
    for interface in node_class.interfaces if per_card else ():
        if interface.card >= len(per_card):
            return f"networkInterfaces names network card {interface.card}, and it has {len(per_card)}"
        if interface.device >= per_card[interface.card]:
            return (
                f"networkInterfaces names device {interface.device} of network card {interface.card}, "
                f"which has {counted(per_card[interface.card], 'interface')}"
            )
    efas = sum(interface.kind == "efa-only" for interface in node_class.interfaces)
    if efas > type_.efa_interfaces:
        return f"networkInterfaces has {efas} of type efa-only, and it has {type_.efa_interfaces}"
    return ""
