"""AwsProvider: EC2, Resource Groups, SSM and IAM behind the CapacityProvider protocol.

Every call raises ProviderError for AWS's refusals. A request that can only be the caller's mistake (two
pools of one type and zone, a target that EC2 rejects) raises ValueError and is never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry

from providers.aws import (
    eks,
    fleet,
    group_changes,
    groups,
    instance_types,
    instances,
    leftovers,
    network,
    reservation_changes,
    reservations,
    trial,
    userdata,
)
from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.aws.clock import AwsClock, AwsSystemClock
from providers.aws.images import Images
from providers.aws.launch_templates import LaunchTemplates
from providers.aws.pricing import Prices
from providers.aws.profiles import Profiles
from providers.aws.queue import Queues
from providers.aws.tags import Owner
from providers.aws.type_store import TypeStore
from providers.errors import ErrorClass, ProviderError
from providers.launch import (
    Bootstrap,
    LaunchRequest,
    LaunchResult,
    Override,
    ProfileRef,
    Template,
    TemplateRef,
)
from providers.model import (
    UNCHANGED,
    EksCluster,
    Image,
    Instance,
    InstanceType,
    Market,
    Odcr,
    OdcrRequest,
    PlacementGroup,
    ReservationGroup,
    SecurityGroup,
    Selector,
    Subnet,
    Unchanged,
)
from providers.notices import QueueMessage

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


class AwsProvider:
    """One cluster's view of one account and Region."""

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
        self.cluster = cluster
        clock = clock or AwsSystemClock()
        self._aws = Aws(
            region=region, clock=clock, endpoint_url=endpoint_url, profile=profile, registry=registry
        )
        self._owner = Owner(cluster)
        self._reservations = reservations.listing(self._aws, self._owner)
        self._instances = instances.listing(self._aws, self._owner)
        self._templates = LaunchTemplates(self._aws, cluster=self._owner)
        self._images = Images(
            self._aws,
            kubernetes_version=kubernetes_version
            if callable(kubernetes_version)
            else lambda: str(kubernetes_version),
        )
        self._profiles = Profiles(self._aws, cluster=self._owner)
        self._queues = Queues(self._aws)
        self._types: TtlCache[str, Mapping[str, InstanceType]] = TtlCache(
            ttl=TYPES_TTL, monotonic=clock.monotonic
        )
        self._store = TypeStore(catalog.folder, ttl=TYPES_TTL) if catalog.folder else None
        self._endpoint = endpoint_url or ""
        self._prices = Prices(self._aws, isolated=catalog.isolated_vpc, offers=catalog.offers)
        self._priced: tuple[Mapping[str, InstanceType], int, Mapping[str, InstanceType]] | None = None
        self._account: TtlCache[str, str] = TtlCache(ttl=TYPES_TTL, monotonic=clock.monotonic)

    def identify(self, cluster_uid: str) -> None:
        self._owner.uid = cluster_uid

    def account_id(self, *, cached: bool = True) -> str:
        def read_account_id() -> str:
            return str(self._aws.call(self._aws.sts.get_caller_identity)["Account"])

        return (self._account.get if cached else self._account.renew)("account", read_account_id)

    def cluster_facts(self) -> EksCluster:
        """Describes the EKS cluster with this provider's cluster name."""
        return eks.describe(self._aws, self.cluster)

    def reservations(self) -> Sequence[Odcr]:
        return reservations.reservations(self._reservations)

    def group(self, arn: str) -> ReservationGroup:
        return groups.group(self._aws, arn, self.account_id)

    def tagged_group(self, group: ReservationGroup) -> ReservationGroup:
        tags = groups.tags(self._aws, group.arn)
        return replace(group, tags=tags, ownership=self._owner.ownership_of(tags))

    def create_reservation(self, request: OdcrRequest) -> Odcr:
        return reservation_changes.create(self._aws, request, cluster=self._owner)

    def resize_reservation(
        self, id_: str, *, count: int, end: datetime | Unchanged | None = UNCHANGED
    ) -> None:
        reservation_changes.resize(self._aws, id_, cluster=self._owner, count=count, end=end)

    def cancel_reservation(self, id_: str) -> None:
        reservation_changes.cancel(self._aws, id_, cluster=self._owner)

    def create_group(self, *, name: str, tags: Mapping[str, str]) -> ReservationGroup:
        return group_changes.create(self._aws, name=name, tags_=tags, cluster=self._owner)

    def add_to_group(self, arn: str, arns: Collection[str]) -> None:
        group_changes.add(self._aws, arn, arns, cluster=self._owner)

    def remove_from_group(self, arn: str, arns: Collection[str]) -> None:
        group_changes.remove(self._aws, arn, arns, cluster=self._owner)

    def delete_group(self, arn: str) -> None:
        group_changes.delete(self._aws, arn, cluster=self._owner)

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

    def subnets(self, terms: Sequence[Selector]) -> Sequence[Subnet]:
        return network.subnets(self._aws, terms)

    def security_groups(self, terms: Sequence[Selector]) -> Sequence[SecurityGroup]:
        return network.security_groups(self._aws, terms)

    def images(self, terms: Sequence[Selector]) -> Sequence[Image]:
        return self._images.find(terms)

    def user_data(self, *, family: str, bootstrap: Bootstrap, custom: str) -> str:
        return userdata.user_data(family=family, bootstrap=bootstrap, custom=custom)

    def kubelet_not_applied(self, *, family: str, kubelet: Collection[str]) -> Sequence[str]:
        return userdata.not_applied(family=family, kubelet=kubelet)

    def instance_profile(self, *, role: str, profile: str, labels: Mapping[str, str]) -> str:
        return self._profiles.resolve(role=role, profile=profile, labels=labels)

    def instance_profiles(self) -> Sequence[ProfileRef]:
        return self._profiles.managed()

    def delete_instance_profile(self, ref: ProfileRef) -> bool:
        return self._profiles.delete(ref)

    def placement_group(self, *, name: str = "", id_: str = "") -> PlacementGroup:
        return network.placement_group(self._aws, name=name, id_=id_)

    def ensure_template(self, template: Template, *, owner: str) -> TemplateRef:
        return self._templates.ensure(template, owner=owner)

    def templates(self) -> Sequence[TemplateRef]:
        return self._templates.all()

    def delete_template(self, ref: TemplateRef) -> None:
        self._templates.delete(ref)

    def try_launch(
        self,
        template: Template,
        *,
        owner: str,
        overrides: Sequence[Override],
        market: Market,
        tags: Mapping[str, str],
    ) -> str:
        return trial.try_launch(
            self._aws,
            self._templates,
            template,
            owner=owner,
            overrides=overrides,
            market=market,
            labels=tags,
            cluster=self._owner,
        )

    def launch(self, request: LaunchRequest) -> LaunchResult:
        try:
            result = fleet.launch(self._aws, request, cluster=self._owner)
        except ProviderError as error:
            self._forget({error.class_}, request)
            raise
        self._forget({error.class_ for error in result.errors}, request)
        return result

    def _forget(self, refused: Collection[ErrorClass], request: LaunchRequest) -> None:
        """Forgets objects that EC2 does not know: the next caller reads or creates them."""
        if ErrorClass.TEMPLATE_GONE in refused:
            self._templates.forget(request.template)
        if ErrorClass.PROFILE_UNKNOWN in refused:
            self._profiles.forget()

    def instances(self, ids: Collection[str] | None = None) -> Sequence[Instance]:
        if ids is None:
            return instances.of_cluster(self._instances, self.cluster)
        by_id = instances.described(self._aws, ids, self._owner)
        return [by_id[i] for i in sorted(by_id)]

    def terminate(self, ids: Collection[str]) -> None:
        instances.terminate(self._aws, ids)

    def tag(self, ids: Collection[str], tags: Mapping[str, str]) -> None:
        instances.add_tags(self._aws, ids, tags)

    def untag(self, ids: Collection[str], keys: Collection[str]) -> None:
        instances.remove_tags(self._aws, ids, keys)

    def broker_tags(self) -> Mapping[str, Mapping[str, str]]:
        return leftovers.tagged(self._aws)

    def groups_of(self, cluster_uid: str) -> Sequence[ReservationGroup]:
        return leftovers.groups_of(self._aws, cluster_uid)

    def receive(self, queue: str, *, wait: int) -> Sequence[QueueMessage]:
        return self._queues.receive(queue, wait=wait)

    def delete_messages(self, queue: str, messages: Sequence[QueueMessage]) -> None:
        self._queues.delete_messages(queue, messages)
