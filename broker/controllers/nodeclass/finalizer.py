"""Keeps a class until the claims that name it are gone: their launch parameters are looked up in it.

Invariant: a class that a claim of the broker names carries the broker's finalizer. It is removed only when no
such claim is left; other finalizers are never touched. Karpenter holds a class for its own NodeClaims alike
(pkg/controllers/nodeclass/garbagecollection, finalizer karpenter.k8s.aws/termination).
"""

from __future__ import annotations

from pydantic import ValidationError

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import ConditionUpdate
from broker.capacity.reasons import CLASS_TERMINATING
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.nodeclass.status import patch_status
from broker.kube.cache import Cache
from broker.kube.conditions import add_finalizer, changed, condition_body, remove_finalizer, set_conditions
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import NotFound
from broker.text import abridged

BY_CLASS = "nodeClass"
NAMED = 5
RECHECK = 60.0  # seconds, while the watch of claims is late


def by_class(claim: NodeClaim) -> tuple[str, ...]:
    """The index of claims by class, which decides when a class may end."""
    return (claim.spec.node_class_ref.name,)


class ClassFinalizer:
    """Reconciles classes by name; `claims` has the index BY_CLASS."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        classes: Cache[EC2NodeClass],
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._claims, self._owns = caches.claims, caches.owns
        self._classes = classes

    def reconcile(self, name: str) -> Result | None:
        """Raises ApiError."""
        node_class = self._classes.get(name)
        if node_class is None or (node_class.deleting and self._claims.broken):
            return None  # a claim that cannot be read may hold it
        if not node_class.deleting and names.CLASS_FINALIZER in node_class.metadata.finalizers:
            return None
        claim_names = sorted(c.name for c in self._claims.by(BY_CLASS, name) if self._owns(c))
        if not node_class.deleting:
            body = add_finalizer(node_class, names.CLASS_FINALIZER) if claim_names else None
        elif claim_names:
            self._report_claims(node_class, claim_names)
            return None
        else:
            body = remove_finalizer(node_class, names.CLASS_FINALIZER)
            if body is not None and self._held(name):
                return Result(requeue_after=RECHECK)
        if body is None:
            return None
        try:
            self._classes.observe(self._client.patch(EC2NodeClass.KIND, name, body))
        except NotFound:
            return None
        return None

    def _held(self, name: str) -> bool:
        """Whether a claim names the class in the API server, where the cache has none."""
        try:
            claims = [*map(NodeClaim.decode, self._client.list(NodeClaim.KIND)[0])]
        except ValidationError:
            return True  # a claim that cannot be read may hold it
        return any(name in by_class(claim) and self._owns(claim) for claim in claims)

    def _report_claims(self, node_class: EC2NodeClass, claim_names: list[str]) -> None:
        message = (
            f"EC2NodeClass {node_class.name} is being deleted: nothing is launched from it any more, and it "
            f"goes when no NodeClaim names it; now {abridged(claim_names, NAMED)}"
        )
        conditions = set_conditions(
            node_class.status.conditions,
            ConditionUpdate(type=names.LAUNCHABLE, status="False", reason=CLASS_TERMINATING, message=message),
            now=self._clock.now(),
            observed_generation=node_class.metadata.generation,
        )
        status = {"conditions": [condition_body(condition) for condition in conditions]}
        if not changed(node_class.status.wire(), status):
            return
        try:
            patch_status(self._client, self._classes, node_class, status)
        except NotFound:
            return
        self._recorder.event(node_class, "Warning", CLASS_TERMINATING, message)
