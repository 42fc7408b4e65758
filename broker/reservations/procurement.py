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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from broker.capacity.model import Inventory
from broker.capacity.shortages import Shortage
from broker.quota.usage import Reserved
from broker.reservations.desired import (
    LATEST_VISIBLE,
    MOST,
    Caps,
    DesiredCapacity,
    FlavorCount,
    FlavorDemand,
    FulfilmentStatus,
    GroupChange,
    OdcrChange,
    ProcurementPlan,
)
from broker.reservations.fulfilment import (
    ACTIVE,
    UNAVAILABLE,
    FlavorFulfilment,
    fulfilment_of,
    given_back,
    surplus,
)
from broker.reservations.ownership import Ownership, ReservationProblem, made_here
from broker.reservations.purchase_obstacles import (
    ADVICE,
    GONE,
    UNSURE,
    misfit,
    not_adopted,
    retained,
    running,
    undescribed,
)
from broker.reservations.purchases import HeldRecord, Purchase, PurchaseIntent
from broker.reservations.refusals import Refusals
from broker.reservations.sizing import size
from broker.reservations.spending import Spending, odcr_text
from broker.text import moment
from providers.model import ENDED_STATES, InstanceType, Odcr


def plan(
    wishes: Iterable[DesiredCapacity],
    inventory: Inventory,
    holdings: Ownership,
    *,
    types: Mapping[str, InstanceType],
    refusals: Refusals,
    caps: Caps,
    cluster: str,
    now: datetime,
    intents: Iterable[PurchaseIntent] = (),
    lost: Iterable[HeldRecord] = (),
) -> ProcurementPlan:
    """The next steps. If a cap is short, earlier `wishes` are served first.

    `intents`: purchases with an unknown result; `lost`: owned ODCRs that are not described. Both count
    against the caps, even if their reservation no longer wants them.
    """
    spending = Spending(inventory.odcrs.values(), holdings.owner, cluster=cluster, types=types, caps=caps)
    planner = _Planner(
        inventory, holdings, types=types, refusals=refusals, spending=spending, cluster=cluster, now=now
    )
    planner.count_unshown(intents, lost)
    outlooks: dict[Reserved, FulfilmentStatus] = {}
    for wish in wishes:
        outlooks[wish.reserved] = planner.deleted(wish) if wish.deleted else planner.wanted(wish)
    return ProcurementPlan(
        purchases=tuple(planner.purchases),
        changes=tuple(planner.changes),
        regroups=tuple(planner.regroups),
        outlooks=outlooks,
        again=planner.again,
    )


def observed(
    wish: DesiredCapacity, holdings: Ownership, *, types: Mapping[str, InstanceType]
) -> Mapping[str, FlavorCount]:
    """The number of existing instances of each flavor, for a reservation without purchases."""
    counts = {}
    for name, ask in wish.asks.items():
        sized = size(ask.flavor, ask.nominal, types, sizing=ask.sizing)
        held = holdings.of(wish.reserved).get(name, ())
        counts[name] = observed_count(held, sized.count)
    return counts


def observed_count(held: Sequence[Odcr], wanted: int) -> FlavorCount:
    """Counts all ODCRs of the flavor, including those that others made."""
    active = sum(odcr.total for odcr in held if odcr.state == ACTIVE)
    begins = sum(odcr.total for odcr in held if odcr.state not in (ACTIVE, UNAVAILABLE))
    return FlavorCount(wanted=wanted, obtained=active, pending=begins, buying=begins > 0)


