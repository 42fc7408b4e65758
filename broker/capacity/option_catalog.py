"""The options of all claims of one plan, each part computed once.

Invariant: claims that share a `CandidateOptions` are interchangeable: they have the same options, usable
through the same reservations. A reserved option is usable if one of its reservations has room and is not
short, any other option if nothing about it is short. Of owned reservations, claims of the same queue share
their options, and the slots of other owners are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from broker.capacity.class_catalog import CandidateType, ClassCatalog, class_catalog
from broker.capacity.entitlement import NO_ENTITLEMENTS, RESERVED_FOR_OTHERS, Entitlements
from broker.capacity.model import Claim, Inventory, NodeClass, Option, Skipped
from broker.capacity.options import choose, soon, suitable, tenancy, wanted
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortage, Shortages
from providers.model import InstanceType, Odcr

MOST_WITHHELD: Final = 20  # of the reservations closed to a claim; more is noise


class _Need(NamedTuple):
    """The properties of interchangeable claims. Claims with different numbers may share the same types."""

    node_class: str
    requirements: Requirements
    suited: tuple[int, ...]  # which of the catalog's candidates
    queue: str  # of the reservation that it draws from


@dataclass(frozen=True, slots=True, kw_only=True)
class _OptionState:
    """The current state of an option: its open reservations, or the refusal and its end."""

    slots: tuple[str, ...] = ()
    refused: Skipped | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOptions:
    """The current options of a need: which are usable, through which reservations, and why not the others.

    `lent`: slots of other owners, apart from `slots`. `own`: the reservations (by id) of its queue, with or
    without room. `others`: reservations that it may borrow from; `withheld`: those that it may not use.
    `soon`: reservations that are not launchable yet, with the latest time until they are.
    """

    options: tuple[Option, ...]
    usable: tuple[Option, ...]
    slots: Mapping[str, Option]  # reservation → the option that draws from it, in order of preference
    unreserved: Option | None  # the first option that needs no reservation
    refused: Mapping[Option, Skipped]
    retry_at: datetime | None
    suited: tuple[CandidateType, ...]
    lent: Mapping[str, Option] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    withheld: tuple[Skipped, ...] = ()
    soon: tuple[tuple[Odcr, datetime], ...] = ()

    def drawing(self, odcr_id: str) -> Option:
        """The option that uses a reservation."""
        return self.slots.get(odcr_id) or self.lent[odcr_id]


class OptionCatalog:
    """The options of all claims of one plan, each part computed once."""

    def __init__(
        self,
        node_classes: Mapping[str, NodeClass],
        types: Mapping[str, InstanceType],
        inventory: Inventory,
        shortages: Shortages,
        now: datetime,
        *,
        entitlements: Entitlements = NO_ENTITLEMENTS,
    ) -> None:
        self._node_classes = node_classes
        self._types = types
        self._inventory = inventory
        self._shortages = shortages
        self._now = now
        self._entitlements = entitlements
        self._owned = entitlements.owned
        self._known: dict[tuple[str, str], ClassCatalog] = {}
        self._exact: dict[tuple[str, Requirements, frozenset[tuple[str, float]], str], CandidateOptions] = {}
        self._by_need: dict[_Need, CandidateOptions] = {}
        self._states: dict[int, _OptionState] = {}
        self._calms: dict[tuple[str, str], bool] = {}

    def known(self, claim: Claim) -> ClassCatalog:
        key = (claim.node_class, tenancy(claim.requirements))
        if key not in self._known:
            node_class = self._node_classes[claim.node_class].of_tenancy(key[1])
            self._known[key] = class_catalog(node_class, self._types, self._inventory, self._now)
        return self._known[key]

    def candidates(self, claim: Claim) -> CandidateOptions:
        """The options of a claim: the same object for interchangeable claims."""
        queue = self._entitlements.draws.get(claim.uid, "") if self._owned else ""
        exact = (claim.node_class, claim.requirements, frozenset(claim.requests.items()), queue)
        if exact in self._exact:
            return self._exact[exact]
        known = self.known(claim)
        suited = suitable(claim.requirements, claim.requests, known)
        need = _Need(claim.node_class, claim.requirements, tuple(map(id, suited)), queue)
        if need not in self._by_need:
            whose = self._whose(queue) if self._owned else None
            chosen = choose(claim.requirements, suited, known, whose=whose)
            found = self._candidates(chosen, suited, known, queue)
            if self._owned:
                withheld = self._withheld(claim, suited, known, queue)
                found = replace(found, withheld=tuple(islice(withheld, MOST_WITHHELD)))
            pending = [
                each
                for each in soon(claim.requirements, suited, known)
                if not self._owned or self._may_wait(queue, each[0].id)
            ]
            self._by_need[need] = replace(found, soon=tuple(pending)) if pending else found
        self._exact[exact] = self._by_need[need]
        return self._exact[exact]

    def _candidates(
        self, options: tuple[Option, ...], suited: tuple[CandidateType, ...], known: ClassCatalog, queue: str
    ) -> CandidateOptions:
        usable: list[Option] = []
        slots: dict[str, Option] = {}
        lent: dict[str, Option] = {}
        own: list[str] = []
        others: list[str] = []
        refused: dict[Option, Skipped] = {}
        ends: list[datetime] = []
        for place, option in enumerate(options):
            if option.pool.capacity_type != "reserved" and self._calm(known):
                usable += options[place:]  # the reserved ones come first
                break
            right = (
                self._entitlements.right(queue, option.odcr_ids[0]) if self._owned and option.odcr_ids else ""
            )
            if right in ("own", "lent"):
                (own if right == "own" else others).extend(option.odcr_ids)
            if right in ("own", "lent") and (barred := self._limit(option, queue)):
                refused[option] = barred
                continue
            state = self._state(option, known)
            if state.refused is None:
                usable.append(option)
                (lent if right == "lent" else slots).update(dict.fromkeys(state.slots, option))
                continue
            refused[option] = state.refused
            if state.until is not None:
                ends.append(state.until)
        return CandidateOptions(
            options=options,
            usable=tuple(usable),
            slots=slots,
            unreserved=next((option for option in usable if option.pool.capacity_type != "reserved"), None),
            refused=refused,
            retry_at=min(ends, default=None),
            suited=suited,
            lent=lent,
            own=tuple(own),
            others=tuple(others),
        )

    def _whose(self, queue: str) -> Callable[[Odcr], str | None]:
        def whose(odcr: Odcr) -> str | None:
            if self._entitlements.right(queue, odcr.id) is None:
                return None
            return "/".join(self._entitlements.lots.get(odcr.id, ()))

        return whose

    def _may_wait(self, queue: str, odcr_id: str) -> bool:
        """Whether the reservation is unowned, or the queue's own within its quota."""
        right = self._entitlements.right(queue, odcr_id)
        if right != "own":
            return right not in (None, "lent")
        return self._entitlements.limit(queue, self._entitlements.lots[odcr_id]) is None

    def _limit(self, option: Option, queue: str) -> Skipped | None:
        """Why quota or limits leave the queue nothing of the option now."""
        found = self._entitlements.limit(queue, self._entitlements.lots[option.odcr_ids[0]])
        return found and Skipped(pool=option.pool, reason=found[0], message=f"{option.pool}: {found[1]}")

    def _withheld(
        self, claim: Claim, suited: Sequence[CandidateType], known: ClassCatalog, queue: str
    ) -> Iterator[Skipped]:
        """The reservations that match the claim but not its queue."""
        for pool, odcr_id in wanted(claim, suited, known):
            if self._entitlements.right(queue, odcr_id) is None:
                message = f"{pool}: {self._entitlements.why_not(queue, odcr_id)}"
                yield Skipped(pool=pool, reason=RESERVED_FOR_OTHERS, message=message)

    def _calm(self, known: ClassCatalog) -> bool:
        """Whether nothing outside reservations is short, so that none of it is checked."""
        key = (known.node_class.name, known.node_class.tenancy)
        if key not in self._calms:
            unreserved = (option for some in known.unreserved.values() for option in some.options)
            self._calms[key] = all(self._state(option, known).refused is None for option in unreserved)
        return self._calms[key]

    def _state(self, option: Option, known: ClassCatalog) -> _OptionState:
        """The state of an option, computed once."""
        # A class's catalog makes each option once, and reservations as long as this does.
        if (state := self._states.get(id(option))) is None:
            state = self._states[id(option)] = self._option_state(option, known)
        return state

    def _option_state(self, option: Option, known: ClassCatalog) -> _OptionState:
        free = [each for each in option.odcr_ids if self._inventory.free(each)]
        if option.pool.capacity_type == "reserved" and not free:
            return _OptionState(refused=_full(option, self._inventory))
        subnets = [each.id for each in known.node_class.subnets if each.zone == option.pool.zone]
        through = replace(option, odcr_ids=tuple(free))
        if short := self._shortages.active(
            through, self._now, node_class=known.node_class.name, subnet_ids=subnets
        ):
            return _OptionState(refused=_short(option, short), until=short.until)
        return _OptionState(slots=self._shortages.open_reservations(free, self._now))


def _full(option: Option, inventory: Inventory) -> Skipped:
    counts = ", ".join(f"{each} 0 of {_total(each, inventory)}" for each in option.odcr_ids)
    return Skipped(pool=option.pool, reason="ReservationFull", message=f"{option.pool}: free slots: {counts}")


def _short(option: Option, shortage: Shortage) -> Skipped:
    message = (
        f"{option.pool}: {': '.join(filter(None, (shortage.code, shortage.message)))} "
        f"at {shortage.since:%H:%M:%SZ}, not asked again before {shortage.until:%Y-%m-%dT%H:%M:%SZ}"
    )
    return Skipped(pool=option.pool, reason="BackingOff", message=message, class_=shortage.class_)


def _total(odcr_id: str, inventory: Inventory) -> int:
    odcr = inventory.odcrs.get(odcr_id)
    return odcr.total if odcr else 0
