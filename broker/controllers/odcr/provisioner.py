"""Provisions ODCRs for all managed CapacityReservations by one decision.

Invariant: every decision is made on EC2's own description. At rest that is the one that the broker reads
anyway; before a purchase, a change or a cancellation it is a new one. A process that dies in between leaves
behind only state that the next pass finds in EC2's tags, the ledger and the objects. Caps apply to all
reservations together, so one thread decides about all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

import structlog

from broker.capacity.inventory import Inventory
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.odcr import metrics
from broker.controllers.odcr.events import DeletionNotices, StopEvents
from broker.controllers.odcr.executor import ObjectChanged, OdcrExecutor
from broker.controllers.odcr.groups import Groups, OdcrProvider, group_arn_of
from broker.controllers.odcr.ledger import PurchaseLedger
from broker.controllers.odcr.running import LastListing, RunningInstances
from broker.controllers.snapshot import Snapshot
from broker.kube.controller import Result
from broker.kube.errors import ApiError, NotFound, Unavailable
from broker.option_rules import listed
from broker.quota.usage import ReservationKey
from broker.reservations.desired import DesiredCapacity, GroupChange, OdcrChange, ProcurementPlan
from broker.reservations.fulfilment import observed, used_by_now
from broker.reservations.idle import IdleTracker
from broker.reservations.moves import (
    MovedCapacity,
    MoveSnapshot,
    RecentLoss,
    detect_moves,
    open_moves,
    recent_losses,
    record_moves,
    watched_losses,
)
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot, OdcrStatus
from broker.reservations.ownership import Ownership, ReservationProblem, resolve_ownership
from broker.reservations.procurement import plan
from broker.reservations.purchase_obstacles import not_offered
from broker.reservations.purchases import held_now, missing, still_open
from broker.reservations.reading import ParsedReservation, read
from providers.errors import ProviderError
from providers.model import InstanceType, Odcr, ReservationGroup

NOT_YET = 1.0
ROUNDS = 200  # plans in a pass: more than halving over every place of a flavor takes

_log = structlog.get_logger("odcrs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningState:
    """Inputs and plan of one pass. `described` is EC2's description without assumed changes."""

    described: Inventory
    inventory: Inventory
    readings: Mapping[ReservationKey, ParsedReservation]
    snapshot: Snapshot
    ownership: Ownership
    plan: ProcurementPlan
    groups: Mapping[str, ReservationGroup]
    moves: MoveSnapshot
    observed: Mapping[str, Odcr]  # as EC2 described them before this pass changed any


