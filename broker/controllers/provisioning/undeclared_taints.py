"""Taints of nodes that their NodePool does not declare, and that keep off the pods which they were made for.

Why: an agent such as a CNI or a CSI driver taints each node until it runs. A pod that a machine is made for
is planned without this taint unless the pool declares it, and then waits or gets another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broker.apis import names
from broker.apis.core import Node, Taint
from broker.apis.karpenter import NodeClaim, pods_of
from broker.placement.model import PodInfo
from broker.placement.reading import node_taints
from broker.placement.taints import EPHEMERAL, tolerates_all

# Kubernetes' own taints, by a node's conditions, and Karpenter's: no pool declares them.
_WRITTEN_FOR_NODES = ("node.kubernetes.io/", f"{names.KARPENTER}/", names.READINESS_TAINTS)


def undeclared_taints(
    pods: Iterable[PodInfo], claims: Sequence[NodeClaim], nodes: Iterable[Node]
) -> Mapping[str, str]:
    """Lists by pod: its node, the taint that keeps it off, and the field that is to declare it."""
    by_id = {node.instance_id: node for node in nodes}
    by_key = {f"{pod.namespace}/{pod.name}": pod for pod in pods}
    reasons: dict[str, str] = {}
    for claim in claims:
        node = by_id.get(claim.instance_id) if claim.instance_id else None
        waiting = [key for key in pods_of(claim) if key in by_key]
        if node is None or claim.deleting or not waiting:
            continue
        taints = [taint for taint in node.spec.taints if _undeclared(taint, claim)]
        for key in waiting:
            off = [t for t in taints if not tolerates_all(by_key[key].tolerations, node_taints([t]))]
            if off:
                reasons[key] = _reason(node, claim, off[0])
    return reasons


def _reason(node: Node, claim: NodeClaim, taint: Taint) -> str:
    return (
        f"node {node.name} was made for it by NodeClaim {claim.name} and has taint {taint.key}:"
        f"{taint.effect}, which NodePool {claim.node_pool} does not declare: add it to the pool's "
        "spec.template.spec.startupTaints if an agent removes it, else to its taints"
    )


def _undeclared(taint: Taint, claim: NodeClaim) -> bool:
    declared = {(t.key, t.effect) for t in (*claim.spec.taints, *claim.spec.startup_taints)}
    own = (taint.key, taint.effect)
    return own not in declared | EPHEMERAL and not taint.key.startswith(_WRITTEN_FOR_NODES)
