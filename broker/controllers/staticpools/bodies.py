"""The NodeClaims of static pools: made from the template, for no pods.

The name follows from the claims that the pool has: after a stop between two creations, or an answer that was
lost, the same claim is not made twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Json
from broker.apis.static_pools import follows
from broker.capacity.future_labels import future_labels
from broker.controllers.provisioning.claims import claim_name, total_requests
from broker.controllers.provisioning.from_pool import one_of, pool_claim
from broker.controllers.provisioning.pools import ServedPool
from broker.placement.daemons import DaemonOverhead
from broker.placement.model import NodeInfo
from broker.placement.reading import node_taints
from broker.reservations.claims import occupied_odcr


def static_requests(served: ServedPool, daemons: DaemonOverhead) -> dict[str, int]:
    """The requests of the DaemonSets, as far as the template decides which of them run on the node."""
    template = served.pool.spec.template.spec
    labels = future_labels(served.labels, served.node_class.name)
    node = NodeInfo(name=served.pool.name, labels=labels, taints=node_taints(template.taints))
    return total_requests((), daemons.on(node))


def new_claims(
    served: ServedPool,
    present: Sequence[NodeClaim],
    count: int,
    *,
    successors_of: Sequence[NodeClaim],
    avoided: Sequence[str],
    requests: Mapping[str, int],
) -> Iterator[Json]:
    """A claim in the slot of each of `successors_of`, and `count` others. `present`: those of the pool."""
    pool = served.pool
    requirements = _requirements(served, avoided)
    for old in successors_of:
        annotations = {names.REPLACES: f"{old.name}/{old.uid}", names.TAKES_SLOT: occupied_odcr(old)}
        name = claim_name(pool.name, (old.uid, "successor"))
        yield pool_claim(pool, name, requirements=requirements, requests=requests, annotations=annotations)
    known = sorted(claim.uid for claim in present)
    for number in range(count):
        name = claim_name(pool.name, (*known, f"#{number}"))
        yield pool_claim(pool, name, requirements=requirements, requests=requests)


def _requirements(served: ServedPool, avoided: Sequence[str]) -> list[Json]:
    """Those of the template; a following pool's node is in a reservation, and in none to be avoided."""
    required = [item.wire() for item in served.pool.spec.template.spec.requirements]
    if not follows(served.pool):
        return required
    narrowed = [item for item in required if item["key"] != names.CAPACITY_TYPE]
    narrowed.append(one_of(names.CAPACITY_TYPE, ["reserved"]))
    if avoided:
        narrowed.append({"key": names.RESERVATION_ID, "operator": "NotIn", "values": [*avoided]})
    return narrowed
