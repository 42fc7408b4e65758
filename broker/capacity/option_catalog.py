"""The options of all claims of one plan, each part computed once.

Invariant: claims that share a `CandidateOptions` are interchangeable: they have the same options, usable
through the same reservations. A reserved option is usable if one of its reservations has room and is not
short, any other option if nothing about it is short. If all options outside reservations are short, those
are usable that may be tried as a last resort (see `shortages`). Of owned reservations, claims of the same
queue share their options, and the slots of other owners are kept apart. A slot with accelerators is no option
while the claim has an option outside reservations without them, unless its class names the reservation or
its queue owns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from broker.capacity.class_catalog import CandidateType, ClassCatalog, ClassCatalogs, named
from broker.capacity.entitlement import RESERVATION_FULL, RESERVED_FOR_OTHERS
from broker.capacity.full_slots import none_of
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Option, Skipped
from broker.capacity.options import Hosts, choose, matching_reservations, pool_of, suitable, tenancy
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import BACKING_OFF, Shortage
from broker.capacity.supply import LaunchSupply
from broker.capacity.types import has_accelerator
from broker.text import format_time
from providers.errors import ErrorClass
from providers.model import Odcr

MOST_WITHHELD: Final = 20  # of the reservations closed to a claim; more is noise


class _Need(NamedTuple):
    """The properties of interchangeable claims. Claims with different numbers may share the same types."""

    node_class: str
    requirements: Requirements
    suitable_types: tuple[str, ...]
    queue: str  # of the reservation that it draws from


@dataclass(frozen=True, slots=True, kw_only=True)
class _OptionState:
    """The current state of an option: its open reservations, or the refusal and its end."""

    slots: tuple[str, ...] = ()
    refused: Skipped | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateOptions:
    """The current options of a need: the usable ones with their reservations, and the reasons of the others.

    Equal only to itself: a plan has one for all interchangeable claims.

    `known`: the catalog of their class. `borrowable`: slots of other owners, apart from `slots`. `own`: the
    reservations (by id) of its queue, with or without room. `lenders`: reservations that it may borrow from;
    `withheld`: those that it may not use. `soon`: reservations that are not launchable yet, with the latest
    time until they are. `last_resort`: the usable options that are short. `valued`: slots with accelerators,
    for claims alone that no plain option outside reservations serves.
    """

    options: tuple[Option, ...]
    usable: tuple[Option, ...]
    slots: Mapping[str, Option]  # reservation → the option that draws from it, in order of preference
    unreserved: Option | None  # the first option that needs no reservation
    refused: Mapping[Option, Skipped]
    retry_at: datetime | None
    suitable_types: tuple[CandidateType, ...]
    known: ClassCatalog
    borrowable: Mapping[str, Option] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    lenders: tuple[str, ...] = ()
    withheld: tuple[Skipped, ...] = ()
    soon: tuple[tuple[Odcr, datetime], ...] = ()
    last_resort: tuple[Option, ...] = ()
    valued: frozenset[Option] = frozenset()

    def drawing(self, odcr_id: str) -> Option:
        """The option that uses a reservation."""
        return self.slots.get(odcr_id) or self.borrowable[odcr_id]


class OptionCatalog:
    """The options of all claims of one plan, each part computed once."""

    def __init__(self, supply: LaunchSupply) -> None:
        self._supply = supply
        self._catalogs = ClassCatalogs(supply.types, supply.inventory, supply.now)
        self._entitlements = supply.entitlements
        self._owned = supply.entitlements.owned
        accelerators = (name for name, type_ in supply.types.items() if has_accelerator(type_))
        self._accelerators = frozenset(accelerators)
        self._known: dict[tuple[str, str], ClassCatalog] = {}
        self._exact: dict[tuple[str, Requirements, frozenset[tuple[str, float]], str], CandidateOptions] = {}
        self._by_need: dict[_Need, CandidateOptions] = {}
        self._states: dict[tuple[str, str], dict[Option, _OptionState]] = defaultdict(dict)
        self._calms: dict[tuple[str, str], bool] = {}

    def known(self, claim: Claim) -> ClassCatalog:
        key = (claim.node_class, tenancy(claim.requirements))
        if key not in self._known:
            node_class = self._supply.classes[claim.node_class].of_tenancy(key[1])
            self._known[key] = self._catalogs.of(node_class)
        return self._known[key]

    def computed(self, claim: Claim) -> CandidateOptions | None:
        """The options of the claim if they are computed already."""
        return self._exact.get(self._key(claim))

    def _key(self, claim: Claim) -> tuple[str, Requirements, frozenset[tuple[str, float]], str]:
        requests = frozenset(claim.requests.items())
        return claim.node_class, claim.requirements, requests, self._queue(claim)

    def _queue(self, claim: Claim) -> str:
        """The queue that the claim draws from, if any reservation has an owner."""
        return self._entitlements.draws.get(claim.uid, "") if self._owned else ""

    def candidates(self, claim: Claim) -> CandidateOptions:
        """The options of a claim: the same object for interchangeable claims."""
        exact = self._key(claim)
        queue = exact[-1]
        if exact in self._exact:
            return self._exact[exact]
        suitable_types = suitable(claim.requirements, claim.requests, self.known(claim))
        need = _Need(
            claim.node_class,
            claim.requirements,
            tuple(candidate.type.name for candidate in suitable_types),
            queue,
        )
        if need not in self._by_need:
            self._by_need[need] = self._chosen(claim, suitable_types)
        self._exact[exact] = self._by_need[need]
        return self._exact[exact]

    def hosting(self, claim: Claim, hosts: Hosts) -> CandidateOptions:
        """The options of a claim for certain pods: outside reservations, those that host the pods.

        What holds the pods is asked first, and only those options are compared with each other.
        """
        return self._chosen(claim, suitable(claim.requirements, claim.requests, self.known(claim)), hosts)

    def every(self, claim: Claim) -> CandidateOptions:
        """The options of a claim for pods that choose among them later: none is left out beside a better one,
        which may not hold a pod.
        """
        suitable_types = suitable(claim.requirements, claim.requests, self.known(claim))
        return self._chosen(claim, suitable_types, compared=False)

    def _chosen(
        self,
        claim: Claim,
        suitable_types: tuple[CandidateType, ...],
        hosts: Hosts | None = None,
        *,
        compared: bool = True,
    ) -> CandidateOptions:
        known, queue = self.known(claim), self._queue(claim)
        owner_of = self._owner_of(queue) if self._owned else None
        chosen = choose(
            claim.requirements, suitable_types, known, owner_of=owner_of, hosts=hosts, compared=compared
        )
        candidates = self._candidates(chosen, suitable_types, known, queue, compared)
        if self._owned:
            withheld = self._withheld(claim, suitable_types, known, queue)
            candidates = replace(candidates, withheld=tuple(islice(withheld, MOST_WITHHELD)))
        spared = self._accelerators if compared and self._spares(known, candidates.unreserved) else ()
        begins = {live.odcr.id: by for live, by in known.pending if by}
        starting = (live for live, _ in known.pending if live.odcr.id in begins)
        matching = matching_reservations(claim.requirements, suitable_types, starting)
        pending = [
            (odcr, begins[odcr.id])
            for odcr in (live.odcr for live in matching)
            if (not self._owned or self._may_wait(queue, odcr.id))
            and (odcr.instance_type not in spared or self._entitlements.right(queue, odcr.id) == "own")
        ]
        return replace(candidates, soon=tuple(pending)) if pending else candidates

    def _candidates(
        self,
        options: tuple[Option, ...],
        suitable_types: tuple[CandidateType, ...],
        known: ClassCatalog,
        queue: str,
        compared: bool,
    ) -> CandidateOptions:
        usable: list[Option] = []
        slots: dict[str, Option] = {}
        borrowable: dict[str, Option] = {}
        own: list[str] = []
        lenders: list[str] = []
        refused: dict[Option, Skipped] = {}
        ends: dict[Option, datetime] = {}
        accelerated: list[Option] = []
        for place, option in enumerate(options):
            if option.pool.capacity_type != "reserved" and self._calm(known):
                usable += options[place:]  # the reserved ones come first
                break
            right = (
                self._entitlements.right(queue, option.odcr_ids[0]) if self._owned and option.odcr_ids else ""
            )
            if right in ("own", "lent"):
                (own if right == "own" else lenders).extend(option.odcr_ids)
            if right in ("own", "lent") and (barred := self._limit(option, queue)):
                refused[option] = barred
                continue
            state = self._state(option, known)
            if state.refused is None:
                usable.append(option)
                if option.pool.instance_type in self._accelerators and state.slots:
                    accelerated.append(option)
                (borrowable if right == "lent" else slots).update(dict.fromkeys(state.slots, option))
                continue
            refused[option] = state.refused
            if right == "own" and (loans := self._entitlements.loans(option.odcr_ids)):
                refused[option] = replace(state.refused, message=state.refused.message + loans)
            if state.until is not None:
                ends[option] = state.until
        unreserved = next((option for option in usable if option.pool.capacity_type != "reserved"), None)
        last_resort: list[Option] = []
        if unreserved is None or not compared:
            for option in [refused_option for refused_option in refused if not refused_option.pool.reserved]:
                state = self._option_state(option, known, last_resort=True)
                if state.refused is None:
                    usable.append(option)
                    last_resort.append(option)
                    del refused[option], ends[option]
                elif state.until is not None:
                    refused[option], ends[option] = state.refused, state.until
            unreserved = next((option for option in usable if not option.pool.reserved), None)
        valued: frozenset[Option] = frozenset()
        if accelerated and unreserved and self._spares(known, unreserved):
            owned = frozenset(own)
            valued = frozenset(option for option in accelerated if owned.isdisjoint(option.odcr_ids))
            if valued and compared:
                usable = [option for option in usable if option not in valued]
                slots = {odcr_id: option for odcr_id, option in slots.items() if option not in valued}
                borrowable = {
                    odcr_id: option for odcr_id, option in borrowable.items() if option not in valued
                }
                refused |= {option: _valued(option, unreserved) for option in accelerated if option in valued}
        return CandidateOptions(
            options=options,
            usable=tuple(usable),
            slots=slots,
            unreserved=unreserved,
            refused=refused,
            retry_at=min(ends.values(), default=None),
            suitable_types=suitable_types,
            known=known,
            borrowable=borrowable,
            own=tuple(own),
            lenders=tuple(lenders),
            last_resort=tuple(last_resort),
            valued=valued,
        )

    def _spares(self, known: ClassCatalog, unreserved: Option | None) -> bool:
        """Whether a need leaves slots with accelerators to others: a plain machine outside reservations
        serves it, and its class names no reservation.
        """
        named = known.node_class.selection.reservation_id
        return (
            not named and unreserved is not None and unreserved.pool.instance_type not in self._accelerators
        )

    def _owner_of(self, queue: str) -> Callable[[Odcr], str | None]:
        def owner_of(odcr: Odcr) -> str | None:
            if self._entitlements.right(queue, odcr.id) is None:
                return None
            return "/".join(self._entitlements.slot_pools.get(odcr.id, ()))

        return owner_of

    def _may_wait(self, queue: str, odcr_id: str) -> bool:
        """Whether the reservation is unowned, or the queue's own within its quota."""
        right = self._entitlements.right(queue, odcr_id)
        if right != "own":
            return right not in (None, "lent")
        return self._entitlements.limit(queue, self._entitlements.slot_pools[odcr_id]) is None

    def _limit(self, option: Option, queue: str) -> Skipped | None:
        """Why quota or limits leave the queue nothing of the option now."""
        limit = self._entitlements.limit(queue, self._entitlements.slot_pools[option.odcr_ids[0]])
        inventory = self._supply.inventory
        if limit and limit[0] == RESERVATION_FULL and not any(map(inventory.free, option.odcr_ids)):
            return full(option, inventory)
        return limit and option.skipped(*limit)

    def _withheld(
        self, claim: Claim, suitable_types: Sequence[CandidateType], known: ClassCatalog, queue: str
    ) -> Iterator[Skipped]:
        """The reservations that match the claim but not its queue."""
        for live in matching_reservations(claim.requirements, suitable_types, known.reserved):
            pool, odcr_id = pool_of(live.odcr), live.odcr.id
            if self._entitlements.right(queue, odcr_id) is None:
                message = f"{pool.shown}: {self._entitlements.denial(queue, odcr_id)}"
                yield Skipped(pool=pool, reason=RESERVED_FOR_OTHERS, message=message)

    def _calm(self, known: ClassCatalog) -> bool:
        """Whether nothing outside reservations is short, so that none of it is checked."""
        if not self._supply.shortages.by_scope:
            return True
        key = _class_key(known)
        if key not in self._calms:
            unreserved = (
                option
                for unreserved_options in known.unreserved.values()
                for option in unreserved_options.options
            )
            self._calms[key] = all(self._state(option, known).refused is None for option in unreserved)
        return self._calms[key]

    def refusal(self, claim: Claim, odcr_id: str) -> tuple[Skipped, datetime] | None:
        """Why EC2 is not asked for a free slot of a reservation now, and until when.

        None if it may be, or if EC2 only said that no slot was free.
        """
        known = self.known(claim)
        option = named(self._supply.inventory.odcrs[odcr_id], known)
        short = self.shortage(option, known)
        if short is None or short.class_ is ErrorClass.RESERVATION_FULL:
            return None
        return _short(option, short, short.until), short.until

    def _state(self, option: Option, known: ClassCatalog) -> _OptionState:
        """The state of an option for a class, computed once."""
        states = self._states[_class_key(known)]
        if (state := states.get(option)) is None:
            state = states[option] = self._option_state(option, known)
        return state

    def _option_state(
        self, option: Option, known: ClassCatalog, *, last_resort: bool = False
    ) -> _OptionState:
        free = [odcr_id for odcr_id in option.odcr_ids if self._supply.inventory.free(odcr_id)]
        if option.pool.capacity_type == "reserved" and not free:
            return _OptionState(refused=full(option, self._supply.inventory))
        if not self._supply.shortages.by_scope:
            return _OptionState(slots=tuple(free))
        if short := self.shortage(option, known, last_resort=last_resort):
            until = short.next_try if last_resort else short.until
            return _OptionState(refused=_short(option, short, until), until=until)
        return _OptionState(slots=self._supply.shortages.open_reservations(free, self._supply.now))

    def shortage(self, option: Option, known: ClassCatalog, *, last_resort: bool = False) -> Shortage | None:
        """The current shortage that blocks an option of the class, in its reservations with free slots."""
        free = [odcr_id for odcr_id in option.odcr_ids if self._supply.inventory.free(odcr_id)]
        subnets = known.node_class.subnets_in(option.pool.zone, option.odcr_ids)
        return self._supply.shortages.active(
            replace(option, odcr_ids=tuple(free or option.odcr_ids)),
            self._supply.now,
            node_class=known.node_class.name,
            subnet_ids=[subnet.id for subnet in subnets],
            last_resort=last_resort,
        )


