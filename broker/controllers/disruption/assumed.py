"""Where the pods of ending nodes go: assumed on other nodes, as a scheduler would place them.

Invariant: room is given once. Pods of a node that an earlier pass ended still need theirs while they drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.apis import names
from broker.apis.core import Pod
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.placement.model import PodInfo
from broker.placement.moving import place_on_others
from broker.placement.reading import moved
from broker.placement.snapshot import PlacementSnapshot


def assumed_on(node: ManagedNode, placement: PlacementSnapshot | None) -> list[PodInfo]:
    """The pods that `place_on_others` placed on the node."""
    state = placement.states.get(node.node.name) if placement and node.node is not None else None
    return [pod for pod in state.pods if not pod.node_name] if state is not None else []


def moving_pods(node: ManagedNode, pods: Iterable[Pod]) -> list[PodInfo]:
    """These pods of the node as their successors: a persistent volume keeps a pod in the zone."""
    zone = node.claim.labels.get(names.ZONE, "")
    return [moved(pod, zone) for pod in pods]


def after_endings(snapshot: DisruptionSnapshot, usable: Sequence[str]) -> PlacementSnapshot:
    """The placement once the nodes that end now have drained: a replacement gets its pods, then `usable`."""
    placement = snapshot.occupancy.placement
    by_uid = {node.claim.uid: node for node in snapshot.nodes}
    for node in snapshot.nodes:
        if node.node is None or not node.moving or not (node.claim.deleting or node.replacement):
            continue
        pods, placement = moving_pods(node, node.moving), placement.without_nodes({node.node.name})
        new = by_uid.get(node.replacement.uid) if node.replacement is not None else None
        if new is None:
            _, placement = place_on_others(pods, placement, usable)
        elif new.node is not None and new.node.name in placement.states:
            for pod in pods:
                placement = placement.with_pod(pod, new.node.name)
    return placement
