"""One pass of disruption: expiry, conditions, moves under way, then the methods that start new ones.

Invariant: nothing is decided from memory. A pass reads the caches, takes every move one step further, and
starts no more than the budgets allow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import structlog

from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate
from broker.controllers.claim_caches import ClaimCaches, replacements
from broker.controllers.claim_status import patch, replaces, write
from broker.controllers.disruption import conditions
from broker.controllers.disruption.confirmation import Confirmation
from broker.controllers.disruption.gangs import running_gangs
from broker.controllers.disruption.methods import DisruptionMethods
from broker.controllers.disruption.moves import MoveController
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.rollouts import STOPPED_ROLLOUTS, halted, rollout_condition, stopped
from broker.controllers.disruption.snapshot import DisruptionSnapshot, DisruptionSnapshotBuilder, ManagedNode
from broker.controllers.disruption.sources import DisruptionSources, types_of
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.controllers.pool_conditions import try_conditions
from broker.controllers.successions import bind_successors
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.derived import Derived
from broker.kube.errors import ApiError, Conflict, NotFound
from broker.kube.removal import remove
from broker.placement.claims import hold_over, successor_units, taken_over
from broker.placement.disruption_cost import expires
from broker.reservations.instance_labels import instance_facts
from providers.model import Instance

# Seconds between two passes (Karpenter: pollingPeriod in pkg/controllers/disruption/controller.go).
EVERY: Final = 10.0

_log = structlog.get_logger("disruption")


class DisruptionController:
    """`run` makes one pass. Raises ApiError."""

    def __init__(self, context: ControllerContext, caches: ClaimCaches, sources: DisruptionSources) -> None:
        self._client, self._clock = context.client, context.clock
        self._caches, self._sources = caches, sources
        self._reader = DisruptionSnapshotBuilder(
            caches, sources.budgets, storage=sources.reads.storage, disrupts=sources.disrupts
        )
        self._reporter = DisruptionReporter(context.recorder)
        self._expiries = Derived(lambda: _expiries(caches.owned()), caches.claims, also=caches.taken)
        self._ending = Derived(
            lambda: [claim for claim in caches.claims.list() if claim.deleting], caches.claims
        )
        self.events = conditions.PodEvents()
        confirmation = Confirmation(context, caches, self._quiet)
        self._moves = MoveController(context, caches, self._reporter, confirmation)
        self._methods = DisruptionMethods(context, caches, sources, self._moves, self._reporter, confirmation)

    def run(self, _items: Sequence[str] = ()) -> Result:
        now = self._clock.now()
        expiry = self._expire(now)
        occupancy = self._sources.reads.occupancy.read(now)
        snapshot = self._reader.read(now, occupancy)
        self.events.keep({node.node.name for node in snapshot.nodes if node.node is not None})
        wakes = self._write_conditions(snapshot)
        snapshot = self._reader.current(snapshot)
        wakes += self._moves.advance(snapshot)
        inventory = self._sources.slots.snapshot().inventory
        settle_holds(self._client, self._caches.claims, self._reporter, now, inventory.free)
        snapshot = self._reader.current(snapshot)
        if snapshot.nodes and not self._sources.described:
            return Result(requeue_after=1.0)  # what runs outside may be counted in a slot that a node leaves
        ending = self._ending()
        self._methods.run(snapshot)
        self._report_rollouts(snapshot)
        self._sources.successions.decide(
            "pods", [c for c in ending if _looked_at(c, snapshot) and c.uid not in self._methods.unsettled]
        )
        soonest = conditions.soonest(at for at in (expiry, *wakes) if at is not None and at > now)
        wait = EVERY if soonest is None else min(EVERY, (soonest - now).total_seconds())
        return Result(requeue_after=max(0.2, wait))

    def _report_rollouts(self, snapshot: DisruptionSnapshot) -> None:
        """Shows on each NodePool whether its nodes are replaced, or a launch failed."""
        problems = stopped(filter(self._caches.owns, replacements(self._caches.claims)))
        claims = self._caches.claims.list()
        STOPPED_ROLLOUTS.show(
            {
                (pool.name,): 1.0
                for pool in snapshot.pools.values()
                if pool.name in problems or halted(pool, claims, snapshot.now)
            }
        )
        for name in snapshot.pools:
            pool = self._caches.pools.get(name)
            if pool is None:
                continue
            update = rollout_condition(pool, problems.get(name), claims, snapshot.now)
            if update is None:
                continue
            changed = try_conditions(self._client, self._caches.pools, pool, update, now=snapshot.now)
            if changed and update.status == "False":
                self._reporter.stopped(pool, update.message)

    def _quiet(self, node: ManagedNode) -> bool:
        return conditions.consolidatable(node, self.events.last(node), self._clock.now())[0]

    # ---- expiry and conditions

    def _expire(self, now: datetime) -> datetime | None:
        """Ends claims at their expireAfter. As in Karpenter, no budget holds that up. Returns when the next
        one expires.

        The other claims of a gang that expire later end with the first one: its pods cannot go on alone.
        Those made after that time are for its next pods.
        """
        expiries = self._expiries()
        past = bisect_right(expiries, now, key=lambda expiry: expiry[0])
        due, later = expiries[:past], expiries[past:]
        # Before the first one ends: its mark counts.
        claims = self._caches.owned()
        ending = {c.uid: at for at, c in due if c.deleting or self._end_expired(c)}
        dependents = self._dependents(ending, claims, now) if ending else {}
        for _, claim in later if dependents else ():
            created, ends = claim.metadata.creation_timestamp, dependents.get(claim.uid)
            if ends is not None and created is not None and created < ends and not claim.deleting:
                self._end_expired(claim)
        return next((at for at, claim in later if not claim.deleting), None)

    def _dependents(
        self, ending: Mapping[str, datetime], claims: Sequence[NodeClaim], now: datetime
    ) -> Mapping[str, datetime]:
        """The claims that cannot go on without those that end, with the last time of an expiry."""
        gangs = running_gangs(self._reader.read(now, self._sources.reads.occupancy.read(now)), claims)
        pairs = sorted((at, host) for uid, at in ending.items() for host in gangs.exclusive_hosts(uid))
        return {host: at for at, host in pairs}

    def _end_expired(self, claim: NodeClaim) -> bool:
        """Whether it ends now, or is gone."""
        try:
            if not remove(self._client, claim, self._caches.claims):
                return True
        except ApiError as error:
            _log.warning("expired claim could not be deleted", claim=claim.name, error=str(error))
            return False
        nodes = self._caches.nodes.get(claim.status.node_name) if claim.status.node_name else None
        self._reporter.terminating(claim, nodes, "Expired")
        return True

    def _write_conditions(self, snapshot: DisruptionSnapshot) -> list[datetime]:
        """Writes Drifted, Consolidatable, hashes and the last event of pods. Returns when one changes."""
        wakes: list[datetime] = []
        instances, types = self._sources.instances(), types_of(self._sources.slots.snapshot())
        for node in snapshot.nodes:
            if node.claim.deleting or node.unreadable:
                continue
            with self._caches.claims.guard(node.claim):
                instance = instances.get(node.claim.instance_id)
                facts = instance_facts(instance, types)
                if (due := self._write_node(node, instance, facts, snapshot.now)) is not None:
                    wakes.append(due)
        return wakes

    def _write_node(
        self, node: ManagedNode, instance: Instance | None, facts: Mapping[str, str] | None, now: datetime
    ) -> datetime | None:
        """Writes the conditions of one claim. Returns when it becomes consolidatable, if it will."""
        ready = self._sources.launch_class(node.claim.spec.node_class_ref.name)
        last = self.events.last(node)
        quiet, due = conditions.consolidatable(node, last, now)
        updates, clear = conditions.changes(node, ready, instance, facts, quiet=quiet, now=now)
        try:
            node = self._labelled(node, ready, facts)
            self._write(node, updates, clear, conditions.fields(node, last), now)
        except NotFound:
            pass
        except ApiError as error:
            _log.warning("claim could not be written", claim=node.claim.name, error=str(error))
        return due

    def _labelled(
        self, node: ManagedNode, ready: LaunchClass | None, facts: Mapping[str, str] | None
    ) -> ManagedNode:
        """The node, once its claim has the hashes and the labels of its instance that it lacked."""

        def lacking(claim: NodeClaim) -> Mapping[str, object]:
            hashes = conditions.stamps(replace(node, claim=claim), ready)
            labels = conditions.missing_labels(claim, facts)
            metadata = {"annotations": hashes, "labels": labels}
            return {field: values for field, values in metadata.items() if values}

        if not lacking(node.claim):
            return node
        return replace(node, claim=patch(self._client, self._caches.claims, node.claim, lacking))

    def _write(
        self,
        node: ManagedNode,
        updates: Sequence[ConditionUpdate],
        clear: Collection[str],
        fields: Mapping[str, object],
        now: datetime,
    ) -> None:
        claims, claim = self._caches.claims, node.claim
        known = {(item.type, item.status, item.reason) for item in claim.status.conditions}
        new = [item for item in updates if (item.type, item.status, item.reason) not in known]
        if new or clear or fields:
            write(self._client, claims, claim, *updates, now=now, fields=fields, clear=clear)


def _expiries(claims: Iterable[NodeClaim]) -> Sequence[tuple[datetime, NodeClaim]]:
    """The claims that expire, the first one first."""
    expiries = ((expires(claim), claim) for claim in claims)
    return sorted(((at, claim) for at, claim in expiries if at is not None), key=lambda expiry: expiry[0])


def _looked_at(claim: NodeClaim, snapshot: DisruptionSnapshot) -> bool:
    """Whether the snapshot had the claim as one that ends, or cannot have it.

    Static pools decide about their own.
    """
    node = snapshot.by_uid(claim.uid)
    return node is None or (node.claim.deleting and not node.static)


def settle_holds(
    client: Client,
    claims: Cache[NodeClaim],
    reporter: DisruptionReporter,
    now: datetime,
    free: Callable[[str], int],
) -> None:
    """Binds the successors of claims that are gone, and ends those whose slot others took, a gang whole.

    Pods do not wait for a claim without a slot: they get machines as any others do. A claim with a slot
    that EC2 refuses to launch into stays, and with it the rollout. `free`: the free slots by ODCR id.
    """
    units = successor_units(replacements(claims))
    uids = {claim.uid for claim in claims.list()} if units else set()
    for unit in units:
        try:
            for claim in unit:
                old = replaces(claim)[1]
                if old is not None and old not in uids and taken_over(claim)[1] is None:
                    bind_successors(client, claims, old, now)
            if lost := _lost(unit, now, free):
                _give_up(unit, lost, client, reporter)
        except (Conflict, NotFound):
            continue  # the next pass reads the newer object
        except ApiError as error:
            reporter.failed(unit[0], "Ended", f"the API server refused a step: {error}")


def _lost(unit: Sequence[NodeClaim], now: datetime, free: Callable[[str], int]) -> str:
    """The reservation whose slot others took, once all holds of the unit are over; empty if none was."""
    if not hold_over(unit, now):
        return ""
    return next((slot for slot, _ in map(taken_over, unit) if not free(slot)), "")


def _give_up(unit: Sequence[NodeClaim], slot: str, client: Client, reporter: DisruptionReporter) -> None:
    for claim in unit:
        if remove(client, claim, unchanged=True):
            reporter.failed(claim, "Ended", f"others took a slot of {slot}: its pods get other machines")
