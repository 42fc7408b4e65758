"""The cluster's records that an on-call person needs, read once, and the part of them about one object.

Invariant: only Kubernetes is read, so the answer needs neither the broker nor AWS. A kind that is not
installed counts as empty. A kind that may not be read counts as empty too, and `unread` reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.capacity.attempts import Attempt
from broker.capacity.inventory import Inventory
from broker.capacity.model import Pool
from broker.capacity.shortages import Shortage, placement_scope, quota_scope
from broker.commands.explain.event_facts import (
    concerned,
    happened,
    reports,
)
from broker.commands.explain.unknown_names import unknown
from broker.commands.inventory.prices import shipped_price
from broker.controllers.left_slots import slots_of_claims
from broker.oncall.broken import BrokenNode, broken_nodes
from broker.oncall.idle_matches import IdleMatch, Part, idle_matches, idle_slots, known_facts
from broker.oncall.journal import recorded
from broker.oncall.pod_reports import PodReport
from broker.oncall.slot_holders import SlotUse, slot_uses
from broker.oncall.state import is_brokers
from broker.oncall.waiters import (
    Waiter,
    claim_waiters,
    created,
    drawn_by_pod,
    gang_members,
    pod_waiters,
)
from broker.oncall.waiting_pods import WaitingPod, waiting_rows
from broker.oncall.waiting_reasons import PodSurroundings, advised_classes
from broker.placement.node_prices import Price
from broker.placement.pool_room import TypeRoom
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.claims import occupied_odcr
from broker.reservations.drawing import DrawRights
from broker.reservations.spec import reserved_of
from providers.model import InstanceType

Reservation = CapacityReservation | ClusterCapacityReservation


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Objects of the cluster, current shortages, and the broker's events, the oldest first."""

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
    # By a pod's uid, what the running broker reports beside its events, which end after an hour.
    reports: Mapping[str, PodReport] = field(default_factory=dict)
    whole: Situation | None = None  # if this is a part
    about: frozenset[str] = frozenset()  # of a part, the keys of the waiting pods that it concerns
    price: Price | None = None  # None: by the shipped table
    promises: Inventory | None = None  # with the occupied and promised slots; None: by the claims
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

    @property
    def all_reservations(self) -> Sequence[Reservation]:
        return (self.whole or self).reservations

    @cached_property
    def waiters(self) -> list[Waiter]:
        """The waiters: the claims without an instance, of either launcher, then the pods."""
        return [*claim_waiters(self.waiting_claims, draw_rights(self), self.pools), *self.pod_waiters]

    @cached_property
    def pod_waiters(self) -> list[Waiter]:
        if self.whole is not None:
            return [waiter for waiter in self.whole.pod_waiters if waiter.name in self.about]
        obstacles = {row.key: row.obstacles for row in self.waiting_pods}
        return [*pod_waiters(self.pods, draw_rights(self), pools=self.pools, obstacles=obstacles)]

    @cached_property
    def waiting_pods(self) -> list[WaitingPod]:
        """The pods that wait, also those that a waiting claim stands for, the oldest first."""
        if self.whole is not None:
            claims = {claim.name for claim in self.claims if claim.waits}
            return [
                row
                for row in self.whole.waiting_pods
                if (row.claim in claims if row.obstacles.waits else row.key in self.about)
            ]
        return waiting_rows(self.pods, self.around, self.now)

    @cached_property
    def around(self) -> PodSurroundings:
        """The objects that decide why pods wait."""
        return PodSurroundings(
            claims=self.claims,
            pools=self.pools,
            uses=self.slot_uses,
            reports=reports(sorted((*self.karpenter_events, *self.events), key=self._at)) | {**self.reports},
            members=gang_members(self.pods),
            advised=advised_classes(self.classes),
            room=TypeRoom(lambda: self.types),
        )

    def _at(self, event: Event) -> datetime:
        return happened(event) or self.now

    @cached_property
    def slot_uses(self) -> dict[str, SlotUse]:
        """All EC2 reservations with the users of their slots, by id, also of a part."""
        if self.whole is not None:
            return self.whole.slot_uses
        draws = draw_rights(self).of_claim
        promises = self.promises or slots_of_claims(self.claims, self.now, owns=is_brokers)
        return slot_uses(self.mirrors, self.slot_owners, self.claims, self.pods, draws, promises.promised)

    @property
    def slot_owners(self) -> dict[str, ReservationKey]:
        """The owner of the slots of each EC2 reservation, by id."""
        return {
            cloud.id: reserved_of(reservation)
            for reservation in self.all_reservations
            for cloud in reservation.status.cloud_reservations
        }

    @cached_property
    def price_of(self) -> Price:
        """The price of a node or of a claim with an instance."""
        mirrors = (self.whole or self).mirrors
        return self.price or shipped_price({mirror.name: mirror.status for mirror in mirrors})

    @cached_property
    def broken(self) -> list[BrokenNode]:
        """The broken nodes of the claims, those in reservations first."""
        return broken_nodes(self.claims, self.nodes, self.pools, self.now, price=self.price_of)

    @cached_property
    def matches(self) -> list[IdleMatch]:
        """The idle slots with the waiters that could have them; of a part, those with either in it."""
        whole = self.whole or self
        slots = idle_slots(
            whole.mirrors,
            whole.slot_owners,
            known_facts(whole.claims, whole.types),
            {use.id: use.free for use in self.slot_uses.values()},
            whole.classes,
        )
        part = None
        if self.whole is not None:
            part = Part({m.name for m in self.mirrors}, {(w.kind, w.name) for w in self.waiters})
        return [*idle_matches(whole.waiters, slots, part=part)]

    @property
    def attempts(self) -> list[Attempt]:
        """The recorded attempts of all claims, the oldest first."""
        attempts_ = [attempt for claim in self.claims for attempt in recorded(claim)]
        return sorted(attempts_, key=lambda attempt: attempt.at)


