"""The seam between the broker and a cloud: what a capacity provider answers, by consumer.

Every call raises ProviderError and nothing else. Calls that change something are idempotent: by token
(launch, create_reservation), by name (template, group), by id (terminate, tag, resize). None of them retries
a refusal about capacity. A resource without this cluster's tags is never resized, cancelled or deleted: that
is a ProviderError of class CONFIGURATION.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

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
    BlockExtension,
    Image,
    Instance,
    InstanceProblem,
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


class AccountFacts(Protocol):
    """The account: its id, and the types that it can launch with their prices."""

    def identify(self, cluster_uid: str) -> None:
        """Names the cluster beyond its name. Later resources carry its UID as well; a resource with another
        UID is another cluster's, even with the same name."""

    def account_id(self, *, cached: bool = True) -> str:
        """The account that the credentials belong to (12 digits). `cached`: as it was within the hour."""

    def instance_types(self) -> Mapping[str, InstanceType]:
        """Types by name with their zones and prices; cached by the provider, refreshed hourly."""

    def refresh_prices(self) -> None:
        """Reads prices anew; a price that cannot be read stays, and raises after the rest was read."""


class ReservationListing(Protocol):
    """Reads of reservations and of their groups."""

    def reservations(self) -> Sequence[Odcr]:
        """Every reservation the account can see, in all states, by one paginated describe."""

    def extensions(self, odcr_ids: Collection[str]) -> Sequence[BlockExtension]:
        """The extensions of these Capacity Blocks that are paid, or may still be."""

    def group(self, arn: str) -> ReservationGroup:
        """The group and its members now. Class NOT_FOUND when there is none."""

    def tagged_group(self, group: ReservationGroup) -> ReservationGroup:
        """The group with its tags, and its ownership by them. Class NOT_FOUND when there is none."""


class ReservationChanges(Protocol):
    """Changes of reservations and of their groups."""

    def create_reservation(self, request: OdcrRequest) -> Odcr:
        """Reserves, with this cluster's tag beside the request's.

        A repeated token returns the reservation that it made, which may have been cancelled since: check its
        state.
        """

    def resize_reservation(
        self, id_: str, *, count: int, end: datetime | Unchanged | None = UNCHANGED
    ) -> None:
        """Sets count and end (None: never) of an owned reservation, in place."""

    def cancel_reservation(self, id_: str) -> None:
        """Cancels an owned reservation; one that has ended, or that EC2 does not know, is success."""

    def create_group(self, *, name: str, tags: Mapping[str, str]) -> ReservationGroup:
        """The group of that name, made if missing, with its members. A group of that name without this
        cluster's tag, or with another value of a `capacity-broker.io/` tag, is a CONFIGURATION error."""

    def add_to_group(self, arn: str, arns: Collection[str]) -> None:
        """Puts reservations (of any owner that shares them) into a group; members stay.

        Adds each that can be added, then raises the refusals as one error that names every refused ARN.
        """

    def remove_from_group(self, arn: str, arns: Collection[str]) -> None:
        """Takes reservations out; one that is no member is success, and so is a group that is gone."""

    def delete_group(self, arn: str) -> None:
        """Deletes a group that the broker owns, not its members; one that is gone is success."""


class ClassLookups(Protocol):
    """Reads of what an EC2NodeClass selects."""

    def subnets(self, terms: Sequence[Selector]) -> Sequence[Subnet]:
        """Subnets that any term selects."""

    def security_groups(self, terms: Sequence[Selector]) -> Sequence[SecurityGroup]:
        """Security groups that any term selects."""

    def images(self, terms: Sequence[Selector]) -> Sequence[Image]:
        """Images that any term selects, newest first; an alias gives one an architecture."""

    def kubelet_not_applied(self, *, family: str, kubelet: Collection[str]) -> Sequence[str]:
        """The kubelet's fields that the family's user data leaves out."""

    def instance_profile(
        self, *, role: str, profile: str, labels: Mapping[str, str], doubted: bool = False
    ) -> str:
        """The instance profile to launch with: `profile` as given, or the role's, tagged with `labels`.

        `doubted`: a given one is looked up first.
        """

    def placement_group(self, *, name: str = "", id_: str = "") -> PlacementGroup:
        """The placement group of that name in the account, or of that id anywhere."""


