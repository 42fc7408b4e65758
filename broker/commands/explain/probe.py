"""The NodeClaims that a NodePool could make for a pod, so that its options are planned like those of a claim.

Invariant: the options of a pod and of a claim come from the same plan. The claim is never written. The room
for DaemonSets and for other pods on the same node is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.label_names import stable
from broker.capacity.types import WELL_KNOWN
from broker.controllers.provisioning.claims import total_requests
from broker.controllers.provisioning.from_pool import pool_claim
from broker.placement.model import NodeTerm, PodInfo
from broker.placement.pool_choice import pool_node
from broker.placement.reading import pod_info
from broker.placement.selectors import Selector, required
from broker.reservations.drawing import DrawRights


def probes(pod: Pod, pool: NodePool, rights: DrawRights) -> list[NodeClaim]:
    """The claims of the pool for the pod alone, as the broker would launch one of them: one for each term of
    the pod's node affinity that a node of the pool can satisfy.
    """
    info, node = pod_info(pod), pool_node(pool)
    terms = [term for term in info.node_terms or () if node.accepts(replace(info, node_terms=(term,)))]
    return [_probe(pod, info, pool, rights, term.expressions) for term in terms or [NodeTerm()]]


def _probe(pod: Pod, info: PodInfo, pool: NodePool, rights: DrawRights, affinity: Selector) -> NodeClaim:
    annotations: dict[str, str | None] = {names.PODS: pod.key}
    if drawn := rights.named_for(pod.namespace, pod.annotations.get(names.DRAWS_FROM, "")):
        annotations[names.DRAWS_FROM] = drawn
    if pod.spec.priority and names.PRIORITY not in pool.spec.template.metadata.annotations:
        annotations[names.PRIORITY] = str(pod.spec.priority)
    of_pool = [item.wire() for item in pool.spec.template.spec.requirements]
    body = pool_claim(
        pool,
        f"of-pod-{pod.name}",
        requirements=[*of_pool, *_selected((*info.node_selector, *affinity))],
        requests=total_requests([info], {}),
        annotations=annotations,
    )
    body["metadata"]["uid"] = f"pod/{pod.uid or pod.key}"
    body["spec"]["nodeClassRef"] = {**body["spec"]["nodeClassRef"], "group": names.BROKER}
    return NodeClaim.decode(body)


def _selected(selector: Selector) -> Iterator[dict[str, Any]]:
    """The requirements on labels that follow from the instance."""
    for item in selector:
        if stable(item.key) in WELL_KNOWN:
            wanted = required(item)
            yield {"key": wanted.key, "operator": wanted.operator, "values": [*wanted.values]}
