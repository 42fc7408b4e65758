"""Provisions ODCRs for all managed CapacityReservations by one decision.

Invariant: every decision is made on EC2's own description. At rest that is the one that the broker reads
anyway; before a purchase, a change or a cancellation it is a new one. A process that dies in between leaves
behind only state that the next pass finds in EC2's tags, the ledger and the objects. Caps apply to all
reservations together, so one thread decides about all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from broker.capacity.model import Inventory
from broker.controllers.inventory import InventoryCache
from broker.controllers.odcr import metrics
from broker.controllers.odcr.deletion_notices import DeletionNotices
from broker.controllers.odcr.executor import ObjectChanged, OdcrExecutor
from broker.controllers.odcr.groups import Groups
from broker.controllers.odcr.ledger import PurchaseLedger
from broker.controllers.odcr.messages import group_arn_of, not_offered, shortage_detail
from broker.controllers.odcr.stops import StopEvents
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.bisection import bisected
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import ApiError, NotFound, Unavailable
from broker.option_rules import listed
from broker.quota.usage import Reserved
from broker.reservations.desired import (
    DesiredCapacity,
    GroupChange,
    OdcrChange,
    ProcurementPlan,
)
from broker.reservations.fulfilment import unused
from broker.reservations.idle_release import IdleTracker
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot, OdcrStatus
from broker.reservations.ownership import Ownership, ReservationProblem, resolve_ownership
from broker.reservations.procurement import observed, plan
from broker.reservations.purchases import held_now, missing, still_open
from broker.reservations.reading import ParsedReservation, read
from broker.reservations.spec import Reservation
from broker.settings import Settings
from broker.text import group_name
from providers.base import CapacityProvider
from providers.model import ErrorClass, InstanceType, Odcr, ProviderError, ReservationGroup

NOT_YET = 1.0
ROUNDS = 200  # plans in a pass: more than halving over every place of a flavor takes

_log = structlog.get_logger("holdings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningState:
    """Inputs and plan of one pass. `described` is EC2's description without assumed changes."""

    described: Inventory
    inventory: Inventory
    readings: Mapping[Reserved, ParsedReservation]
    types: Mapping[str, InstanceType]
    holdings: Ownership
    plan: ProcurementPlan
    groups: Mapping[str, ReservationGroup]


