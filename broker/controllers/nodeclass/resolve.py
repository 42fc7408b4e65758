"""Resolves an EC2NodeClass into its reservations, subnets, images, security groups and instance profile.

Invariant: a class with an invalid reservation spec resolves to no selection at all, so nothing can be
launched from it. Every other failure names the field that caused it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_kubelet import problems
from broker.apis.karpenter_aws_terms import (
    AMI_FAMILIES,
    AMISelectorTerm,
    SecurityGroupSelectorTerm,
    SelectorTerm,
    SubnetSelectorTerm,
    empty_terms,
    selecting,
    unread_fields,
)
from broker.apis.meta import Model
from broker.capacity.inventory import Inventory
from broker.capacity.matching import resolve, with_group_errors
from broker.capacity.model import (
    LAUNCH_DEFAULTS,
    Kubelet,
    LaunchDefaults,
    NodeClass,
    ReservationTerm,
    Selection,
)
from broker.capacity.reasons import CLASS_TERMINATING
from broker.controllers.nodeclass.shape import block_devices, interfaces, kubelet
from providers.base import ClassLookups
from providers.errors import ErrorClass, ProviderError
from providers.model import LINUX, Image, PlacementGroup, SecurityGroup, Selector, Subnet

# The families for which the broker writes user data.
FAMILIES = ("AL2023", "Bottlerocket", "Custom")
PROFILE_NOT_FOUND = "InstanceProfileNotFound"
_MORE = ("name", "owner", "alias", "ssm_parameter")


class Unresolved(Exception):
    """A class that cannot launch: `reason` for the condition, `message` with the field and the remedy.

    `passing`: it ends in a moment without any action, and is not reported. `cause`: the AWS operation and its
    code, if AWS refused. `resolved`: the resolved class, if only the broker's own launches cannot use it.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        passing: bool = False,
        cause: tuple[str, str] = ("", ""),
        resolved: LaunchClass | None = None,
    ) -> None:
        super().__init__(message)
        self.resolved = resolved
        self.cause = cause
        self.reason = reason
        self.message = message
        self.passing = passing


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The EC2 resources that the class's selector terms select; read rarely, since they change rarely."""

    subnets: tuple[Subnet, ...]
    security_groups: tuple[SecurityGroup, ...]
    images: tuple[Image, ...]
    family: str
    instance_profile: str
    placement_group: PlacementGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceNetwork:
    """The network of the cluster's Services, for the user data of nodes.

    `range` is a CIDR block, `dns` the address of the cluster's DNS server; an unknown one is empty.
    """

    range: str = ""
    dns: str = ""

    @property
    def ipv6(self) -> bool:
        """Whether pods and Services of the cluster have IPv6 addresses."""
        return ":" in self.range


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchClass:
    """A class that can launch: the planner's input, and the source of its templates."""

    plan: NodeClass
    surroundings: Surroundings
    source: EC2NodeClass
    network: ServiceNetwork = ServiceNetwork()
    kubelet_not_applied: tuple[str, ...] = ()  # fields that the user data leaves out

    @property
    def unread(self) -> list[str]:
        """The fields of selector terms beside one that selects alone."""
        return [
            f"spec.{name}{place}" for name, terms in _terms(self.source) for place in unread_fields(terms)
        ]


def selection(node_class: EC2NodeClass) -> Selection:
    """The reservations that the class selects. Raises Unresolved for an invalid spec and empty terms."""
    if empty := [f"spec.{name}{place}" for name, terms in _terms(node_class) for place in empty_terms(terms)]:
        raise Unresolved(
            "EmptySelector",
            f"{', '.join(empty)} would select everything: name a tag there, or remove the term",
        )
    settings = node_class.reservation_settings
    if settings.problems:
        raise Unresolved("InvalidCapacityReservationSpec", "; ".join(map(str, settings.problems)))
    if settings.spec is not None:
        return Selection(
            preference=settings.spec.preference,
            reservation_id=settings.spec.reservation_id,
            group_arn=settings.spec.group_arn,
        )
    return Selection(
        terms=tuple(
            ReservationTerm(
                id=term.id,
                owner_id=term.owner_id,
                match_criteria=term.instance_match_criteria,
                tags=term.tags,
            )
            for term in node_class.spec.capacity_reservation_selector_terms
        )
    )


