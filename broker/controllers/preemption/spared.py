"""Claims that are never preempted.

Invariant: preemption for slots and for dedicated clusters excludes the same claims. The rule about
do-not-disrupt is Karpenter's (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.nodeclaim.registration import nodes_of
from broker.controllers.nodeclaim.termination import BY_NODE
from broker.kube.cache import Cache
from broker.quota.usage import Reserved


def non_preemptible(
    claim: NodeClaim, *, owns: Callable[[NodeClaim], bool], nodes: Cache[Node], pods: Cache[Pod]
) -> bool:
    """Whether a claim is never a victim.

    Claims of another launcher are never victims. Neither, by Karpenter's rule, are claims with
    do-not-disrupt, unless a grace period bounds it. A Node that is left out of the cache may have
    do-not-disrupt, and cannot be drained.
    """
    if not owns(claim):
        return True
    if claim.spec.termination_grace_period:
        return False
    there, left_out = nodes_of(nodes, claim)
    if left_out is not None:
        return True
    placed = [pod for node in there for pod in pods.by(BY_NODE, node.name)]
    running = [pod for pod in placed if pod.status.phase not in ("Succeeded", "Failed")]
    return any(each.annotations.get(names.DO_NOT_DISRUPT) == "true" for each in (claim, *there, *running))


def borrows(claim: NodeClaim, reserved: Reserved, owners: Mapping[str, Reserved]) -> bool:
    """Whether a claim that draws from `reserved` runs in an EC2 reservation of another owner. `owners` is
    by the id of the EC2 reservation.
    """
    return owners.get(claim.labels.get(names.RESERVATION_ID, ""), reserved) != reserved


def unowned(claim: NodeClaim, reserved: Reserved, owners: Mapping[str, Reserved]) -> bool:
    """Whether a claim runs in an EC2 reservation without an owner, although `reserved` owns slots.

    The quota of `reserved` stands for its own slots.
    """
    id_ = claim.labels.get(names.RESERVATION_ID, "")
    return bool(id_) and id_ not in owners and reserved in owners.values()


def occupied_queues(claims: Iterable[NodeClaim], owners: Mapping[str, Reserved]) -> frozenset[str]:
    """The queues that own the slots of these claims, if known."""
    ids = {claim.labels.get(names.RESERVATION_ID, "") for claim in claims}
    return frozenset(owners[each].queue for each in ids & owners.keys())
