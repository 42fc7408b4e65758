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

# Rendered by Terraform for cluster `demo`, whose nodes have role `nodes`; a test with Terraform compares
# both.
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
class Ask:
    action: str
    resource: str
    context: Context = field(default_factory=dict)


# ---- the decision (IAM User Guide, "Policy evaluation logic" and "Condition operators")


def allowing(statements: list[Json], ask: Ask) -> str:
    """The Sid of a statement that allows it; empty where none does."""
    context = {"aws:RequestedRegion": (REGION,), **ask.context}
    for each in statements:
        if (
            ask.action in each["Action"]
            and any(fnmatchcase(ask.resource, pattern) for pattern in each["Resource"])
            and all(
                _holds(operator, context.get(key, ()), value)
                for operator, keys in each.get("Condition", {}).items()
                for key, value in keys.items()
            )
        ):
            return str(each["Sid"])
    return ""


def _holds(operator: str, found: tuple[str, ...], wanted: str | list[str]) -> bool:
    listed = [wanted] if isinstance(wanted, str) else wanted
    match operator:
        case "StringEquals":
            return len(found) == 1 and found[0] in listed
        case "ForAllValues:StringLike":
            return all(any(fnmatchcase(each, pattern) for pattern in listed) for each in found)
        case "ForAllValues:StringNotEquals":
            return all(each not in listed for each in found)
        case "Null":
            return (not found) is (wanted == "true")
    raise AssertionError(f"the condition operator {operator} is not played")


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
        found = self.ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [name]}])
        return _pairs(found["Tags"])

    def template(self, name: str) -> tuple[str, Json]:
        (found,) = self.ec2.describe_launch_templates(LaunchTemplateNames=[name])["LaunchTemplates"]
        versions = self.ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Latest"])
        return found["LaunchTemplateId"], versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]

    def roles(self, profile: str) -> list[str]:
        held = self.iam.get_instance_profile(InstanceProfileName=profile.rpartition("/")[2])
        return [role["Arn"] for role in held["InstanceProfile"]["Roles"]]


