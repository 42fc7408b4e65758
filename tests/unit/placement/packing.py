"""Machine options and pending pods for tables of packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from broker.apis.core import Taint
from broker.placement.filters import prepare
from broker.placement.model import NodeInfo, NodeTaint
from broker.placement.packing import pack
from broker.placement.packing_model import NO_DRAWING, Drawing, MachineOption, Packing, PendingPod
from broker.placement.packing_state import node_of
from broker.placement.quantities import amounts
from broker.placement.snapshot import PlacementSnapshot
from tests.unit.placement.builders import ZONE, pod

TYPE, CAPACITY = "node.kubernetes.io/instance-type", "karpenter.sh/capacity-type"


def option(
    type_: str = "m5.large",
    *,
    pool: str = "default",
    cpu: str = "2",
    memory: str = "8Gi",
    zone: str = "us-east-1a",
    cost: float = 1.0,
    source: str = "",
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    room: Mapping[str, str] | None = None,
    **more: Any,
) -> MachineOption:
    capacity_type = "reserved" if source else "on-demand"
    allocatable = amounts({"cpu": cpu, "memory": memory, "pods": "110", **(room or {})})
    return MachineOption(
        pool=pool,
        node=NodeInfo(
            name=f"{type_}-{zone}-{source}",
            labels={ZONE: zone, TYPE: type_, CAPACITY: capacity_type, **(labels or {})},
            taints=tuple(NodeTaint(t.key, t.value, t.effect) for t in taints),
            allocatable=allocatable,
        ),
        instance_type=type_,
        zone=zone,
        capacity_type=capacity_type,
        cost=cost if not source else cost / 1000,
        source=source,
        capacity={**allocatable, "nodes": 1},
        **more,
    )


def pending(
    name: str = "p",
    *,
    cpu: str = "1",
    memory: str = "1Gi",
    priority: int = 0,
    gang: str = "",
    drawing: Drawing = NO_DRAWING,
    **more: Any,
) -> PendingPod:
    requests = {"cpu": cpu, "memory": memory, **more.pop("requests", {})}
    return PendingPod(
        info=pod(name, requests=requests, **more), priority=priority, gang=gang, drawing=drawing
    )


def many(count: int, prefix: str = "p", **more: Any) -> list[PendingPod]:
    return [pending(f"{prefix}-{n}", **more) for n in range(count)]


def bins(packing: Packing) -> list[tuple[str, str, int]]:
    """Type, source or zone, and number of pods of each machine, sorted."""
    return sorted(
        (b.option.instance_type, b.option.source or b.option.zone, len(b.pods)) for b in packing.bins
    )


def problems(packing: Packing, snapshot: PlacementSnapshot | None = None) -> list[str]:
    """Pods that kube-scheduler's filters reject on their machine, in the best of three orders: machine by
    machine, one pod of each machine after another, and so by priority."""
    state = snapshot or PlacementSnapshot()
    for number, item in enumerate(packing.bins):
        state = state.with_node(node_of(item.option, f"bin-{number}"))
    rows = [[(pod, f"bin-{number}") for pod in item.pods] for number, item in enumerate(packing.bins)]
    by_machine = [pair for row in rows for pair in row]
    in_turn = [pair for column in zip_longest(*rows) for pair in column if pair is not None]
    priorities = sorted({pod.priority for pod, _ in in_turn}, reverse=True)
    by_priority = [[pair for pair in in_turn if pair[0].priority == priority] for priority in priorities]
    return min((_rejected(order, state) for order in ([by_machine], [in_turn], by_priority)), key=len)


def _rejected(groups: Sequence[Sequence[tuple[PendingPod, str]]], state: PlacementSnapshot) -> list[str]:
    """A pod that is rejected at first is tried again after others have come."""
    queue: list[tuple[PendingPod, str]] = []
    for group in groups:
        queue, progress = [*queue, *group], True
        while queue and progress:
            left = []
            for p, name in queue:
                if prepare(p.info, state).reasons(state.states[name]):
                    left.append((p, name))
                else:
                    state = state.with_pod(p.info, name)
            progress, queue = len(left) < len(queue), left
    return [f"{p.key} on {name}: {prepare(p.info, state).reasons(state.states[name])}" for p, name in queue]


__all__ = ["bins", "many", "option", "pack", "pending", "problems"]
