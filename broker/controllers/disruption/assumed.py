"""Where the pods of ending nodes go: assumed on other nodes, as a scheduler would place them.

Invariant: room is given once. Pods of a node that an earlier pass ended still need theirs while they drain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.names import HOSTNAME
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.placement.filters import place_on_others
from broker.placement.model import PodInfo, PodPreferences
from broker.placement.quantities import amounts
from broker.placement.reading import moved
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.spread import counting


def assumed_on(node: ManagedNode, placement: PlacementSnapshot | None) -> list[PodInfo]:
    """The pods that `place_on_others` placed on the node."""
    state = placement.states.get(node.node.name) if placement and node.node is not None else None
    return [pod for pod in state.pods if not pod.node_name] if state is not None else []


def moving_pods(node: ManagedNode, pods: Iterable[Pod]) -> list[PodInfo]:
    """These pods of the node as their successors: a persistent volume keeps a pod in the zone.

    As in Karpenter, their topology spread counts the node's domains, also if it is the last node of one.
    """
    labels = {**node.claim.labels, **(node.node.labels if node.node is not None else {})}
    alone = leaving(node, pods)
    rules = (rule for pod in alone for rule in (*pod.spread, *(pod.preferences or PodPreferences()).spread))
    keys = {rule.topology_key for rule in rules} - {HOSTNAME}
    domains = {key: frozenset((labels[key],)) for key in keys if key in labels}
    return [counting(pod, domains) for pod in alone]


def leaving(node: ManagedNode, pods: Iterable[Pod]) -> list[PodInfo]:
    """The same as kube-scheduler will see them, once the node is gone."""
    return [moved(pod, node.zone if pod.key in node.tied else "") for pod in pods]


def after_endings(snapshot: DisruptionSnapshot, usable: Sequence[str]) -> PlacementSnapshot:
    """The placement once the nodes that end now have drained.

    A replacement gets their pods. If it was made for some of them only, `usable` nodes get the others.
    """
    placement = snapshot.occupancy.placement
    by_uid = {node.claim.uid: node for node in snapshot.nodes}
    arriving: defaultdict[str, list[PodInfo]] = defaultdict(list)
    replacements: dict[str, NodeClaim] = {}
    for node in snapshot.nodes:
        if node.node is None or not node.moving or not (node.claim.deleting or node.replacement):
            continue
        pods, placement = leaving(node, node.moving), placement.without_nodes({node.node.name})
        if node.replacement is None:
            _, placement = place_on_others(pods, placement, usable)
        else:
            replacements[node.replacement.uid] = node.replacement
            arriving[node.replacement.uid] += pods
    for uid, pods in arriving.items():
        if not _made_for(replacements[uid], pods):
            pods, placement = place_on_others(pods, placement, usable)
        new = by_uid.get(uid)
        if new is not None and new.node is not None and new.node.name in placement.states:
            for pod in pods:
                placement = placement.with_pod(pod, new.node.name)
    return placement


def _made_for(claim: NodeClaim, pods: Iterable[PodInfo]) -> bool:
    """Whether the claim requests room for all these pods."""
    requests = amounts(claim.spec.resources.requests)
    needed = Counter[str]()
    for pod in pods:
        needed.update(pod.requests)
    return all(needed[name] <= amount for name, amount in requests.items())
