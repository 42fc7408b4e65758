"""Which successors of static pools wait until the node that they replace is gone: beside it, they exceed the
pool's `limits.nodes`, which counts nodes until they are gone.

Why here: a slot may become free for a successor at any time after it was created.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from broker.apis.karpenter import NodeClaim
from broker.apis.static_pools import static
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import replaces
from broker.controllers.provisioning.usage import NODES, node_excess
from broker.placement.claims import taken_over


def beyond_limits(waiting: Iterable[NodeClaim], caches: ClaimCaches) -> Mapping[str, str]:
    """Why successors among the waiting claims are not launched now, by uid."""
    successors: dict[str, list[NodeClaim]] = defaultdict(list)
    for claim in waiting:
        slot, until = taken_over(claim)
        if slot and until is None:
            successors[claim.node_pool].append(claim)
    return {
        claim.uid: message
        for name, claims in successors.items()
        for claim, message in _held_back(name, claims, caches)
    }


def _held_back(
    name: str, successors: Iterable[NodeClaim], caches: ClaimCaches
) -> Iterable[tuple[NodeClaim, str]]:
    pool = caches.pools.get(name)
    if pool is None or not static(pool):
        return
    own = [claim for claim in caches.owned() if claim.node_pool == name]
    present = {claim.uid for claim in own}
    beside = sorted((c for c in successors if replaces(c)[1] in present), key=lambda claim: claim.name)
    for claim in beside[: node_excess(pool, own)]:
        slot, old = taken_over(claim)[0], replaces(claim)[0]
        limit = f"spec.limits.nodes of NodePool {name} is {pool.spec.limits[NODES]}"
        yield claim, f"it takes over the slot of NodeClaim {old} in {slot} once that is gone: {limit}"
