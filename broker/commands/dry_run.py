"""Entitlements and evictions for a command that reads each kind once, by the code of the loops.

It follows no kind and writes nothing. A kind that is not installed, or that the caller may not read, counts
as empty, as if no reservation owned a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import Entitlements
from broker.capacity.inventory import Inventory
from broker.capacity.matching import unread_group
from broker.capacity.model import Plan
from broker.capacity.shortages import Shortages
from broker.commands.explain.permitted import ODDS, SHORTAGES, published
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.inventory import InventoryCache, read_groups
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.snapshot import Ec2Reads
from broker.informers import Informers
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import Forbidden, NotFound
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.oncall.state import is_brokers
from broker.quota.slot_model import CLAIM
from broker.reservations.claims import cluster_of
from broker.reservations.drawing import DrawRequest, DrawRights
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import ALL_ADOPTERS, OwnershipClaim, resolve_ownership
from broker.reservations.reading import as_decided
from broker.settings import Settings
from providers.base import AccountFacts, ClassLookups, ReservationListing
from providers.model import ReservationGroup

Entitle = Callable[[Mapping[str, NodeClaim], Inventory], Entitlements]


class AccountReads(AccountFacts, ReservationListing, ClassLookups, Protocol):
    """The reads of an account that plan launches; none changes anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryEviction:
    """A claim that would be evicted. `preemptor`: the claim or cluster that it would leave for, with its
    kind.
    """

    claim: str
    preemptor: str
    reason: str

    def __str__(self) -> str:
        return f"would evict NodeClaim {self.claim} for {self.preemptor}: {self.reason}"


class DryRun:
    """`entitlements` first, then `evictions` of the plan that was made with them."""

    def __init__(self, client: Client, provider: AccountReads, settings: Settings, clock: Clock) -> None:
        """Reads the cluster. Raises ApiError."""
        self._client = client
        self._provider = provider
        self._settings = settings
        inventory = InventoryCache(provider, clock=clock, groups=tuple)
        self._reads = ReservationReads(
            client,
            clock=clock,
            settings=settings,
            ec2=Ec2Reads(types=provider.instance_types, assumed=inventory.assumed.slots),
        )
        self._cluster = Informers(client, clock=clock)
        # Nodes and pods: some claims must not be disrupted.
        read_once(*self._reads.named.values(), self._cluster.claims, self._cluster.nodes, self._cluster.pods)
        self._slots = PreemptionController(
            ReservationDependencies(
                client=client,
                reads=self._reads,
                caches=ClaimCaches(
                    claims=self._cluster.claims.cache,
                    nodes=self._cluster.nodes.cache,
                    pods=self._cluster.pods.cache,
                    pools=self._cluster.pools.cache,
                    owns=is_brokers,
                ),
                inventory=inventory,
                settings=settings,
                clock=clock,
                recorder=Recorder(client, "capacity-broker", clock),
                describe=lambda: None,
            )
        )

    @property
    def claims(self) -> Sequence[NodeClaim]:
        """The claims of the cluster and of the files."""
        return self._cluster.claims.cache.list()

    @property
    def rights(self) -> DrawRights:
        """Which pods of the cluster and of the files may draw from which reservation."""
        return self._reads.snapshot().rights

    def pods(self) -> Sequence[Pod]:
        """The pods of the cluster; empty if the caller may not list them."""
        return self._cluster.pods.cache.list()

    def shortages(self) -> Shortages:
        """The shortages that the running broker published. Raises ApiError."""
        return published(self._client, SHORTAGES)

    def odds(self) -> Mapping[str, int]:
        """The ranks of pools that the running broker published. Raises ApiError."""
        return published(self._client, ODDS)

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, machines: Mapping[str, DrawRequest] = {}
    ) -> Entitlements:
        """The entitlements as in `EntitlementReader`. Raises ProviderError."""
        snapshot = self._reads.snapshot()
        flavors = snapshot.flavors.instances(snapshot.types, self._settings.bought_zones)
        claimants = [
            as_decided(reservation, snapshot.judged(reservation), flavors)
            for reservation in snapshot.reservations.values()
        ]
        groups, unread = self._groups(claimants, inventory)
        ownership = resolve_ownership(
            inventory.odcrs.values(),
            groups,
            claimants,
            cluster=self._settings.cluster_name,
            unread=unread,
            adopters=ALL_ADOPTERS,
        )
        self._reads.snapshots.publish(OdcrSnapshot(ownership=ownership))
        snapshot = replace(self._reads.snapshot(), inventory=inventory)
        return self._slots.entitlements(claims, snapshot, machines)

    def evictions(self, plan: Plan, inventory: Inventory) -> list[DryEviction]:
        """The claims that would be evicted for claims of the plan. Raises ApiError, ProviderError."""
        if not plan.nominated:
            return []
        self._slots.planned(plan)
        decision = self._slots.decide(replace(self._reads.snapshot(), inventory=inventory))
        evictions = [
            DryEviction(
                claim=victim.holder.name,
                preemptor=f"{CLAIM}{victim.request.name}",
                reason=victim.reason.text,
            )
            for victim in decision.victims
        ]
        for name, eviction in decision.evictions.items():
            preemptor = eviction.preemptor
            if not preemptor.startswith(CLAIM):
                preemptor = f"DedicatedAICluster {preemptor}"
            evictions += [
                DryEviction(claim=claim, preemptor=preemptor, reason=eviction.reason.text)
                for claim in self._members(name)
            ]
        return evictions

    def _members(self, victim: str) -> list[str]:
        """The claims of a victim: one claim, or a dedicated cluster."""
        if victim.startswith(CLAIM):
            return [victim.removeprefix(CLAIM)]
        return [claim.name for claim in self.claims if cluster_of(claim)[1] == victim]

    def _groups(
        self, claimants: Iterable[OwnershipClaim], inventory: Inventory
    ) -> tuple[Mapping[str, ReservationGroup], Mapping[str, str]]:
        """The resource groups that reservations name, and why others are unknown."""
        named = {claimant.group_arn for claimant in claimants} - {""}
        groups, errors = read_groups(self._provider, named - inventory.groups.keys())
        unread = {arn: unread_group(arn, error) for arn, error in errors.items()}
        return {**inventory.groups, **groups}, unread


def read_once(*informers: Informer[Any]) -> None:
    """Lists each kind into its cache. One that is not installed, or may not be read, stays empty."""
    for informer in informers:
        try:
            informer.read()
        except (NotFound, Forbidden):
            continue