class OdcrProvisioner:
    """`run` is one pass over all reservations."""

    def __init__(self, shared: ReservationDependencies, provider: OdcrProvider, listing: LastListing) -> None:
        recorder, settings = shared.recorder, shared.settings
        self._provider = provider
        self._reads, self._running = shared.reads, RunningInstances(shared.caches.claims, listing)
        self._inventory, self._clock, self._describe = shared.inventory, shared.clock, shared.describe
        self._published = NO_ODCRS
        self._settings = settings
        self._zones = settings.bought_zones
        self._cost_labels = listed(settings.cost_labels)
        self._groups = Groups(provider, region=settings.region, cluster=settings.cluster_name)
        self._cluster = settings.cluster_name
        self._read_with: tuple[object, object] = (None, None)
        self._read: dict[tuple[str, str], ParsedReservation] = {}
        # The problems of unread groups.
        self._ungrouped: dict[ReservationKey, tuple[ReservationProblem, ...]] = {}
        self._idle = IdleTracker(ttl=timedelta(seconds=settings.release_idle_seconds), cluster=self._cluster)
        self._offers = settings.offers
        self._refresh_ledger = False  # whether an operator may have removed entries of the ledger
        self._deletion_notices = DeletionNotices(recorder, region=settings.region, cluster=self._cluster)
        self._stops = StopEvents(recorder)
        self._ledger = PurchaseLedger(shared.client)
        self._executor = OdcrExecutor(
            shared.client, provider, self._groups, self._ledger, shared.inventory.assumed, recorder=recorder
        )

    def run(self) -> Result | None:
        """Raises ApiError and ProviderError, after everything else had its turn."""
        self._ledger.load(refresh=self._refresh_ledger)
        snapshot = self._reads.snapshot()
        if not snapshot.reservations and not self._ledger.intents and not self._ledger.held:
            self._expose(OdcrSnapshot(ownership=Ownership()))
            return None
        if snapshot.inventory.described is None:
            self._publish_undescribed(snapshot)
            return Result(requeue_after=NOT_YET)
        state = self._observe(snapshot, snapshot.inventory)
        error: Exception | None = self._ledger.problem()
        if error is not None:  # ownership is known all the same
            self._publish(state)
            raise error
        if self._due(state.plan):
            began = self._clock.now()
            odcrs = {odcr.id: odcr for odcr in self._provider.reservations()}
            fresh = replace(snapshot.inventory, odcrs=odcrs, described=began)
            state, error = self._act(self._observe(self._reads.snapshot(), fresh))
            self._describe()
        self._publish(state)
        self._release(state)
        self._store_records(state)
        if error is not None:
            raise error
        now = self._clock.now()
        retry_at = state.plan.retry_at
        return Result(requeue_after=max(1.0, (retry_at - now).total_seconds())) if retry_at else None

    # ---- observe

    def _readings(
        self, snapshot: Snapshot, types: Mapping[str, InstanceType]
    ) -> dict[ReservationKey, ParsedReservation]:
        """An object is read again when it, or any flavor, has changed."""
        if self._read_with != (snapshot.flavors, types):
            self._read_with, self._read = (snapshot.flavors, types), {}
        flavors = snapshot.flavors.instances(types, self._zones)
        judged, objects = snapshot.judged, snapshot.flavors.listed or {}
        parsed = {}
        for reservation in snapshot.reservations.values():
            version = (reservation.uid, reservation.metadata.resource_version)
            with self._reads.guard(reservation):
                parsed[version] = self._read.get(version) or read(
                    reservation, judged(reservation), flavors, cost_labels=self._cost_labels, objects=objects
                )
        self._read = parsed
        return {reading.reserved: reading for reading in parsed.values()}

    def _observe(self, snapshot: Snapshot, inventory: Inventory) -> ProvisioningState:
        """`inventory`: EC2's description, which may be newer than that of the snapshot."""
        described = self._inventory.assumed.shown(inventory).odcrs
        moves = detect_moves(
            self._ledger.moves,
            self._ledger.held,
            described,
            self._ledger.intents.values(),
            self._clock.now(),
        )
        readings = self._readings(snapshot, snapshot.types)
        return self._decide(snapshot, inventory, readings, moves, described)

    def _decide(
        self,
        snapshot: Snapshot,
        inventory: Inventory,
        readings: Mapping[ReservationKey, ParsedReservation],
        moves: MoveSnapshot,
        observed: Mapping[str, Odcr],
    ) -> ProvisioningState:
        now = self._clock.now()
        described, inventory = inventory, self._inventory.assumed.shown(inventory)
        groups, unread = self._groups.adopted(readings.values(), inventory, self._settings.adopters, now)
        ownership = resolve_ownership(
            inventory.odcrs.values(),
            groups,
            [reading.claimant for reading in readings.values()],
            cluster=self._cluster,
            unread=unread,
            adopters=self._settings.adopters,
            holders={id_: record.reserved for id_, record in self._ledger.held.items()},
        )
        self._ungrouped = {}
        sample_arn = next((odcr.arn for odcr in inventory.odcrs.values() if odcr.arn), "")
        running = self._running.outside(snapshot.rights)
        readings = {
            reserved: replace(
                reading,
                desired=self._desired(
                    replace(reading, desired=replace(reading.desired, running=running.get(reserved, ()))),
                    sample_arn,
                    now,
                    groups=groups,
                    refusals=snapshot.refusals.get(reserved, ()),
                ),
            )
            if reading.managed
            else reading
            for reserved, reading in readings.items()
        }
        restored = {reserved: reading.desired.restored for reserved, reading in readings.items()}
        moves = replace(moves, moves=open_moves(moves, inventory.odcrs, ownership, restored))
        undecided: list[MovedCapacity | RecentLoss] = [
            *moves.moves.values(),
            *recent_losses(moves, self._ledger.held, inventory.odcrs, restored),
        ]
        return ProvisioningState(
            described=described,
            inventory=inventory,
            readings=readings,
            snapshot=snapshot,
            ownership=ownership,
            plan=self._plan(readings.values(), inventory, ownership, snapshot.types, now, undecided),
            groups=groups,
            moves=moves,
            observed=observed,
        )

    def _store_records(self, state: ProvisioningState) -> None:
        """Stores the records that a successor needs. Raises ApiError."""
        now, described = self._clock.now(), state.described
        # A cancelled ODCR is over, even while EC2 shows it. A purchase that EC2 never showed is an intent.
        odcrs = {id_: state.inventory.odcrs[id_] for id_ in described.odcrs}
        alive: dict[str, int | None] = {
            reading.reservation.uid: reading.reservation.metadata.generation
            for reading in state.readings.values()
        }
        alive |= dict.fromkeys(self._reads.left_out())
        before = self._ledger.held
        watched = watched_losses(state.moves, state.observed, odcrs)
        changed = {id_: odcr for id_, odcr in odcrs.items() if id_ not in watched}
        held = held_now(before, changed, state.ownership, cluster=self._cluster, now=now)
        intents = still_open(self._ledger.intents.values(), described.odcrs, described.described or now)
        self._ledger.keep(intents, held, alive, record_moves(state.moves, state.observed, held, odcrs))
        self._refresh_ledger = bool(missing(held, odcrs))
        self._ledger.flush()

    def _replan(self, state: ProvisioningState) -> ProvisioningState:
        """Plans again for the same objects and description, with the changes made since."""
        return self._decide(state.snapshot, state.described, state.readings, state.moves, state.observed)

    def _plan(
        self,
        readings: Iterable[ParsedReservation],
        inventory: Inventory,
        ownership: Ownership,
        types: Mapping[str, InstanceType],
        now: datetime,
        moves: Sequence[MovedCapacity | RecentLoss],
    ) -> ProcurementPlan:
        managed = [reading for reading in readings if reading.managed]
        managed.sort(key=lambda reading: reading.claimant.age)  # the oldest are served first
        return plan(
            [reading.desired for reading in managed],
            inventory,
            ownership,
            types=types,
            refusals=self._executor.refusals,
            caps=self._settings.caps,
            cluster=self._cluster,
            now=now,
            intents=self._ledger.intents.values(),
            lost=missing(self._ledger.held, inventory.odcrs),
            moves=moves,
        )

    def _desired(
        self,
        reading: ParsedReservation,
        sample_arn: str,
        now: datetime,
        *,
        groups: Mapping[str, ReservationGroup],
        refusals: tuple[str, ...],
    ) -> DesiredCapacity:
        """Adds the state of this process, the namespace's quotas and its resource group."""
        group_arn, frozen = reading.claimant.group_arn, reading.desired.frozen
        if group_arn and group_arn not in groups and not reading.reservation.deleting:
            frozen = frozen or f"the members of group {group_arn} are unknown, and they may be enough"
        if unread := self._ledger.problem():  # the invalid entry may concern an ODCR to release
            frozen = frozen or unread.message
        reservation, terms = reading.reservation, reading.desired.terms
        released = self._ledger.released(reservation.uid, reservation.metadata.generation)
        desired = replace(
            reading.desired,
            demands={
                name: replace(demand, released=released.get(name, 0))
                for name, demand in reading.desired.demands.items()
            },
            on_hold="; ".join([*not_offered(terms, self._offers), *refusals]),
            frozen=frozen,
            refused=self._executor.backoff_reason(reading, now),
        )
        try:
            return replace(
                desired,
                group=self._groups.read(self._groups.arn(desired.reserved, sample_arn=sample_arn), now),
            )
        except ProviderError as error:
            _log.warning("group not read", reservation=str(desired.reserved), error=str(error))
            if not error.class_.passes:
                group = self._groups.name(desired.reserved)
                why = f"group {group}, which the broker keeps for it, could not be read: {error}"
                self._ungrouped[desired.reserved] = (
                    ReservationProblem(reason="GroupUnreadable", message=why),
                )
            return replace(desired, groups=False)

    # ---- act

    def _due(self, plan: ProcurementPlan) -> bool:
        now = self._clock.now()
        steps: list[OdcrChange | GroupChange] = [*plan.changes, *plan.regroups]
        return bool(plan.purchases) or any(not self._executor.paused(step, now) for step in steps)

    def _act(self, state: ProvisioningState) -> tuple[ProvisioningState, Exception | None]:
        """Takes every step. Returns the state afterwards, and the first error of the API server or EC2."""
        first_error: Exception | None = None
        skipped: set[ReservationKey] = set()
        try:
            for _ in range(ROUNDS):
                due = [purchase for purchase in state.plan.purchases if purchase.reserved not in skipped]
                if not due:
                    break
                for purchase in due:
                    try:
                        self._executor.buy(purchase, state.readings[purchase.reserved], state.inventory.odcrs)
                        self._running.add(purchase, self._clock.now())
                    except (NotFound, ObjectChanged):
                        skipped.add(purchase.reserved)  # it is read again before anything is bought
                    except Unavailable:
                        raise
                    except ApiError as error:
                        skipped.add(purchase.reserved)
                        first_error = first_error or error
                state = self._replan(state)
            now = self._clock.now()
            for change in state.plan.changes:
                used = used_by_now(change.odcr_id, state.inventory, self._inventory.snapshot())
                if not self._executor.paused(change, now) and change.count >= used:
                    odcr = state.inventory.odcrs[change.odcr_id]
                    self._executor.change(change, state.readings[change.reserved], odcr)
            for _ in range(2):  # a group is made, then filled
                state = self._replan(state)
                for step in state.plan.regroups:
                    if not self._executor.paused(step, now):
                        self._executor.regroup(step, state.readings[step.reserved], state.inventory)
        except (ApiError, ProviderError) as error:
            first_error = first_error or error
        self._executor.events.end_pass(state.readings)
        return self._replan(state), first_error

    def _release(self, state: ProvisioningState) -> None:
        """Releases instances that were idle for too long, from the next plan on. Raises ApiError."""
        now = self._clock.now()
        self._idle.observe(state.inventory, now)
        for reserved, reading in state.readings.items():
            if not reading.managed or reading.reservation.deleting or reading.desired.frozen:
                continue
            demands, owned = reading.desired.demands, state.ownership.of(reserved)
            held = {
                name: [
                    odcr
                    for odcr in owned.get(name, ())
                    if odcr.instance_type == demand.flavor.instance_types[0]
                ]
                for name, demand in demands.items()
            }
            counts = {name: self._idle.expired(odcrs, now) for name, odcrs in held.items()}
            if any(counts.values()):
                total = {name: demand.released + counts[name] for name, demand in demands.items()}
                self._executor.release(reading, total)
                self._idle.released(chain.from_iterable(held.values()))

    # ---- publish

    def _publish_undescribed(self, snapshot: Snapshot) -> None:
        """Before EC2 was described, lets deleted reservations go that need no work in EC2."""
        free = {
            reading.reserved: reading.reservation.uid
            for reading in self._readings(snapshot, {}).values()
            if reading.reservation.deleting and not (reading.managed and reading.desired.cancels)
        }
        self._expose(replace(self._published, deletable=free))

    def _publish(self, state: ProvisioningState) -> None:
        now = self._clock.now()
        states: dict[ReservationKey, OdcrStatus] = {}
        deletable: dict[ReservationKey, str] = {}
        for reserved, reading in state.readings.items():
            fulfilment = state.plan.statuses.get(reserved)
            problems = [*reading.problems, *state.ownership.problems.get(reserved, ())]
            if fulfilment is None:
                counts = observed(reading.desired, state.ownership, types=state.snapshot.types)
            else:
                counts = fulfilment.counts
                problems += [*fulfilment.problems, *self._executor.problems(reserved, now)]
                problems += self._ungrouped.get(reserved, ())
            states[reserved] = OdcrStatus(
                managed=reading.managed,
                flavors=counts,
                group_arn=group_arn_of(reading, state.groups),
                problems=tuple(dict.fromkeys(problems)),
            )
            self._stops.report(reading.reservation, problems)
            if reading.reservation.deleting and (fulfilment is None or fulfilment.deletable):
                deletable[reserved] = reading.reservation.uid
                self._deletion_notices.publish(
                    reading, state.inventory, state.ownership, state.snapshot.types
                )
        self._stops.end_pass()
        self._deletion_notices.forget(deletable.values())
        self._expose(OdcrSnapshot(ownership=state.ownership, statuses=states, deletable=deletable))

    def _expose(self, odcrs: OdcrSnapshot) -> None:
        self._published = odcrs
        metrics.show(odcrs)
        self._reads.snapshots.publish(odcrs)
