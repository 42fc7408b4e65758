"""Creates the claims of a decision, within the limits of their pools as they are now.

Why: static pools and replacements make claims in their own loops. One that was made since this decision read
the claims may need the slots that it counts on.

Invariant: each loop creates claims while it holds `creating`, and only beside claims that it has read or that
cannot be the same machine. So no two claims are made for one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import structlog
from prometheus_client import Counter as Counted

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Json
from broker.capacity.demand import units
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortages
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.provisioning.decide import NewClaim
from broker.controllers.provisioning.refused import from_pool
from broker.controllers.provisioning.usage import LargestMachines, pool_limits, unreadable
from broker.controllers.slots.controller import PreemptionController
from broker.kube.client import Client
from broker.kube.errors import AlreadyExists, ApiError, Unavailable
from broker.kube.writers import WriterPool
from broker.oncall.metrics import REGISTRY
from broker.placement.packing_state import Supply
from broker.placement.pool_choice import of_broker
from broker.placement.pool_room import TypeRoom
from broker.placement.reading import claim_requirements

OVERTAKEN: Final = "NodeClaim {} was made meanwhile, and may be such a machine: it is planned again"
_CREATED: Final = Counted(
    "capacity_broker_provisioning_claims",
    "NodeClaims created for pods, by NodePool.",
    ["nodepool"],
    registry=REGISTRY,
)
_log = structlog.get_logger("provisioning")


class LaunchProgress(Protocol):
    """The launch loop, as provisioning reads it."""

    @property
    def shortages(self) -> Shortages: ...

    def launching(self, uid: str) -> bool:
        """Whether a call for this claim is under way, or its answer is not known."""

    def creating(self) -> AbstractContextManager[object]:
        """Held while claims that are planned together are created."""


def made_meanwhile(claims: Iterable[NodeClaim], seen: Collection[str]) -> list[NodeClaim]:
    """The claims that a loop made from a NodePool and that a decision had not `seen` (by uid)."""
    return [claim for claim in claims if claim.uid not in seen and not claim.deleting and from_pool(claim)]


def may_be_alike(new: Json, claims: Iterable[NodeClaim], room: TypeRoom) -> str:
    """The name of a claim that may become the same machine as a new claim, by its body.

    It may need the same slot, have room for the same pods, and count in the same limits.
    """
    own = claim_requirements(NodeClaim.decode(new))
    return next((claim.name for claim in claims if _meet(own & claim_requirements(claim), room)), "")


def _meet(both: Requirements, room: TypeRoom) -> bool:
    """Whether these requirements allow any machine."""
    places = (both.values(key) for key in (names.ZONE, names.RESERVATION_ID, names.CAPACITY_TYPE))
    return frozenset() not in places and room.allows_any(both)


def overtaken(claims: Sequence[NewClaim], others: Sequence[NodeClaim], room: TypeRoom) -> dict[str, str]:
    """The others that may become the machines of new claims, by the unit that is created together."""
    met: dict[str, str] = {}
    for item in claims if others else ():
        if other := may_be_alike(item.body, others, room):
            met.setdefault(_unit(item), other)
    return met


def _unit(item: NewClaim) -> str:
    """The claims of a gang are created together."""
    return item.packed.pods[0].gang or f"\0{item.name}"


class ClaimCreator:
    """`created` is called for each claim that exists now. `overtaken`: some were not created."""

    def __init__(
        self,
        client: Client,
        caches: ClaimCaches,
        nodeclasses: NodeClassController,
        slots: PreemptionController,
        *,
        launches: LaunchProgress,
        writers: WriterPool,
        created: Callable[[NewClaim], None],
    ) -> None:
        self._client, self._caches = client, caches
        self._nodeclasses, self._slots = nodeclasses, slots
        self._launches, self._writers, self._reported = launches, writers, created
        self.overtaken = False

    def create(self, claims: Sequence[NewClaim], seen: Collection[str]) -> dict[str, str]:
        """Creates the claims. Raises Unavailable; the next run creates the others.

        A claim that is refused does not stop the others, and is tried again. Returns the reason by pod.
        `seen`: the claims (by uid) that the decision read.
        """
        refused: dict[str, str] = {}

        def create(item: NewClaim) -> None:
            if problem := self._created(item):
                refused.update({pod.key: problem for pod in item.packed.pods})

        if not claims:
            return refused
        with self._launches.creating():  # so do other loops: none creates claims meanwhile
            others = made_meanwhile(self._caches.claims.list(), seen)
            held = overtaken(claims, others, TypeRoom(lambda: self._slots.snapshot().types))
            self.overtaken = bool(held)
            refused |= {
                pod.key: OVERTAKEN.format(held[unit])
                for item in claims
                if (unit := _unit(item)) in held
                for pod in item.packed.pods
            }
            claims = [item for item in claims if _unit(item) not in held]
            allowed = within_limits(claims, self._limits())
            self._writers.each(create, allowed)
        limited = "another claim took the rest of the limits of NodePool"
        created = {item.name for item in allowed}
        left = [(item.packed.option.pool, item.packed.pods) for item in claims if item.name not in created]
        return refused | {pod.key: f"{limited} {pool}" for pool, pods in left for pod in pods}

    def _created(self, item: NewClaim) -> str:
        """Why the claim could not be created; empty if it exists. Raises Unavailable."""
        try:
            self._create_one(item)
        except Unavailable:
            raise
        except ApiError as error:
            _log.warning("claim not created", claim=item.name, error=str(error))
            return f"NodeClaim {item.name} was refused: {error}"
        self._reported(item)
        return ""

    def _limits(self) -> Mapping[str, Mapping[str, int]]:
        """The remaining amounts of all pools as the caches are now, and not as the run began."""
        pools = [pool for pool in self._caches.pools.list() if of_broker(pool) and not unreadable(pool)]
        largest = LargestMachines(self._slots.snapshot().types, self._nodeclasses.plan)
        return pool_limits(pools, self._caches.claims.list(), self._caches.nodes.list(), largest)

    def _create_one(self, item: NewClaim) -> None:
        option = item.packed.option
        try:
            answer = self._client.create(NodeClaim.KIND, item.body)
        except AlreadyExists:
            return  # by an earlier run, which the cache does not show yet
        self._caches.claims.observe(answer)
        _CREATED.labels(option.pool).inc()
        _log.info(
            "claim created",
            claim=item.name,
            nodepool=option.pool,
            pods=len(item.packed.pods),
            instance_type=option.instance_type,
            zone=option.zone,
            source=option.source or option.capacity_type,
        )


def within_limits(claims: Sequence[NewClaim], limits: Mapping[str, Mapping[str, int]]) -> list[NewClaim]:
    """The claims to create that the remaining amounts of their pools allow, those of a gang together."""
    supply = Supply(room={}, limits={pool: dict(amounts) for pool, amounts in limits.items()})
    allowed: list[NewClaim] = []
    for unit in units(claims, lambda item: item.packed.pods[0].gang):
        options = [item.packed.option for item in unit]
        for place, option in enumerate(options):
            if not supply.within_limits(option):
                for taken in options[:place]:
                    supply.take(taken, -1)
                break
            supply.take(option)
        else:
            allowed += unit
    return allowed
