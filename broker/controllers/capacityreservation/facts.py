"""Builds the facts of all reservations jointly, for their status.

Invariant: the facts of one `JointFacts` are consistent: they come from one description of EC2, one list of
machines and one of users, and shared machines are divided once. Nothing is written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from broker.apis.karpenter import NodeClaim
from broker.apis.ome_rules import JudgedSpec
from broker.by_version import ByVersion
from broker.controllers.capacityreservation.related_objects import holders_of, queue_state, remaining
from broker.controllers.capacityreservation.unattributed import IsAttributed, UnattributedUsageReader
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.snapshot import Snapshot
from broker.quota.hardware import (
    EntitledReservation,
    HardwareShare,
    Machine,
    SteadyMachines,
    shares,
    steady,
    taken,
    usage,
)
from broker.quota.model import Amounts
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations import conditions
from broker.reservations.annotations import SIZING
from broker.reservations.conditions import ReservationFacts
from broker.reservations.drawing import DrawRights
from broker.reservations.flavors import FlavorCatalog
from broker.reservations.machines import Flavors, MachineReader, MachineSnapshot
from broker.reservations.odcr_status import purchase_failures, remedies
from broker.reservations.queues import limits, queue
from broker.reservations.sizing import SOLD, Sizing
from broker.reservations.spec import Reservation, reserved_of
from broker.text import format_time, nearest
from providers.errors import ProviderError
from providers.model import InstanceType, Odcr

_log = structlog.get_logger("reservation")


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFacts:
    """`until`: when the facts may change by time alone (monotonic)."""

    facts: Mapping[ReservationKey, ReservationFacts]
    unattributed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    until: float = float("inf")


class JointFactsBuilder:
    """`build` makes one `JointFacts`. Unchanged parts are reused, and machine counts are steadied."""

    def __init__(self, shared: ReservationDependencies, unattributed: UnattributedUsageReader) -> None:
        self._reads = shared.reads
        self._nodes, self._claims = shared.caches.nodes, shared.caches.claims
        self._hardware = MachineReader(starting_seconds=shared.settings.reservation_creating_seconds)
        self._unattributed = unattributed
        self._steadied: SteadyMachines | None = None
        self._types: Mapping[str, InstanceType] = {}
        # By uid: the judgements, and the users by name with their total.
        self._judgements: ByVersion[str, ReservationFacts] = ByVersion()
        self._users: ByVersion[str, tuple[tuple[ReservationHolder, ...], Amounts]] = ByVersion()

    def build(self, reservations: Sequence[Reservation], now: datetime, moment: float) -> JointFacts:
        claims, snapshot = self._claims.list(), self._reads.snapshot()
        try:
            self._types = snapshot.types
        except ProviderError as error:
            _log.info("instance types not refreshed", error=str(error))
        ownership = snapshot.odcrs.owned
        judged: dict[ReservationKey, ReservationFacts] = {}
        for reservation in reservations:
            with self._reads.guard(reservation):
                judged[reserved_of(reservation)] = self._judge(reservation, snapshot)
        reservations = [reservation for reservation in reservations if reserved_of(reservation) in judged]
        flavors = self._flavors(snapshot.flavors, judged.values())
        machine_snapshot = self._machine_snapshot(snapshot, flavors, claims, now)
        steady_seconds = self._unattributed.steady_seconds
        self._steadied, machines = steady(self._steadied, machine_snapshot.machines, moment, steady_seconds)
        claimants = _claimants(reservations, judged)
        shared = shares(claimants, machines, sold=SOLD)
        common, own = _broken_machines(machines)
        holders = holders_of(self._reads, snapshot, claims)
        added = {
            reserved_of(reservation): self._users.of(reservation.uid, users, _added, users)
            for reservation in reservations
            for users in (holders.get(reserved_of(reservation), ()),)
        }
        queued = {reserved: queue_state(self._reads, reserved, snapshot) for reserved in added}
        unattributed, steadily = self._unattributed.read(
            machines,
            claims,
            (holder for group in holders.values() for holder in group),
            is_attributed=_attribution(snapshot.rights, judged),
            kueue=any(state is not None for state in queued.values()),
            moment=moment,
        )
        used_up = taken(
            claimants,
            machines,
            shared,
            {reserved: used for reserved, (_, used) in added.items()},
            unattributed.use,
            anywhere=unattributed.anywhere,
        )
        facts: dict[ReservationKey, ReservationFacts] = {}
        for reservation in reservations:
            reserved = reserved_of(reservation)
            odcrs = snapshot.odcrs.status(reserved)
            quota, held = judged[reserved], ownership.of(reserved)
            cloud = tuple((flavor, odcr) for flavor in sorted(held) for odcr in held[flavor])
            named = sorted({key.flavor for key in quota.nominal})
            users, used = added[reserved]
            missing = tuple(name for name in named if name not in flavors and name not in held)
            priority = reservation.spec.priority_class_name
            facts[reserved] = replace(
                quota,
                refused=snapshot.refusals.get(reserved, ()),
                share=shared.get(reserved) or HardwareShare(),
                missing_flavors=missing,
                nearest_flavor=nearest(missing[0], flavors) or nearest(missing[0], self._types)
                if missing
                else "",
                cloud=cloud,
                group_arn=odcrs.group_arn,
                pending=tuple(_begins(odcr) for _, odcr in cloud if odcr.begins),
                ended=tuple(f"{odcr.id} is {odcr.state}" for odcr in ownership.ended.get(reserved, ())),
                out_of_service=(
                    *own.get(reserved, ()),
                    *_tied(machine_snapshot, named),
                    *(out for name in named for out in common.get(name, ())),
                ),
                taken=used_up.get(reserved, {}),
                takers=unattributed.where(reserved, named) if reserved in used_up else (),
                queue=queued[reserved],
                queue_failures=snapshot.queue_problems.get(reserved, ()),
                remedies=tuple(remedies(odcrs, reserved)),
                failures=tuple(purchase_failures(odcrs)),
                holders=users,
                used=used,
                priority_missing=priority if priority and self._reads.priority(priority) is None else "",
                remaining=tuple(remaining(self._reads, reservation, snapshot))
                if reservation.deleting
                else (),
            )
        due = (began + steady_seconds for began in self._steadied.since.values())
        return JointFacts(
            facts=facts,
            unattributed=machine_snapshot.unattributed,
            until=min((steadily, *due)),
        )

    def forget(self, alive: Collection[str]) -> None:
        self._users.keep(alive)
        self._judgements.keep(alive)

    def _flavors(self, catalog: FlavorCatalog, judged: Iterable[ReservationFacts]) -> Flavors:
        """Node labels by flavor."""
        named = {key.flavor for quota in judged for key in quota.nominal}
        flavors = catalog.usable(sorted(name for name in named if name in self._types))
        return {name: flavor.spec.node_labels for name, flavor in flavors.items()}

    def _machine_snapshot(
        self, snapshot: Snapshot, flavors: Flavors, claims: Sequence[NodeClaim], now: datetime
    ) -> MachineSnapshot:
        return self._hardware.read(
            self._nodes.list(),
            claims,
            snapshot.inventory,
            snapshot.odcrs.owned,
            flavors,
            self._types,
            now,
        )

    def _judge(self, reservation: Reservation, snapshot: Snapshot) -> ReservationFacts:
        sizing = SIZING.of(reservation)
        version = (reservation.metadata.generation, sizing)
        judged = snapshot.judged(reservation)
        return self._judgements.of(reservation.uid, version, _judgement, reservation, judged, sizing)


def _added(holders: Sequence[ReservationHolder]) -> tuple[tuple[ReservationHolder, ...], Amounts]:
    """The users of a reservation by name, and their total."""
    users = tuple(sorted(holders, key=lambda holder: (holder.name, holder.kind)))
    return users, usage(users)


def _claimants(
    reservations: Sequence[Reservation], judged: Mapping[ReservationKey, ReservationFacts]
) -> Sequence[EntitledReservation]:
    return [
        EntitledReservation(
            reserved=reserved_of(reservation),
            nominal=judged[reserved_of(reservation)].nominal,
            since=_age(reservation),
        )
        for reservation in reservations
        if not reservation.deleting
    ]


def _attribution(rights: DrawRights, judged: Mapping[ReservationKey, ReservationFacts]) -> IsAttributed:
    """Whether a claim is attributed on machines of an owner: it draws from the owner or from its cohort."""

    def is_attributed(claim: NodeClaim, owner: ReservationKey | None) -> bool:
        reserved = rights.of_claim(claim)
        if not isinstance(reserved, ReservationKey) or reserved not in judged:
            return False
        if owner is None or reserved == owner:
            return True
        cohort = judged[reserved].judged.spec.cohort
        return bool(cohort) and owner in judged and judged[owner].judged.spec.cohort == cohort

    return is_attributed


def _broken_machines(
    machines: Sequence[Machine],
) -> tuple[Mapping[str, list[str]], Mapping[ReservationKey, list[str]]]:
    """The reasons why machines are out of service: by flavor if they have no owner, otherwise by owner."""
    common: dict[str, list[str]] = defaultdict(list)
    own: dict[ReservationKey, list[str]] = defaultdict(list)
    for machine in machines:
        if machine.out_of_service:
            (common[machine.flavor] if machine.owner is None else own[machine.owner]).append(
                machine.out_of_service
            )
    return common, own


def _judgement(reservation: Reservation, judged: JudgedSpec, sizing: Sizing) -> ReservationFacts:
    """The facts that follow from the spec alone: quota, limits, and the resources that size it."""
    if judged.problems:
        return ReservationFacts(judged=judged)
    quota_queue = queue(reserved_of(reservation), judged.spec)
    nominal = {key: quota.nominal for key, quota in quota_queue.quotas.items()}
    return ReservationFacts(
        judged=judged,
        nominal=nominal,
        limit=limits(quota_queue, judged.spec),
        deciding=conditions.deciding(nominal, sizing),
    )


def _age(reservation: Reservation) -> float:
    created = reservation.metadata.creation_timestamp
    return created.timestamp() if created is not None else float("inf")


def _begins(odcr: Odcr) -> str:
    when = f", starts at {format_time(odcr.start)}" if odcr.start is not None else ""
    return f"{odcr.id} is {odcr.state}{when}"


def _tied(machine_snapshot: MachineSnapshot, named: Sequence[str]) -> list[str]:
    return [
        f"node {node} matches flavor {name} and another flavor alike, and counts in neither"
        for name in named
        for node in machine_snapshot.tied.get(name, ())
    ]
