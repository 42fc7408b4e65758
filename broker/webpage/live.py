"""The present state as the page shows it, in rows.

Nothing is decided or written here, and no call to Kubernetes or EC2 is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Condition, condition
from broker.apis.ome import ReservationSummary
from broker.app import Broker
from broker.lists import lists_by_key
from broker.oncall.broken import BrokenNode
from broker.oncall.equal_rows import EqualRows, equal_rows
from broker.oncall.full_reservations import FullReservations, full_reservations
from broker.oncall.idle_matches import IdleSlots
from broker.oncall.short_pools import ShortageRow, short_pools
from broker.oncall.situation import Situation
from broker.oncall.slot_marks import SlotRow
from broker.oncall.state import launch_state
from broker.oncall.waiters import KARPENTERS, Waiter
from broker.oncall.waiting_pods import WaitingGroup, WaitingPod, grouped
from broker.placement.node_prices import Cost, Price, total
from broker.reservations.claims import occupied_odcr
from broker.reservations.drawing import DrawRights, drawn_key
from broker.reservations.odcr_view import OdcrView, view_of
from broker.reservations.spec import reserved_of
from broker.webpage.lending import LoanRow, loans
from broker.webpage.rooms import RoomRow, rooms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    name: str
    node_class: str
    node_pool: str
    instance: str
    node: str
    zone: str
    instance_type: str
    reservation: str
    created: datetime | None
    waits: bool
    reason: str
    message: str
    capacity_type: str = ""
    price: float | None = None  # US dollars an hour
    placed: str = ""  # message about the reservation, if the claim is in none or was moved
    owner: str = ""  # the reservation that it draws from


def claim_row(claim: NodeClaim, price: Price, rights: DrawRights) -> ClaimRow:
    reason, message = launch_state(claim)
    reserved = condition(claim.status.conditions, names.CAPACITY_RESERVATION)
    return ClaimRow(
        name=claim.name,
        node_class=claim.spec.node_class_ref.name,
        node_pool=claim.node_pool,
        instance=claim.instance_id,
        node=claim.status.node_name,
        zone=claim.labels.get(names.ZONE, ""),
        instance_type=claim.labels.get(names.INSTANCE_TYPE, ""),
        reservation=occupied_odcr(claim),
        created=claim.metadata.creation_timestamp,
        waits=claim.waits,
        reason=reason,
        message=message,
        capacity_type=claim.labels.get(names.CAPACITY_TYPE, ""),
        price=price(claim),
        placed=reserved.message if reserved is not None else "",
        owner=drawn_key(rights.of_claim(claim)),
    )


_PLAIN_ROW: Final = partial(claim_row, price=lambda _: None, rights=DrawRights({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRow:
    """One CapacityReservation. `problems`: of its ODCRs, by reason."""

    namespace: str
    name: str
    state: str
    detail: str
    cohort: str
    summary: ReservationSummary
    odcrs: tuple[str, ...]
    conditions: tuple[Condition, ...]
    problems: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """All of it at one moment. `unreadable` is why EC2 cannot be read; empty if it can. `outside`: dollars an
    hour of the instances outside of reservations; None while EC2's instances are not known. `waiting`: the
    broker's claims without an instance, the oldest first. `row` makes the row of one of the claims.
    """

    now: datetime
    described: datetime | None = None
    unreadable: str = ""
    claims: Sequence[NodeClaim] = ()
    waiting: Sequence[ClaimRow] = ()
    odcrs: Sequence[OdcrView] = ()
    reservations: Sequence[ReservationRow] = ()
    shortages: Sequence[ShortageRow] = ()
    classes: Sequence[EC2NodeClass] = ()
    pools: Sequence[NodePool] = ()
    loans: Sequence[LoanRow] = ()
    rooms: Sequence[RoomRow] = ()
    waiters: Sequence[Waiter] = ()
    waiting_pods: Sequence[WaitingPod] = ()
    idle_slots: Sequence[IdleSlots] = ()
    broken: Sequence[BrokenNode] = ()
    slots: Sequence[SlotRow] = ()
    outside: float | None = None
    row: Callable[[NodeClaim], ClaimRow] = _PLAIN_ROW

    @property
    def short_pools(self) -> list[ShortageRow]:
        """The shortages, those of several zones and one cause as one row."""
        return short_pools(self.shortages)

    @property
    def full(self) -> list[FullReservations]:
        """The full reservations that pods wait for and EC2 did not refuse."""
        return full_reservations(self.waiting_pods, self.slots, self.shortages)

    @property
    def pod_groups(self) -> list[WaitingGroup]:
        """The pods that wait, equal ones of one owner together, the oldest first."""
        return grouped(self.waiting_pods)

    @property
    def others(self) -> list[Waiter]:
        """The claims without an instance that another launcher serves."""
        return [waiter for waiter in self.waiters if waiter.kind == KARPENTERS]

    @property
    def claim_groups(self) -> list[EqualRows[ClaimRow]]:
        """The broker's claims without an instance, those of one pool and cause together."""
        return equal_rows(
            self.waiting,
            cause=lambda claim: (claim.node_class, claim.node_pool, claim.reason, claim.message),
        )

    @property
    def idle(self) -> list[OdcrView]:
        """Reservations with idle slots, the dearest first."""
        idle = (view for view in self.odcrs if view.odcr.idle)
        return sorted(idle, key=lambda view: (-(view.cost or 0.0), -view.odcr.idle, view.odcr.id))

    @property
    def cost(self) -> Cost:
        return idle_cost(self.odcrs)


