"""IAM's decision about a call: action, resources and conditions, against the policies of one role.

Local AWS decides so about EC2's launches and reservations, and about the rest by action alone. This module
stands in front of a client. Each call needs the permissions of the Service Authorization Reference (Amazon
EC2, Resource Groups, IAM, Systems Manager, SQS, AWS Price List), with the tags that the account shows. It is
made only if statements allow all of them. A call without an entry here fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

Json = dict[str, Any]
Context = Mapping[str, tuple[str, ...]]

# Rendered by Terraform for cluster `demo` with node role `nodes`; a Terraform test compares both.
POLICY: Final[Mapping[str, Json]] = json.loads((Path(__file__).parent / "policy.json").read_text())
CLUSTER, REGION, ACCOUNT = "demo", "us-east-1", "123456789012"
EC2, IAM = f"arn:aws:ec2:{REGION}:{ACCOUNT}", f"arn:aws:iam::{ACCOUNT}"
_KINDS: Final = {
    "i": "instance",
    "cr": "capacity-reservation",
    "lt": "launch-template",
    "vol": "volume",
    "eni": "network-interface",
}
# ListGroupResources needs these as well (Resource Groups API Reference).
MEMBERS: Final = ("cloudformation:DescribeStacks", "cloudformation:ListStackResources", "tag:GetResources")
_OPEN: Final = ("GetCallerIdentity",)  # needs no permission


@dataclass(frozen=True, slots=True)
class Permission:
    action: str
    resource: str
    context: Context = field(default_factory=dict)


# ---- the decision (IAM User Guide, "Policy evaluation logic" and "Condition operators")


def allowing(statements: list[Json], permission: Permission) -> str:
    """The Sid of a statement that allows the permission; empty if none does."""
    context = {"aws:RequestedRegion": (REGION,), **permission.context}
    for statement in statements:
        if (
            permission.action in statement["Action"]
            and any(fnmatchcase(permission.resource, pattern) for pattern in statement["Resource"])
            and all(
                _holds(operator, context.get(key, ()), value)
                for operator, keys in statement.get("Condition", {}).items()
                for key, value in keys.items()
            )
        ):
            return str(statement["Sid"])
    return ""


def _holds(operator: str, values: tuple[str, ...], expected: str | list[str]) -> bool:
    listed = [expected] if isinstance(expected, str) else expected
    match operator:
        case "StringEquals":
            return len(values) == 1 and values[0] in listed
        case "ForAllValues:StringLike":
            return all(any(fnmatchcase(value, pattern) for pattern in listed) for value in values)
        case "ForAllValues:StringNotEquals":
            return all(value not in listed for value in values)
        case "Null":
            return (not values) is (expected == "true")
    raise AssertionError(f"the condition operator {operator} is not implemented")


# ---- the permissions of each call


class Account:
    """The account as its owner sees it."""

    def __init__(self, client: Callable[[str], Any]) -> None:
        self.ec2, self.groups, self.iam = client("ec2"), client("resource-groups"), client("iam")

    def tagged(self, arn: str) -> Context:
        """The context that a resource's own tags make."""
        return {f"aws:ResourceTag/{key}": (value,) for key, value in self._tags(arn).items()}

    def _tags(self, arn: str) -> Mapping[str, str]:
        if ":resource-groups:" in arn:
            return dict(self.groups.get_tags(Arn=arn)["Tags"])
        name = arn.rpartition("/")[2]
        if ":instance-profile/" in arn:
            return _pairs(self.iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Tags"])
        reply = self.ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [name]}])
        return _pairs(reply["Tags"])

    def template(self, name: str) -> tuple[str, Json]:
        (template,) = self.ec2.describe_launch_templates(LaunchTemplateNames=[name])["LaunchTemplates"]
        versions = self.ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Latest"])
        return template["LaunchTemplateId"], versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]

    def roles(self, profile: str) -> list[str]:
        held = self.iam.get_instance_profile(InstanceProfileName=profile.rpartition("/")[2])
        return [role["Arn"] for role in held["InstanceProfile"]["Roles"]]