def read_surroundings(
    node_class: EC2NodeClass, provider: ClassLookups, *, dry_run: bool = False, doubted: bool = False
) -> tuple[Surroundings, Unresolved | ProviderError | None]:
    """Reads the EC2 resources that the class's terms select, and the obstacle to the broker's launches, if
    Karpenter may still launch. Raises Unresolved if a term selects none, ProviderError.

    Obstacles are unknown images and an unreadable instance profile. Reservations resolve without these.
    `doubted`: EC2 refused something that the class names. A dry run makes no instance profile for the role.
    """
    spec = node_class.spec
    subnets = provider.subnets(_selectors(spec.subnet_selector_terms))
    if not subnets:
        raise Unresolved(
            "SubnetsNotFound", _selects_nothing("subnetSelectorTerms", spec.subnet_selector_terms)
        )
    groups = provider.security_groups(_selectors(spec.security_group_selector_terms))
    if not groups:
        raise Unresolved(
            "SecurityGroupsNotFound",
            _selects_nothing("securityGroupSelectorTerms", spec.security_group_selector_terms),
        )
    around = Surroundings(
        subnets=tuple(subnets),
        security_groups=tuple(groups),
        images=(),
        family=_family(node_class),
        instance_profile="",
        placement_group=_placement_group(node_class, provider),
    )
    try:
        around = replace(around, images=tuple(provider.images(_images(node_class))))
        if not around.images:
            raise Unresolved("AMINotFound", _selects_nothing("amiSelectorTerms", spec.ami_selector_terms))
        profile = _instance_profile(node_class, provider, dry_run=dry_run, doubted=doubted)
    except (Unresolved, ProviderError) as error:
        return around, error
    return replace(around, instance_profile=profile), None


def unread(chosen: Selection, inventory: Inventory, group_errors: Collection[str]) -> tuple[str, ...]:
    """The ids and the group that the selection names and the last description lacks: they may be newer."""
    ids = (chosen.reservation_id, *(term.id for term in chosen.terms))
    group = chosen.group_arn
    return tuple(id_ for id_ in ids if id_ and id_ not in inventory.odcrs) + (
        (group,) if group and group not in inventory.groups and group not in group_errors else ()
    )


def require_kept(node_class: EC2NodeClass) -> None:
    """Raises Unresolved for a class that is being deleted."""
    if node_class.deleting:
        raise Unresolved(
            CLASS_TERMINATING,
            f"EC2NodeClass {node_class.name} is being deleted: nothing is launched from it any more; name "
            "another one in the NodePool or in a new claim",
        )


def launch_class(
    node_class: EC2NodeClass,
    around: Surroundings,
    inventory: Inventory,
    *,
    account_id: str,
    now: datetime,
    group_errors: Mapping[str, ProviderError],
    defaults: LaunchDefaults = LAUNCH_DEFAULTS,
) -> LaunchClass:
    """Resolves the class's selection against EC2's description.

    Raises Unresolved for an invalid spec, for a class that is being deleted, and with the resolved class if
    only Karpenter can launch it. `group_errors`: by ARN, the error of each group that could not be read.
    """
    require_kept(node_class)
    invalid = problems(node_class.spec.kubelet)
    try:
        settings = Kubelet() if invalid else kubelet(node_class)
        devices = block_devices(node_class, around.family)
    except ValueError as error:
        raise Unresolved("InvalidQuantity", f"spec.kubelet or spec.blockDeviceMappings: {error}") from error
    cpu, enclaves = node_class.spec.cpu_options, node_class.spec.enclave_options
    plan = NodeClass(
        name=node_class.name,
        selection=selection(node_class),
        subnets=around.subnets,
        images=around.images,
        placement_group_arn=around.placement_group.arn if around.placement_group else "",
        placement_strategy=around.placement_group.strategy if around.placement_group else "",
        family=around.family,
        kubelet=settings,
        block_devices=devices,
        instance_store_raid0=node_class.spec.instance_store_policy == "RAID0",
        defaults=defaults,
        interfaces=interfaces(node_class),
        tracks_connections=node_class.spec.connection_tracking is not None,
        nested_virtualization=cpu is not None and cpu.nested_virtualization == "enabled",
        enclaves=enclaves is not None and enclaves.enabled,
    )
    # The images decide the platform as EC2 names it; without images, the family does.
    platforms = None if around.images else {"Windows" if around.family.startswith("Windows") else LINUX}
    resolved, dedicated = (
        with_group_errors(
            resolve(variant, inventory, account_id=account_id, now=now, platforms=platforms),
            group_errors,
        )
        for variant in (plan, replace(plan, tenancy="dedicated"))
    )
    launchable = LaunchClass(
        plan=replace(plan, resolved=resolved, dedicated=dedicated),
        surroundings=around,
        source=node_class,
    )
    if obstacle := _obstacle(node_class, around.family, invalid):
        raise Unresolved(*obstacle, resolved=launchable)
    return launchable


