"""Making, filling and deleting Resource Groups groups of capacity reservations.

Invariant: a group without this cluster's tags is never taken over, filled, emptied, reconfigured or deleted.
If the cluster's UID is known, the UID decides; a group to be taken over must carry every tag of the request.
A change that is in place already is success. Resource Groups has no client token, so a create reads first,
and again after a refusal. A call about members takes ten of them (API reference, GroupResources), with a
result for each. Codes of single members' refusals are not documented, so the result is read from the group.
Configuration: Resource Groups User Guide, "Service configurations for resource groups".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from providers.aws import errors, filters
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.aws.groups import group
from providers.aws.groups import tags as group_tags
from providers.aws.tags import Owner, checked
from providers.errors import ErrorClass, ProviderError
from providers.model import ReservationGroup

if TYPE_CHECKING:
    from mypy_boto3_resource_groups.type_defs import FailedResourceTypeDef, GroupConfigurationItemUnionTypeDef

ARNS = 10
POOL = "AWS::EC2::CapacityReservationPool"
# A pool, and nothing but reservations in it.
CONFIGURATION: Sequence[GroupConfigurationItemUnionTypeDef] = (
    {"Type": POOL},
    {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}],
    },
)
BROKER_TAG_PREFIX = "capacity-broker.io/"


class GroupChanges(AwsAccount):
    """Creates, fills and deletes groups."""

    def create_group(self, *, name: str, tags: Mapping[str, str]) -> ReservationGroup:
        """The group of that name, made if it is not there."""
        labels = checked({**tags, **self._owner.labels()})
        adopted = _adopted(self._aws, name, labels)
        if adopted is not None:
            return adopted
        try:
            created = self._aws.call(
                self._aws.groups.create_group, Name=name, Configuration=list(CONFIGURATION), Tags=dict(labels)
            )
        except ProviderError as error:
            # "Cannot create group: group already exists" has no code of its own.
            adopted = _adopted(self._aws, name, labels) if error.class_ is ErrorClass.CONFIGURATION else None
            if adopted is None:
                raise
            return adopted
        return ReservationGroup(arn=created["Group"]["GroupArn"], name=name)

    def add_to_group(self, arn: str, arns: Collection[str]) -> None:
        """Makes all of them members."""
        if arns:
            _require_owned(self._aws, arn, self._owner, operation="GroupResources")
            _change(self._aws, arn, arns, self._aws.groups.group_resources, member=True)

    def remove_from_group(self, arn: str, arns: Collection[str]) -> None:
        """Makes none of them a member."""
        try:
            if arns:
                _require_owned(self._aws, arn, self._owner, operation="UngroupResources")
                _change(self._aws, arn, arns, self._aws.groups.ungroup_resources, member=False)
        except ProviderError as error:
            if error.class_ is not ErrorClass.NOT_FOUND or _exists(self._aws, arn):
                raise

    def delete_group(self, arn: str) -> None:
        """Deletes the group; its members stay as they are."""
        with errors.suppressed(ErrorClass.NOT_FOUND):
            _require_owned(self._aws, arn, self._owner, operation="DeleteGroup")
            self._aws.call(self._aws.groups.delete_group, Group=arn)


def _change(aws: Aws, arn: str, arns: Collection[str], method: Callable[..., Any], *, member: bool) -> None:
    refused: list[FailedResourceTypeDef] = []
    for batch in filters.batches(sorted(set(arns)), ARNS):
        refused += aws.call(method, Group=arn, ResourceArns=list(batch)).get("Failed", [])
    if not refused:
        return
    members = group(aws, arn).member_ids
    failed = [
        failure for failure in refused if (_id(failure.get("ResourceArn", "")) in members) is not member
    ]
    if failed:
        code = failed[0].get("ErrorCode", "GroupingFailed")
        raise ProviderError(
            code,
            f"{len(failed)} of {len(set(arns))}: "
            + "; ".join(
                f"{failure.get('ResourceArn')}: {failure.get('ErrorMessage', code)}" for failure in failed
            ),
            class_=errors.classify(code),
            operation="GroupResources" if member else "UngroupResources",
        )


def _adopted(aws: Aws, name: str, labels: Mapping[str, str]) -> ReservationGroup | None:
    """The group of that name, if the broker owns it; made a pool again if its configuration was changed."""
    arn = ""
    with errors.suppressed(ErrorClass.NOT_FOUND):
        arn = aws.call(aws.groups.get_group, Group=name)["Group"]["GroupArn"]
    if not arn:
        return None
    _require_tags(arn, group_tags(aws, arn), labels, operation="CreateGroup")
    configuration = aws.call(aws.groups.get_group_configuration, Group=arn).get("GroupConfiguration", {})
    if POOL not in [item["Type"] for item in configuration.get("Configuration", [])]:
        aws.call(aws.groups.put_group_configuration, Group=arn, Configuration=list(CONFIGURATION))
    return group(aws, arn)


def _require_owned(aws: Aws, arn: str, cluster: Owner, *, operation: str) -> None:
    carried = group_tags(aws, arn)
    if cluster.ownership_of(carried) != "owned":
        _require_tags(arn, carried, cluster.labels(), operation=operation)


def _require_tags(arn: str, carried: Mapping[str, str], labels: Mapping[str, str], *, operation: str) -> None:
    for key, value in sorted(labels.items()):
        if key.startswith(BROKER_TAG_PREFIX) and carried.get(key) != value:
            raise errors.misconfigured(
                "ForeignGroup",
                f"group {arn} does not carry the tag {key}={value} (but {carried.get(key)!r}), so it is "
                "left as it is: rename or delete it, or give it the tag",
                operation=operation,
            )


def _exists(aws: Aws, arn: str) -> bool:
    with errors.suppressed(ErrorClass.NOT_FOUND):
        aws.call(aws.groups.get_group, Group=arn)
        return True
    return False


def _id(arn: str) -> str:
    return arn.rpartition("/")[2]