class BrokerProfiles(Protocol):
    """Instance profiles that the broker made."""

    def instance_profiles(self) -> Sequence[ProfileRef]:
        """The instance profiles that the broker made for this cluster in this Region."""

    def delete_instance_profile(self, ref: ProfileRef) -> bool:
        """Deletes one of the broker's profiles; False: an instance uses it. One that is gone is success."""


class BrokerTemplates(Protocol):
    """Launch templates that the broker made."""

    def templates(self) -> Sequence[TemplateRef]:
        """The launch templates of this broker alone."""

    def delete_template(self, ref: TemplateRef) -> None:
        """Deletes a template that the broker made; one that is gone already is success."""


class LaunchCalls(Protocol):
    """Launches, and what one needs."""

    def user_data(self, *, family: str, bootstrap: Bootstrap, custom: str) -> str:
        """The family's user data (AL2023, Bottlerocket, Custom) with the user's own merged in."""

    def ensure_template(self, template: Template, *, owner: str) -> TemplateRef:
        """The launch template that holds exactly this, made if missing; `owner` is the class's name."""

    def try_launch(
        self,
        template: Template,
        *,
        owner: str,
        overrides: Sequence[Override],
        market: Market,
        tags: Mapping[str, str],
    ) -> str:
        """A launch as a dry run, one override at a time, until one is allowed (empty). If a policy denies all
        of them: the denial of the first, the action in front. Raises any other refusal; launches nothing."""

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """One fleet call. Refusals of single pools are in the result; a refusal of the call is raised."""


class InstanceCalls(Protocol):
    """Instances, and their end."""

    def instances(self, ids: Collection[str] | None = None) -> Sequence[Instance]:
        """Instances with the cluster's name in every state that EC2 still shows, except another cluster's
        UID.

        With `ids`, those only, of any owner (`Instance.ownership`).
        """

    def terminate(self, ids: Collection[str]) -> None:
        """Terminates; an instance that is gone already is success. One that EC2 refuses to terminate keeps no
        other alive: it is in the error's `refused`, with the reason."""


class HealthCalls(Protocol):
    """The health of instances, and their reboot."""

    def problems(self) -> Sequence[InstanceProblem]:
        """The failed checks and scheduled events of all running instances of the account."""

    def reboot(self, id_: str) -> None:
        """Reboots one instance. It has no token: each call that EC2 gets is a reboot."""


class ResourceTags(Protocol):
    """Tags of resources."""

    def tag(self, ids: Collection[str], tags: Mapping[str, str]) -> None:
        """Adds tags to resources."""

    def untag(self, ids: Collection[str], keys: Collection[str]) -> None:
        """Removes tags by key; an absent tag is success."""

    def broker_tags(self) -> Mapping[str, Mapping[str, str]]:
        """The broker's tags on EC2 resources of every cluster, by resource id."""

    def groups_of(self, cluster_uid: str) -> Sequence[ReservationGroup]:
        """The groups with the tag of this cluster, without their members."""


class NoticeQueue(Protocol):
    """EC2's notices in a queue."""

    def receive(self, queue: str, *, wait: int) -> Sequence[QueueMessage]:
        """EC2's notices in a queue (name or URL): at once if there are any, else none after `wait` s."""

    def delete_messages(self, queue: str, messages: Sequence[QueueMessage]) -> None:
        """Deletes handled messages from the queue; all others are received again."""


class CapacityProvider(
    AccountFacts,
    ReservationListing,
    ReservationChanges,
    ClassLookups,
    BrokerProfiles,
    BrokerTemplates,
    LaunchCalls,
    InstanceCalls,
    HealthCalls,
    ResourceTags,
    NoticeQueue,
    Protocol,
):
    """EC2 and Resource Groups, or something that answers like them."""
