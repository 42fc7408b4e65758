"""The world that an on-call person sees, read once: objects of the cluster, the slots of EC2 and their users.

Invariant: the commands, the web page, the metrics and the notifications read these values, so they agree. A
command reads the objects from Kubernetes, and a leading broker has them in its caches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property, partial
from typing import Final

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.meta import Condition
from broker.capacity.attempts import Attempt
from broker.capacity.inventory import Inventory
from broker.capacity.shortages import Shortage
from broker.oncall.broken import BrokenNode, broken_nodes
from broker.oncall.idle_matches import IdleMatch, IdleSlots, Part, idle_matches, idle_slots, known_facts
from broker.oncall.journal import recorded
from broker.oncall.metrics import follow_together, waiting_tables
from broker.oncall.pod_facts import created, gang_members, waits
from broker.oncall.pod_reports import PodReport
from broker.oncall.short_pools import ShortageRow, shortage_row
from broker.oncall.slot_holders import SlotUse, slot_uses
from broker.oncall.slot_marks import SLOTS_BY_USE, SlotRow, counts_by_use, slot_rows
from broker.oncall.state import is_brokers
from broker.oncall.waiters import Waiter, claim_waiters, pod_waiters
from broker.oncall.waiting_pods import PODS_WAITING, PODS_WAITING_SINCE, WaitingPod, waiting_rows
from broker.oncall.waiting_reasons import PodSurroundings, advised_classes
from broker.placement.node_prices import Price
from broker.placement.pool_choice import OFFERING, SERVED, of_broker
from broker.placement.pool_room import TypeRoom
from broker.placement.reading import namespace_labels, node_info, pod_info, takes_room
from broker.placement.shut_zones import shut_zones
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.spec import Reservation, reserved_of
from providers.model import InstanceType
from providers.prices import slot_price

# Conditions of a NodePool with the reason of its class or of the pods that wait for it.
_SHOWN_ELSEWHERE: Final = frozenset(
    {OFFERING, names.CAPACITY_RESERVATION, "NodeClassReady", "ValidationSucceeded"}
)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Objects of the cluster, and current shortages and the broker's events, each the oldest first.

    `odcrs`: of the last pass over EC2's reservations, if the reader has one.
    `inventory`: the slots that are occupied and promised, and the reservations if EC2 was described.
    """

    now: datetime
    claims: Sequence[NodeClaim] = ()
    classes: Sequence[EC2NodeClass] = ()
    reservations: Sequence[Reservation] = ()
    namespaces: Sequence[Namespace] = ()
    mirrors: Sequence[OnDemandCapacityReservation] = ()
    shortages: Sequence[Shortage] = ()
    events: Sequence[Event] = ()
    pods: Sequence[Pod] = ()
    karpenter_events: Sequence[Event] = ()
    scheduler_events: Sequence[Event] = ()  # about pods without a node
    pools: Sequence[NodePool] = ()
    nodes: Sequence[Node] = ()
    types: Mapping[str, InstanceType] = field(default_factory=dict)  # those of EC2; none: not known
    reports: Mapping[str, PodReport] = field(default_factory=dict)  # the last on each pod, by its uid
    odcrs: OdcrSnapshot = NO_ODCRS
    inventory: Inventory = field(default_factory=Inventory)
    price: Price = lambda _: None
    whole: Situation | None = None  # if this is a part
    about: frozenset[str] = frozenset()  # of a part, the keys of the waiting pods that it concerns
    unread: tuple[str, ...] = field(default=())

    @property
    def waiting(self) -> list[NodeClaim]:
        """The broker's claims without an instance, the oldest first."""
        return [claim for claim in self.waiting_claims if is_brokers(claim)]

    @property
    def waiting_claims(self) -> list[NodeClaim]:
        """Those of the broker, then those that Karpenter launches; each the oldest first."""
        claims = [claim for claim in self.claims if claim.waits]
        return sorted(claims, key=lambda claim: (not is_brokers(claim), created(claim, self.now), claim.name))

    @cached_property
    def rights(self) -> DrawRights:
        """Which pods and claims may draw from which reservation."""
        if self.whole is not None:
            return self.whole.rights
        return DrawRights({reserved_of(item): item for item in self.reservations}, self.namespaces)

    @cached_property
    def waiters(self) -> list[Waiter]:
        """The waiters: the claims without an instance, of either launcher, then the pods."""
        return [*claim_waiters(self.waiting_claims, self.rights, self.pools), *self.pod_waiters]

    @cached_property
    def pod_waiters(self) -> list[Waiter]:
        if self.whole is not None:
            return [waiter for waiter in self.whole.pod_waiters if waiter.name in self.about]
        zones = {mirror.status.zone for mirror in self.mirrors}
        shut = partial(self.shut_zones, zones=zones)
        return [*pod_waiters(self.waiting_pods, self._unplaced, self.rights, self.pools, shut)]

    def shut_zones(self, pod: Pod, zones: Collection[str]) -> Mapping[str, str]:
        """The zones of these in which the pod's rules about other pods admit no new node, with the rule."""
        if not (pod.spec.affinity or pod.spec.topology_spread_constraints):
            return {}
        return shut_zones(pod_info(pod), self._placement, zones)

    @cached_property
    def _placement(self) -> PlacementSnapshot:
        """The nodes with their pods, also of a part."""
        if self.whole is not None:
            return self.whole._placement
        bound = (pod_info(pod) for pod in self.pods if takes_room(pod))
        spaces = namespace_labels(self.namespaces)
        return PlacementSnapshot.of(map(node_info, self.nodes), bound, namespaces=spaces)

    @cached_property
    def waiting_pods(self) -> list[WaitingPod]:
        """The pods that wait, also those that a waiting claim stands for, the oldest first."""
        if self.whole is not None:
            claims = {claim.name for claim in self.claims if claim.waits}
            return [
                row
                for row in self.whole.waiting_pods
                if (row.claim in claims if row.claim_waits else row.key in self.about)
            ]
        return waiting_rows(self._unplaced, self.around, self.now)

    @cached_property
    def _unplaced(self) -> list[Pod]:
        return [*filter(waits, self.pods)]

    @cached_property
    def around(self) -> PodSurroundings:
        """The objects that decide why pods wait."""
        return PodSurroundings(
            claims=self.claims,
            pools=self.pools,
            uses=self.slot_uses,
            reports=self.reports,
            members=cache(lambda: gang_members(self.pods)),
            gated=cache(lambda: gang_members(pod for pod in self.pods if pod.spec.scheduling_gates)),
            advised=advised_classes(self.classes),
            room=TypeRoom(lambda: self.types),
        )

    @cached_property
    def slot_uses(self) -> dict[str, SlotUse]:
        """All EC2 reservations with the users of their slots, by id, also of a part."""
        if self.whole is not None:
            return self.whole.slot_uses
        draws, promised = self.rights.of_claim, self.inventory.promised
        return slot_uses(self.mirrors, self.slot_owners, self.claims, self.pods, draws, promised)

    @property
    def slot_rows(self) -> list[SlotRow]:
        """The picture of capacity."""
        odcrs, broken = self.inventory.odcrs, {node.claim for node in self.broken}

        def price(use: SlotUse) -> float | None:
            odcr = odcrs.get(use.id)
            return slot_price(self.types, odcr) if odcr is not None else None

        return slot_rows(self.slot_uses.values(), broken=broken, price=price)

    @cached_property
    def ownership(self) -> Ownership:
        """The owner and the flavor of the slots of each EC2 reservation, by id: of the last pass over EC2's
        reservations, else of the statuses.
        """
        if self.odcrs.known:
            return self.odcrs.owned
        owner, flavor = dict[str, ReservationKey](), dict[str, str]()
        for reservation in (self.whole or self).reservations:
            for cloud in reservation.status.cloud_reservations:
                owner[cloud.id], flavor[cloud.id] = reserved_of(reservation), cloud.flavor
        return Ownership(owner=owner, flavor=flavor)

    @property
    def slot_owners(self) -> Mapping[str, ReservationKey]:
        """The owner of the slots of each EC2 reservation, by id."""
        return self.ownership.owner

    @property
    def shortage_rows(self) -> list[ShortageRow]:
        """The shortages, those of EC2 reservations with their places."""
        places = {
            mirror.name: (type_, zone, f"reserved:{type_}:{zone}:{mirror.name}")
            for mirror in (self.whole or self).mirrors
            if (type_ := mirror.status.type) and (zone := mirror.status.zone)
        }
        return [shortage_row(shortage, places) for shortage in self.shortages]

    @cached_property
    def broken(self) -> list[BrokenNode]:
        """The broken nodes of the claims, those in reservations first."""
        return broken_nodes(self.claims, self.nodes, self.pools, self.now, price=self.price)

    @property
    def pool_problems(self) -> list[tuple[NodePool, Condition]]:
        """The conditions of NodePools that are not well, and that no class and no waiting pod shows.

        Of a part, those of the NodePools of its classes.
        """
        classes = {node_class.name: node_class for node_class in self.classes}
        return [
            (pool, state)
            for pool in self.pools
            for node_class in [classes.get(pool.spec.template.spec.node_class_ref.name)]
            if self.whole is None or node_class is not None
            for state in pool.status.conditions
            if state.status == "False" and state.type not in _SHOWN_ELSEWHERE
            if of_broker(pool) or state.type == SERVED
            if node_class is None or not _repeats(state, node_class)
        ]

    @property
    def idle_slots(self) -> list[IdleSlots]:
        """The idle slots with what decides who could have them."""
        facts, free = known_facts(self.claims, self.types), {id_: u.free for id_, u in self.slot_uses.items()}
        return [*idle_slots(self.mirrors, self.slot_owners, facts, free, self.classes)]

    @cached_property
    def matches(self) -> list[IdleMatch]:
        """The idle slots with the waiters that could have them; of a part, those with either in it."""
        whole, part = self.whole or self, None
        if self.whole is not None:
            part = Part({m.name for m in self.mirrors}, {(w.kind, w.name) for w in self.waiters})
        return [*idle_matches(whole.waiters, whole.idle_slots, part=part)]

    @property
    def attempts(self) -> list[Attempt]:
        """The recorded attempts of all claims, the oldest first."""
        attempts_ = [attempt for claim in self.claims for attempt in recorded(claim)]
        return sorted(attempts_, key=lambda attempt: attempt.at)


def follow(situation: Callable[[], Situation]) -> None:
    """Shows the pods that wait, and the slots by use, at each scrape, until the tables are cleared."""

    def waiting(seen: Situation) -> Iterable[tuple[tuple[str, ...], datetime | None]]:
        return (((pod.node_pool, pod.reason), pod.since) for pod in seen.waiting_pods)

    pods = waiting_tables(PODS_WAITING, PODS_WAITING_SINCE, waiting)
    follow_together(situation, {**pods, SLOTS_BY_USE: lambda seen: counts_by_use(seen.slot_rows)})


def _repeats(state: Condition, node_class: EC2NodeClass) -> bool:
    """Whether a NodePool is not Ready for a reason that its class shows itself."""
    of_class = (item.reason for item in node_class.status.conditions if item.status == "False")
    return state.type == names.READY and state.reason in of_class
