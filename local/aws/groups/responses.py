"""One method a Resource Groups action: parameters in, JSON out.

Every action takes a group by name or by ARN, in `Group` or in the deprecated `GroupName`. Sources: Resource
Groups API reference; bounds and filter names from the API model.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from moto.resourcegroups.exceptions import BadRequestException
from moto.resourcegroups.models import FakeResourceGroup, resourcegroups_backends
from moto.resourcegroups.responses import ResourceGroupsResponse

from local.aws.groups import configuration as rules
from local.aws.groups.models import (
    GroupingResult,
    GroupingStatus,
    ReservationGroupsBackend,
    resource_types,
)

PAGE = 50
ATTRIBUTES = ("Criticality", "Owner", "DisplayName")

Row = TypeVar("Row")


class ReservationGroupsResponse(ResourceGroupsResponse):
    @property
    def resourcegroups_backend(self) -> ReservationGroupsBackend:
        backend = resourcegroups_backends[self.current_account][self.region]
        assert isinstance(backend, ReservationGroupsBackend), "install() swaps the backend's class"
        return backend

    # ---- the group

    def create_group(self) -> str:
        backend = self.resourcegroups_backend
        group = backend.create_group(
            name=self._get_param("Name"),
            description=self._get_param("Description"),
            resource_query=self._get_param("ResourceQuery"),
            tags=self._get_param("Tags"),
            configuration=self._get_param("Configuration"),
        )
        backend.set_attributes(group, self._given(ATTRIBUTES))
        reply: dict[str, Any] = {"Group": self._group(group), "Tags": group.tags}
        if group.resource_query:
            reply["ResourceQuery"] = group.resource_query
        if group.configuration is not None:
            reply["GroupConfiguration"] = _configuration(group.configuration)
        return json.dumps(reply)

    def get_group(self) -> str:
        return json.dumps({"Group": self._group(self._named_group())})

    def delete_group(self) -> str:
        group = self._named_group()
        shown = self._group(group)
        self.resourcegroups_backend.delete_group(group.name)
        return json.dumps({"Group": shown})

    def update_group(self) -> str:
        group = self.resourcegroups_backend.update_group(
            self._named_group().name, self._get_param("Description")
        )
        self.resourcegroups_backend.set_attributes(group, self._given(ATTRIBUTES))
        return json.dumps({"Group": self._group(group)})

    def list_groups(self) -> str:
        tests: dict[str, Callable[[FakeResourceGroup], Sequence[str]]] = {
            "configuration-type": lambda group: rules.item_types(group.configuration),
            "resource-type": resource_types,
            "owner": lambda group: self._attribute(group, "Owner"),
            "display-name": lambda group: self._attribute(group, "DisplayName"),
            "criticality": lambda group: self._attribute(group, "Criticality"),
        }
        groups = list(self.resourcegroups_backend.groups.by_name.values())
        page, token = self._page(self._filtered(groups, tests))
        identifiers = [{**self._group(group), "GroupName": group.name} for group in page]
        for identifier in identifiers:
            del identifier["Name"]
        return json.dumps(
            {
                "GroupIdentifiers": identifiers,
                "Groups": [self._group(group) for group in page],
                "NextToken": token,
            }
        )

    # ---- query and configuration

    def get_group_query(self) -> str:
        group = self._named_group()
        query = self.resourcegroups_backend.group_query(group.name)
        return json.dumps({"GroupQuery": {"GroupName": group.name, "ResourceQuery": query}})

    def update_group_query(self) -> str:
        group = self.resourcegroups_backend.update_group_query(
            self._named_group().name, self._get_param("ResourceQuery")
        )
        return json.dumps({"GroupQuery": {"GroupName": group.name, "ResourceQuery": group.resource_query}})

    def get_group_configuration(self) -> str:
        configuration = self.resourcegroups_backend.get_group_configuration(self._named_group().name)
        return json.dumps({"GroupConfiguration": _configuration(configuration)})

    def put_group_configuration(self) -> str:
        self.resourcegroups_backend.put_group_configuration(
            self._named_group().name, self._get_param("Configuration") or []
        )
        return "{}"

    # ---- members

    def group_resources(self) -> str:
        arns = self._get_param("ResourceArns") or []
        return _outcome(self.resourcegroups_backend.group_resources(self._named_group().name, arns))

    def ungroup_resources(self) -> str:
        arns = self._get_param("ResourceArns") or []
        return _outcome(self.resourcegroups_backend.ungroup_resources(self._named_group().name, arns))

    def list_group_resources(self) -> str:  # type: ignore[override]
        group = self._named_group()
        if group.configuration is None:
            return super().list_group_resources()  # type: ignore[return-value]
        allowed = resource_types(group)
        for value in self._filters(("resource-type",)).get("resource-type", []):
            if allowed and value not in allowed:
                raise BadRequestException(
                    f"The resource types specified as filters in the request are not valid. ({value})"
                )
        # A pool's members are of the one type that the filter can name.
        page, token = self._page(self.resourcegroups_backend.members(group))
        identifiers = [{"ResourceArn": arn, "ResourceType": rules.RESERVATION} for arn in page]
        return json.dumps(
            {
                "Resources": [{"Identifier": identifier} for identifier in identifiers],
                "ResourceIdentifiers": identifiers,
                "NextToken": token,
                "QueryErrors": [],
            }
        )

    def list_grouping_statuses(self) -> str:
        group = self._named_group()
        tests: dict[str, Callable[[GroupingStatus], Sequence[str]]] = {
            "status": lambda status: [status.status],
            "resource-arn": lambda status: [status.arn],
        }
        grouping_statuses = self._filtered(self.resourcegroups_backend.grouping_statuses(group.name), tests)
        page, token = self._page(grouping_statuses)
        statuses = [_without_nulls(_grouping_status(status)) for status in page]
        return json.dumps({"Group": group.arn, "GroupingStatuses": statuses, "NextToken": token})

    # ---- tags

    def get_tags(self) -> str:
        arn = unquote(self._get_param("Arn"))
        return json.dumps({"Arn": arn, "Tags": self.resourcegroups_backend.tags_of(arn)})

    def tag(self) -> str:
        arn, tags = unquote(self._get_param("Arn")), self._get_param("Tags")
        self.resourcegroups_backend.tag(arn, tags)
        return json.dumps({"Arn": arn, "Tags": tags})

    def untag(self) -> str:
        arn, keys = unquote(self._get_param("Arn")), self._get_param("Keys")
        self.resourcegroups_backend.untag(arn, keys)
        return json.dumps({"Arn": arn, "Keys": keys})

    # ---- parameters

    def _named_group(self) -> FakeResourceGroup:
        name = self._get_param("Group") or self._get_param("GroupName")
        if not name:
            raise BadRequestException("Group is missing: give a group's name or ARN")
        return self.resourcegroups_backend.get_group(name)

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := self._get_param(name)) is not None}

    def _group(self, group: FakeResourceGroup) -> dict[str, Any]:
        shown = {"GroupArn": group.arn, "Name": group.name, "Description": group.description}
        return {**shown, **self.resourcegroups_backend.attributes(group)}

    def _attribute(self, group: FakeResourceGroup, name: str) -> list[str]:
        attributes = self.resourcegroups_backend.attributes(group)
        return [str(attributes[name])] if name in attributes else []

    def _filters(self, known: Sequence[str]) -> dict[str, list[str]]:
        filters: dict[str, list[str]] = {}
        for entry in self._get_param("Filters") or ():
            name, values = entry.get("Name"), list(entry.get("Values") or ())
            if name not in known:
                raise BadRequestException(f"Filter '{name}' is not valid; valid filters: {', '.join(known)}")
            if not values:
                raise BadRequestException(f"Filter '{name}' needs at least one value")
            filters.setdefault(name, []).extend(values)
        return filters

    def _filtered(self, rows: list[Row], tests: Mapping[str, Callable[[Row], Sequence[str]]]) -> list[Row]:
        """Rows that satisfy every filter, by any of its values."""
        filters = self._filters(tuple(tests))
        return [
            row
            for row in rows
            if all(set(tests[name](row)) & set(values) for name, values in filters.items())
        ]

    def _page(self, rows: list[Row]) -> tuple[list[Row], str | None]:
        # Two of the list actions have their parameters in the query string as well as in the body.
        size = int(self._get_param("MaxResults") or self._get_param("maxResults") or PAGE)
        if not 1 <= size <= PAGE:
            raise BadRequestException(f"MaxResults is {size}, it takes 1 to {PAGE}")
        start = _offset(self._get_param("NextToken") or self._get_param("nextToken"))
        end = start + size
        return rows[start:end], base64.b64encode(str(end).encode()).decode() if end < len(rows) else None


def _offset(token: str | None) -> int:
    if not token:
        return 0
    try:
        return int(base64.b64decode(token, validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadRequestException(f"NextToken '{token}' is not one that this service gave") from error


def _configuration(configuration: rules.Configuration) -> dict[str, Any]:
    # Configurations take effect at once here; AWS passes through UPDATING.
    return {"Configuration": configuration, "Status": "UPDATE_COMPLETE"}


def _outcome(outcome: GroupingResult) -> str:
    failed = [
        {"ResourceArn": failure.arn, "ErrorCode": failure.code, "ErrorMessage": failure.message}
        for failure in outcome.failed
    ]
    pending = [{"ResourceArn": arn} for arn in outcome.pending]
    return json.dumps({"Succeeded": outcome.succeeded, "Failed": failed, "Pending": pending})


def _grouping_status(status: GroupingStatus) -> dict[str, Any]:
    return {
        "ResourceArn": status.arn,
        "Action": status.action,
        "Status": status.status,
        "ErrorCode": status.code,
        "ErrorMessage": status.message,
        "UpdatedAt": status.updated_at,
    }


def _without_nulls(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if value is not None}
