"""Matches idle slots with the claims and pods that could have them, and names the obstacles.

`explain` and the web page show the same matches. Type, size, zone, capacity type, the class's target and the
owner are compared, by the rules of the planner: requirements against labels, and requests against the room of
the type. Taints and the room for DaemonSets are for `explain claim` and `plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim
from broker.apis.units import whole
from broker.capacity.model import ANY_CLASS
from broker.capacity.shortages import quota_family
from broker.capacity.types import PODS, WELL_KNOWN, allocatable, lacking, type_labels
from broker.oncall.waiters import KARPENTERS, POD, Alternative, Waiter
from broker.placement.quantities import amounts
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import ReservationKey
from broker.reservations.sizing import ACCELERATORS, SOLD
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
    """The free slots of one EC2 reservation."""

    id: str
    type: str
    zone: str
    free: int
    node_classes: frozenset[str]
    owner: ReservationKey | None
    labels: Mapping[str, str]
    facts: TypeFacts = TypeFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleMatch:
    """Alike waiters that could have a slot. `between`: the obstacles; none is known if it is empty."""

    slots: IdleSlots
    waiters: tuple[Waiter, ...]
    between: tuple[str, ...]
    command: str

    @property
    def named(self) -> str:
        """The waiters in words."""
        kind = self.waiters[0].kind
        kinds = kind if len(self.waiters) == 1 else f"{len(self.waiters)} {_PLURALS.get(kind, kind + 's')}"
        return f"{kinds} {abridged([waiter.name for waiter in self.waiters], MOST_NAMED)}"

    @property
    def why(self) -> str:
        return "; ".join(self.between) or "nothing known stands between"

    @property
    def text(self) -> str:
        """The match in a sentence."""
        slots = self.slots
        free = f"{counted(slots.free, 'free slot')}, {slots.type} in {slots.zone}"
        return f"{self.named} could have a slot of {slots.id} ({free}): {self.why}"


_PLURALS: Final = {KARPENTERS: "claims of Karpenter"}
_Obstacle = tuple[str, str]  # the command that helps, empty for the waiter's; and the text


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


def idle_slots(
    mirrors: Iterable[OnDemandCapacityReservation],
    owners: Mapping[str, ReservationKey],
    facts: Callable[[str], TypeFacts | None],
) -> Iterator[IdleSlots]:
    """The active reservations with free slots. `facts`: those of a type, if it is known."""
    for mirror in mirrors:
        status = mirror.status
        if not status.idle:
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
            free=status.idle,
            node_classes=frozenset(status.node_classes),
            owner=owners.get(mirror.name),
            labels={**known.labels, **of_slot},
            facts=known,
        )


def idle_matches(
    waiters: Iterable[Waiter],
    slots: Iterable[IdleSlots],
    *,
    about: Callable[[Waiter, IdleSlots], bool] = lambda *_: True,
    shown: Shown = Shown(),
) -> Iterator[IdleMatch]:
    """Each idle reservation with the waiters that could have its slots, those with the fewest obstacles
    first. `about`: whether a pair is of interest.
    """
    alike: dict[object, list[Waiter]] = {}
    for waiter in waiters:
        alike.setdefault(waiter.shape, []).append(waiter)
    for slot in slots:
        groups: dict[tuple[str, tuple[_Obstacle, ...]], list[Waiter]] = {}
        for members in alike.values():
            obstacles = _obstacles(members[0], slot, shown)
            if obstacles is not None and (meant := [w for w in members if about(w, slot)]):
                groups.setdefault((members[0].kind, obstacles), []).extend(meant)
        for (_, obstacles), group in sorted(groups.items(), key=lambda item: len(item[0][1])):
            yield IdleMatch(
                slots=slot,
                waiters=tuple(group),
                between=tuple(text for _, text in obstacles),
                command=next((command for command, _ in obstacles if command), group[0].command),
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
        if (obstacles := _of_alternative(alternative, slot, shown)) is not None
    ]
    if not by_alternative:
        return None
    held = [("", waiter.held)] if waiter.held else []
    unsold = [("", f"{slot.type} has too little {resource}") for resource in short]
    size = [*_gang(waiter, slot)]
    return (*held, *min(by_alternative, key=len), *unsold, *size, *_owner(waiter, slot, shown))


def _of_alternative(alternative: Alternative, slot: IdleSlots, shown: Shown) -> list[_Obstacle] | None:
    unmet = alternative.requirements.unmet(slot.labels, among=slot.labels)
    if _OF_TYPE & {*unmet}:
        return None
    own = {*alternative.own.unmet(slot.labels, among=slot.labels)}
    obstacles: list[_Obstacle] = []
    edit = f"kubectl edit nodepool {alternative.node_pool}"
    of_claim = alternative.own is alternative.requirements
    for key in unmet:
        values = alternative.requirements.values(key)
        allowed = ", ".join(sorted(values)) if values else alternative.requirements.describe(key)
        of_pool = alternative.node_pool and shown.cluster and (of_claim or key not in own)
        whose = "its" if of_claim or key in own else "the NodePool's"
        obstacles.append(
            (
                edit if of_pool else "",
                f"{whose} {_NOUNS.get(key, key)} may be {allowed}, not {slot.labels[key]}",
            )
        )
    if alternative.node_class and alternative.node_class not in slot.node_classes:
        named = f" {alternative.node_class}" if shown.cluster else ""
        obstacles.append(
            (
                f"kubectl edit ec2nodeclass {alternative.node_class}" if shown.cluster else "",
                f"the target of its class{named} is another reservation",
            )
        )
    elif alternative.unserved:
        obstacles.append(("", "no NodePool takes it"))
    elif not alternative.node_class and not slot.node_classes:
        obstacles.append(("", "it is the target of no EC2NodeClass"))
    return obstacles


def _gang(waiter: Waiter, slot: IdleSlots) -> Iterator[_Obstacle]:
    """A gang gets room whole or not at all."""
    pods_a_slot, room = 1, slot.facts.room
    if waiter.kind == POD:
        requests = {PODS: 1, **waiter.requests}
        fits = [room.get(name, 0) // amount for name, amount in requests.items() if amount] if room else []
        pods_a_slot = min(fits, default=waiter.together)
    needed = -(-waiter.together // max(pods_a_slot, 1))
    if needed > slot.free:
        yield "", f"its gang needs {counted(needed, 'slot')} at once"


def _owner(waiter: Waiter, slot: IdleSlots, shown: Shown) -> Iterator[_Obstacle]:
    if slot.owner is None or waiter.draws_from == slot.owner:
        return
    given, owner = waiter.draws_from, shown.owner(slot.owner)
    if isinstance(given, UnresolvedName):
        whose = given.message
    else:
        whose = f"it draws from {shown.owner(given)}" if given else f"no {names.DRAWS_FROM} names it"
    command = f"capacity-broker explain reservation {owner}" if owner == str(slot.owner) else ""
    yield command, f"the slot's owner is {owner}, and {whose}"