def _obstacle(
    node_class: EC2NodeClass, family: str, invalid: Sequence[tuple[str, str]]
) -> tuple[str, str] | None:
    """Why the broker cannot launch the class: reason and message. `invalid`: problems of its kubelet."""
    if family not in FAMILIES:
        return (
            "FieldNotSupported",
            f"spec.amiFamily (or the alias) is {family}, and the broker cannot set up its nodes: use "
            f"{', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}, or let Karpenter launch this class",
        )
    if invalid:
        return invalid[0][0], "; ".join(message for _, message in invalid)
    given, own = len(node_class.spec.tags), len(names.INSTANCE_TAGS)
    if (excess := given + own - names.MOST_TAGS) > 0:
        return (
            "TooManyTags",
            f"spec.tags has {given} tags: EC2 takes {names.MOST_TAGS} on an instance, and {own} are the "
            f"broker's own: remove {excess}",
        )
    return None


def _terms(node_class: EC2NodeClass) -> Iterator[tuple[str, Sequence[SelectorTerm]]]:
    """The selector terms of each field."""
    spec = node_class.spec
    yield "amiSelectorTerms", spec.ami_selector_terms
    yield "subnetSelectorTerms", spec.subnet_selector_terms
    yield "securityGroupSelectorTerms", spec.security_group_selector_terms
    yield "capacityReservationSelectorTerms", spec.capacity_reservation_selector_terms


def _selectors(
    terms: Sequence[AMISelectorTerm | SubnetSelectorTerm | SecurityGroupSelectorTerm],
) -> list[Selector]:
    return [_selector(term) for term in terms]


def _selector(term: AMISelectorTerm | SubnetSelectorTerm | SecurityGroupSelectorTerm) -> Selector:
    match selecting(term):
        case "id":
            return Selector(id=term.id)
        case "name":
            return Selector(name=getattr(term, "name", ""))
        case _:
            more = {name: getattr(term, name) for name in _MORE if hasattr(term, name)}
            return Selector(tags=term.tags, **more)


def _images(node_class: EC2NodeClass) -> list[Selector]:
    """The class's terms; without any (v1beta1), the newest image of its family."""
    terms = _selectors(node_class.spec.ami_selector_terms)
    if terms or not node_class.spec.ami_family:
        return terms
    family = next((a for a, f in AMI_FAMILIES.items() if f == node_class.spec.ami_family), "")
    return [Selector(alias=f"{family}@latest")] if family else []


def _family(node_class: EC2NodeClass) -> str:
    """Karpenter's rule: amiFamily, else the family of the alias."""
    if node_class.spec.ami_family:
        return node_class.spec.ami_family
    alias = next((t.alias for t in node_class.spec.ami_selector_terms if t.alias), "")
    return AMI_FAMILIES.get(alias.partition("@")[0], "Custom")


def _placement_group(node_class: EC2NodeClass, provider: ClassLookups) -> PlacementGroup | None:
    selector = node_class.spec.placement_group_selector
    if selector is None:
        return None
    try:
        return provider.placement_group(name=selector.name, id_=selector.id)
    except ProviderError as error:
        if error.class_ is not ErrorClass.NOT_FOUND:
            raise
        raise Unresolved("PlacementGroupNotFound", f"spec.placementGroupSelector: {error.message}") from error


def _instance_profile(
    node_class: EC2NodeClass, provider: ClassLookups, *, dry_run: bool, doubted: bool
) -> str:
    spec = node_class.spec
    if not (spec.role or spec.instance_profile):
        raise Unresolved(
            PROFILE_NOT_FOUND, "spec.role and spec.instanceProfile are both empty: set one of them"
        )
    if dry_run and spec.role:
        return f"(of role {spec.role})"
    try:
        return provider.instance_profile(
            role=spec.role, profile=spec.instance_profile, labels=spec.tags, doubted=doubted
        )
    except ProviderError as error:
        if error.class_ is not ErrorClass.NOT_FOUND:
            raise
        field, value, kind = ("spec.role", spec.role, "role")
        if spec.instance_profile:
            field, value, kind = ("spec.instanceProfile", spec.instance_profile, "instance profile")
        raise Unresolved(
            PROFILE_NOT_FOUND, f"{field} {value!r}: {error.message}: create the {kind} or correct the name"
        ) from error


def _selects_nothing(field: str, terms: Sequence[Model]) -> str:
    if not terms:
        return f"spec.{field} is empty: add a term"
    shown = orjson.dumps([term.wire() for term in terms]).decode()
    return f"spec.{field} {shown} selects nothing in this region: check the ids and tags"
