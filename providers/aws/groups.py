"""Resource Groups of capacity reservations: the present members of a group.

Invariant: membership is read from Resource Groups each time, in pages of 50 (the maximum), by the group's
ARN. So a reservation that is added to a group is seen by the next read. Members of other kinds are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from providers.aws import errors
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.model import ReservationGroup

PAGE = 50
MEMBER = ":capacity-reservation/"


class AwsGroups(AwsAccount):
    """Reads groups."""

    def group(self, arn: str) -> ReservationGroup:
        return group(self._aws, arn, self.account_id)

    def tagged_group(self, group: ReservationGroup) -> ReservationGroup:
        carried = tags(self._aws, group.arn)
        return replace(group, tags=carried, ownership=self._owner.ownership_of(carried))


def group(aws: Aws, arn: str, account: Callable[[], str] = str) -> ReservationGroup:
    """The group and the ids of the reservations in it. `account`: that of the credentials, if known.

    A group of another partition, Region or account is refused without a call: only its own account uses it,
    there.
    """
    name = _name(arn)
    partition = aws.ec2.meta.partition
    if elsewhere := _elsewhere(arn, partition=partition, region=aws.region, account=account()):
        raise errors.misconfigured("GroupElsewhere", elsewhere, operation="group")
    members: set[str] = set()
    for page in aws.pages(aws.groups.list_group_resources, Group=arn, MaxResults=PAGE):
        arns = [item.get("Identifier", {}).get("ResourceArn", "") for item in page.get("Resources", [])]
        arns += [item.get("ResourceArn", "") for item in page.get("ResourceIdentifiers", [])]
        members.update(member.rpartition("/")[2] for member in arns if MEMBER in member)
    return ReservationGroup(arn=arn, name=name, member_ids=tuple(sorted(members)))


def tags(aws: Aws, arn: str) -> Mapping[str, str]:
    """The tags of the group."""
    return aws.call(aws.groups.get_tags, Arn=arn).get("Tags", {})


def _name(arn: str) -> str:
    """The name in arn:PARTITION:resource-groups:REGION:ACCOUNT:group/NAME."""
    parts = arn.split(":", 5)
    if len(parts) < 6 or parts[2] != "resource-groups" or not parts[5].startswith("group/"):
        raise errors.misconfigured(
            "InvalidGroupArn",
            f"{arn!r} is not the ARN of a resource group "
            "(arn:aws:resource-groups:REGION:ACCOUNT:group/NAME; aws resource-groups list-groups shows it)",
            operation="group",
        )
    return parts[5].removeprefix("group/")


def _elsewhere(arn: str, *, partition: str, region: str, account: str) -> str:
    """How the ARN's partition, Region and account differ from those of the calls; empty if they do not."""
    _, its_partition, _, its_region, its_account = arn.split(":")[:5]
    differs = [
        f"{what} {given}, and this is {own}"
        for what, given, own in (
            ("partition", its_partition, partition),
            ("Region", its_region, region),
            ("account", its_account, account),
        )
        if own and given != own
    ]
    remedy = "name a group of this Region and account"
    return f"{arn} is of {' and of '.join(differs)}: {remedy}" if differs else ""
