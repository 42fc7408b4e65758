"""Keeps the number of nodes of static NodePools: that of `spec.replicas`, or that of their usable slots.

Source: Karpenter, pkg/controllers/static (provisioning and deprovisioning): claims are made within
`limits.nodes`, and ended directly, without budgets. Following pools are the broker's own.

Invariant: a run compares pools, claims and EC2's counts, and a created claim is in the cache at once: a
process that starts after a kill makes no claim twice. Only claims outside their pool's slots are remembered:
one odd answer of EC2 ends none. Claims are made only beside all that wait (see
`broker.capacity.static_nodes`), and none while another loop made one that may be the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import ConditionUpdate, Json, Object
from broker.apis.static_pools import (
    ALL_RESERVED,
    REPLICAS_MET,
    follows,
    number_of_nodes,
    replicas_problem,
    static,
)
from broker.capacity.matching import expiring
from broker.capacity.shortages import BACKING_OFF
from broker.capacity.static_nodes import next_departure, staying
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.newest import unchanged
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.pool_conditions import try_conditions
from broker.controllers.provisioning.creation import LaunchProgress, made_meanwhile, may_be_alike
from broker.controllers.provisioning.observe import WAITS_FOR_SLOT, stuck_claims
from broker.controllers.provisioning.pools import PoolNotServed, ServedPool, served
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.provisioning.usage import NODES, node_room
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.staticpools.bodies import new_claims, static_requests
from broker.controllers.staticpools.census import OutsideClaims, PoolCensus, census, outside
from broker.controllers.staticpools.leaving import Candidates, first_to_end
from broker.controllers.staticpools.pool_supply import PoolSupply, PoolSupplyReader
from broker.controllers.successions import Successions
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import AlreadyExists, ApiError
from broker.kube.panics import guarded
from broker.kube.removal import remove
from broker.kube.writers import WriterPool
from broker.placement.daemons import DaemonOverhead
from broker.placement.pool_choice import of_broker
from broker.placement.pool_room import TypeRoom
from broker.reservations.claims import occupied_odcr
from broker.text import abridged, counted, format_time
from providers.errors import ProviderError
from providers.model import Odcr

MOST_NAMED: Final = 3  # reservations that have no usable slot
MOST_AT_ONCE: Final = 2_000  # claims that one pass plans for a pool
SOON: Final = 0.5  # seconds, after another loop made a claim
AGAIN: Final = 10.0  # seconds, while nodes are missing
_GROUP_UNREAD: Final = "GroupNotFound"
_log = structlog.get_logger("staticpools")
NODES_MISSING: Final = "NodesMissing"
SCALED_IN: Final = "ScaledIn"


class Overtaken(Exception):
    """Another loop made this claim since the plan was made, or this object is not as it was read."""


class StaticPoolController:
    """`run` is one pass over all static pools of the broker's group."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        nodeclasses: NodeClassController,
        reads: ProvisioningReads,
        slots: PreemptionController,
        *,
        launches: LaunchProgress,
        successions: Successions,
    ) -> None:
        self._client, self._clock = context.client, context.clock
        self._caches, self._nodeclasses, self._reads = caches, nodeclasses, reads
        self._slots, self._launches, self._successions = slots, launches, successions
        self._supplies = PoolSupplyReader(
            caches, nodeclasses, slots, launches, clock=context.clock, seconds=reads.settings.plan_seconds
        )
        self._reporter = StaticPoolReporter(context, caches.pools)
        self._writers = WriterPool("staticpools")
        self._wakes: list[float] = []
        self._outside = OutsideClaims()

    def close(self) -> None:
        self._writers.close()

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        """Makes and ends claims. A pool that fails does not stop the others, and is tried again."""
        ending = [claim for claim in self._caches.owned() if claim.deleting]
        every = self._caches.pools.list()
        for pool in every:
            if of_broker(pool) and (not static(pool) or replicas_problem(pool)):
                self._reporter.report(pool, None)
        pools = [pool for pool in every if static(pool)]
        if not pools:
            self._successions.decide("static pools", ())
            return None
        if not self._slots.known() or self._slots.snapshot().inventory.described is None:
            return Result(requeue_after=1.0)
        self._wakes = []
        failed = {pool.name for pool in sorted(pools, key=lambda pool: pool.name) if not self._kept(pool)}
        decided = {pool.name for pool in pools} - failed
        self._successions.decide("static pools", [c for c in ending if c.node_pool in decided])
        return Result(requeue_after=min(self._wakes)) if self._wakes else None

    def _kept(self, pool: NodePool) -> bool:
        """Whether the pool was compared with its claims, or needs not be."""
        if pool.deleting or not of_broker(pool) or replicas_problem(pool):
            return True
        compared = False
        with guarded("staticpools", object=pool.name):
            compared = self._compared(pool)
        if not compared:
            self._wakes.append(AGAIN)
        return compared

    def _compared(self, pool: NodePool) -> bool:
        try:
            if follows(pool):
                self._follow(pool)
            else:
                self._keep(pool, pool.spec.replicas or 0)
        except Overtaken as error:
            _log.info("planned again", nodepool=pool.name, other=str(error))
            self._wakes.append(SOON)
            return False
        except Unresolved:
            return False  # a process that has just started reports no other state
        except (ApiError, ProviderError) as error:
            _log.warning("static pool not kept", nodepool=pool.name, error=str(error))
            return False
        return True

    # ---- a fixed number

    def _keep(self, pool: NodePool, wanted: int) -> None:
        counts = self._census(pool, self._caches.claims.list())
        if excess := counts.excess(wanted):
            now = self._clock.now()
            read = Candidates(self._client, self._caches, self._reads.occupancy.read(now), now)
            leaving = first_to_end(map(read.cached, counts.active), excess, read.newest)
            why = f"NodePool {pool.name} has {len(counts.active)} nodes, and spec.replicas is {wanted}"
            self._end(leaving, lambda _: why, pool)
        served_pool = self._served(pool)
        lacks, created, refused = counts.lacks(wanted), 0, 0
        problem = f"the pool is not {names.READY}" if lacks and served_pool is None else ""
        if served_pool is not None and (lacks or (not excess and counts.waiting)):
            given = self._read(served_pool)
            counts = self._census(pool, given.claims)
            lacks = counts.lacks(wanted)
            created, refused, problem = self._make(served_pool, counts, given, lacks)
        if created < lacks or refused:
            self._wakes.append(AGAIN)
        have = len(counts.active) + created - refused - excess
        self._reporter.report(pool, Progress(have=have, wanted=wanted, problem=problem))

    def _make(
        self, served_pool: ServedPool, counts: PoolCensus, given: PoolSupply, lacks: int
    ) -> tuple[int, int, str]:
        """Makes claims that can be launched, at most so many. Returns their number, that of earlier ones that
        cannot be launched now, and why not all can be.
        """
        successors_of, beside = self._successors_of(served_pool.pool, counts, given)
        successors_of = successors_of[:lacks]
        room, problem = self._room(served_pool.pool, counts, lacks - len(successors_of), beside)
        count, refused = 0, list[str]()
        if room or counts.waiting:
            grant = self._supplies.grant(given, given.claim, min(room, MOST_AT_ONCE))
            waits = {uid for uid in counts.waiting if not self._launches.launching(uid)}
            unplaced = [item for item in grant.plan.unplaced if item.claim.uid in waits]
            refused = [item.message for item in unplaced if item.reason not in WAITS_FOR_SLOT]
            count, problem = grant.count, _both(next(iter(refused), grant.problem), problem)
        self._create(served_pool, counts, given, count, successors_of)
        return count + len(successors_of), len(refused), problem

    # ---- as many as usable slots

    def _follow(self, pool: NodePool) -> None:
        served_pool = self._served(pool)
        unread = _unread_group(served_pool) if served_pool else f"the pool is not {names.READY}"
        if served_pool is None or unread:  # which slots are usable is not known
            have = len(self._census(pool, self._caches.claims.list()).active)
            self._reporter.report(pool, Progress(have=have, wanted=have, problem=unread))
            return
        given = self._read(served_pool)
        inventory, usable = given.supply.inventory, given.usable
        counts = self._census(pool, given.claims)
        kept_in = staying(given.claim, given.supply)
        strays = outside(counts.active, kept_in, inventory.odcrs)
        leaving = self._outside.confirmed(pool.name, strays, inventory.described)
        if len(leaving) < len(strays):
            self._wakes.append(AGAIN)
        rules = (pool, self._nodeclasses.ready(served_pool.node_class.name).source)
        now = self._clock.now()
        self._end(leaving, lambda claim: _left(pool, inventory.odcrs.get(occupied_odcr(claim)), now), *rules)
        own = counts.waiting
        successors_of, beside = self._successors_of(pool, counts, given)
        room, problem = self._room(pool, counts, usable.open, beside)
        count, short = 0, usable.open
        if room or own:
            grant = self._supplies.grant(given, usable.narrowed(given.claim), min(room, MOST_AT_ONCE))
            unplaced = grant.plan.unplaced
            refused = {item.claim.uid: item.message for item in unplaced if item.reason == BACKING_OFF}
            waiting = [refused[uid] for uid in sorted(own & refused.keys())]
            count, short = grant.count, usable.open - grant.count + len(waiting)
            problem = _both(next(iter(waiting), grant.problem), problem)
            stuck = self._without_slot(counts, stuck_claims(grant.plan) - refused.keys())
            why = f"NodePool {pool.name} is {ALL_RESERVED}, and no slot is left for the node"
            self._end(stuck, lambda _: why, *rules)
            leaving += stuck
        self._create(served_pool, counts, given, count, successors_of)
        wanted = len(counts.active) + usable.open + len(successors_of) - len(leaving)
        unusable = _unusable(served_pool, now)
        progress = Progress(have=wanted - short, wanted=wanted, problem=problem, unusable=unusable)
        self._reporter.report(pool, progress)
        if count and short:
            self._wakes.append(AGAIN)
        if at := next_departure(inventory.odcrs, kept_in, self._clock.now()):
            self._wake(at)

    def _without_slot(self, counts: PoolCensus, stuck: Collection[str]) -> list[NodeClaim]:
        """The pool's waiting claims for which no slot is left, without those of a call under way."""
        return [
            newest
            for claim in counts.active
            if claim.waits and claim.uid in stuck and not self._launches.launching(claim.uid)
            if (newest := self._caches.claims.get(claim.name)) is not None and newest.waits
        ]

    # ---- both

    def _census(self, pool: NodePool, claims: Iterable[NodeClaim]) -> PoolCensus:
        return census(pool, claims, owns=self._caches.owns)

    def _served(self, pool: NodePool) -> ServedPool | None:
        """The pool as claims are made from it; None if it is not served, as its conditions report.

        Raises Unresolved if its class is ready in a moment.
        """
        with suppress(PoolNotServed):
            return served(pool, self._nodeclasses.ready)
        return None

    def _read(self, served_pool: ServedPool) -> PoolSupply:
        return self._supplies.read(served_pool, self._requests(served_pool))

    def _requests(self, served_pool: ServedPool) -> Mapping[str, int]:
        return static_requests(served_pool, DaemonOverhead(self._reads.daemons()))

    def _successors_of(
        self, pool: NodePool, counts: PoolCensus, given: PoolSupply
    ) -> tuple[list[NodeClaim], int]:
        return counts.left_by(
            given.usable.odcr_ids,
            free=given.supply.inventory.free,
            room=node_room(pool, counts.present),
        )

    def _room(self, pool: NodePool, counts: PoolCensus, missing: int, beside: int) -> tuple[int, str]:
        """How many of the missing nodes `limits.nodes` allows, and the reason if that is not all.

        A node that ends counts until it is gone. `beside`: successors that are launched before that.
        """
        room = node_room(pool, counts.present)
        if room is None or missing <= room - beside:
            return missing, ""
        room -= beside
        limit = pool.spec.limits[NODES]
        exist = counted(len(counts.present), "node exists", "nodes exist")
        return room, f"spec.limits.nodes is {limit}, and {exist}"

    def _create(
        self,
        served_pool: ServedPool,
        counts: PoolCensus,
        given: PoolSupply,
        count: int,
        successors_of: Sequence[NodeClaim],
    ) -> None:
        """Creates the claims, unless another loop made one since that may be the same machine.

        Raises Overtaken, ApiError.
        """
        bodies = [
            *new_claims(
                served_pool,
                counts.present,
                count,
                successors_of=successors_of,
                avoided=given.usable.avoided,
                requests=self._requests(served_pool),
            )
        ]
        if not bodies:
            return
        with self._launches.creating():
            others = made_meanwhile(self._caches.claims.list(), given.seen)
            room = TypeRoom(lambda: given.supply.types)
            if other := may_be_alike(bodies[0], others, room):  # all have the pool's requirements
                raise Overtaken(other)
            self._writers.each(self._create_one, bodies)

    def _create_one(self, body: Json) -> None:
        try:
            answer: Mapping[str, Any] = self._client.create(NodeClaim.KIND, body)
        except AlreadyExists:
            return  # by an earlier run, which the cache does not show yet
        self._caches.claims.observe(answer)
        _log.info("claim created", claim=body["metadata"]["name"])

    def _end(self, claims: Collection[NodeClaim], why: Callable[[NodeClaim], str], *rules: Object) -> None:
        """Ends the claims, unless an object that decided it has changed. Raises Overtaken, ApiError."""
        if claims and not unchanged(self._client, rules):
            raise Overtaken(rules[0].name)
        for claim in claims:
            # One that waits may have been launched meanwhile.
            if remove(self._client, claim, self._caches.claims, unchanged=claim.waits):
                self._reporter.ended(claim, why(claim))

    def _wake(self, at: datetime) -> None:
        self._wakes.append(max(SOON, (at - self._clock.now()).total_seconds()))


