"""Ends nodes after their claim is gone without ending them: its finalizer was removed by hand.

Invariant: only nodes that the broker registered are touched, and none while its instance runs. A claim adopts
such an instance, or the launch loop terminates it, and its node follows it. A Node that is Ready has an
instance, whatever EC2 lists.
"""

from __future__ import annotations

from broker.apis import names
from broker.apis.core import Node
from broker.controllers.claim_caches import BY_INSTANCE, ClaimCaches
from broker.controllers.lifecycle.registration import MARK
from broker.controllers.lifecycle.terminations import Terminations
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.conditions import remove_finalizer
from broker.kube.controller import Result
from broker.kube.errors import NotFound

RECHECK = 30.0


def release(client: Client, nodes: Cache[Node], node: Node) -> None:
    """Removes the broker's finalizer from the node, and deletes it if needed. Raises ApiError."""
    body = remove_finalizer(node, names.TERMINATION_FINALIZER)
    try:
        if body is not None:
            nodes.observe(client.patch(Node.KIND, node.name, body))
        if not node.deleting:
            client.delete(Node.KIND, node.name, uid=node.uid)
    except NotFound:
        return


class AbandonedNodes:
    """Reconciles nodes by name."""

    def __init__(self, client: Client, caches: ClaimCaches, terminations: Terminations) -> None:
        self._client = client
        self._claims, self._nodes = caches.claims, caches.nodes
        self._terminations = terminations

    def reconcile(self, name: str) -> Result | None:
        """Raises ApiError."""
        node = self._nodes.get(name)
        if node is None or MARK not in node.annotations:
            return None
        id_ = node.instance_id
        if self._claims.by(BY_INSTANCE, id_) or any(c.instance_id == id_ for c in self._claims.left_out):
            return None
        seen = self._terminations.watch(id_)
        if seen is None:
            return Result(requeue_after=RECHECK)  # or sooner, when EC2 has answered
        self._terminations.forget(id_)
        if not seen.gone or (seen.instance is None and node.ready):
            return Result(requeue_after=RECHECK)
        release(self._client, self._nodes, node)
        return None
