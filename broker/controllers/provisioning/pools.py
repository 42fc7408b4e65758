"""NodePools of the broker's group: the form of their claims, or why the broker serves none of them.

Invariant: a pool with any fault is not served, and its conditions name the field and the remedy. The
conditions are Karpenter's (ValidationSucceeded, NodeClassReady, Ready); Karpenter itself writes them on its
own pools only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.hashes import class_hash
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import ConditionUpdate
from broker.apis.static_pools import follows, replicas_problem, static
from broker.capacity.model import NodeClass
from broker.capacity.reasons import CLASS_NOT_FOUND
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.types import WELL_KNOWN
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.controllers.provisioning.usage import unreadable
from broker.placement.reading import requirements_of

_KIND: Final = EC2NodeClass.KIND.kind
VALIDATION: Final = "ValidationSucceeded"
CLASS_READY: Final = "NodeClassReady"
RESERVED_ONLY: Final = (names.CAPACITY_TYPE, "In", ("reserved",))
_DOMAINS: Final[Mapping[str, tuple[str, ...]]] = {
    names.KARPENTER: names.KARPENTER_REQUIREMENT_KEYS,
    names.KARPENTER_AWS: names.KARPENTER_AWS_REQUIREMENT_KEYS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPool:
    """A pool that can be served. `labels`: those that every node of the pool has by the template.

    `class_hash`: of the present EC2NodeClass.
    """

    pool: NodePool
    node_class: NodeClass
    requirements: Requirements
    labels: Mapping[str, str]
    class_hash: str


def class_hashes(pools: Iterable[ServedPool]) -> Mapping[str, str]:
    """The present hash of each EC2NodeClass of these pools, by its name."""
    return {pool.node_class.name: pool.class_hash for pool in pools}


class PoolNotServed(Exception):
    """Why a pool is not served: the condition that is False, its reason, and the field with the remedy."""

    def __init__(self, condition: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition, self.reason, self.message = condition, reason, message


def served(pool: NodePool, ready: Callable[[str], LaunchClass]) -> ServedPool:
    """The pool as packing needs it. Raises PoolNotServed; Unresolved if its class is ready in a moment."""
    spec = pool.spec.template.spec
    ref = spec.node_class_ref
    if ref.kind != _KIND:
        raise PoolNotServed(
            VALIDATION,
            "NodeClassKindUnknown",
            f"spec.template.spec.nodeClassRef.kind is {ref.kind!r}: the broker serves kind {_KIND} only",
        )
    if problem := replicas_problem(pool):
        raise PoolNotServed(VALIDATION, "InvalidReplicas", problem)
    requirements = _requirements(pool)
    if problem := unreadable(pool):
        raise PoolNotServed(VALIDATION, "InvalidLimits", f"spec.limits: {problem}")
    try:
        launchable = ready(ref.name)
    except Unresolved as error:
        if error.passing:
            raise
        message = error.message
        if error.reason == CLASS_NOT_FOUND:
            message = (
                f"spec.template.spec.nodeClassRef.name {ref.name!r}: no such EC2NodeClass; create it or name "
                "another"
            )
        raise PoolNotServed(CLASS_READY, error.reason, message) from error
    return ServedPool(
        pool=pool,
        node_class=launchable.plan,
        requirements=requirements,
        labels=template_labels(pool, requirements),
        class_hash=class_hash(launchable.source),
    )


def required_by(pool: NodePool) -> Requirements:
    """The pool's requirements; a following pool is in reservations only. Raises InvalidRequirement."""
    required = requirements_of(pool.spec.template.spec)
    return required & Requirements.of((RESERVED_ONLY,)) if follows(pool) else required


def template_labels(pool: NodePool, requirements: Requirements) -> dict[str, str]:
    """The labels of the pool's nodes that do not follow from the instance."""
    labels = {**requirements.labels(), **pool.spec.template.metadata.labels, names.NODEPOOL: pool.name}
    return {key: value for key, value in labels.items() if key not in WELL_KNOWN}


def _requirements(pool: NodePool) -> Requirements:
    spec, field = pool.spec.template.spec, "spec.template.spec.requirements"
    for item in spec.requirements:
        domain = item.key.partition("/")[0]
        allowed = _DOMAINS.get(domain)
        if allowed is not None and (item.key not in allowed or item.key in names.UNLABELED_KEYS):
            raise PoolNotServed(
                VALIDATION,
                "UnknownRequirement",
                f"{field}: {item.key} is no label that a node gets; remove it, or use another of {domain}",
            )
    try:
        requirements = required_by(pool) & Requirements.of_labels(pool.spec.template.metadata.labels)
    except InvalidRequirement as error:
        raise PoolNotServed(VALIDATION, "InvalidRequirements", f"{field}: {error}") from error
    if problems := requirements.problems():
        raise PoolNotServed(
            VALIDATION, "InvalidRequirements", f"{field} can never hold: {'; '.join(problems)}"
        )
    return requirements


def updates(pool: NodePool, error: PoolNotServed | None) -> tuple[ConditionUpdate, ...]:
    """The conditions of a pool that is served, or of one that is not."""
    if error is None:
        serves = "keeps its number of nodes" if static(pool) else "makes claims for its pods"
        return (
            ConditionUpdate(type=VALIDATION, status="True", reason=VALIDATION),
            ConditionUpdate(type=CLASS_READY, status="True", reason=CLASS_READY),
            ConditionUpdate(
                type=names.READY,
                status="True",
                reason=names.READY,
                message=f"the broker {serves}",
            ),
        )
    wrong = ConditionUpdate(type=error.condition, status="False", reason=error.reason, message=error.message)
    others = (
        [ConditionUpdate(type=VALIDATION, status="True", reason=VALIDATION)]
        if error.condition == CLASS_READY
        else []
    )
    ready = ConditionUpdate(
        type=names.READY,
        status="False",
        reason=error.reason,
        message=f"no pod gets a node from this pool: {error.message}",
    )
    return (*others, wrong, ready)
