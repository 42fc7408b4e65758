"""The nodes that may get the pods of nodes that end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import pods_of
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.candidates import awaits_pods, waits
from broker.controllers.disruption.returning import LEAST_STAY
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.placement.holds_reading import holds_room
from broker.reservations.claims import occupied_odcr
from broker.reservations.endings import drains
from providers.model import Odcr


def closed_nodes(snapshot: DisruptionSnapshot, caches: ClaimCaches) -> frozenset[str]:
    """The nodes that got pods since the pass began, and those of the snapshot that end, are not there yet, or
    await pods of their own.
    """
    bound = {pod.key for pod in snapshot.occupancy.pods}
    return _gained(snapshot.occupancy, caches) | frozenset(
        node.node.name
        for node in snapshot.nodes
        if node.node is not None
        and (
            node.claim.deleting
            or node.replacement is not None
            or not node.initialized
            or awaits_pods(node.claim, caches.claims, snapshot.now)
            or _expects(node, caches, bound)
        )
    )


def leaving_soon(snapshot: DisruptionSnapshot, odcrs: Mapping[str, Odcr]) -> dict[str, str]:
    """The nodes, by their claims' uids, of Capacity Blocks that drain within `LEAST_STAY`: pods that move
    there, or to a node that replaces one, would move again.
    """
    until = snapshot.now + LEAST_STAY
    return {
        node.claim.uid: node.node.name
        for node in snapshot.nodes
        if node.node is not None
        and (odcr := odcrs.get(occupied_odcr(node.claim))) is not None
        and drains(odcr, until)
    }


def _gained(occupancy: NodeOccupancy, caches: ClaimCaches) -> frozenset[str]:
    """The nodes whose room the pass counts as free although pods came since: a successor has those of its
    node by then, and awaits them no more.
    """
    counted = {(pod.key, pod.spec.node_name) for pod in occupancy.pods}
    placed = ((pod.key, pod.spec.node_name) for pod in caches.pods.list() if holds_room(pod))
    return frozenset(node for key, node in placed if (key, node) not in counted)


def usable_nodes(nodes: Iterable[Node], closed: Collection[str]) -> Sequence[str]:
    """The nodes that are Ready, and in no disruption by now. Reserved ones, paid for, come first."""
    usable = [
        node
        for node in nodes
        if node.name not in closed and node.ready and not (node.deleting or node.disrupted or node.rebooting)
    ]
    usable.sort(key=lambda node: node.labels.get(names.CAPACITY_TYPE) != "reserved")
    return [node.name for node in usable]


def _expects(node: ManagedNode, caches: ClaimCaches, bound: Collection[str]) -> bool:
    """Whether the node was made for a pod that takes room on none yet, as far as the pass has read."""
    pods = (caches.pods.find(key) for key in pods_of(node.claim) if key not in bound)
    return any(pod is not None and (waits(pod) or holds_room(pod)) for pod in pods)
