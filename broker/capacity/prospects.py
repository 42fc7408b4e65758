"""What the claims of one plan choose from, each part worked out once.

Invariant: claims that share a prospect are interchangeable: the same options suit them, and each option is
usable by the same reservations. An option is usable when a reservation of it has room and is not short, or,
outside reservations, when nothing about it is short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from broker.capacity.catalog import Candidate, Catalog, catalog
from broker.capacity.model import Claim, Inventory, NodeClass, Option, Skipped
from broker.capacity.options import choose, suitable
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortage, Shortages
from providers.model import InstanceType


class _Need(NamedTuple):
    """What makes claims interchangeable: the same suits them, whatever the numbers it follows from."""

    node_class: str
    requirements: Requirements
    suited: tuple[int, ...]  # which of the catalog's candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """An option as it stands: the reservations through which it may be asked, or why not and until when."""

    slots: tuple[str, ...] = ()
    refused: Skipped | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A need's options as they stand: which may be asked, by which reservations, and why not the others."""

    options: tuple[Option, ...]
    usable: tuple[Option, ...]
    slots: Mapping[str, Option]  # reservation → the option that draws from it, in order of preference
    plain: Option | None  # the first option that needs no reservation
    refused: Mapping[Option, Skipped]
    retry_at: datetime | None
    suited: tuple[Candidate, ...]


class Shops:
    """What the claims of one plan choose from, each part worked out once."""

    def __init__(
        self,
        node_classes: Mapping[str, NodeClass],
        types: Mapping[str, InstanceType],
        inventory: Inventory,
        shortages: Shortages,
        now: datetime,
    ) -> None:
        self._node_classes = node_classes
        self._types = types
        self._inventory = inventory
        self._shortages = shortages
        self._now = now
        self._known: dict[str, Catalog] = {}
        self._exact: dict[tuple[str, Requirements, frozenset[tuple[str, float]]], Prospect] = {}
        self._prospects: dict[_Need, Prospect] = {}
        self._states: dict[int, _State] = {}
        self._calms: dict[str, bool] = {}

    def known(self, name: str) -> Catalog:
        if name not in self._known:
            node_class = self._node_classes[name]
            self._known[name] = catalog(node_class, self._types, self._inventory, self._now)
        return self._known[name]

    def prospect(self, claim: Claim) -> Prospect:
        """The same object for claims that are interchangeable."""
        wanted = (claim.node_class, claim.requirements)
        exact = (*wanted, frozenset(claim.requests.items()))
        if exact in self._exact:
            return self._exact[exact]
        known = self.known(claim.node_class)
        suited = suitable(claim.requirements, claim.requests, known)
        need = _Need(*wanted, tuple(map(id, suited)))
        if need not in self._prospects:
            self._prospects[need] = self._look(choose(claim.requirements, suited, known), suited, known)
        self._exact[exact] = self._prospects[need]
        return self._exact[exact]

    def _look(self, options: tuple[Option, ...], suited: tuple[Candidate, ...], known: Catalog) -> Prospect:
        usable: list[Option] = []
        slots: dict[str, Option] = {}
        refused: dict[Option, Skipped] = {}
        ends: list[datetime] = []
        for place, option in enumerate(options):
            if option.pool.capacity_type != "reserved" and self._calm(known):
                usable += options[place:]  # the reserved ones come first
                break
            state = self._state(option, known)
            if state.refused is None:
                usable.append(option)
                slots |= dict.fromkeys(state.slots, option)
                continue
            refused[option] = state.refused
            if state.until is not None:
                ends.append(state.until)
        return Prospect(
            options=options,
            usable=tuple(usable),
            slots=slots,
            plain=next((option for option in usable if option.pool.capacity_type != "reserved"), None),
            refused=refused,
            retry_at=min(ends, default=None),
            suited=suited,
        )

    def _calm(self, known: Catalog) -> bool:
        """Whether nothing outside reservations is short, so that none of it needs a look."""
        name = known.node_class.name
        if name not in self._calms:
            plain = (option for some in known.plain.values() for option in some.options)
            self._calms[name] = all(self._state(option, known).refused is None for option in plain)
        return self._calms[name]

    def _state(self, option: Option, known: Catalog) -> _State:
        """Whether the option may be asked, through which reservations, and if not, why and until when."""
        # A class's catalog makes each option once, and lives as long as this does.
        if (state := self._states.get(id(option))) is None:
            state = self._states[id(option)] = self._see(option, known)
        return state

    def _see(self, option: Option, known: Catalog) -> _State:
        free = [each for each in option.odcr_ids if self._inventory.free(each)]
        if option.pool.capacity_type == "reserved" and not free:
            return _State(refused=_full(option, self._inventory))
        subnets = [each.id for each in known.node_class.subnets if each.zone == option.pool.zone]
        through = replace(option, odcr_ids=tuple(free))
        if short := self._shortages.active(through, self._now, subnet_ids=subnets):
            return _State(refused=_short(option, short), until=short.until)
        return _State(slots=self._shortages.open_reservations(free, self._now))


def _full(option: Option, inventory: Inventory) -> Skipped:
    counts = ", ".join(f"{each} 0 of {_total(each, inventory)}" for each in option.odcr_ids)
    return Skipped(pool=option.pool, reason="ReservationFull", message=f"{option.pool}: free slots: {counts}")


def _short(option: Option, shortage: Shortage) -> Skipped:
    message = (
        f"{option.pool}: {': '.join(filter(None, (shortage.code, shortage.message)))} "
        f"at {shortage.since:%H:%M:%SZ}, not asked again before {shortage.until:%Y-%m-%dT%H:%M:%SZ}"
    )
    return Skipped(pool=option.pool, reason="ShortageRemembered", message=message, class_=shortage.class_)


def _total(odcr_id: str, inventory: Inventory) -> int:
    odcr = inventory.odcrs.get(odcr_id)
    return odcr.total if odcr else 0
