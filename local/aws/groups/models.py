"""Reservation groups: moto's resource groups with members that are named one by one.

Invariant: a listed member is a reservation of the group's Region that its account sees and that has not
ended. Membership is a dict per group, changed by single dict operations only, so no lock is held during
a call to EC2.

Sources: Resource Groups API reference (GroupResources, UngroupResources, ListGroupResources,
ListGroupingStatuses, GetGroupConfiguration, GetGroupQuery, DeleteGroup). Groups with a resource query stay
moto's. AWS names no codes for `Failed[]`; those here are this project's.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from moto.core.utils import unix_time
from moto.resourcegroups.exceptions import BadRequestException, NotFoundException
from moto.resourcegroups.models import FakeResourceGroup, ResourceGroupsBackend

from local.aws.groups import configuration as rules
from local.aws.groups import reservations

MAX_ARNS = 10
ARN = re.compile(r"arn:aws(-[a-z]+)*:[a-z0-9\-]*:([a-z]{2}(-[a-z]+)+-\d{1})?:([0-9]{12})?:.+")


@dataclass(frozen=True, kw_only=True)
class GroupingFailure:
    arn: str
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class GroupingResult:
    """The result of one GroupResources or UngroupResources. `pending`: members from a later time on."""

    succeeded: list[str]
    failed: list[GroupingFailure]
    pending: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class GroupingStatus:
    """The last operation on one resource of a group."""

    arn: str
    action: Literal["GROUP", "UNGROUP"]
    status: Literal["SUCCESS", "FAILED", "IN_PROGRESS"]
    updated_at: float
    code: str | None = None
    message: str | None = None


class ReservationGroupsBackend(ResourceGroupsBackend):
    def __init__(self, region_name: str, account_id: str):
        super().__init__(region_name, account_id)
        self._members: dict[str, dict[str, datetime]] = {}  # group → reservation → when it is a member
        self._statuses: dict[str, dict[str, GroupingStatus]] = {}
        self._attributes: dict[str, dict[str, Any]] = {}

    @property
    def _url_module(self) -> Any:  # stock derives the module from the class's own, which is not moto's
        import moto.resourcegroups.urls

        return moto.resourcegroups.urls

    # ---- the group itself

    def create_group(
        self,
        name: str,
        resource_query: dict[str, str],
        description: str | None = None,
        tags: dict[str, str] | None = None,
        configuration: list[dict[str, Any]] | None = None,
    ) -> FakeResourceGroup:
        if configuration:
            rules.validate(configuration)
            # moto lets other groups have both, and its users may rely on that.
            if resource_query and rules.is_reservation_pool(configuration):
                raise BadRequestException("A group can have a ResourceQuery or a Configuration, not both")
        return super().create_group(name, resource_query, description, tags, configuration)

    def delete_group(self, group_name: str) -> FakeResourceGroup:
        group = self.get_group(group_name)
        members = self.members(group)
        protection = rules.parameter(group.configuration, "deletion-protection")
        if members and "UNLESS_EMPTY" in protection:
            raise BadRequestException(
                f"Cannot delete group {group.name}: deletion-protection is UNLESS_EMPTY "
                f"and the group has {len(members)} members"
            )
        self.groups.delete(group.name)
        for of_group in (self._members, self._statuses, self._attributes):
            of_group.pop(group.arn, None)
        if members:
            reservations.membership_changed(self.account_id, self.region_name)
        return group

    def update_group(self, group_name: str, description: str | None = None) -> FakeResourceGroup:
        group = self.get_group(group_name)
        if description is not None:
            group.description = description
        return group

    def attributes(self, group: FakeResourceGroup) -> dict[str, Any]:
        """An application group's Criticality, Owner and DisplayName, as far as they are set."""
        return self._attributes.setdefault(group.arn, {})

    def set_attributes(self, group: FakeResourceGroup, attributes: Mapping[str, Any]) -> None:
        self.attributes(group).update(attributes)

    # ---- query and configuration: a group has the one or the other

    def group_query(self, group_name: str) -> dict[str, str]:
        group = self.get_group(group_name)
        if not group.resource_query and group.configuration:
            raise BadRequestException(f"Group {group.name} has a configuration, it has no resource query")
        return group.resource_query

    def update_group_query(self, group_name: str, resource_query: dict[str, str]) -> FakeResourceGroup:
        group = self.get_group(group_name)
        if rules.is_reservation_pool(group.configuration):
            raise BadRequestException(f"Group {group.name} has a configuration, it takes no resource query")
        return super().update_group_query(group.name, resource_query)

    def get_group_configuration(self, group_name: str) -> list[dict[str, Any]]:
        group = self.get_group(group_name)
        if group.configuration is None:
            raise BadRequestException(f"Group {group.name} has no configuration")
        return group.configuration

    def put_group_configuration(
        self, group_name: str, configuration: list[dict[str, Any]]
    ) -> FakeResourceGroup:
        group = self.get_group(group_name)
        rules.validate(configuration)
        if group.resource_query and rules.is_reservation_pool(configuration):
            raise BadRequestException(f"Group {group.name} has a resource query, it can't become a pool")
        if self.members(group) and not rules.is_reservation_pool(configuration):
            raise BadRequestException(
                f"Group {group.name} has members, remove them before it ceases to be a pool"
            )
        group.configuration = configuration
        return group

    # ---- members

    def members(self, group: FakeResourceGroup) -> list[str]:
        """The group's reservations in the order they joined; those that ended meanwhile leave it here."""
        joined = self._members.get(group.arn, {})
        for arn in list(joined):
            if not self._can_be_member(arn):
                joined.pop(arn, None)
        now = reservations.now()
        return [arn for arn, at in joined.items() if at <= now]

    def groups_with(self, arn: str) -> list[FakeResourceGroup]:
        if not self._can_be_member(arn):
            return []
        now = reservations.now()
        return [
            group
            for group in list(self.groups.by_arn.values())
            if (at := self._members.get(group.arn, {}).get(arn)) is not None and at <= now
        ]

    def group_resources(self, group_name: str, arns: Sequence[str]) -> GroupingResult:
        group = self._changeable(group_name, arns)
        outcome = _outcome(arns, [self._refusal(group, arn) for arn in dict.fromkeys(arns)])
        now = reservations.now()
        joined = self._members.setdefault(group.arn, {})
        for arn in outcome.succeeded:
            joined.setdefault(arn, now + reservations.grouping_time())
        waiting = [arn for arn in outcome.succeeded if joined[arn] > now]
        done = [arn for arn in outcome.succeeded if arn not in waiting]
        return self._record(group, "GROUP", replace(outcome, succeeded=done, pending=waiting))

    def ungroup_resources(self, group_name: str, arns: Sequence[str]) -> GroupingResult:
        """Removing an absent member succeeds: a repeated request has nothing left to do."""
        group = self._changeable(group_name, arns)
        for arn in arns:
            self._members.get(group.arn, {}).pop(arn, None)
        return self._record(group, "UNGROUP", _outcome(arns, []))

    def grouping_statuses(self, group_name: str) -> list[GroupingStatus]:
        group = self.get_group(group_name)
        listed = set(self.members(group))
        return [
            replace(status, status="SUCCESS")
            if status.status == "IN_PROGRESS" and status.arn in listed
            else status
            for status in self._statuses.get(group.arn, {}).values()
        ]

    def _changeable(self, group_name: str, arns: Sequence[str]) -> FakeResourceGroup:
        group = self.get_group(group_name)
        if not rules.pool_types(group.configuration):
            raise BadRequestException(
                f"Resources can't be added to or removed from group {group.name}: its configuration "
                f"has none of {', '.join(rules.GROUPABLE)}"
            )
        if not 1 <= len(arns) <= MAX_ARNS:
            raise BadRequestException(f"ResourceArns has {len(arns)} entries, it takes 1 to {MAX_ARNS}")
        for arn in arns:
            if not ARN.fullmatch(arn):
                raise BadRequestException(f"ResourceArns: '{arn}' is not an ARN")
        return group

    def _refusal(self, group: FakeResourceGroup, arn: str) -> GroupingFailure | None:
        region = reservations.region_of(arn)
        if not rules.is_reservation_pool(group.configuration) or region is None:
            allowed = rules.parameter(group.configuration, "allowed-resource-types")
            message = f"The group takes resources of type {', '.join(allowed) or 'none here'} only."
            return GroupingFailure(arn=arn, code="RESOURCE_TYPE_NOT_ALLOWED", message=message)
        if region != self.region_name:
            message = f"The resource is in {region}, the group in {self.region_name}."
            return GroupingFailure(arn=arn, code="RESOURCE_REGION_MISMATCH", message=message)
        if not self._can_be_member(arn):
            message = "The resource doesn't exist, is not shared with this account, or has ended."
            return GroupingFailure(arn=arn, code="RESOURCE_NOT_FOUND", message=message)
        return None

    def _can_be_member(self, arn: str) -> bool:
        return reservations.can_be_member(self.account_id, self.region_name, arn)

    def _record(
        self, group: FakeResourceGroup, action: Literal["GROUP", "UNGROUP"], outcome: GroupingResult
    ) -> GroupingResult:
        now, statuses = unix_time(), self._statuses.setdefault(group.arn, {})
        for arn in outcome.succeeded:
            statuses[arn] = GroupingStatus(arn=arn, action=action, status="SUCCESS", updated_at=now)
        for arn in outcome.pending:
            statuses[arn] = GroupingStatus(arn=arn, action=action, status="IN_PROGRESS", updated_at=now)
        for failure in outcome.failed:
            statuses[failure.arn] = GroupingStatus(
                arn=failure.arn,
                action=action,
                status="FAILED",
                updated_at=now,
                code=failure.code,
                message=failure.message,
            )
        if outcome.succeeded:
            reservations.membership_changed(self.account_id, self.region_name)
        return outcome

    # ---- tags of groups

    def tags_of(self, arn: str) -> dict[str, str]:
        return self._tagged(arn).tags

    def tag(self, arn: str, tags: dict[str, str]) -> None:
        self._tagged(arn)
        self._validate_tags(tags)
        super().tag(arn, tags)

    def untag(self, arn: str, keys: list[str]) -> None:
        group = self._tagged(arn)
        super().untag(arn, [key for key in keys if key in group.tags])

    def _tagged(self, arn: str) -> FakeResourceGroup:
        if arn not in self.groups.by_arn:
            raise NotFoundException(f"Cannot find resource group {arn}")
        return self.groups.by_arn[arn]


def _outcome(arns: Iterable[str], refusals: Iterable[GroupingFailure | None]) -> GroupingResult:
    failed = [refusal for refusal in refusals if refusal is not None]
    refused = {failure.arn for failure in failed}
    return GroupingResult(succeeded=[arn for arn in dict.fromkeys(arns) if arn not in refused], failed=failed)


def resource_types(group: FakeResourceGroup) -> list[str]:
    """The types that a group may contain: its query's ResourceTypeFilters, or those of its configuration."""
    types = rules.parameter(group.configuration, "allowed-resource-types")
    if group.resource_query:
        types += json.loads(group.resource_query["Query"]).get("ResourceTypeFilters", [])
    return types