def permissions(operation: str, params: Json, account: Account) -> Iterator[Permission]:
    """Everything that must be allowed for a call."""
    own = account.tagged
    match operation:
        case "RunInstances":  # like a fleet with one pool
            config = {"LaunchTemplateSpecification": params["LaunchTemplate"], "Overrides": [params]}
            needed = _fleet({**params, "LaunchTemplateConfigs": [config]}, account)
            yield from (permission for permission in needed if permission.action != "ec2:CreateFleet")
        case "CreateFleet":
            yield from _fleet(params, account)
        case "CreateLaunchTemplate" | "CreateCapacityReservation":
            kind = "launch-template" if operation == "CreateLaunchTemplate" else "capacity-reservation"
            yield from _created("ec2:" + operation, kind, _of(params, kind), created_by=operation)
        case "ModifyCapacityReservation" | "CancelCapacityReservation":
            arn = _arn(params["CapacityReservationId"])
            yield Permission(f"ec2:{operation}", arn, own(arn))
        case "DeleteLaunchTemplate":
            arn = _arn(params.get("LaunchTemplateId") or account.template(params["LaunchTemplateName"])[0])
            yield Permission("ec2:DeleteLaunchTemplate", arn, own(arn))
        case "TerminateInstances" | "RebootInstances":
            for arn in map(_arn, params["InstanceIds"]):
                yield Permission(f"ec2:{operation}", arn, own(arn))
        case "CreateTags" | "DeleteTags":
            tags = _pairs(params.get("Tags", []))
            for arn in map(_arn, params["Resources"]):
                yield Permission(f"ec2:{operation}", arn, {**own(arn), **_requested(tags)})
        case "CreateGroup":
            arn = f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group/{params['Name']}"
            yield Permission("resource-groups:CreateGroup", "*", _requested(params.get("Tags", {})))
            yield Permission("resource-groups:Tag", arn, _requested(params.get("Tags", {})))
        case "GetTags":
            yield Permission("resource-groups:GetTags", params["Arn"], own(params["Arn"]))
        case ("GetGroup" | "GetGroupConfiguration" | "ListGroupResources" | "PutGroupConfiguration") | (
            "GroupResources" | "UngroupResources" | "DeleteGroup"
        ):
            given = params["Group"]
            arn = given if ":" in given else f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group/{given}"
            changes = operation not in ("GetGroup", "GetGroupConfiguration", "ListGroupResources")
            if operation == "ListGroupResources":
                yield from (Permission(action, "*") for action in MEMBERS)
            yield Permission(f"resource-groups:{operation}", arn, own(arn) if changes else {})
        case "CreateInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            for action in (operation, "TagInstanceProfile"):
                yield Permission(f"iam:{action}", arn, _requested(_pairs(params.get("Tags", []))))
        case "TagInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            yield Permission(
                "iam:TagInstanceProfile", arn, {**own(arn), **_requested(_pairs(params["Tags"]))}
            )
        case "Tag":
            yield Permission(
                "resource-groups:Tag", params["Arn"], {**own(params["Arn"]), **_requested(params["Tags"])}
            )
        case "GetInstanceProfile":
            yield Permission(
                "iam:GetInstanceProfile", f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            )
        case "ListInstanceProfilesForRole":
            yield Permission("iam:ListInstanceProfilesForRole", f"{IAM}:role/{params['RoleName']}")
        case "ListInstanceProfiles":
            yield Permission("iam:ListInstanceProfiles", "*")
        case "RemoveRoleFromInstanceProfile" | "DeleteInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            yield Permission(f"iam:{operation}", arn, own(arn))
        case "AddRoleToInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            yield Permission("iam:AddRoleToInstanceProfile", arn, own(arn))
            yield _passed(f"{IAM}:role/{params['RoleName']}")
        case "GetParameters":
            for name in params["Names"]:
                owner = "" if name.startswith("/aws/") else ACCOUNT
                yield Permission("ssm:GetParameters", f"arn:aws:ssm:{REGION}:{owner}:parameter{name}")
        case "GetProducts":
            yield Permission("pricing:GetProducts", "*")
        case "DescribeCluster":
            yield Permission(
                "eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{params['name']}"
            )
        case _ if operation.startswith("Describe"):
            yield Permission(f"ec2:{operation}", "*")
        case _:
            raise AssertionError(f"no entry for the permissions of {operation}")


