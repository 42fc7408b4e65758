"""Builds the facts of all reservations jointly, for their status.

Invariant: the facts of one snapshot are consistent: they come from one description of EC2, one list of
machines and one of users, and shared machines are divided once. Nothing is written here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Final

import structlog

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.ome_rules import JudgedSpec
from broker.controllers.capacityreservation.unattributed import IsAttributed, UnattributedUsageReader
from broker.controllers.capacityreservation.views import ReservationViews
from broker.controllers.inventory import InventoryCache
from broker.controllers.reservation_reads import ReservationReads
from broker.kube import bisection
from broker.kube.cache import Cache
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
from broker.quota.model import UNLIMITED, Amounts, FlavorResource
from broker.quota.resolve import ReservationNames, UnresolvedName
from broker.quota.usage import ReservationHolder, Reserved
from broker.reservations import conditions as verdicts
from broker.reservations.conditions import ReservationFacts, WorkFailure
from broker.reservations.flavors import FlavorCatalog
from broker.reservations.machines import Flavors, MachineReader, MachineSnapshot
from broker.reservations.odcr_status import purchase_troubles, remedies
from broker.reservations.ownership import Ownership
from broker.reservations.queues import queue
from broker.reservations.spec import Reservation, reserved_of
from broker.text import moment
from providers.base import CapacityProvider
from providers.model import InstanceType, Odcr, ProviderError

STARTING: Final = frozenset({"pending", "scheduled", "assessing", "delayed", "payment-pending"})
# The annotation's value if all resources of a reservation decide its need for hardware.
LARGEST: Final = "max"
_log = structlog.get_logger("reservation")

Cloud = tuple[tuple[str, Odcr], ...]  # the EC2 reservations behind one, each with its flavor


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedQuota:
    """Quota and limits of a judged spec."""

    judged: JudgedSpec
    nominal: Amounts
    limit: Amounts
    deciding: frozenset[FlavorResource]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFacts:
    """`until`: when the facts may change by time alone (monotonic)."""

    facts: Mapping[Reserved, ReservationFacts]
    cloud: Mapping[Reserved, Cloud]
    group_arns: Mapping[Reserved, str]
    unattributed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    until: float = float("inf")


class JointFactsBuilder:
    """`take` builds one snapshot. Unchanged parts are reused, and machine counts are steadied."""

    def __init__(
        self,
        provider: CapacityProvider,
        reads: ReservationReads,
        nodes: Cache[Node],
        claims: Cache[NodeClaim],
        inventory: InventoryCache,
        views: ReservationViews,
        others: UnattributedUsageReader,
        hardware: MachineReader,
    ) -> None:
        self._provider = provider
        self._reads = reads
        self._nodes = nodes
        self._claims = claims
        self._inventory = inventory
        self._views = views
        self._hardware = hardware
        self._others = others
        self._steadied: SteadyMachines | None = None
        self._types: Mapping[str, InstanceType] = {}
        self._judgements: dict[str, tuple[tuple[int, str], JudgedQuota]] = {}
        self._users: dict[
            str, tuple[Sequence[ReservationHolder], tuple[ReservationHolder, ...], Amounts]
        ] = {}

    def take(self, reservations: Sequence[Reservation], now: datetime, moment: float) -> JointFacts:
        views = self._views
        claims = self._claims.list()
        try:
            self._types = self._provider.instance_types()
        except ProviderError as error:
            _log.info("instance types as they were", error=str(error))
        snapshot = self._reads.snapshot()
        holdings = snapshot.odcrs.owned
        judged = {reserved_of(one): self._judge(one) for one in reservations}
        flavors = self._flavors(snapshot.flavors, judged.values())
        seen = self._seen(holdings, flavors, claims, now)
        steady_seconds = self._others.steady_seconds
        self._steadied, machines = steady(self._steadied, seen.machines, moment, steady_seconds)
        claimants = _claimants(reservations, judged)
        shared = bisection.bisected(
            lambda some: shares(some, machines, sold=verdicts.SOLD), claimants, lambda one: str(one.reserved)
        )
        common, own = _outs(machines)
        holders = views.holders(snapshot, claims)
        added = {
            reserved_of(one): self._added(one, holders.get(reserved_of(one), ())) for one in reservations
        }
        queued = {reserved: views.queue(reserved, snapshot) for reserved in added}
        others, steadily = self._others.look(
            machines,
            claims,
            (each for some in holders.values() for each in some),
            kin=_kin(judged),
            kueue=any(each is not None for each in queued.values()),
            moment=moment,
        )
        used_up = taken(
            claimants,
            machines,
            shared,
            {reserved: used for reserved, (_, used) in added.items()},
            others.use,
            anywhere=others.anywhere,
        )
        facts: dict[Reserved, ReservationFacts] = {}
        cloud: dict[Reserved, Cloud] = {}
        group_arns: dict[Reserved, str] = {}
        for one in reservations:
            reserved = reserved_of(one)
            odcrs = snapshot.odcrs.status(reserved)
            group_arns[reserved] = odcrs.group_arn
            mine, held = judged[reserved], holdings.of(reserved)
            cloud[reserved] = tuple((flavor, odcr) for flavor in sorted(held) for odcr in held[flavor])
            named = sorted({key.flavor for key in mine.nominal})
            users, used = added[reserved]
            priority = one.spec.priority_class_name
            facts[reserved] = ReservationFacts(
                judged=mine.judged,
                refused=snapshot.refusals.get(reserved, ()),
                nominal=mine.nominal,
                limit=mine.limit,
                share=shared.get(reserved) or HardwareShare(),
                deciding=mine.deciding,
                missing_flavors=tuple(name for name in named if name not in flavors and name not in held),
                pending=tuple(_begins(odcr) for _, odcr in cloud[reserved] if odcr.state in STARTING),
                outs=(
                    *own.get(reserved, ()),
                    *_tied(seen, named),
                    *(out for name in named for out in common.get(name, ())),
                ),
                taken=used_up.get(reserved, {}),
                takers=others.where(reserved, named) if reserved in used_up else (),
                queue=queued[reserved],
                hindered=tuple(
                    WorkFailure(reason=problem.reason, message=problem.message)
                    for problem in snapshot.queue_problems.get(reserved, ())
                ),
                remedies=tuple(remedies(odcrs, reserved)),
                troubles=tuple(purchase_troubles(odcrs)),
                holders=users,
                used=used,
                priority_missing=priority if priority and self._reads.priority(priority) is None else "",
                left=tuple(views.left(one, snapshot)) if one.deleting else (),
            )
        due = (began + steady_seconds for began in self._steadied.since.values())
        return JointFacts(
            facts=facts,
            cloud=cloud,
            group_arns=group_arns,
            unattributed=seen.unattributed,
            until=min((steadily, *due)),
        )

    def _added(
        self, one: Reservation, holders: Sequence[ReservationHolder]
    ) -> tuple[tuple[ReservationHolder, ...], Amounts]:
        """Its users by name, and their total; added up again only after a change."""
        known = self._users.get(one.uid)
        if known is None or known[0] != holders:
            users = tuple(sorted(holders, key=lambda each: (each.name, each.kind)))
            known = (holders, users, usage(users))
            self._users[one.uid] = known
        return known[1], known[2]

    def forget(self, alive: Collection[str]) -> None:
        self._users = {uid: known for uid, known in self._users.items() if uid in alive}
        self._judgements = {uid: known for uid, known in self._judgements.items() if uid in alive}

    def _flavors(self, catalog: FlavorCatalog, judged: Iterable[JudgedQuota]) -> Flavors:
        """Node labels by flavor."""
        named = {key.flavor for quota in judged for key in quota.nominal}
        flavors = catalog.usable(sorted(name for name in named if name in self._types))
        return {name: flavor.spec.node_labels for name, flavor in flavors.items()}

    def _seen(
        self, holdings: Ownership, flavors: Flavors, claims: Sequence[NodeClaim], now: datetime
    ) -> MachineSnapshot:
        inventory, nodes = self._inventory.snapshot(), self._nodes.list()
        return self._hardware.look(nodes, claims, inventory, holdings, flavors, self._types, now)

    def _judge(self, one: Reservation) -> JudgedQuota:
        sizing = one.annotations.get(names.SIZING, "")
        version = (one.metadata.generation, sizing)
        known = self._judgements.get(one.uid)
        if known is None or known[0] != version:
            made = _judgement(one, self._reads.snapshot().judged(one), largest=sizing == LARGEST)
            known = (version, made)
            self._judgements[one.uid] = known
        return known[1]


def _claimants(
    reservations: Sequence[Reservation], judged: Mapping[Reserved, JudgedQuota]
) -> Sequence[EntitledReservation]:
    return [
        EntitledReservation(
            reserved=reserved_of(one), nominal=judged[reserved_of(one)].nominal, since=_age(one)
        )
        for one in reservations
        if not one.deleting
    ]


def _kin(judged: Mapping[Reserved, JudgedQuota]) -> IsAttributed:
    """Whether a claim with this annotation is attributed on machines of an owner: it draws from the owner
    or from its cohort.
    """

    @cache
    def named() -> ReservationNames:
        return ReservationNames(judged)

    @cache
    def kin(given: str, owner: Reserved | None) -> bool:
        found = named().resolve(given)
        if isinstance(found, UnresolvedName):
            return False
        if owner is None or found == owner:
            return True
        cohort = judged[found].judged.spec.cohort
        return bool(cohort) and owner in judged and judged[owner].judged.spec.cohort == cohort

    return kin


def _outs(
    machines: Sequence[Machine],
) -> tuple[Mapping[str, list[str]], Mapping[Reserved, list[str]]]:
    """Why machines are out: by flavor if they have no owner, otherwise by owner."""
    common: dict[str, list[str]] = defaultdict(list)
    own: dict[Reserved, list[str]] = defaultdict(list)
    for machine in machines:
        if machine.out:
            (common[machine.flavor] if machine.owner is None else own[machine.owner]).append(machine.out)
    return common, own


def _judgement(one: Reservation, judged: JudgedSpec, *, largest: bool) -> JudgedQuota:
    if judged.problems:
        return JudgedQuota(judged=judged, nominal={}, limit={}, deciding=frozenset())
    made = queue(reserved_of(one), judged.spec)
    nominal = {key: quota.nominal for key, quota in made.quotas.items()}
    limit: dict[FlavorResource, int] = {}
    for key, quota in made.quotas.items():
        borrows = judged.spec.allow_borrowing and bool(made.cohort)
        more = UNLIMITED if quota.borrowing_limit is None else quota.borrowing_limit
        limit[key] = quota.nominal + (more if borrows else 0)
    return JudgedQuota(
        judged=judged, nominal=nominal, limit=limit, deciding=verdicts.deciding(nominal, largest=largest)
    )


def _age(one: Reservation) -> float:
    created = one.metadata.creation_timestamp
    return created.timestamp() if created is not None else float("inf")


def _begins(odcr: Odcr) -> str:
    when = f", starts at {moment(odcr.start)}" if odcr.start is not None else ""
    return f"{odcr.id} is {odcr.state}{when}"


def _tied(seen: MachineSnapshot, named: Sequence[str]) -> list[str]:
    return [
        f"node {node} is of flavor {name} and of another alike, and counts in none"
        for name in named
        for node in seen.tied.get(name, ())
    ]
