"""Slot quota and limits of each reservation, read once for each version of its spec.

Invariant: a reservation entitles to nothing, with a reason, if its spec is invalid, it is being deleted, or
a ResourceQuota refuses it. It owns its slots until it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.apis.ome import FlavorQuotas, PreemptionRule
from broker.apis.ome_rules import Judged
from broker.controllers.snapshot import Snapshot
from broker.quota.slot_model import Member
from broker.quota.usage import Reserved
from broker.reservations.flavors import Flavors
from broker.reservations.queues import preemption
from broker.reservations.reading import read
from broker.reservations.slot_quota import SlotQuota, slot_quota
from broker.reservations.spec import Reservation, reserved_of
from broker.text import quantity
from providers.model import InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSlots:
    """One reservation. `flavors`: slot quota by name. `barred`: the reason if it entitles to nothing."""

    reserved: Reserved
    member: Member
    flavors: Mapping[str, SlotQuota] = field(default_factory=dict)
    barred: str = ""


class SlotQuotaReader:
    """Reads the slot quota of each reservation, and caches it by version."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[str, int], ReservationSlots]] = {}

    def said(
        self,
        snapshot: Snapshot,
        flavors: Flavors,
        types: Mapping[str, InstanceType],
        version: int,
    ) -> list[ReservationSlots]:
        """The slot quota of all reservations. `version` changes with the other inputs: flavors and types."""
        found: dict[str, tuple[tuple[str, int], ReservationSlots]] = {}
        for one in snapshot.reservations.values():
            key = (one.metadata.resource_version, version)
            known = self._known.get(one.uid)
            found[one.uid] = (
                known
                if known and known[0] == key
                else (key, self._read(one, snapshot.judged(one), flavors, types))
            )
        self._known = found
        return [
            _barred(said.reserved, f"its namespace has no room for it: {why[0]}")
            if not said.barred and (why := snapshot.refusals.get(said.reserved))
            else said
            for _, said in found.values()
        ]

    def _read(
        self, one: Reservation, judged: Judged, flavors: Flavors, types: Mapping[str, InstanceType]
    ) -> ReservationSlots:
        spec, reserved = judged.spec, reserved_of(one)
        if one.deleting or judged.problems:
            barred = "it is being deleted" if one.deleting else f"its spec is not valid: {judged.problems[0]}"
            return _barred(reserved, barred)
        reading = read(one, judged, flavors)
        slots = {
            quotas.name: slot_quota(
                ask, types, borrowing=_limits(quotas, "borrowing"), lending=_limits(quotas, "lending")
            )
            for group in spec.resource_groups
            for quotas in group.flavors
            if (ask := reading.wish.asks.get(quotas.name)) is not None
        }
        may = spec.allow_borrowing and bool(spec.cohort)
        member = Member(
            name=reserved.queue,
            cohort=spec.cohort,
            borrowing_limit={name: each.borrowing_limit for name, each in slots.items()} if may else {},
            preemption=preemption(spec.preemption_rule or PreemptionRule()),
        )
        return ReservationSlots(reserved=reserved, member=member, flavors=slots)


def _barred(reserved: Reserved, why: str) -> ReservationSlots:
    return ReservationSlots(reserved=reserved, member=Member(name=reserved.queue), barred=why)


def _limits(quotas: FlavorQuotas, kind: str) -> dict[str, float | None]:
    texts = {
        each.name: each.borrowing_limit if kind == "borrowing" else each.lending_limit
        for each in quotas.resources
    }
    return {name: None if text is None else quantity(text) for name, text in texts.items()}