def _fleet(params: Json, account: Account) -> Iterator[Permission]:
    """CreateFleet, and RunInstances that it calls as its caller."""
    for config in params["LaunchTemplateConfigs"]:
        id_, data = account.template(config["LaunchTemplateSpecification"]["LaunchTemplateName"])
        used = [f"arn:aws:ec2:{REGION}::image/{data['ImageId']}", f"{EC2}:network-interface/*"]
        used += [f"{EC2}:subnet/{override['SubnetId']}" for override in config["Overrides"]]
        used += [f"{EC2}:security-group/{group_id}" for group_id in data.get("SecurityGroupIds", ())]
        target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
        used += [_arn(target_id) for target_id in target.values() if target_id.startswith("cr-")]
        used += [target_id for target_id in target.values() if ":group/" in target_id]
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            yield Permission(action, _arn(id_), account.tagged(_arn(id_)))
            for arn in used:
                yield Permission(action, arn)
            if any(":group/" in target_id for target_id in target.values()):
                yield Permission("resource-groups:ListGroupResources", used[-1])
        inherited = _of(data, "network-interface")
        yield from (
            Permission(
                "ec2:CreateTags",
                f"{EC2}:network-interface/*",
                {**_requested(inherited), "ec2:CreateAction": ("RunInstances",)},
            )
            for _ in range(bool(inherited))
        )
        profile = data.get("IamInstanceProfile", {})
        for role in account.roles(profile.get("Arn") or profile["Name"]) if profile else ():
            yield _passed(role)
    yield from _created("ec2:CreateFleet", "fleet", _of(params, "fleet"), created_by="CreateFleet")
    for kind in ("instance", "volume"):
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            yield from _created(action, kind, _of(params, kind), created_by="RunInstances")


def _created(action: str, kind: str, tags: Mapping[str, str], *, created_by: str) -> Iterator[Permission]:
    """A resource that the call makes, and its tags."""
    yield Permission(action, f"{EC2}:{kind}/*", _requested(tags))
    if tags:
        with_action = {**_requested(tags), "ec2:CreateAction": (created_by,)}
        yield Permission("ec2:CreateTags", f"{EC2}:{kind}/*", with_action)


def _passed(role: str) -> Permission:
    return Permission("iam:PassRole", role, {"iam:PassedToService": ("ec2.amazonaws.com",)})


def _requested(tags: Mapping[str, str]) -> Context:
    named = {f"aws:RequestTag/{key}": (value,) for key, value in tags.items()}
    return {**named, "aws:TagKeys": tuple(tags)}


def _of(params: Json, kind: str) -> Mapping[str, str]:
    specified = params.get("TagSpecifications", [])
    return _pairs(
        tag
        for specification in specified
        if specification["ResourceType"] == kind
        for tag in specification["Tags"]
    )


def _pairs(tags: Any) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in tags}


def _arn(id_: str) -> str:
    return f"{EC2}:{_KINDS[id_.partition('-')[0]]}/{id_}"


# ---- in front of a client


class Guard:
    """Refuses calls that the policies do not allow; records refusals and the statements that were needed."""

    def __init__(self, account: Account, policies: tuple[str, ...] = ("always", "manage")) -> None:
        self.account = account
        self.statements = [statement for name in policies for statement in POLICY[name]["Statement"]]
        self.refused: list[Permission] = []
        self.used: set[str] = set()

    def before(self, client: Any) -> Any:
        """The same client, from now on with the role's permissions."""
        client.meta.events.register("provide-client-params", self._decide)
        return client

    def _decide(self, params: Json, model: Any, **_: Any) -> None:
        if model.name in _OPEN:
            return
        for permission in permissions(model.name, params, self.account):
            sid = allowing(self.statements, permission)
            if not sid:
                self.refused.append(permission)
                message = (
                    f"no statement allows {permission.action} on {permission.resource}"
                    f" with {dict(permission.context)}"
                )
                raise ClientError(
                    {"Error": {"Code": "UnauthorizedOperation", "Message": message}}, model.name
                )
            self.used.add(sid)