class _Planner:
    def __init__(
        self,
        inventory: Inventory,
        holdings: Ownership,
        *,
        types: Mapping[str, InstanceType],
        refusals: Refusals,
        spending: Spending,
        cluster: str,
        now: datetime,
    ) -> None:
        self._inventory = inventory
        self._holdings = holdings
        self._types = types
        self._refusals = refusals
        self._cluster = cluster
        self._now = now
        self._spending = spending
        self._intents: dict[Reserved, list[PurchaseIntent]] = {}
        self._lost: dict[Reserved, list[HeldRecord]] = {}
        self._made: dict[Reserved, list[Odcr]] = {}
        self._owned: dict[Reserved, list[str]] = {}
        for id_, reserved in holdings.owner.items():
            odcr = inventory.odcrs[id_]
            self._owned.setdefault(reserved, []).append(id_)
            if made_here(odcr, cluster):
                self._made.setdefault(reserved, []).append(odcr)
        self.purchases: list[Purchase] = []
        self.changes: list[OdcrChange] = []
        self.regroups: list[GroupChange] = []
        self.again: datetime | None = None

    def count_unshown(self, intents: Iterable[PurchaseIntent], lost: Iterable[HeldRecord]) -> None:
        """Counts the purchases that EC2 does not show, and the ODCRs that it no longer describes."""
        for intent in intents:
            if count := intent.unshown(self._inventory.odcrs):
                self._intents.setdefault(intent.reserved, []).append(intent)
                self._spending.add(intent.reserved, intent.instance_type, intent, count, shown=False)
        for record in lost:
            self._lost.setdefault(record.reserved, []).append(record)
            if record.bought:
                self._spending.add(record.reserved, record.instance_type, record, record.total, shown=False)

    def wanted(self, wish: DesiredCapacity) -> FulfilmentStatus:
        """Buys, trims and groups the ODCRs of a reservation that is not deleted."""
        if wish.frozen:
            return self._untouched(wish)
        counts, problems, complete = {}, [], True
        left_over = [
            odcr
            for odcr in self._made.get(wish.reserved, ())
            if odcr.id not in self._holdings.flavor
            and not any(ask.flavor.admits(odcr) for ask in wish.asks.values())
        ]
        for name, ask in wish.asks.items():
            sized = size(ask.flavor, ask.nominal, self._types, sizing=ask.sizing)
            if sized.reason:
                problems.append(ReservationProblem(reason=sized.reason, message=sized.message))
            held = self._holdings.of(wish.reserved).get(name, ())
            if not any(amount > 0 for amount in ask.nominal.values()):
                left_over += [odcr for odcr in held if made_here(odcr, self._cluster)]
                continue
            if not sized.count:
                complete = False  # no count of instances satisfies the quota
                continue
            if ask.released >= sized.count:
                made = [odcr for odcr in held if made_here(odcr, self._cluster)]
                self.changes += given_back(wish, made, self._inventory, "all of it was idle")
                counts[name] = observed_count(held, 0)
                continue
            at = fulfilment_of(ask, wish.terms, held, types=self._types, cluster=self._cluster)
            complete = complete and at.complete
            before = len(self.purchases)
            refusal = self._buy(wish, ask, at, problems) if at.share < 1 else None
            if wish.terms.end is None or wish.terms.end > self._now:
                self.changes += surplus(wish, ask, at, self._inventory)
            if at.complete:
                self.changes += given_back(
                    wish,
                    at.strays,
                    self._inventory,
                    "replaced",
                    flavor=name,
                    moved_to=" and ".join(f"{odcr_text(each)} ({each.id})" for each in at.placed),
                )
            count = at.counted(ask, sized.count - ask.released)
            if refusal is not None:
                told = f"{refusal.message}; {ADVICE[refusal.class_]}"
                count = replace(count, code=refusal.code, message=told, retry_at=refusal.until)
            waits = not wish.held and (not wish.ready or wish.reserved in self._intents or bool(wish.refused))
            if refusal is not None or len(self.purchases) > before or (waits and at.share < 1):
                count = replace(count, buying=True)
            counts[name] = count
        if left_over and wish.cancels:
            if complete and len(wish.asks) == len(wish.flavor_names):
                self.changes += given_back(
                    wish, left_over, self._inventory, "nothing of it is wanted any more"
                )
        elif left_over:
            problems.append(retained(left_over, self._types))
        self._regroup(wish)
        return FulfilmentStatus(counts=counts, problems=tuple(problems))

    def deleted(self, wish: DesiredCapacity) -> FulfilmentStatus:
        """Releases the ODCRs of a deleted reservation, if that is its policy."""
        if not wish.cancels:
            return FulfilmentStatus(settled=True)
        if wish.frozen:
            return self._untouched(wish)
        left = self._made.get(wish.reserved, [])
        changes = given_back(wish, left, self._inventory, "its reservation is deleted")
        self.changes += changes
        if not left and wish.group is not None:
            self.regroups.append(GroupChange(reserved=wish.reserved, drop=True))
        waiting = {odcr.id for odcr in left} - {each.odcr_id for each in changes if not each.count}
        problems = (
            [ReservationProblem(reason="InstancesRunning", message=running(waiting))] if waiting else []
        )
        lost = [record.id for record in self._lost.get(wish.reserved, ()) if record.bought]
        if lost:  # once the object is gone, an ODCR that EC2 describes again would never be released
            problems.append(
                ReservationProblem(reason="ReservationNotDescribed", message=f"{', '.join(lost)} {GONE}")
            )
        unsure = bool(lost) or wish.reserved in self._intents
        settled = not left and not unsure and wish.groups and wish.group is None
        return FulfilmentStatus(problems=tuple(problems), settled=settled)

    def _untouched(self, wish: DesiredCapacity) -> FulfilmentStatus:
        """Status of a reservation that is frozen until its object is corrected."""
        counts = {
            name: replace(count, wanted=max(0, count.wanted - wish.asks[name].released))
            for name, count in observed(wish, self._holdings, types=self._types).items()
        }
        why = f"nothing is bought, changed or given back: {wish.frozen}"
        return FulfilmentStatus(
            counts=counts, problems=(ReservationProblem(reason="PurchaseSkipped", message=why),)
        )

    def _repeated(
        self, wish: DesiredCapacity, ask: FlavorDemand, at: FlavorFulfilment
    ) -> PurchaseIntent | None:
        """A purchase for the flavor with an unknown result, if it is still wanted as it was sent."""
        places, terms = set(ask.flavor.places(self._types)), wish.terms
        for intent in self._intents.get(wish.reserved, ()):
            if (
                intent.flavor != ask.flavor.name
                or (intent.instance_type, intent.zone) not in places
                or intent.unshown(self._inventory.odcrs) > at.more(intent.instance_type)
                or self._spending.room(wish.reserved, intent.instance_type, intent) < 0
            ):
                continue
            odcr = next((each for each in at.placed if each.id == intent.odcr_id), None)
            grows = odcr is not None and odcr.state == ACTIVE
            sent = (intent.platform, intent.tenancy, intent.match_criteria, intent.end, dict(intent.tags))
            asked = (terms.platform, terms.tenancy, terms.match_criteria, terms.end, dict(terms.tags))
            if grows if intent.odcr_id else sent == asked:
                return intent
        return None

    def _unsure(self, wish: DesiredCapacity, ask: FlavorDemand) -> bool:
        """Whether a recent purchase may serve the flavor, and is not sent again."""
        return any(
            intent.at + LATEST_VISIBLE > self._now
            and (intent.flavor == ask.flavor.name or intent.flavor not in wish.asks)
            for intent in self._intents.get(wish.reserved, ())
        )

    def _buy(
        self,
        wish: DesiredCapacity,
        ask: FlavorDemand,
        at: FlavorFulfilment,
        problems: list[ReservationProblem],
    ) -> Shortage | None:
        """Adds the next purchase for a flavor; else returns the refusal that prevents one."""
        if not wish.ready:
            return None
        why = (
            wish.held
            or misfit(wish, ask, at)
            or not_adopted(wish, ask, self._holdings, self._inventory)
            or undescribed(ask, self._lost.get(wish.reserved, ()))
        )
        repeated = self._repeated(wish, ask, at)
        if not why and repeated is None and self._unsure(wish, ask):
            why = UNSURE
        if wish.terms.end is not None and wish.terms.end <= self._now:
            why = f"its end, {moment(wish.terms.end)}, has passed: set a later one, or none"
        if why or wish.refused:
            problems.append(
                ReservationProblem(
                    reason="PurchaseSkipped" if why else "PurchaseRefused",
                    message=f"flavor {ask.flavor.name}: {why or wish.refused}",
                )
            )
            return None
        if repeated is not None:
            self.purchases.append(repeated)
            return None
        places = list(ask.flavor.places(self._types))
        wanted = {name: at.more(name) for name, _ in places}
        room = {name: max(0, self._spending.room(wish.reserved, name, wish.terms)) for name in wanted}
        first = places[0][0]
        has = at.obtained + at.pending
        part = {
            name: wish.minimum is not None and has + room[name] >= min(wish.minimum, has + wanted[name])
            for name in wanted
        }
        if room[first] < wanted[first]:
            below = 0 if part[first] else has + room[first]
            problems.append(
                self._spending.problem(wish.reserved, first, wish.terms, wanted[first], below=below)
            )
        room = {name: count if part[name] or count >= wanted[name] else 0 for name, count in room.items()}
        most = {name: min(wanted[name], room[name], MOST) for name in wanted}
        refusal, retry_at = None, None
        for halved in range(max(most.values()).bit_length()):
            for name, zone in places:
                count = most[name] >> halved
                if count < 1:
                    continue
                lasting = self._refusals.lasting(name, zone, count, self._now)
                if lasting is None:
                    self._purchase(wish, ask, at, name, zone, count)
                    return None
                refusal = refusal or lasting
                retry_at = min(retry_at or lasting.until, lasting.until)
        if refusal is None or retry_at is None:
            return None
        self.again = min(self.again or retry_at, retry_at)
        return replace(refusal, until=retry_at)

    def _purchase(
        self, wish: DesiredCapacity, ask: FlavorDemand, at: FlavorFulfilment, name: str, zone: str, count: int
    ) -> None:
        grown = max(
            (
                odcr
                for odcr in at.placed
                if odcr.instance_type == name and zone in (odcr.zone, odcr.zone_id) and odcr.state == ACTIVE
            ),
            key=lambda odcr: (odcr.total, odcr.id),
            default=None,
        )
        self._spending.add(wish.reserved, name, wish.terms, count)
        self.purchases.append(
            Purchase(
                reserved=wish.reserved,
                flavor=ask.flavor.name,
                instance_type=name,
                zone=zone,
                count=count,
                odcr_id=grown.id if grown else "",
                total=grown.total + count if grown else count,
            )
        )

    def _regroup(self, wish: DesiredCapacity) -> None:
        if not wish.groups:
            return
        wanted = {id_ for id_ in self._owned.get(wish.reserved, ()) if id_ in self._holdings.flavor}
        if wish.group is None:
            if wanted:
                self.regroups.append(GroupChange(reserved=wish.reserved, make=True))
            return
        members = set(wish.group.member_ids)
        foreign = {
            id_
            for id_ in members - wanted
            if id_ in self._inventory.odcrs and self._inventory.odcrs[id_].state not in ENDED_STATES
        }
        if wanted - members or foreign:
            self.regroups.append(
                GroupChange(
                    reserved=wish.reserved, join=tuple(sorted(wanted - members)), leave=tuple(sorted(foreign))
                )
            )
