"""Matches idle slots with the claims and pods that could have them, and names the obstacles.

`explain` and the web page show the same matches. Type, size, zone, capacity type, the class's target and the
owner are compared, by the rules of the planner: requirements against labels, and requests against the room of
the type. Taints and the room for DaemonSets are for `explain claim` and `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.units import whole
from broker.capacity.model import ANY_CLASS
from broker.capacity.options import tenancy
from broker.capacity.shortages import quota_family
from broker.capacity.types import ACCELERATORS, PODS, WELL_KNOWN, allocatable, lacking, type_labels
from broker.lists import lists_by_key
from broker.oncall.waiters import POD, Alternative, Waiter, plural
from broker.oncall.wording import untargeted
from broker.placement.quantities import amounts
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.sizing import SOLD
from broker.text import abridged, counted
from providers.model import InstanceType

MOST_NAMED: Final = 3
ACCELERATED: Final = frozenset(ACCELERATORS)
PLAIN_FAMILIES: Final = frozenset({"standard", "x", "u", "hpc"})  # of EC2's limits, without accelerators
# Labels of a single slot; the other well-known labels are those of the type.
_OF_SLOT: Final = frozenset(
    {
        names.ZONE,
        names.ZONE_ID,
        names.REGION,
        names.CAPACITY_TYPE,
        names.INSTANCE_TENANCY,
        *names.RESERVATION_LABELS,
    }
)
_OF_TYPE: Final = WELL_KNOWN - _OF_SLOT
_NOUNS: Final[Mapping[str, str]] = {
    names.ZONE: "zone",
    names.CAPACITY_TYPE: "capacity type",
    names.RESERVATION_ID: "reservation",
}


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """The known labels of a type, and its room for pods; None while that is not known."""

    labels: Mapping[str, str] = field(default_factory=dict)
    room: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlots:
    """The free slots of one EC2 reservation. `misfits`: why classes select it in vain, by their names;
    `unselected`: what classes request instead, if that is no target.
    """

    id: str
    type: str
    zone: str
    free: int
    node_classes: frozenset[str]
    owner: ReservationKey | None
    labels: Mapping[str, str]
    facts: TypeFacts = TypeFacts()
    misfits: frozenset[tuple[str, str]] = frozenset()
    unselected: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleMatch:
    """Alike waiters that could have a slot. `between`: the obstacles; none is known if it is empty.
    `excluded`: the pods' own selector excludes the slot, and no other slot is free for them.
    """

    slots: IdleSlots
    waiters: tuple[Waiter, ...]
    between: tuple[str, ...]
    command: str
    excluded: bool = False

    @property
    def named(self) -> str:
        """The waiters in words."""
        kind = self.waiters[0].kind
        kinds = kind if len(self.waiters) == 1 else f"{len(self.waiters)} {plural(kind)}"
        return f"{kinds} {abridged([waiter.name for waiter in self.waiters], MOST_NAMED)}"

    @property
    def why(self) -> str:
        return "; ".join(self.between) or "nothing known stands between"

    @property
    def text(self) -> str:
        """The match in a sentence."""
        slots = self.slots
        free = f"{counted(slots.free, 'free slot')}, {slots.type} in {slots.zone}"
        verb = "excludes" if len(self.waiters) == 1 else "exclude"
        could = f"{verb} by selector or affinity the" if self.excluded else "could have a"
        return f"{self.named} {could} slot of {slots.id} ({free}): {self.why}"


class _Obstacle(NamedTuple):
    """`command`: the one that helps; empty for the waiter's. `own`: the pod's selector excludes the slot."""

    text: str
    command: str = ""
    own: bool = False


class _Group(NamedTuple):
    """Waiters with the same obstacles."""

    waiters: Sequence[Waiter]
    obstacles: tuple[_Obstacle, ...]

    @property
    def excludes(self) -> bool:
        return any(item.own for item in self.obstacles)


class Part(NamedTuple):
    """The reservations, and the waiters by kind and name, of which one must be in a pair."""

    reservations: Set[str]
    waiters: Set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Shown:
    """The names that a reader may see. `cluster`: whether classes and NodePools have names."""

    owner: Callable[[ReservationKey], str] = str
    cluster: bool = True


def facts_of_claims(claims: Iterable[NodeClaim]) -> dict[str, TypeFacts]:
    """The facts of the types of running instances."""
    known: dict[str, TypeFacts] = {}
    for claim in claims:
        type_ = claim.labels.get(names.INSTANCE_TYPE, "")
        if type_ and claim.status.provider_id and claim.status.allocatable and type_ not in known:
            labels = {key: value for key, value in claim.labels.items() if key in _OF_TYPE}
            known[type_] = TypeFacts(labels, amounts(claim.status.allocatable))
    return known


def facts_of_type(type_: InstanceType) -> TypeFacts:
    return TypeFacts(type_labels(type_), whole(allocatable(type_, ANY_CLASS)))


def known_facts(
    claims: Iterable[NodeClaim], types: Mapping[str, InstanceType]
) -> Callable[[str], TypeFacts | None]:
    """The facts of a running instance of each type, else those of EC2, by the type's name."""
    running = facts_of_claims(claims)

    @cache  # a cluster has many reservations of a type
    def facts(name: str) -> TypeFacts | None:
        if name in running or name not in types:
            return running.get(name)
        return facts_of_type(types[name])

    return facts