def of_class(situation: Situation, name: str) -> tuple[EC2NodeClass, Situation]:
    """The class, and the part of the situation about it. Raises ValueError for an unknown name."""
    known = {node_class.name: node_class for node_class in situation.classes}
    if name not in known:
        raise ValueError(unknown("EC2NodeClass", name, known, "kubectl get ec2nodeclasses"))
    node_class_ = known[name]
    return node_class_, _part(
        situation,
        node_class_,
        [claim for claim in situation.claims if claim.spec.node_class_ref.name == name],
        [mirror for mirror in situation.mirrors if name in mirror.status.node_classes],
    )


def of_reservation(
    situation: Situation, name: str
) -> tuple[Reservation | OnDemandCapacityReservation, Situation]:
    """The reservation `NAMESPACE/NAME`, `NAME` or `cr-ID`, and the part of the situation about it.

    A name without a namespace is that of a ClusterCapacityReservation, else of the only CapacityReservation
    with it. An id stands for the owner of the slots, if they have one. Raises ValueError for a name that is
    unknown, or that several namespaces have.
    """
    if owner := situation.slot_owners.get(name):
        name = str(owner)
    elif mirror := next((mirror for mirror in situation.mirrors if mirror.name == name), None):
        return mirror, _of_unowned(situation, mirror)
    known = {reservation.key: reservation for reservation in situation.reservations}
    keys = [name] if name in known else [key for key in known if key.rpartition("/")[2] == name]
    if len(keys) > 1:
        raise ValueError(
            f"several namespaces have a CapacityReservation {name!r}: write one of {', '.join(keys)}"
        )
    if not keys:
        raise ValueError(unknown("CapacityReservation", name, known, "kubectl get capacityreservations -A"))
    reservation_ = known[keys[0]]
    ids = {reservation.id for reservation in reservation_.status.cloud_reservations}
    rights = draw_rights(situation)
    return reservation_, _part(
        situation,
        reservation_,
        [
            claim
            for claim in situation.claims
            if rights.of_claim(claim) == reserved_of(reservation_) or occupied_odcr(claim) in ids
        ],
        [mirror for mirror in situation.mirrors if mirror.name in ids],
    )


