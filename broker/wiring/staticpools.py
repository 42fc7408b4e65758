"""Triggers of the loop that keeps the number of nodes of static NodePools.

As in Karpenter, a change of the number, a pool that becomes Ready and the end of a claim start a run; beside
these the slots of reservations, which following pools count.
"""

from __future__ import annotations

from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import is_true
from broker.apis.static_pools import static
from broker.controllers.launch.launcher import Launcher
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.staticpools.controller import StaticPoolController
from broker.reservations.claims import occupied_odcr
from broker.wiring.predicates import differ
from broker.wiring.slots import watch_slot_rules
from broker.wiring.term import Term

EVERY: Final = 60.0  # seconds (Karpenter: the resync of static provisioning)


def add_static_pools(
    term: Term, slots: PreemptionController, launcher: Launcher, reads: ProvisioningReads
) -> None:
    static_pools = StaticPoolController(
        term,
        term.caches,
        term.nodeclasses,
        reads,
        slots,
        launches=launcher,
        successions=term.successions,
    )
    term.manager.on_stop(static_pools.close)
    loop = (
        term.manager.singleton(
            "staticpools", static_pools.run, every=EVERY, synced=lambda: reads.synced() and term.synced()
        )
        .watches(term.read.pools, predicate=differ(_number))
        .watches(term.read.claims, predicate=differ(_place))
        .on(term.nodeclasses.on_change)
        .on(term.inventory.on_change)
    )
    watch_slot_rules(loop, term.reads)


def _number(pool: NodePool | None) -> object:
    """The parts of a static pool that decide its claims."""
    if pool is None or not static(pool):
        return None
    return pool.uid, pool.metadata.generation, pool.annotations, is_true(pool, names.READY), pool.deleting


def _place(claim: NodeClaim | None) -> object:
    """The parts of a pool's claim that decide whether it counts, and in which slot it is."""
    if claim is None or names.NODEPOOL not in claim.labels:
        return None
    labels = [claim.labels.get(key) for key in (names.NODEPOOL, names.CAPACITY_TYPE)]
    place = claim.status.provider_id, occupied_odcr(claim)
    return claim.uid, claim.deleting, place, claim.annotations.get(names.REPLACES), labels
