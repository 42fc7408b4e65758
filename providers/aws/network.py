"""Subnets and security groups that selector terms choose, and placement groups by name.

Invariant: terms are ORed, the fields of one term ANDed (as in EC2NodeClass). Each resource appears once. The
order of the result depends on the resources, not on the order of the terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.aws import filters
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.errors import ErrorClass, ProviderError
from providers.model import PlacementGroup, SecurityGroup, Selector, Subnet

PAGE = 1000


class Network(AwsAccount):
    """Reads the places of instances, and their security groups."""

    def subnets(self, terms: Sequence[Selector]) -> list[Subnet]:
        """Sorts by zone, most free addresses first."""
        subnets_: dict[str, Subnet] = {}
        for chosen in filters.of_terms(terms, field="subnetSelectorTerms", id_name="subnet-id", name=""):
            for page in self._aws.pages(self._aws.ec2.describe_subnets, Filters=chosen, MaxResults=PAGE):
                for item in page["Subnets"]:
                    subnets_[item["SubnetId"]] = Subnet(
                        id=item["SubnetId"],
                        zone=item.get("AvailabilityZone", ""),
                        zone_id=item.get("AvailabilityZoneId", ""),
                        available_addresses=item.get("AvailableIpAddressCount", 0),
                        outpost_arn=item.get("OutpostArn", ""),
                    )
        return sorted(
            subnets_.values(), key=lambda subnet: (subnet.zone, -subnet.available_addresses, subnet.id)
        )

    def security_groups(self, terms: Sequence[Selector]) -> list[SecurityGroup]:
        """Finds the groups that the terms select, sorted by id."""
        groups: dict[str, SecurityGroup] = {}
        for chosen in filters.of_terms(
            terms, field="securityGroupSelectorTerms", id_name="group-id", name="group-name"
        ):
            for page in self._aws.pages(
                self._aws.ec2.describe_security_groups, Filters=chosen, MaxResults=PAGE
            ):
                for item in page["SecurityGroups"]:
                    groups[item["GroupId"]] = SecurityGroup(id=item["GroupId"])
        return sorted(groups.values(), key=lambda group: group.id)

    def placement_group(self, *, name: str = "", id_: str = "") -> PlacementGroup:
        """The placement group of that name in the account, or of that id anywhere."""
        name_or_id, field = (id_, "GroupId") if id_ else (name, "GroupName")
        try:
            answer = (
                self._aws.call(self._aws.ec2.describe_placement_groups, GroupIds=[id_])
                if id_
                else self._aws.call(
                    self._aws.ec2.describe_placement_groups,
                    Filters=[{"Name": "group-name", "Values": [name]}],
                )
            )
        except ProviderError as error:
            if error.class_ is not ErrorClass.NOT_FOUND:
                raise
            raise _no_group(self._aws, name_or_id, request_id=error.request_id) from error
        for item in answer["PlacementGroups"]:
            if item.get(field) == name_or_id:
                return PlacementGroup(arn=item.get("GroupArn", ""), strategy=item.get("Strategy", ""))
        raise _no_group(self._aws, name_or_id)


def _no_group(aws: Aws, name_or_id: str, *, request_id: str = "") -> ProviderError:
    return ProviderError(
        "PlacementGroupNotFound",
        f"placement group {name_or_id!r} does not exist in {aws.region}: create it or correct the name or id",
        class_=ErrorClass.NOT_FOUND,
        request_id=request_id,
        operation="DescribePlacementGroups",
    )
