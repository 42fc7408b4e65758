"""NodeUnschedulable and TaintToleration."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Final

from broker.apis import names
from broker.placement.model import NodeTaint, PodInfo, PodToleration
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot
from broker.quota.flavors import HARD, tolerates

# Taints of a node that is not ready yet; their writer removes them (karpenter pkg/scheduling/taints.go).
EPHEMERAL: Final = frozenset(
    {
        (names.NODE_NOT_READY_TAINT, "NoSchedule"),
        (names.NODE_NOT_READY_TAINT, "NoExecute"),
        (names.NODE_UNREACHABLE_TAINT, "NoSchedule"),
        (names.CLOUD_UNINITIALIZED_TAINT, "NoSchedule"),
        (names.UNREGISTERED_TAINT, "NoExecute"),
    }
)


SOFT: Final = "PreferNoSchedule"
ANY: Final = (*HARD, SOFT)
UNSCHEDULABLE: Final = "node(s) were unschedulable"
UNTOLERATED: Final = "node(s) had untolerated taint(s)"
CORDON: Final = NodeTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def node_unschedulable(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects cordoned nodes, unless the pod tolerates the taint that stands for it."""
    if tolerates(pod.tolerations, CORDON):
        return None
    return lambda state: (UNSCHEDULABLE,) if state.node.unschedulable else ()


def taint_toleration(pod: PodInfo, snapshot: PlacementSnapshot) -> Check:
    """Rejects nodes with a taint of effect NoSchedule or NoExecute that the pod does not tolerate; also of
    effect PreferNoSchedule, if it is to avoid them.
    """
    known: dict[tuple[NodeTaint, ...], tuple[str, ...]] = {}
    effects = ANY if pod.avoids_soft_taints else HARD

    def check(state: NodeState) -> tuple[str, ...]:
        taints = state.node.taints
        reasons = known.get(taints)
        if reasons is None:
            reasons = known[taints] = (
                () if tolerates_all(pod.tolerations, taints, effects) else (UNTOLERATED,)
            )
        return reasons

    return check


def tolerates_all(
    tolerations: Iterable[PodToleration], taints: Iterable[NodeTaint], effects: Container[str] = HARD
) -> bool:
    """Whether no taint of these effects rejects the pod."""
    return not any(True for _ in untolerated(tolerations, taints, effects))


def untolerated(
    tolerations: Iterable[PodToleration], taints: Iterable[NodeTaint], effects: Container[str] = HARD
) -> Iterator[NodeTaint]:
    """The taints that reject the pod. PreferNoSchedule rejects none."""
    return (taint for taint in taints if taint.effect in effects and not tolerates(tolerations, taint))


def covers_toleration(own: PodToleration, other: PodToleration) -> bool:
    """Whether `own` tolerates each taint that `other` does."""
    if own.effect not in ("", other.effect) or own.key not in ("", other.key):
        return False
    return own.operator == "Exists" or (own.operator, own.value) == (other.operator, other.value)


def shown_taints(taints: Iterable[NodeTaint]) -> str:
    """The taints as kubectl writes them."""
    return ", ".join(
        f"{key}={value}:{effect}" if value else f"{key}:{effect}" for key, value, effect in taints
    )