def idle_slots(
    mirrors: Iterable[OnDemandCapacityReservation],
    owners: Mapping[str, ReservationKey],
    facts: Callable[[str], TypeFacts | None],
    free: Mapping[str, int],
    classes: Iterable[EC2NodeClass] = (),
) -> Iterator[IdleSlots]:
    """The active reservations with slots that are free for any claim. `facts`: those of a type, if it is
    known; `free`: the number of these slots by id, as the users of slots leave them.
    """
    misfits: dict[str, set[tuple[str, str]]] = {}
    classes = [*classes]
    requests = frozenset((class_.name, request) for class_ in classes if (request := untargeted(class_)))
    for class_ in classes:
        for misfit in class_.status.capacity_reservation_misfits:
            misfits.setdefault(misfit.id, set()).add((class_.name, misfit.message))
    for mirror in mirrors:
        status = mirror.status
        if not free.get(mirror.name):
            continue
        known = facts(status.type) or TypeFacts()
        family, _, size = status.type.partition(".")
        of_slot = {
            names.INSTANCE_TYPE: status.type,
            names.INSTANCE_FAMILY: family,
            names.INSTANCE_SIZE: size,
            names.ZONE: status.zone,
            names.CAPACITY_TYPE: "reserved",
            names.RESERVATION_ID: mirror.name,
            names.RESERVATION_TYPE: "default"
            if status.reservation_type == "interruptible"
            else status.reservation_type,
            names.RESERVATION_INTERRUPTIBLE: str(status.reservation_type == "interruptible").lower(),
            names.INSTANCE_TENANCY: status.tenancy or "default",
        }
        yield IdleSlots(
            id=mirror.name,
            type=status.type,
            zone=status.zone,
            free=free[mirror.name],
            node_classes=frozenset(status.node_classes),
            owner=owners.get(mirror.name),
            labels={**known.labels, **of_slot},
            facts=known,
            misfits=frozenset(misfits.get(mirror.name, ())),
            unselected=requests,
        )


def idle_matches(
    waiters: Iterable[Waiter],
    slots: Iterable[IdleSlots],
    *,
    part: Part | None = None,
    shown: Shown = Shown(),
) -> Iterator[IdleMatch]:
    """Each idle reservation with the waiters that could have its slots, those with the fewest obstacles
    first, and those that no slot helps yet last. Then the reservations that pods without such slots exclude
    by their own selector. `part`: the pairs of interest.

    Obstacles are computed once for equal waiters and equal reservations.
    """
    every = _alike(waiters)
    few = every if part is None else _alike(w for alike in every for w in alike if _name(w) in part.waiters)
    kinds: dict[object, list[_Group]] = {}
    excluded: list[tuple[IdleSlots, _Group]] = []
    served: set[tuple[str, str]] = set()
    kind_of = _kinds(every)
    for slot in slots:
        whole = part is None or slot.id in part.reservations
        kind = whole, kind_of(slot)
        if kind not in kinds:
            kinds[kind] = _groups(every if whole else few, slot, shown)
            served.update(_name(w) for group in kinds[kind] if not group.excludes for w in group.waiters)
        for group in kinds[kind]:
            if group.excludes:
                excluded.append((slot, group))
            else:
                yield _match(slot, group)
    for slot, group in excluded:
        if without := [waiter for waiter in group.waiters if _name(waiter) not in served]:
            yield _match(slot, group._replace(waiters=without))


