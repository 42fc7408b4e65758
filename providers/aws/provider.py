"""AwsProvider: EC2, Resource Groups, SSM and IAM as one CapacityProvider.

Every call raises ProviderError for AWS's refusals. A request that can only be the caller's mistake (two
pools of one type and zone, a target that EC2 rejects) raises ValueError and is never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from providers.aws import instance_types, userdata
from providers.aws.account import Eks
from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.aws.clock import AwsClock, AwsSystemClock
from providers.aws.fleet import Fleets
from providers.aws.group_changes import GroupChanges
from providers.aws.groups import AwsGroups
from providers.aws.images import Images
from providers.aws.instance_health import InstanceHealth
from providers.aws.leftovers import Leftovers
from providers.aws.network import Network
from providers.aws.pricing import Prices
from providers.aws.queue import Queues
from providers.aws.reservation_changes import AwsReservationChanges
from providers.aws.reservations import AwsReservations, BlockExtensions
from providers.aws.tags import Owner
from providers.aws.trial import Trials
from providers.aws.type_store import TypeStore
from providers.model import InstanceType

TYPES_TTL = 3600.0
# The version of an alias's images if no cluster reports its own.
KUBERNETES = "1.32"


@dataclass(frozen=True, kw_only=True)
class CatalogSources:
    """Where instance types and their prices come from.

    `isolated_vpc`: no call to AWS's price list. `offers`: platforms and tenancies to know prices of, besides
    Linux/UNIX on default tenancy. `folder` keeps instance types between runs.
    """

    isolated_vpc: bool = False
    offers: Collection[tuple[str, str]] = ()
    folder: Path | None = None


class AwsProvider(
    Eks,
    AwsReservations,
    AwsReservationChanges,
    AwsGroups,
    GroupChanges,
    Network,
    Images,
    Trials,
    Fleets,
    Queues,
    Leftovers,
    InstanceHealth,
    BlockExtensions,
):
    """One cluster's view of one account and Region."""

    user_data = staticmethod(userdata.user_data)
    kubelet_not_applied = staticmethod(userdata.not_applied)

    def __init__(
        self,
        *,
        cluster: str,
        region: str,
        endpoint_url: str | None = None,
        profile: str | None = None,
        kubernetes_version: str | Callable[[], str] = KUBERNETES,
        clock: AwsClock | None = None,
        registry: CollectorRegistry | None = None,
        catalog: CatalogSources = CatalogSources(),
    ) -> None:
        clock = clock or AwsSystemClock()
        aws = Aws(region=region, clock=clock, endpoint_url=endpoint_url, profile=profile, registry=registry)
        super().__init__(aws, Owner(cluster))
        self._version = (
            kubernetes_version if callable(kubernetes_version) else lambda: str(kubernetes_version)
        )
        self._types: TtlCache[str, Mapping[str, InstanceType]] = TtlCache(
            ttl=TYPES_TTL, monotonic=clock.monotonic
        )
        self._store = TypeStore(catalog.folder, ttl=TYPES_TTL) if catalog.folder else None
        self._endpoint = endpoint_url or ""
        self._prices = Prices(aws, isolated=catalog.isolated_vpc, offers=catalog.offers)
        self._priced: tuple[Mapping[str, InstanceType], int, Mapping[str, InstanceType]] | None = None

    def instance_types(self) -> Mapping[str, InstanceType]:
        types, version, known = self._types.get("types", self._load_types), self._prices.version, self._priced
        if known is None or known[0] is not types or known[1] != version:
            known = self._priced = (types, version, self._prices.priced(types))
        return known[2]

    def _load_types(self) -> Mapping[str, InstanceType]:
        if self._store is None:
            return instance_types.instance_types(self._aws)
        place = (self._endpoint, self._aws.region, self.account_id())
        now = self._aws.clock.now()
        types = self._store.load(place, now=now)
        if types is None:
            types = instance_types.instance_types(self._aws)
            self._store.save(place, types, now=now)
        return types

    def refresh_prices(self) -> None:
        self._prices.refresh()