class OdcrProvisioner:
    """`run` is one pass over all reservations."""

    def __init__(
        self,
        context: ControllerContext,
        provider: CapacityProvider,
        reads: ReservationReads,
        inventory: InventoryCache,
        *,
        settings: Settings,
        publish: Callable[[OdcrSnapshot], None],
        describe: Callable[[], None],
    ) -> None:
        client, clock, recorder = context.client, context.clock, context.recorder
        self._provider = provider
        self._reads = reads
        self._inventory = inventory
        self._publish_odcrs = publish
        self._published = NO_ODCRS
        self._settings = settings
        self._clock = clock
        self._describe = describe
        self._zones = settings.bought_zones
        self._cost_labels = listed(settings.cost_labels)
        self._groups = Groups(provider, region=settings.region, cluster=settings.cluster_name)
        self._cluster = settings.cluster_name
        self._read_with: tuple[object, object] = (None, None)
        self._read: dict[tuple[str, str], ParsedReservation] = {}
        self._ungrouped: dict[Reserved, tuple[ReservationProblem, ...]] = {}  # problems of unread groups
        self._idle = IdleTracker(ttl=timedelta(seconds=settings.release_idle_seconds), cluster=self._cluster)
        self._offers = settings.offers
        self._looks_again = False  # whether an operator may have removed entries of the ledger
        self._parting = DeletionNotices(recorder, region=settings.region, cluster=self._cluster)
        self._stops = StopEvents(recorder)
        self._ledger = PurchaseLedger(client)
        self._actor = OdcrExecutor(
            client, provider, self._groups, self._ledger, inventory.assumed, recorder=recorder
        )

    def run(self) -> Result | None:
        """Raises ApiError and ProviderError, after everything else had its turn."""
        inventory = self._inventory.snapshot()
        self._ledger.load(again=self._looks_again)
        if not self._reads.snapshot().reservations and not self._ledger.intents and not self._ledger.held:
            self._show(OdcrSnapshot(ownership=Ownership()))
            return None
        if inventory.described is None:
            self._unseen()
            return Result(requeue_after=NOT_YET)
        types = self._provider.instance_types()
        seen = self._see(inventory, types)
        trouble: Exception | None = self._ledger.problem()
        if trouble is not None:  # ownership is known all the same
            self._publish(seen)
            raise trouble
        if self._due(seen.plan):
            began = self._clock.now()
            odcrs = {odcr.id: odcr for odcr in self._provider.reservations()}
            fresh = replace(inventory, odcrs=odcrs, described=began)
            seen, trouble = self._act(self._see(fresh, types))
            self._describe()
        self._publish(seen)
        self._release(seen)
        self._remember(seen)
        if trouble is not None:
            raise trouble
        now = self._clock.now()
        again = seen.plan.again
        return Result(requeue_after=max(1.0, (again - now).total_seconds())) if again else None

    # ---- observe

    def _readings(self, types: Mapping[str, InstanceType]) -> dict[Reserved, ParsedReservation]:
        """An object is read again when it, or any flavor, has changed."""
        snapshot = self._reads.snapshot()
        if self._read_with != (snapshot.flavors, types):
            self._read_with, self._read = (snapshot.flavors, types), {}
        look = snapshot.flavors.instances(types, self._zones)
        found = {}
        for one in snapshot.reservations.values():
            version = (one.uid, one.metadata.resource_version)
            found[version] = self._read.get(version) or read(
                one, snapshot.judged(one), look, cost_labels=self._cost_labels
            )
        self._read = found
        return {each.reserved: each for each in found.values()}

    def _see(self, inventory: Inventory, types: Mapping[str, InstanceType]) -> ProvisioningState:
        return self._decide(inventory, self._readings(types), types)

    def _decide(
        self,
        inventory: Inventory,
        readings: Mapping[Reserved, ParsedReservation],
        types: Mapping[str, InstanceType],
    ) -> ProvisioningState:
        now = self._clock.now()
        described, inventory = inventory, self._inventory.assumed.shown(inventory)
        groups, unread = self._groups.adopted(readings.values(), inventory, self._settings.adopters, now)

        def whose(some: Sequence[ParsedReservation]) -> Ownership:
            return resolve_ownership(
                inventory.odcrs.values(),
                groups,
                [each.claimant for each in some],
                cluster=self._cluster,
                unread=unread,
                adopters=self._settings.adopters,
                holders={id_: record.reserved for id_, record in self._ledger.held.items()},
            )

        holdings = bisected(whose, [*readings.values()], _object)
        no_room = self._reads.snapshot().refusals
        self._ungrouped = {}
        like = next((odcr.arn for odcr in inventory.odcrs.values() if odcr.arn), "")
        readings = {
            reserved: replace(
                each,
                wish=self._wish(each, like, now, groups=groups, no_room=no_room.get(reserved, ())),
            )
            if each.managed
            else each
            for reserved, each in readings.items()
        }
        return ProvisioningState(
            described=described,
            inventory=inventory,
            readings=readings,
            types=types,
            holdings=holdings,
            plan=self._plan(readings.values(), inventory, holdings, types, now),
            groups=groups,
        )

    def _remember(self, seen: ProvisioningState) -> None:
        """Stores the records that a successor needs. Raises ApiError."""
        now, described = self._clock.now(), seen.described
        # A cancelled ODCR is over, even while EC2 shows it. A purchase that EC2 never showed is an intent.
        odcrs = {id_: seen.inventory.odcrs[id_] for id_ in described.odcrs}
        alive = {each.one.uid: each.one.metadata.generation for each in seen.readings.values()}
        before = self._ledger.held
        held = held_now(before, odcrs, seen.holdings, cluster=self._cluster, now=now)
        intents = still_open(self._ledger.intents.values(), described.odcrs, described.described or now)
        self._ledger.keep(intents, held, alive)
        self._looks_again = bool(missing(held, odcrs))
        self._ledger.flush()

    def _again(self, seen: ProvisioningState) -> ProvisioningState:
        """Plans again for the same objects and description, with the changes made since."""
        return self._decide(seen.described, seen.readings, seen.types)

    def _plan(
        self,
        readings: Iterable[ParsedReservation],
        inventory: Inventory,
        holdings: Ownership,
        types: Mapping[str, InstanceType],
        now: datetime,
    ) -> ProcurementPlan:
        managed = sorted((each for each in readings if each.managed), key=_age)

        def planned(some: Sequence[ParsedReservation]) -> ProcurementPlan:
            return plan(
                [each.wish for each in some],
                inventory,
                holdings,
                types=types,
                refusals=self._actor.refusals,
                caps=self._settings.caps,
                cluster=self._cluster,
                now=now,
                intents=self._ledger.intents.values(),
                lost=missing(self._ledger.held, inventory.odcrs),
            )

        return bisected(planned, managed, _object)

    def _wish(
        self,
        reading: ParsedReservation,
        like: str,
        now: datetime,
        *,
        groups: Mapping[str, ReservationGroup],
        no_room: tuple[str, ...],
    ) -> DesiredCapacity:
        """Adds the state of this process, the namespace's quotas and its resource group."""
        named, frozen = reading.claimant.group_arn, reading.wish.frozen
        if named and named not in groups and not reading.one.deleting:
            why = f"it is not known what group {group_name(named)} has, which may be all that is wanted"
            frozen = frozen or why
        if unread := self._ledger.problem():  # the invalid entry may concern an ODCR to release
            frozen = frozen or unread.message
        one, terms = reading.one, reading.wish.terms
        released = self._ledger.released(one.uid, one.metadata.generation)
        wish = replace(
            reading.wish,
            asks={
                name: replace(ask, released=released.get(name, 0)) for name, ask in reading.wish.asks.items()
            },
            held="; ".join([*not_offered(terms, self._offers), *no_room]),
            frozen=frozen,
            refused=self._actor.held(reading, now),
        )
        try:
            return replace(wish, group=self._groups.look(self._groups.arn(wish.reserved, like=like), now))
        except ProviderError as error:
            _log.warning("group not read", reservation=str(wish.reserved), error=str(error))
            if error.class_ not in (ErrorClass.THROTTLING, ErrorClass.TRANSIENT):
                group = self._groups.name(wish.reserved)
                why = f"group {group}, which the broker keeps for it, could not be read: {error}"
                self._ungrouped[wish.reserved] = (ReservationProblem(reason="GroupUnreadable", message=why),)
            return replace(wish, groups=False)

    # ---- act

    def _due(self, planned: ProcurementPlan) -> bool:
        now = self._clock.now()
        steps: list[OdcrChange | GroupChange] = [*planned.changes, *planned.regroups]
        return bool(planned.purchases) or any(not self._actor.paused(step, now) for step in steps)

    def _act(self, seen: ProvisioningState) -> tuple[ProvisioningState, Exception | None]:
        """Takes every step. Returns the state afterwards, and the first error of the API server or EC2."""
        first: Exception | None = None
        skipped: set[Reserved] = set()
        try:
            for _ in range(ROUNDS):
                due = [each for each in seen.plan.purchases if each.reserved not in skipped]
                if not due:
                    break
                for purchase in due:
                    try:
                        self._actor.buy(purchase, seen.readings[purchase.reserved], seen.inventory.odcrs)
                    except (NotFound, ObjectChanged):
                        skipped.add(purchase.reserved)  # it is read again before anything is bought
                    except Unavailable:
                        raise
                    except ApiError as error:
                        skipped.add(purchase.reserved)
                        first = first or error
                seen = self._again(seen)
            now = self._clock.now()
            for change in seen.plan.changes:
                if not self._actor.paused(change, now) and change.count >= self._used(change, seen):
                    odcr = seen.inventory.odcrs[change.odcr_id]
                    self._actor.change(change, seen.readings[change.reserved], odcr)
            for _ in range(2):  # a group is made, then filled
                seen = self._again(seen)
                for step in seen.plan.regroups:
                    if not self._actor.paused(step, now):
                        self._actor.regroup(step, seen.readings[step.reserved], seen.inventory)
        except (ApiError, ProviderError) as error:
            first = first or error
        self._actor.events.end_pass(seen.readings)
        return self._again(seen), first

    def _used(self, change: OdcrChange, seen: ProvisioningState) -> int:
        """Used slots of the ODCR by now: launches did not wait for this decision."""
        latest = self._inventory.snapshot()
        views = [replace(seen.inventory, debits=latest.debits)]
        if latest.described and seen.inventory.described and latest.described > seen.inventory.described:
            views.append(latest)  # a newer description has launches that are debits no longer
        odcrs = [(view.odcrs.get(change.odcr_id), view) for view in views]
        return max((odcr.total - unused(odcr, view) for odcr, view in odcrs if odcr), default=0)

    def _release(self, seen: ProvisioningState) -> None:
        """Releases instances that were idle for too long, from the next plan on. Raises ApiError."""
        now = self._clock.now()
        self._idle.see(seen.inventory, now)
        for reserved, reading in seen.readings.items():
            if not reading.managed or reading.one.deleting or reading.wish.frozen:
                continue
            counts: dict[str, int] = {}
            held: list[Odcr] = []
            for name, ask in reading.wish.asks.items():
                first = ask.flavor.instance_types[0]
                all_ = seen.holdings.of(reserved).get(name, ())
                mine = [each for each in all_ if each.instance_type == first]
                counts[name] = self._idle.over(mine, now)
                held += mine
            if any(counts.values()):
                total = {name: ask.released + counts[name] for name, ask in reading.wish.asks.items()}
                self._actor.release(reading, total)
                self._idle.released(held)

    # ---- publish

    def _unseen(self) -> None:
        """Before EC2 was described, lets deleted reservations go that need no work in EC2."""
        free = {
            each.reserved: each.one.uid
            for each in self._readings({}).values()
            if each.one.deleting and not (each.managed and each.wish.cancels)
        }
        self._show(replace(self._published, settled=free))

    def _publish(self, seen: ProvisioningState) -> None:
        now = self._clock.now()
        states: dict[Reserved, OdcrStatus] = {}
        settled: dict[Reserved, str] = {}
        for reserved, reading in seen.readings.items():
            outlook = seen.plan.outlooks.get(reserved)
            problems = [*reading.problems, *seen.holdings.problems.get(reserved, ())]
            if outlook is None:
                counts = observed(reading.wish, seen.holdings, types=seen.types)
            else:
                counts = outlook.counts
                problems += [*outlook.problems, *self._actor.problems(reserved, now)]
                problems += self._ungrouped.get(reserved, ())
            states[reserved] = OdcrStatus(
                managed=reading.managed,
                flavors=counts,
                group_arn=group_arn_of(reading, seen.groups),
                problems=tuple(dict.fromkeys(problems)),
                detail=shortage_detail(counts),
            )
            self._stops.report(reading.one, problems)
            if reading.one.deleting and (outlook is None or outlook.settled):
                settled[reserved] = reading.one.uid
                self._parting.tell(reading, seen.inventory, seen.holdings, seen.types)
        self._stops.end_pass()
        self._parting.forget(settled.values())
        self._show(OdcrSnapshot(ownership=seen.holdings, statuses=states, settled=settled))

    def _show(self, odcrs: OdcrSnapshot) -> None:
        self._published = odcrs
        metrics.show(odcrs)
        self._publish_odcrs(odcrs)


def _object(reading: ParsedReservation) -> Reservation:
    return reading.one


def _age(reading: ParsedReservation) -> tuple[datetime, Reserved]:
    """The oldest reservation first."""
    return reading.one.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), reading.reserved