Live = Callable[[], LiveState | None]


def slots_held(odcrs: Iterable[OdcrView]) -> int:
    """The slots that EC2 holds: those of active reservations."""
    return sum(view.odcr.total for view in odcrs if view.odcr.active)


def idle_cost(odcrs: Iterable[OdcrView]) -> Cost:
    """The cost of the idle slots of these reservations."""
    idle = [view for view in odcrs if view.odcr.idle]
    dollars, _ = total(view.cost for view in idle)
    return dollars, sum(view.odcr.idle for view in idle if view.cost is None)


def live_state(broker: Broker) -> LiveState:
    """The page's state from the caches of a leading broker."""
    situation, dollars = broker.situation(), broker.outside_cost()
    return shown_state(
        situation,
        account=broker.account(),
        unreadable=str(broker.inventory.unreadable or ""),
        rooms=rooms(broker.occupancy.ledger(situation.now)),
        outside=None if dollars is None else sum(dollars.values()),
    )


def shown_state(
    situation: Situation,
    *,
    account: str = "",
    unreadable: str = "",
    rooms: Sequence[RoomRow] = (),
    outside: float | None = None,
) -> LiveState:
    """The situation as the page shows it. `account`: the broker's, which is billed for its own slots."""
    inventory, owners = situation.inventory, situation.slot_owners
    ending = {claim.name for claim in situation.claims if claim.deleting}
    row = partial(claim_row, price=situation.price, rights=situation.rights)
    return LiveState(
        now=situation.now,
        described=inventory.described,
        unreadable=unreadable,
        claims=situation.claims,
        waiting=[row(claim) for claim in situation.waiting],
        odcrs=[
            view_of(odcr, situation.types, account=account, owner=owners.get(odcr.id))
            for odcr in sorted(inventory.odcrs.values(), key=lambda o: (o.instance_type, o.zone, o.id))
        ],
        reservations=[*_reservations(situation)],
        shortages=situation.shortage_rows,
        classes=situation.classes,
        pools=situation.pools,
        loans=[*loans(situation.slot_uses.values(), situation.ownership.flavor, ending)],
        rooms=rooms,
        waiters=situation.waiters,
        waiting_pods=situation.waiting_pods,
        idle_slots=situation.idle_slots,
        broken=situation.broken,
        slots=situation.slot_rows,
        outside=outside,
        row=row,
    )


def _reservations(situation: Situation) -> Iterator[ReservationRow]:
    held = lists_by_key((owner, odcr) for odcr, owner in situation.slot_owners.items())
    for reservation in sorted(situation.reservations, key=reserved_of):
        reserved = reserved_of(reservation)
        yield ReservationRow(
            namespace=reservation.namespace,
            name=reservation.name,
            state=str(reservation.status.capacity_reservation_lifecycle_state or ""),
            detail=reservation.status.lifecycle_detail,
            cohort=reservation.spec.cohort,
            summary=reservation.status.summary or ReservationSummary(),
            odcrs=tuple(held.get(reserved, ())),
            conditions=tuple(reservation.status.conditions),
            problems=tuple((p.reason, p.message) for p in situation.odcrs.status(reserved).problems),
        )