def _name(waiter: Waiter) -> tuple[str, str]:
    return waiter.kind, waiter.name


def _alike(waiters: Iterable[Waiter]) -> list[list[Waiter]]:
    """The waiters that fit the same slots for the same reasons, together."""
    return [*lists_by_key((waiter.shape, waiter) for waiter in waiters).values()]


def _kinds(every: Iterable[Sequence[Waiter]]) -> Callable[[IdleSlots], object]:
    """A value for each reservation, equal for those with the same obstacles for each of the waiters."""
    firsts = [alike[0] for alike in every]
    gangs = max((first.together for first in firsts), default=1)
    by_id = any(names.RESERVATION_ID in item.requirements for w in firsts for item in w.alternatives)

    def kind(slot: IdleSlots) -> object:
        labels = frozenset(item for item in slot.labels.items() if by_id or item[0] != names.RESERVATION_ID)
        of_classes = slot.node_classes, slot.misfits, slot.unselected
        return slot.type, slot.owner, *of_classes, labels, min(slot.free, gangs)

    return kind


def _groups(every: Iterable[Sequence[Waiter]], slot: IdleSlots, shown: Shown) -> list[_Group]:
    """The waiters by their obstacles, those with the fewest first."""
    groups: dict[tuple[str, tuple[_Obstacle, ...]], list[Waiter]] = {}
    for alike in every:
        obstacles = _obstacles(alike[0], slot, shown)
        if obstacles is not None:
            groups.setdefault((alike[0].kind, obstacles), []).extend(alike)
    ordered = sorted(groups.items(), key=lambda item: (bool(item[1][0].held), len(item[0][1])))
    return [_Group(members, obstacles) for (_, obstacles), members in ordered]


def _match(slot: IdleSlots, group: _Group) -> IdleMatch:
    """An edit is offered only if no other obstacle needs something else."""
    first, obstacles = group.waiters[0], group.obstacles
    edits = [item.command for item in obstacles]
    command = edits[0] if edits and all(edits) else first.command
    return IdleMatch(
        slots=slot,
        waiters=tuple(group.waiters),
        between=tuple(item.text for item in obstacles),
        command=first.edit if group.excludes and first.edit and not first.held else command,
        excluded=group.excludes,
    )


def _obstacles(waiter: Waiter, slot: IdleSlots, shown: Shown) -> tuple[_Obstacle, ...] | None:
    """The obstacles, by the easiest alternative; None if the slot is of another type or size than the
    waiter takes, or it has its machine.
    """
    room = slot.facts.room
    short = lacking(waiter.requests, room) if room is not None else []
    if waiter.claim or SOLD & {*short}:
        return None
    if room is None and ACCELERATED & {*waiter.requests} and quota_family(slot.type) in PLAIN_FAMILIES:
        return None
    by_alternative = [
        obstacles
        for alternative in waiter.alternatives
        if (obstacles := _of_alternative(waiter, alternative, slot, shown)) is not None
    ]
    if not by_alternative:
        return None
    easiest = min(by_alternative, key=lambda items: (any(item.own for item in items), len(items)))
    held = [_Obstacle(waiter.held)] if waiter.held else []
    unsold = [_Obstacle(f"{slot.type} has too little {resource}") for resource in short]
    shut = [_Obstacle(text) for zone, text in waiter.shut if zone == slot.zone]
    known = (*held, *easiest, *shut, *unsold, *_gang(waiter, slot))
    if waiter.report and not known:
        return (_Obstacle(f"its last report is: {waiter.report}"),)
    return known


