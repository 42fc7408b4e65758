"""Everything in the account that carries the tags of one cluster's broker, for its removal.

Invariant: the cluster's UID decides, since two clusters may have one name. EC2's DescribeTags finds resources
of every kind by one listing, also those that the broker no longer knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from providers.aws import errors, groups
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.errors import ErrorClass
from providers.model import ReservationGroup
from providers.names import TAG_CLUSTER_UID

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

PREFIX = "capacity-broker"
PAGE = 1000
GROUPS = 50


class Leftovers(AwsAccount):
    """Reads resources with the broker's tags."""

    def broker_tags(self) -> dict[str, dict[str, str]]:
        """The broker's tags on EC2 resources, by resource id, of every self._owner."""
        by_resource: dict[str, dict[str, str]] = {}
        chosen: list[FilterTypeDef] = [{"Name": "key", "Values": [f"{PREFIX}.io/*"]}]
        for page in self._aws.pages(self._aws.ec2.describe_tags, Filters=chosen, MaxResults=PAGE):
            for tag in page["Tags"]:
                by_resource.setdefault(tag["ResourceId"], {})[tag["Key"]] = tag["Value"]
        return by_resource

    def groups_of(self, cluster_uid: str) -> list[ReservationGroup]:
        """The groups with the UID's tag, by name, without their members."""
        groups = []
        for page in self._aws.pages(self._aws.groups.list_groups, MaxResults=GROUPS):
            for listed in page["GroupIdentifiers"]:
                name, arn = listed["GroupName"], listed["GroupArn"]
                if (
                    name.startswith(f"{PREFIX}.")
                    and (carried := _tags(self._aws, arn)).get(TAG_CLUSTER_UID) == cluster_uid
                ):
                    groups.append(ReservationGroup(arn=arn, name=name, tags=carried, ownership="owned"))
        return sorted(groups, key=lambda group: group.name)


def _tags(aws: Aws, arn: str) -> Mapping[str, str]:
    with errors.suppressed(ErrorClass.NOT_FOUND):  # deleted since it was listed
        return groups.tags(aws, arn)
    return {}
