"""The permissions that a call needs: actions, each on a resource with its known attributes.

Sources: Service Authorization Reference, "Amazon EC2", "AWS Resource Groups", "Amazon SQS", "AWS Systems
Manager", "AWS IAM" (resource types, condition keys, dependent actions). Actions that are not named there as
having resources need `*`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from local.aws.iam.policies import Context

Params = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Need:
    action: str  # with its service
    resource: str = "*"
    context: Context = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Where:
    """The account and Region of the call, and its time."""

    account: str
    region: str
    now: datetime
    partition: str = "aws"

    def arn(self, service: str, name: str, *, account: str | None = None, region: str | None = None) -> str:
        owner = self.account if account is None else account
        place = self.region if region is None else region
        return f"arn:{self.partition}:{service}:{place}:{owner}:{name}"

    @property
    def context(self) -> Context:
        return {
            "aws:RequestedRegion": [self.region],
            "ec2:Region": [self.region],
            "aws:CurrentTime": [self.now.strftime("%Y-%m-%dT%H:%M:%SZ")],
            "aws:EpochTime": [str(int(self.now.timestamp()))],
        }


def requested(tags: Mapping[str, str]) -> Context:
    """The context keys of a request that adds or removes tags."""
    if not tags:
        return {}
    return {f"aws:RequestTag/{key}": [value] for key, value in tags.items()} | {"aws:TagKeys": list(tags)}


def tagged(tags: Mapping[str, str]) -> Context:
    """The context keys of the resource's own tags."""
    return {
        name: [value]
        for key, value in tags.items()
        for name in (f"aws:ResourceTag/{key}", f"ec2:ResourceTag/{key}")
    }


# ---- services beside EC2


def sqs(where: Where, action: str, params: Params) -> Iterator[Need]:
    name = params.get("QueueName") or str(params.get("QueueUrl") or "").rpartition("/")[2]
    resource = where.arn("sqs", name) if name else "*"
    yield Need(action=f"sqs:{action.removesuffix('Batch')}", resource=resource, context=where.context)


def ssm(where: Where, action: str, params: Params) -> Iterator[Need]:
    names = [*(params.get("Names") or ()), *([params["Name"]] if params.get("Name") else ())]
    for name in names if action in ("GetParameter", "GetParameters") else ():
        # AWS's own parameters belong to no account.
        owner = "" if name.startswith("/aws/") else None
        resource = where.arn("ssm", f"parameter/{name.removeprefix('/')}", account=owner)
        yield Need(action=f"ssm:{action}", resource=resource, context=where.context)
    if action not in ("GetParameter", "GetParameters"):
        yield Need(action=f"ssm:{action}", context=where.context)


def iam(where: Where, action: str, params: Params, tags: Mapping[str, Mapping[str, str]]) -> Iterator[Need]:
    """`tags`: those of instance profiles, by name."""
    new_tags = {tag["Key"]: tag.get("Value", "") for tag in params.get("Tags") or ()}
    profile, role = params.get("InstanceProfileName"), params.get("RoleName")
    if profile:
        resource = where.arn("iam", f"instance-profile/{profile}", region="")
        context = {**where.context, **requested(new_tags), **tagged(tags.get(profile, {}))}
        yield Need(action=f"iam:{action}", resource=resource, context=context)
        if action == "CreateInstanceProfile" and new_tags:
            yield Need(action="iam:TagInstanceProfile", resource=resource, context=context)
        if action == "AddRoleToInstanceProfile" and role:
            yield pass_role(where, where.arn("iam", f"role/{role}", region=""))
    elif role:
        yield Need(action=f"iam:{action}", resource=where.arn("iam", f"role/{role}", region=""))
    else:
        yield Need(action=f"iam:{action}", context={**where.context, **requested(new_tags)})


def pass_role(where: Where, arn: str) -> Need:
    context = {**where.context, "iam:PassedToService": ["ec2.amazonaws.com"]}
    return Need(action="iam:PassRole", resource=arn, context=context)


def groups(
    where: Where, action: str, params: Params, named: tuple[str, Mapping[str, str]] | None
) -> Iterator[Need]:
    """`named`: the ARN and the tags of the group that the request names."""
    new_tags = dict(params.get("Tags") or {}) if isinstance(params.get("Tags"), Mapping) else {}
    arn, tags = named or ("*", {})
    context = {**where.context, **requested(new_tags), **tagged(tags)}
    yield Need(action=f"resource-groups:{action}", resource=arn, context=context)
    if action == "ListGroupResources":
        yield from members(where)
    if action == "CreateGroup" and new_tags:
        name = where.arn("resource-groups", f"group/{params.get('Name')}")
        yield Need(action="resource-groups:Tag", resource=name, context=context)


def members(where: Where) -> Iterator[Need]:
    """The permissions of ListGroupResources beside its own action (API reference, "Permissions")."""
    for action in ("cloudformation:DescribeStacks", "cloudformation:ListStackResources", "tag:GetResources"):
        yield Need(action=action, context=where.context)