def _class_key(known: ClassCatalog) -> tuple[str, str]:
    return known.node_class.name, known.node_class.tenancy


def awaited(stuck: Iterable[CandidateOptions]) -> frozenset[str]:
    """The reservations in which claims wait for a slot without another way."""
    options = (option for item in stuck if not item.unreserved for option in item.options)
    return frozenset(id_ for option in options if option.pool.reserved for id_ in option.odcr_ids)


def full(option: Option, inventory: Inventory) -> Skipped:
    counts = ", ".join(_count(odcr_id, inventory) for odcr_id in option.odcr_ids)
    return option.skipped(RESERVATION_FULL, f"free slots: {counts}")


def _count(odcr_id: str, inventory: Inventory) -> str:
    left = min(inventory.promised(odcr_id), inventory.unused(odcr_id))
    why = f" ({left} kept for a node that replaces another)" if left else ""
    return f"{none_of(odcr_id, _total(odcr_id, inventory))}{why}"


def _valued(option: Option, unreserved: Option) -> Skipped:
    served = f"{unreserved.pool.shown} serves the claim without one"
    return option.skipped("AcceleratorNotRequested", f"its slots have accelerators, and {served}")


def _short(option: Option, shortage: Shortage, until: datetime) -> Skipped:
    why = (
        f"{': '.join(filter(None, (shortage.code, shortage.message)))} "
        f"at {format_time(shortage.last)}, not tried again before {format_time(until)}"
    )
    return option.skipped(BACKING_OFF, why, shortage.class_)


def _total(odcr_id: str, inventory: Inventory) -> int:
    odcr = inventory.odcrs.get(odcr_id)
    return odcr.total if odcr else 0