def draw_rights(situation: Situation) -> DrawRights:
    """Which pods and claims may draw from which reservation."""
    return DrawRights(
        {reserved_of(reservation): reservation for reservation in situation.all_reservations},
        situation.namespaces,
    )


def _part(
    situation: Situation,
    subject: EC2NodeClass | Reservation | OnDemandCapacityReservation,
    claims: Sequence[NodeClaim],
    mirrors: Sequence[OnDemandCapacityReservation],
) -> Situation:
    about = {(subject.KIND.kind, subject.key), *((NodeClaim.KIND.kind, claim.name) for claim in claims)}
    part = replace(situation, claims=claims, mirrors=mirrors)
    pools = [pool for attempt in part.attempts for pool in (attempt.pool, *attempt.also)]
    concerns = _concerns(subject, {mirror.name for mirror in mirrors}, pools)
    return replace(
        part,
        whole=situation,
        about=frozenset(
            _concerned_pods(situation, subject)
            if isinstance(subject, Reservation)
            else _of_classes(situation, _classes_of(subject))
        ),
        classes=[obj for obj in situation.classes if obj is subject],
        reservations=[obj for obj in situation.reservations if obj is subject],
        shortages=[shortage for shortage in situation.shortages if concerns(shortage)],
        events=[event for event in situation.events if concerned(event) in about],
    )


def _of_unowned(situation: Situation, mirror: OnDemandCapacityReservation) -> Situation:
    """The part about an EC2 reservation of no owner: its instances, and what waits for its classes."""
    classes = _classes_of(mirror)
    claims = [
        claim
        for claim in situation.claims
        if occupied_odcr(claim) == mirror.name or (claim.waits and claim.spec.node_class_ref.name in classes)
    ]
    return _part(situation, mirror, claims, [mirror])


def _classes_of(subject: EC2NodeClass | OnDemandCapacityReservation) -> Collection[str]:
    """The names of the classes whose pods may get a node of the subject."""
    return (subject.name,) if isinstance(subject, EC2NodeClass) else subject.status.node_classes


def _of_classes(situation: Situation, node_classes: Collection[str]) -> Iterator[str]:
    """The pods that may get a node of the classes: those of no known NodePool, too, unless they are to be
    corrected themselves.
    """
    classes = {pool.name: pool.spec.template.spec.node_class_ref.name for pool in situation.pools}
    for row in situation.waiting_pods:
        if not row.remedy and classes.get(row.node_pool, "") in ("", *node_classes):
            yield row.key


def _concerned_pods(situation: Situation, subject: Reservation) -> Iterator[str]:
    """The pods that may wait for the subject, also since their NodePool names it."""
    rights, reserved = draw_rights(situation), reserved_of(subject)
    by_pool = {waiter.name for waiter in situation.pod_waiters if waiter.draws(reserved)}
    for pod in situation.pods:
        drawn = drawn_by_pod(rights, pod)
        if isinstance(drawn, UnresolvedName):  # it names one that it may not draw from, perhaps this
            named = rights.named_for(pod.namespace, pod.annotations.get(names.DRAWS_FROM, ""))
            drawn = rights.names.resolve(named)
        own = drawn is None and pod.namespace == subject.namespace
        if drawn == reserved or own or pod.key in by_pool:
            yield pod.key


def _concerns(subject: Object, ids: set[str], pools: Iterable[Pool]) -> Callable[[Shortage], bool]:
    """Whether a shortage is about these reservations, or about a pool that a claim requested."""
    tried = tuple(pools)
    scopes = {str(quota_scope(pool)) for pool in tried} | {f"pool:{pool}" for pool in tried}
    scopes |= {str(scope) for pool in tried if (scope := placement_scope(pool))}
    scopes |= {f"reservation:{id_}" for id_ in ids}
    own = ""
    if isinstance(subject, EC2NodeClass):
        own = f"class:{subject.name}:"
        scopes |= {f"subnet:{subnet.id}" for subnet in subject.status.subnets}
    return lambda shortage: str(shortage.scope) in scopes or bool(own and str(shortage.scope).startswith(own))