def _of_alternative(
    waiter: Waiter, alternative: Alternative, slot: IdleSlots, shown: Shown
) -> list[_Obstacle] | None:
    unmet = alternative.requirements.unmet(slot.labels, among=slot.labels)
    if _OF_TYPE & {*unmet}:
        return None
    of_pod = waiter.kind == POD
    own = {*alternative.own.unmet(slot.labels, among=slot.labels)}
    pool, obstacles = alternative.pool, list[_Obstacle]()
    of_pool = {*pool.unmet(slot.labels, among=slot.labels)} if pool is not None else {*unmet} - own
    if pool is None and not of_pod:
        of_pool = {*unmet}  # the claim has the requirements of its NodePool
    edit = f"kubectl edit nodepool {alternative.node_pool}" if alternative.node_pool and shown.cluster else ""
    if alternative.closed:
        obstacles.append(_closed(alternative, shown))
    for key in unmet:
        values = alternative.requirements.values(key)
        whose = "its" if key in own else "the NodePool's"
        allowed = f"be {', '.join(sorted(values))}, not" if values else "not be"
        text = f"{whose} {_NOUNS.get(key, key)} may {allowed} {slot.labels[key]}"
        obstacles.append(_Obstacle(text, edit if key in of_pool else "", own=of_pod and key in own))
    deciding = pool if of_pod and pool is not None else alternative.requirements
    required, of_slot = tenancy(deciding), slot.labels.get(names.INSTANCE_TENANCY)
    if of_slot == "dedicated" != required and names.INSTANCE_TENANCY not in unmet:
        whose = "" if pool is None else " of the NodePool"
        text = f"the slot's tenancy is {of_slot}, and no {names.INSTANCE_TENANCY}{whose} requires it"
        obstacles.append(_Obstacle(text, edit))
    obstacles += (*_target(alternative, slot, shown), *_owner(alternative, slot, shown))
    return obstacles


def _closed(alternative: Alternative, shown: Shown) -> _Obstacle:
    if not shown.cluster:
        return _Obstacle("its NodePool gives no pod a node now")
    pool = alternative.node_pool
    return _Obstacle(f"NodePool {pool}: {alternative.closed}", f"kubectl describe nodepool {pool}")


def _target(alternative: Alternative, slot: IdleSlots, shown: Shown) -> Iterator[_Obstacle]:
    """The reservations that the class requests. Other NodePools of the class change with it."""
    name, shared = alternative.node_class, alternative.shared
    if name and name not in slot.node_classes:
        if misfit := dict(slot.misfits).get(name):
            yield _Obstacle(misfit)
            return
        use = f" (also used by NodePool{'s' * (len(shared) > 1)} {abridged(shared, MOST_NAMED)})"
        class_ = f"its class {name}{use if shared else ''}" if shown.cluster else "its class"
        request = dict(slot.unselected).get(name)
        text = f"{class_} {request}" if request else f"the target of {class_} is another reservation"
        yield _Obstacle(text, f"kubectl edit ec2nodeclass {name}" if shown.cluster else "")
    elif not name and not slot.node_classes:
        yield _Obstacle("it is the target of no EC2NodeClass")


def _gang(waiter: Waiter, slot: IdleSlots) -> Iterator[_Obstacle]:
    """A gang gets room whole or not at all."""
    pods_a_slot, room = 1, slot.facts.room
    if waiter.kind == POD:
        requests = {PODS: 1, **waiter.requests}
        fits = [room.get(name, 0) // amount for name, amount in requests.items() if amount] if room else []
        pods_a_slot = min(fits, default=waiter.together)
    needed = -(-waiter.together // max(pods_a_slot, 1))
    if needed > slot.free:
        yield _Obstacle(f"its gang needs {counted(needed, 'slot')} at once")


def explain_owner(owner: ReservationKey) -> str:
    """The command that explains the owner of slots."""
    return f"capacity-broker explain reservation {owner}"


def _owner(alternative: Alternative, slot: IdleSlots, shown: Shown) -> Iterator[_Obstacle]:
    if slot.owner is None or alternative.draws_from == slot.owner:
        return
    given, owner = alternative.draws_from, shown.owner(slot.owner)
    if isinstance(given, UnresolvedName):
        whose = given.message
    else:
        whose = f"it draws from {shown.owner(given)}" if given else f"no {names.DRAWS_FROM} names it"
    command = explain_owner(slot.owner) if owner == str(slot.owner) else ""
    yield _Obstacle(f"the slot's owner is {owner}, and {whose}", command)
