"""NodePorts: host ports that pods of the node use already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from broker.placement.model import HostPort, PodInfo
from broker.placement.snapshot import Check, PlacementSnapshot

TAKEN: Final = "node(s) didn't have free ports for the requested pod ports"
_ANY_IP: Final = "0.0.0.0"


def node_ports(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects nodes where a host port of the pod is in use. `0.0.0.0` conflicts with every address."""
    if not pod.ports:
        return None
    return lambda state: (TAKEN,) if any(conflicts(port, state.ports) for port in pod.ports) else ()


def conflicts(port: HostPort, used: Collection[HostPort]) -> bool:
    """Whether protocol and port are equal, and the addresses are equal or one of them is any address."""
    return any(
        port.port == other.port
        and port.protocol == other.protocol
        and (port.ip == other.ip or _ANY_IP in (port.ip, other.ip))
        for other in used
    )
