"""What one static pool may launch from, beside all claims that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.apis.karpenter import NodeClaim
from broker.apis.units import base
from broker.capacity.model import Claim
from broker.capacity.static_nodes import StaticGrant, UsableSlots, granted, usable_slots
from broker.capacity.supply import LaunchSupply
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.provisioning.creation import LaunchProgress
from broker.controllers.provisioning.observe import launchable
from broker.controllers.provisioning.pools import ServedPool
from broker.controllers.slots.controller import PreemptionController
from broker.kube.clock import Clock
from broker.placement.claims import in_gangs, minimums
from broker.reservations.drawing import DrawRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSupply:
    """`claim`: a node of the pool as a plan reads it. `waiting`: the claims that the launch loop plans.

    `claims`: all that exist. `usable`: the slots that the pool's nodes may have.
    """

    claim: Claim
    claims: Sequence[NodeClaim]
    waiting: Mapping[str, Claim]
    supply: LaunchSupply
    usable: UsableSlots

    @property
    def seen(self) -> frozenset[str]:
        return frozenset(claim.uid for claim in self.claims)


class PoolSupplyReader:
    """Reads the supply of a pool anew each time. `seconds` bound a plan."""

    def __init__(
        self,
        caches: ClaimCaches,
        nodeclasses: NodeClassController,
        slots: PreemptionController,
        launches: LaunchProgress,
        *,
        clock: Clock,
        seconds: float,
    ) -> None:
        self._caches, self._nodeclasses, self._slots = caches, nodeclasses, slots
        self._launches, self._clock, self._seconds = launches, clock, seconds

    def read(self, served: ServedPool, requests: Mapping[str, int]) -> PoolSupply:
        """Raises ProviderError."""
        claims = self._caches.claims.list()
        owned = self._caches.waiting()
        classes = self._nodeclasses.plans({claim.spec.node_class_ref.name for claim in owned.values()})
        classes[served.node_class.name] = served.node_class
        waiting = launchable(owned.values(), self._caches.pods.find)
        waiting = {uid: claim for uid, claim in waiting.items() if claim.node_class in classes}
        snapshot, own = self._slots.snapshot(), f"static/{served.pool.name}"
        objects = {uid: claim for uid, claim in owned.items() if uid in waiting}
        supply = LaunchSupply(
            classes=classes,
            types=snapshot.types,
            inventory=snapshot.inventory,
            shortages=self._launches.shortages,
            now=self._clock.now(),
            entitlements=self._slots.entitlements(
                objects, snapshot, {own: DrawRequest(served.pool.draws_from, ())}
            ),
        )
        claim = Claim(
            name=served.pool.name,
            uid=own,
            node_class=served.node_class.name,
            requirements=served.requirements,
            requests=base(requests),
            min_values=minimums(served.pool.spec.template.spec.requirements),
        )
        return PoolSupply(
            claim=claim,
            claims=claims,
            waiting=waiting,
            supply=supply,
            usable=usable_slots(claim, supply),
        )

    def grant(self, given: PoolSupply, claim: Claim, count: int) -> StaticGrant:
        """How many of `count` claims like this one can be made now."""
        return granted(
            claim,
            count,
            [*given.waiting.values()],
            given.supply,
            launched=in_gangs(given.claims),
            seconds=self._seconds,
            timer=self._clock.monotonic,
        )