def _both(of_launches: str, of_limit: str) -> str:
    """The nodes that are missing may lack a slot, and others the limit's room."""
    return "; ".join(filter(None, (of_launches, of_limit)))


def _left(pool: NodePool, odcr: Odcr | None, now: datetime) -> str:
    """Why a following pool ends a node. `odcr`: the reservation that the node is in."""
    if odcr is not None and odcr.active and odcr.end is not None and expiring(odcr, now):
        why = f"it leaves {odcr.id}, which ends at {format_time(odcr.end)}"
        return f"NodePool {pool.name} is {ALL_RESERVED}, and {why}"
    return f"NodePool {pool.name} is {ALL_RESERVED}, and the node is in none of its usable slots"


def _unusable(served_pool: ServedPool, now: datetime) -> str:
    """Why reservations of the class have no usable slots; empty if none is out."""
    resolved = served_pool.node_class.resolved
    ending = [odcr for odcr in resolved.usable if expiring(odcr, now)]
    ends = [f"reservation {odcr.id} ends at {format_time(odcr.end)}" for odcr in ending if odcr.end]
    return abridged([*(misfit.message for misfit in resolved.misfits), *ends], MOST_NAMED)


def _unread_group(served_pool: ServedPool) -> str:
    """Why the members of the class's group are not known."""
    misfits = served_pool.node_class.resolved.misfits
    return next((misfit.message for misfit in misfits if misfit.reason == _GROUP_UNREAD), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`have` of the `wanted` nodes are made. `problem`: why no more. `unusable`: why none is wanted."""

    have: int = 0
    wanted: int = 0
    problem: str = ""
    unusable: str = ""

    def update(self, number: str) -> ConditionUpdate:
        """The condition of a pool with this number of nodes."""
        nodes = f"{number}: {self.have} of {counted(self.wanted, 'node')}"
        if self.have >= self.wanted and not self.problem:
            nodes = nodes if self.wanted or not self.unusable else f"{nodes}: {self.unusable}"
            return ConditionUpdate(type=REPLICAS_MET, status="True", reason=REPLICAS_MET, message=nodes)
        message = f"{nodes}: {self.problem or 'the others are being made'}"
        return ConditionUpdate(type=REPLICAS_MET, status="False", reason=NODES_MISSING, message=message)


class StaticPoolReporter:
    """Writes conditions and events."""

    def __init__(self, context: ControllerContext, pools: Cache[NodePool]) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._pools = pools

    def report(self, pool: NodePool, progress: Progress | None) -> None:
        """None removes the condition: the pool has no number of nodes, or one that cannot be read."""
        update = progress.update(number_of_nodes(pool)) if progress is not None else None
        now = self._clock.now()
        try_conditions(self._client, self._pools, pool, update, now=now, without=REPLICAS_MET)

    def ended(self, claim: NodeClaim, why: str) -> None:
        _log.info("claim ended", claim=claim.name, why=why)
        self._recorder.event(claim, "Normal", SCALED_IN, why)
