"""Takes a launched claim to a node that accepts pods: Registered, then Initialized, in Karpenter's order.

Registered: exactly one Node has the claim's providerID. It gets the claim's labels, taints, finalizer and
owner, and loses the taint that kept pods off. Initialized: it is ready, its startup and ephemeral taints are
gone, and it has the resources that the claim requests (karpenter pkg/controllers/nodeclaim/lifecycle).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from broker.apis import names
from broker.apis.core import Node, Taint
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition, is_true
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import (
    REGISTRATION_TIMED_OUT,
    ConditionWriter,
    missing_finalizer,
    no_node_yet,
    patch,
    write,
)
from broker.controllers.newest import newest, node_names
from broker.kube.conditions import changed, owner_reference
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.partial import PartialObject
from broker.kube.removal import remove
from broker.placement.taints import EPHEMERAL
from broker.text import quantities

# On each node that the broker registered: the name of its class.
MARK = f"{names.BROKER}/nodeclass"
# The reason to keep a claim: its Node is left out of the cache.
NODE_LEFT_OUT = "NodeLeftOut"
REGISTRATION_TIMEOUT = timedelta(minutes=15)
RECHECK = 60.0  # seconds, for a Node that is left out


class Registration:
    """The steps between launch and readiness of one claim.

    `nominate` makes a node that joins the expected node of the claim's pods. `lost` records why a claim ends
    that the broker did not end.
    """

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        *,
        nominate: Callable[[NodeClaim, str], None],
        lost: Callable[[NodeClaim, str], None],
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._caches = caches
        self._claims, self._nodes = caches.claims, caches.nodes
        self._set = ConditionWriter(context, caches.claims).set
        self._nominate, self._lost = nominate, lost
        self._missed: dict[str, float] = {}  # claim uid -> since when this process waits for its node

    def reconcile(self, claim: NodeClaim) -> Result | None:
        """Takes the claim as far as its node allows. Raises ApiError."""
        claim = self._mend(claim)
        if (first := self._caches.first_of(claim)).uid != claim.uid:
            self._reject_second(claim, first)
            return None
        nodes, left_out = self._caches.nodes_of(claim)
        if len(nodes) != 1:
            return self._without_node(claim, nodes, left_out)
        if nodes[0].deleting:
            # A user deleted the Node, or the cloud controller after its instance: the claim drains it first.
            self._lost(claim, f"node {nodes[0].name} was deleted")
            remove(self._client, claim, self._claims)
            return None
        self._missed.pop(claim.uid, None)
        if not is_true(claim, names.REGISTERED_CONDITION):
            self._nominate(claim, nodes[0].name)
        node = self._adopt(claim, nodes[0])
        if not is_true(claim, names.REGISTERED_CONDITION):
            claim = self._set(claim, names.REGISTERED_CONDITION, "True", "Registered", nodeName=node.name)
            self._recorder.event(claim, "Normal", "Registered", f"node {node.name} joined")
        if is_true(claim, names.INITIALIZED_CONDITION):
            return None
        reason, message = _uninitialized(claim, node)
        if reason:
            self._set(claim, names.INITIALIZED_CONDITION, "Unknown", reason, message)
            return None  # the node's next change wakes the claim
        self._patch_node(node, {"labels": {names.INITIALIZED: "true"}})
        self._set(claim, names.INITIALIZED_CONDITION, "True", "Initialized")
        self._recorder.event(claim, "Normal", "Initialized", f"node {node.name} takes pods")
        return None

    def _mend(self, claim: NodeClaim) -> NodeClaim:
        """Restores the finalizer and the Launched condition, if a user removed them."""
        claim = patch(self._client, self._claims, claim, missing_finalizer)
        if is_true(claim, names.LAUNCHED):
            return claim
        return self._set(claim, names.LAUNCHED, "True", "Launched")

    def _reject_second(self, claim: NodeClaim, first: NodeClaim) -> None:
        message = (
            f"status.providerID {claim.status.provider_id} is NodeClaim {first.name}'s too, which is "
            "older: delete one of the two"
        )
        self._set(claim, names.REGISTERED_CONDITION, "False", "InstanceTaken", message)

    def _without_node(
        self, claim: NodeClaim, nodes: list[Node], left_out: PartialObject | None
    ) -> Result | None:
        if is_true(claim, names.REGISTERED_CONDITION):
            return None  # `losses` notices the end of the instance
        if left_out is not None:
            self._missed.pop(claim.uid, None)  # it has joined
            message = (
                f"node {left_out.name} is left out, so that it cannot be registered: the claim is kept until "
                f"the broker can read the Node: {left_out.error}"
            )
            self._set(claim, names.REGISTERED_CONDITION, "Unknown", NODE_LEFT_OUT, message)
            return Result(requeue_after=RECHECK)  # a left-out Node may go without an event
        if nodes:
            message = (
                f"nodes {', '.join(sorted(n.name for n in nodes))} all have providerID "
                f"{claim.status.provider_id}: delete those that are not the instance's"
            )
            claim = self._set(claim, names.REGISTERED_CONDITION, "False", "MultipleNodesFound", message)
        else:
            waits = no_node_yet(claim.status.provider_id)
            claim = write(self._client, self._claims, claim, waits, now=self._clock.now())
        # By this process's own clock: another clock dated the launch, and may be hours off.
        waited = self._clock.monotonic() - self._missed.setdefault(claim.uid, self._clock.monotonic())
        remaining = REGISTRATION_TIMEOUT.total_seconds() - waited
        if remaining > 0:
            return Result(requeue_after=remaining)
        if node_names(self._client, claim.instance_id) != {node.name for node in nodes}:
            return Result(requeue_after=RECHECK)  # the watch of Nodes is late
        message = (
            f"no node joined within {REGISTRATION_TIMEOUT}; the claim is deleted and its instance terminated"
        )
        # Read for the health of its NodePool.
        self._set(claim, names.REGISTERED_CONDITION, "False", REGISTRATION_TIMED_OUT, message)
        self._recorder.event(claim, "Warning", REGISTRATION_TIMED_OUT, message)
        # The next run must not take it for one that waits.
        remove(self._client, claim, self._claims)
        return None

    def _adopt(self, claim: NodeClaim, node: Node) -> Node:
        """Gives the node the metadata of its claim; writes nothing if the node has all of it."""
        registered = is_true(claim, names.REGISTERED_CONDITION)
        if registered and changed({"labels": node.labels}, {"labels": claim.labels}):
            # Whoever removed a label from both may be ahead of the cached claim.
            current = newest(self._client, NodeClaim, claim.name)
            if current is None or current.uid != claim.uid or current.deleting:
                return node
            claim = current
        owner = owner_reference(claim, controller=False)
        annotations = _annotations(claim)
        if registered:  # whoever removed one from both may be ahead of the cached claim
            annotations = {MARK: annotations[MARK]}
        desired: dict[str, Any] = {
            "labels": {**claim.labels, names.REGISTERED: "true"},
            "annotations": annotations,
            "finalizers": sorted({*node.metadata.finalizers, names.TERMINATION_FINALIZER}),
            # One claim owns a node: an earlier claim lost the instance to this one.
            "ownerReferences": [
                *(r.wire() for r in node.metadata.owner_references if r.kind != NodeClaim.KIND.kind),
                owner,
            ],
        }
        taints = None if registered else _taints(claim, node)
        have = {
            "labels": node.labels,
            "annotations": node.annotations,
            "finalizers": sorted(node.metadata.finalizers),
            "ownerReferences": [r.wire() for r in node.metadata.owner_references],
        }
        if not changed(have, desired) and (taints is None or taints == _wire(node.spec.taints)):
            return node
        return self._patch_node(node, desired, taints=taints)

    def _patch_node(
        self, node: Node, metadata: Mapping[str, Any], *, taints: list[dict[str, Any]] | None = None
    ) -> Node:
        body: dict[str, Any] = {"metadata": {**metadata, "resourceVersion": node.metadata.resource_version}}
        if taints is not None:
            body["spec"] = {"taints": taints}
        return self._nodes.written(self._client.patch(Node.KIND, node.name, body))


def _taints(claim: NodeClaim, node: Node) -> list[dict[str, Any]]:
    """The node's taints without the unregistered one; with the claim's, unless the node opts out."""
    kept = [t for t in node.spec.taints if t.key != names.UNREGISTERED_TAINT]
    if node.labels.get(names.DO_NOT_SYNC_TAINTS) != "true":
        present = {(t.key, t.effect) for t in kept}
        kept += [
            t for t in (*claim.spec.taints, *claim.spec.startup_taints) if (t.key, t.effect) not in present
        ]
    return _wire(kept)


def _annotations(claim: NodeClaim) -> dict[str, str]:
    """The claim's annotations without those of the broker and kubectl, with the broker's mark."""
    copied = {
        key: value
        for key, value in claim.annotations.items()
        if not key.startswith((f"{names.BROKER}/", "kubectl.kubernetes.io/"))
    }
    return copied | {MARK: claim.spec.node_class_ref.name}


def _wire(taints: list[Taint] | tuple[Taint, ...]) -> list[dict[str, Any]]:
    return [taint.wire() for taint in taints]


def _uninitialized(claim: NodeClaim, node: Node) -> tuple[str, str]:
    """The reason why the node does not accept the claim's pods yet; empty if it does."""
    ready = condition(node.status.conditions, names.READY)
    if ready is None or ready.status != "True":
        return "NodeNotReady", f"node {node.name} is not ready" + (f": {ready.message}" if ready else "")
    startup = {(t.key, t.effect) for t in claim.spec.startup_taints}
    for taint in node.spec.taints:
        if (taint.key, taint.effect) in startup:
            return "StartupTaintsExist", f"node {node.name} still has startup taint {taint.key}"
        if (taint.key, taint.effect) in EPHEMERAL or taint.key.startswith(names.READINESS_TAINTS):
            return "KnownEphemeralTaintsExist", f"node {node.name} still has taint {taint.key}"
    have = quantities(node.status.allocatable)
    for resource, requested in quantities(claim.spec.resources.requests).items():
        if requested and not have.get(resource):
            return "ResourceNotRegistered", f"node {node.name} does not offer {resource} yet"
    return "", ""