def asks(operation: str, params: Json, account: Account) -> Iterator[Ask]:
    """Everything that must be allowed for a call."""
    own = account.tagged
    match operation:
        case "RunInstances":  # as the fleet of one pool that it is a trial of
            config = {"LaunchTemplateSpecification": params["LaunchTemplate"], "Overrides": [params]}
            asked = _fleet({**params, "LaunchTemplateConfigs": [config]}, account)
            yield from (each for each in asked if each.action != "ec2:CreateFleet")
        case "CreateFleet":
            yield from _fleet(params, account)
        case "CreateLaunchTemplate" | "CreateCapacityReservation":
            kind = "launch-template" if operation == "CreateLaunchTemplate" else "capacity-reservation"
            yield from _made("ec2:" + operation, kind, _of(params, kind), created_by=operation)
        case "ModifyCapacityReservation" | "CancelCapacityReservation":
            arn = _arn(params["CapacityReservationId"])
            yield Ask(f"ec2:{operation}", arn, own(arn))
        case "DeleteLaunchTemplate":
            arn = _arn(params.get("LaunchTemplateId") or account.template(params["LaunchTemplateName"])[0])
            yield Ask("ec2:DeleteLaunchTemplate", arn, own(arn))
        case "TerminateInstances":
            for arn in map(_arn, params["InstanceIds"]):
                yield Ask("ec2:TerminateInstances", arn, own(arn))
        case "CreateTags" | "DeleteTags":
            tags = _pairs(params.get("Tags", []))
            for arn in map(_arn, params["Resources"]):
                yield Ask(f"ec2:{operation}", arn, {**own(arn), **_requested(tags)})
        case "CreateGroup":
            arn = f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group/{params['Name']}"
            yield Ask("resource-groups:CreateGroup", "*", _requested(params.get("Tags", {})))
            yield Ask("resource-groups:Tag", arn, _requested(params.get("Tags", {})))
        case "GetTags":
            yield Ask("resource-groups:GetTags", params["Arn"], own(params["Arn"]))
        case ("GetGroup" | "GetGroupConfiguration" | "ListGroupResources" | "PutGroupConfiguration") | (
            "GroupResources" | "UngroupResources" | "DeleteGroup"
        ):
            given = params["Group"]
            arn = given if ":" in given else f"arn:aws:resource-groups:{REGION}:{ACCOUNT}:group/{given}"
            changes = operation not in ("GetGroup", "GetGroupConfiguration", "ListGroupResources")
            if operation == "ListGroupResources":
                yield from (Ask(each, "*") for each in MEMBERS)
            yield Ask(f"resource-groups:{operation}", arn, own(arn) if changes else {})
        case "CreateInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            for action in (operation, "TagInstanceProfile"):
                yield Ask(f"iam:{action}", arn, _requested(_pairs(params.get("Tags", []))))
        case "TagInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            yield Ask("iam:TagInstanceProfile", arn, {**own(arn), **_requested(_pairs(params["Tags"]))})
        case "Tag":
            yield Ask(
                "resource-groups:Tag", params["Arn"], {**own(params["Arn"]), **_requested(params["Tags"])}
            )
        case "GetInstanceProfile":
            yield Ask("iam:GetInstanceProfile", f"{IAM}:instance-profile/{params['InstanceProfileName']}")
        case "ListInstanceProfilesForRole":
            yield Ask("iam:ListInstanceProfilesForRole", f"{IAM}:role/{params['RoleName']}")
        case "ListInstanceProfiles":
            yield Ask("iam:ListInstanceProfiles", "*")
        case "RemoveRoleFromInstanceProfile" | "DeleteInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            yield Ask(f"iam:{operation}", arn, own(arn))
        case "AddRoleToInstanceProfile":
            arn = f"{IAM}:instance-profile/{params['InstanceProfileName']}"
            yield Ask("iam:AddRoleToInstanceProfile", arn, own(arn))
            yield _passed(f"{IAM}:role/{params['RoleName']}")
        case "GetParameters":
            for name in params["Names"]:
                whose = "" if name.startswith("/aws/") else ACCOUNT
                yield Ask("ssm:GetParameters", f"arn:aws:ssm:{REGION}:{whose}:parameter{name}")
        case "GetProducts":
            yield Ask("pricing:GetProducts", "*")
        case "DescribeCluster":
            yield Ask("eks:DescribeCluster", f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{params['name']}")
        case _ if operation.startswith("Describe"):
            yield Ask(f"ec2:{operation}", "*")
        case _:
            raise AssertionError(f"no entry for the permissions of {operation}")


def _fleet(params: Json, account: Account) -> Iterator[Ask]:
    """CreateFleet, and RunInstances that it calls as its caller."""
    for config in params["LaunchTemplateConfigs"]:
        id_, data = account.template(config["LaunchTemplateSpecification"]["LaunchTemplateName"])
        used = [f"arn:aws:ec2:{REGION}::image/{data['ImageId']}", f"{EC2}:network-interface/*"]
        used += [f"{EC2}:subnet/{each['SubnetId']}" for each in config["Overrides"]]
        used += [f"{EC2}:security-group/{each}" for each in data.get("SecurityGroupIds", ())]
        target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
        used += [_arn(each) for each in target.values() if each.startswith("cr-")]
        used += [each for each in target.values() if ":group/" in each]
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            yield Ask(action, _arn(id_), account.tagged(_arn(id_)))
            for arn in used:
                yield Ask(action, arn)
            if any(":group/" in each for each in target.values()):
                yield Ask("resource-groups:ListGroupResources", used[-1])
        inherited = _of(data, "network-interface")
        yield from (
            Ask(
                "ec2:CreateTags",
                f"{EC2}:network-interface/*",
                {**_requested(inherited), "ec2:CreateAction": ("RunInstances",)},
            )
            for _ in range(bool(inherited))
        )
        profile = data.get("IamInstanceProfile", {})
        for role in account.roles(profile.get("Arn") or profile["Name"]) if profile else ():
            yield _passed(role)
    yield from _made("ec2:CreateFleet", "fleet", _of(params, "fleet"), created_by="CreateFleet")
    for kind in ("instance", "volume"):
        for action in ("ec2:CreateFleet", "ec2:RunInstances"):
            yield from _made(action, kind, _of(params, kind), created_by="RunInstances")


def _made(action: str, kind: str, tags: Mapping[str, str], *, created_by: str) -> Iterator[Ask]:
    """A resource that the call makes, and its tags."""
    yield Ask(action, f"{EC2}:{kind}/*", _requested(tags))
    if tags:
        with_action = {**_requested(tags), "ec2:CreateAction": (created_by,)}
        yield Ask("ec2:CreateTags", f"{EC2}:{kind}/*", with_action)


def _passed(role: str) -> Ask:
    return Ask("iam:PassRole", role, {"iam:PassedToService": ("ec2.amazonaws.com",)})


def _requested(tags: Mapping[str, str]) -> Context:
    named = {f"aws:RequestTag/{key}": (value,) for key, value in tags.items()}
    return {**named, "aws:TagKeys": tuple(tags)}


def _of(params: Json, kind: str) -> Mapping[str, str]:
    specified = params.get("TagSpecifications", [])
    return _pairs(tag for each in specified if each["ResourceType"] == kind for tag in each["Tags"])


def _pairs(tags: Any) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in tags}


def _arn(id_: str) -> str:
    return f"{EC2}:{_KINDS[id_.partition('-')[0]]}/{id_}"


# ---- in front of a client


class Guard:
    """Refuses calls that the policies do not allow; records refusals and the statements that were needed."""

    def __init__(self, account: Account, policies: tuple[str, ...] = ("always", "manage")) -> None:
        self.account = account
        self.statements = [each for name in policies for each in POLICY[name]["Statement"]]
        self.refused: list[Ask] = []
        self.used: set[str] = set()

    def before(self, client: Any) -> Any:
        """The same client, from now on with the role's permissions."""
        client.meta.events.register("provide-client-params", self._decide)
        return client

    def _decide(self, params: Json, model: Any, **_: Any) -> None:
        if model.name in _OPEN:
            return
        for ask in asks(model.name, params, self.account):
            sid = allowing(self.statements, ask)
            if not sid:
                self.refused.append(ask)
                message = (
                    f"{ask.action} on {ask.resource} with {dict(ask.context)} is allowed by no statement"
                )
                raise ClientError(
                    {"Error": {"Code": "UnauthorizedOperation", "Message": message}}, model.name
                )
            self.used.add(sid)
