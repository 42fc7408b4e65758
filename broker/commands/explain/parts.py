"""The part of a situation that is about one object."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object
from broker.capacity.model import Pool
from broker.capacity.shortages import Shortage, placement_scope, quota_scope
from broker.commands.explain.event_facts import concerned
from broker.commands.explain.unknown_names import unknown, unknown_reservation
from broker.oncall.pod_facts import drawn_by_pod
from broker.oncall.situation import Situation
from broker.quota.resolve import UnresolvedName
from broker.reservations.claims import occupied_odcr
from broker.reservations.spec import Reservation, reserved_of


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
        ids = {*situation.slot_owners, *(mirror.name for mirror in situation.mirrors)}
        raise ValueError(unknown_reservation(name, known, ids))
    reservation_ = known[keys[0]]
    own = {id_ for id_, owner in situation.slot_owners.items() if owner == reserved_of(reservation_)}
    rights = situation.rights
    return reservation_, _part(
        situation,
        reservation_,
        [
            claim
            for claim in situation.claims
            if rights.of_claim(claim) == reserved_of(reservation_) or occupied_odcr(claim) in own
        ],
        [mirror for mirror in situation.mirrors if mirror.name in own],
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
    rights, reserved = situation.rights, reserved_of(subject)
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
