"""Plans purchases, changes and cancellations of ODCRs, for all managed CapacityReservations.

Invariant: nothing is bought that is owned already in any state, that an unseen purchase may have made, or
that is no longer described. Nothing is bought beyond the caps, which count those too, nor during the back-off
after a refusal of as many. Only ODCRs of this cluster's broker are changed or ended, never below their
running instances, and a replaced one only after its replacement is active. Capacity blocks are used and never
purchased.

Repeated with the result of each step, planning comes to an end: ODCRs that were obtained are kept, and
refused ones are requested elsewhere, then in halves, then later. EC2 creates an ODCR whole or not at all
(CreateCapacityReservation, InsufficientInstanceCapacity).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from broker.capacity.inventory import Inventory
from broker.capacity.shortages import Shortage
from broker.quota.usage import ReservationKey
from broker.reservations.desired import (
    LATEST_VISIBLE,
    MOST_ADDED,
    Caps,
    DesiredCapacity,
    FlavorDemand,
    FulfilmentStatus,
    GroupChange,
    OdcrChange,
    ProcurementPlan,
)
from broker.reservations.fulfilment import (
    FlavorFulfilment,
    fulfilment_of,
    given_back,
    observed,
    observed_count,
    surplus,
)
from broker.reservations.moves import MovedCapacity, RecentLoss
from broker.reservations.ownership import Ownership, ReservationProblem, made_here
from broker.reservations.purchase_obstacles import (
    RESULT_UNKNOWN,
    UNDESCRIBED,
    lent_text,
    misfit,
    not_adopted,
    retained,
    running,
    undescribed,
)
from broker.reservations.purchases import HeldRecord, Purchase, PurchaseIntent
from broker.reservations.refusals import Refusals
from broker.reservations.running import absorbed_by_purchase
from broker.reservations.sizing import size
from broker.reservations.spending import Spending, odcr_text
from broker.text import format_time
from providers.model import InstanceType, Odcr
from providers.prices import product_of


def plan(
    all_desired: Iterable[DesiredCapacity],
    inventory: Inventory,
    ownership: Ownership,
    *,
    types: Mapping[str, InstanceType],
    refusals: Refusals,
    caps: Caps,
    cluster: str,
    now: datetime,
    intents: Iterable[PurchaseIntent] = (),
    lost: Iterable[HeldRecord] = (),
    moves: Iterable[MovedCapacity | RecentLoss] = (),
) -> ProcurementPlan:
    """The next steps. If a cap is short, earlier entries of `all_desired` are served first.

    `intents`: purchases with an unknown result; `lost`: owned ODCRs that are not described. Both count
    against the caps, even if their reservation no longer wants them. `moves`: those that a person must decide
    about, and losses that may be moves; meanwhile nothing is bought in their place, and their targets are not
    made smaller.
    """
    spending = Spending(inventory.odcrs.values(), ownership.owner, cluster=cluster, types=types, caps=caps)
    planner = _Planner(
        inventory, ownership, types=types, refusals=refusals, spending=spending, cluster=cluster, now=now
    )
    planner.count_unshown(intents, lost)
    planner.moves = tuple(moves)
    statuses: dict[ReservationKey, FulfilmentStatus] = {}
    for desired in all_desired:
        statuses[desired.reserved] = (
            planner.release(desired) if desired.deleted else planner.provision(desired)
        )
    return ProcurementPlan(
        purchases=tuple(planner.purchases),
        changes=tuple(change for change in planner.changes if change.odcr_id not in planner.undecided),
        regroups=tuple(planner.regroups),
        statuses=statuses,
        retry_at=planner.retry_at,
    )


class _Planner:
    def __init__(
        self,
        inventory: Inventory,
        ownership: Ownership,
        *,
        types: Mapping[str, InstanceType],
        refusals: Refusals,
        spending: Spending,
        cluster: str,
        now: datetime,
    ) -> None:
        self._inventory = inventory
        self._ownership = ownership
        self._types = types
        self._refusals = refusals
        self._cluster = cluster
        self._now = now
        self._spending = spending
        self._intents: dict[ReservationKey, list[PurchaseIntent]] = {}
        self._lost: dict[ReservationKey, list[HeldRecord]] = {}
        self._made: dict[ReservationKey, list[Odcr]] = {}
        self._owned: dict[ReservationKey, list[str]] = {}
        for id_, reserved in ownership.owner.items():
            odcr = inventory.odcrs[id_]
            self._owned.setdefault(reserved, []).append(id_)
            if made_here(odcr, cluster):
                self._made.setdefault(reserved, []).append(odcr)
        self.purchases: list[Purchase] = []
        self.changes: list[OdcrChange] = []
        self.regroups: list[GroupChange] = []
        self.retry_at: datetime | None = None
        self.moves: tuple[MovedCapacity | RecentLoss, ...] = ()
        self.undecided: set[str] = set()  # targets of moves from flavors that lack instances

    def count_unshown(self, intents: Iterable[PurchaseIntent], lost: Iterable[HeldRecord]) -> None:
        """Counts the purchases that EC2 does not show, and the ODCRs that it no longer describes."""
        for intent in intents:
            if count := intent.unshown(self._inventory.odcrs):
                self._intents.setdefault(intent.reserved, []).append(intent)
                self._spending.add(intent.reserved, product_of(intent), count, shown=False)
        for record in lost:
            self._lost.setdefault(record.reserved, []).append(record)
            if record.bought:
                self._spending.add(record.reserved, product_of(record), record.total, shown=False)

    def provision(self, desired: DesiredCapacity) -> FulfilmentStatus:
        """Buys, trims and groups the ODCRs of a reservation that is not deleted."""
        if desired.frozen:
            return self._untouched(desired)
        counts, problems, complete = {}, [], True
        left_over = [
            odcr
            for odcr in self._made.get(desired.reserved, ())
            if odcr.id not in self._ownership.flavor
            and not any(demand.flavor.admits(odcr) for demand in desired.demands.values())
        ]
        for name, demand in desired.demands.items():
            sized = size(demand.flavor, demand.nominal, self._types, sizing=demand.sizing)
            if sized.reason:
                problems.append(ReservationProblem(reason=sized.reason, message=sized.message))
            held = self._ownership.of(desired.reserved).get(name, ())
            own = [odcr for odcr in held if made_here(odcr, self._cluster)]
            if not any(amount > 0 for amount in demand.nominal.values()):
                left_over += own
                continue
            if not sized.count:
                complete = False  # no count of instances satisfies the quota
                continue
            if demand.released >= sized.count:
                self.changes += given_back(desired, own, self._inventory, "all of it was idle")
                counts[name] = observed_count(held, 0)
                continue
            fulfilment = fulfilment_of(demand, desired.terms, held, types=self._types, cluster=self._cluster)
            complete = complete and fulfilment.complete
            before = len(self.purchases)
            refusal = self._buy(desired, demand, fulfilment, problems) if fulfilment.share < 1 else None
            if desired.terms.end is None or desired.terms.end > self._now:
                self.changes += surplus(desired, demand, fulfilment, self._inventory)
            if fulfilment.complete:
                self.changes += given_back(
                    desired,
                    fulfilment.strays,
                    self._inventory,
                    "replaced",
                    flavor=name,
                    moved_to=" and ".join(f"{odcr_text(odcr)} ({odcr.id})" for odcr in fulfilment.placed),
                )
            count = fulfilment.counted(demand, sized.count - demand.released)
            if refusal is not None:
                message = f"{refusal.message}; {refusal.class_.policy.purchase_remedy}"
                count = replace(count, code=refusal.code, message=message, retry_at=refusal.until)
            waits = not desired.on_hold and (
                not desired.ready or desired.reserved in self._intents or bool(desired.refused)
            )
            if refusal is not None or len(self.purchases) > before or (waits and fulfilment.share < 1):
                count = replace(count, buying=True)
            counts[name] = count
        if left_over and desired.cancels:
            if complete and len(desired.demands) == len(desired.flavor_names):
                self.changes += given_back(desired, left_over, self._inventory, "it is no longer wanted")
        elif left_over:
            problems.append(retained(left_over, self._types))
        self._regroup(desired)
        return FulfilmentStatus(counts=counts, problems=tuple(problems))

    def release(self, desired: DesiredCapacity) -> FulfilmentStatus:
        """Releases the ODCRs of a deleted reservation, if that is its policy."""
        if not desired.cancels:
            return FulfilmentStatus(deletable=True)
        if desired.frozen:
            return self._untouched(desired)
        odcrs = self._made.get(desired.reserved, [])
        changes = given_back(desired, odcrs, self._inventory, "its reservation is deleted")
        self.changes += changes
        if not odcrs and desired.group is not None:
            self.regroups.append(GroupChange(reserved=desired.reserved, drop=True))
        lending = [odcr for odcr in odcrs if odcr.lent]
        waiting = {odcr.id for odcr in odcrs if not odcr.lent}
        waiting -= {change.odcr_id for change in changes if not change.count}
        problems = [
            ReservationProblem(reason="CapacityLent", message=f"{lent_text(odcr)}: it is kept until then")
            for odcr in lending
        ]
        if waiting:
            problems.append(ReservationProblem(reason="InstancesRunning", message=running(waiting)))
        lost = [record.id for record in self._lost.get(desired.reserved, ()) if record.bought]
        if lost:  # once the object is gone, an ODCR that EC2 describes again would never be released
            problems.append(
                ReservationProblem(
                    reason="ReservationNotDescribed", message=f"{', '.join(lost)} {UNDESCRIBED}"
                )
            )
        unsure = bool(lost) or desired.reserved in self._intents
        deletable = not odcrs and not unsure and desired.groups and desired.group is None
        return FulfilmentStatus(problems=tuple(problems), deletable=deletable)

    def _untouched(self, desired: DesiredCapacity) -> FulfilmentStatus:
        """Status of a reservation that is frozen until its object is corrected."""
        counts = {
            name: replace(count, wanted=max(0, count.wanted - desired.demands[name].released))
            for name, count in observed(desired, self._ownership, types=self._types).items()
        }
        why = f"nothing is bought, changed or given back: {desired.frozen}"
        moved = [move.problem for move in self.moves if move.reserved == desired.reserved]
        return FulfilmentStatus(
            counts=counts, problems=(ReservationProblem(reason="PurchaseSkipped", message=why), *moved)
        )

    def _repeated(
        self, desired: DesiredCapacity, demand: FlavorDemand, fulfilment: FlavorFulfilment
    ) -> PurchaseIntent | None:
        """A purchase for the flavor with an unknown result, if it is still wanted as it was sent."""
        places, terms = set(demand.flavor.places(self._types)), desired.terms
        for intent in self._intents.get(desired.reserved, ()):
            if (
                intent.flavor != demand.flavor.name
                or (intent.instance_type, intent.zone) not in places
                or intent.unshown(self._inventory.odcrs) > fulfilment.more(intent.instance_type)
                or self._spending.room(desired.reserved, product_of(intent)) < 0
            ):
                continue
            odcr = next((odcr for odcr in fulfilment.placed if odcr.id == intent.odcr_id), None)
            grows = odcr is not None and odcr.active
            sent = (intent.platform, intent.tenancy, intent.match_criteria, intent.end, dict(intent.tags))
            wanted = (terms.platform, terms.tenancy, terms.match_criteria, terms.end, dict(terms.tags))
            if grows if intent.odcr_id else sent == wanted:
                return intent
        return None

    def _unsure(self, desired: DesiredCapacity, demand: FlavorDemand) -> bool:
        """Whether a recent purchase may serve the flavor, and is not sent again."""
        return any(
            intent.at + LATEST_VISIBLE > self._now
            and (intent.flavor == demand.flavor.name or intent.flavor not in desired.demands)
            for intent in self._intents.get(desired.reserved, ())
        )

    def _buy(
        self,
        desired: DesiredCapacity,
        demand: FlavorDemand,
        fulfilment: FlavorFulfilment,
        problems: list[ReservationProblem],
    ) -> Shortage | None:
        """Adds the next purchase for a flavor; else returns the refusal that prevents one."""
        if not desired.ready:
            return None
        if moves := [
            move
            for move in self.moves
            if (move.reserved, move.flavor) == (desired.reserved, demand.flavor.name)
        ]:
            problems += [move.problem for move in moves]
            self.undecided.update(id_ for move in moves for id_ in move.targets)
            self._try_again(*(move.until for move in moves if isinstance(move, RecentLoss)))
            return None
        why = (
            desired.on_hold
            or misfit(desired, demand, fulfilment)
            or not_adopted(desired, demand, self._ownership, self._inventory)
            or undescribed(demand, self._lost.get(desired.reserved, ()))
        )
        repeated = self._repeated(desired, demand, fulfilment)
        if not why and repeated is None and self._unsure(desired, demand):
            why = RESULT_UNKNOWN
        if desired.terms.end is not None and desired.terms.end <= self._now:
            why = f"its end, {format_time(desired.terms.end)}, has passed: set a later one, or none"
        if why or desired.refused:
            problems.append(
                ReservationProblem(
                    reason="PurchaseSkipped" if why else "PurchaseRefused",
                    message=f"flavor {demand.flavor.name}: {why or desired.refused}",
                )
            )
            return None
        if repeated is not None:
            self.purchases.append(repeated)
            return None
        places = list(demand.flavor.places(self._types))
        wanted = {place: fulfilment.more(place[0]) for place in places}
        room = {
            place: max(0, self._spending.room(desired.reserved, desired.terms.product(*place)))
            for place in places
        }
        first = max((place for place in places if place[0] == places[0][0]), key=lambda place: room[place])
        has = fulfilment.obtained + fulfilment.pending
        least = math.inf if desired.minimum is None else desired.minimum - has
        if room[first] < wanted[first]:
            below = 0 if room[first] >= least else has + room[first]
            product = desired.terms.product(*first)
            problems.append(self._spending.problem(desired.reserved, product, wanted[first], below=below))
        room = {place: count if count >= min(least, wanted[place]) else 0 for place, count in room.items()}
        most = {place: min(wanted[place], room[place], MOST_ADDED) for place in places}
        for (name, zone), absorbed in absorbed_by_purchase(desired, places, fulfilment.placed):
            count = min(absorbed, most[name, zone])
            if count and self._refusals.lasting(name, zone, count, self._now) is None:
                self._purchase(desired, demand, fulfilment, name, zone, count)
                return None
        refusal, retry_at = None, None
        for halved in range(max(most.values()).bit_length()):
            for name, zone in places:
                count = most[name, zone] >> halved
                if count < 1:
                    continue
                lasting = self._refusals.lasting(name, zone, count, self._now)
                if lasting is None:
                    self._purchase(desired, demand, fulfilment, name, zone, count)
                    return None
                refusal = refusal or lasting
                retry_at = min(retry_at or lasting.until, lasting.until)
        if refusal is None or retry_at is None:
            return None
        self._try_again(retry_at)
        return replace(refusal, until=retry_at)

    def _try_again(self, *times: datetime) -> None:
        known = [self.retry_at] if self.retry_at else []
        self.retry_at = min([*known, *times], default=None)

    def _purchase(
        self,
        desired: DesiredCapacity,
        demand: FlavorDemand,
        fulfilment: FlavorFulfilment,
        name: str,
        zone: str,
        count: int,
    ) -> None:
        grown = max(
            (
                odcr
                for odcr in fulfilment.placed
                if odcr.instance_type == name and zone in (odcr.zone, odcr.zone_id) and odcr.active
            ),
            key=lambda odcr: (odcr.reserved, odcr.id),
            default=None,
        )
        self._spending.add(desired.reserved, desired.terms.product(name, zone), count)
        self.purchases.append(
            Purchase(
                reserved=desired.reserved,
                flavor=demand.flavor.name,
                instance_type=name,
                zone=zone,
                count=count,
                odcr_id=grown.id if grown else "",
                total=grown.reserved + count if grown else count,
            )
        )

    def _regroup(self, desired: DesiredCapacity) -> None:
        if not desired.groups:
            return
        wanted = {id_ for id_ in self._owned.get(desired.reserved, ()) if id_ in self._ownership.flavor}
        if desired.group is None:
            if wanted:
                self.regroups.append(GroupChange(reserved=desired.reserved, make=True))
            return
        members = set(desired.group.member_ids)
        foreign = {
            id_
            for id_ in members - wanted
            if id_ in self._inventory.odcrs and not self._inventory.odcrs[id_].over
        }
        if wanted - members or foreign:
            self.regroups.append(
                GroupChange(
                    reserved=desired.reserved,
                    join=tuple(sorted(wanted - members)),
                    leave=tuple(sorted(foreign)),
                )
            )
