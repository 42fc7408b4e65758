"""The instance profile to launch with: as given, or one of the broker's own for the role.

Another profile with the role has another owner, which deletes it without notice: Karpenter deletes its own
with its class, a node group with the group.

Invariant: making one is idempotent. Its name follows from the cluster's name and UID, Region and role. IAM's
"already exists" is success, for the profile and for the role in it (IAM API Reference, CreateInstanceProfile,
a profile has one role).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from providers.aws import errors, tags
from providers.aws.account import AwsAccount
from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.errors import ErrorClass, ProviderError
from providers.launch import ProfileRef
from providers.model import owned_prefix

if TYPE_CHECKING:
    from mypy_boto3_iam.type_defs import InstanceProfileTypeDef, TagTypeDef

PAGE = 1000

_Key = tuple[str, tuple[tuple[str, str], ...]]  # role, tags


class Profiles(AwsAccount):
    """Finds or makes a profile, and remembers it for a quarter of an hour."""

    def __init__(self, aws: Aws, owner: tags.Owner) -> None:
        super().__init__(aws, owner)
        self._found: TtlCache[_Key, str] = TtlCache(ttl=900, monotonic=aws.clock.monotonic)
        self._emptied: dict[str, str] = {}  # to be deleted, and without its role by now: name -> role

    def instance_profile(
        self, *, role: str, profile: str, labels: Mapping[str, str], doubted: bool = False
    ) -> str:
        """The profile's name (or ARN, as given). `labels`: the class's tags, for a profile of a role.

        Only a doubted profile is read: a network without a way to IAM launches with a given one.
        """
        if profile:
            if doubted:
                self._require(profile.rpartition("/")[2])
            return profile
        if not role:
            raise errors.misconfigured(
                "NoInstanceProfile",
                "the class names neither role nor instanceProfile: set one of them",
                operation="instance_profile",
            )
        name = role.rpartition("/")[2]
        given = tuple(sorted(tags.checked(labels).items()))
        return self._found.get((name, given), lambda: self._of_role(name, labels))

    def _forget_profiles(self) -> None:
        """EC2 does not know one of the profiles: each is read again."""
        self._found.clear()

    def instance_profiles(self) -> list[ProfileRef]:
        """The profiles that have the name derived from the role in them, by name."""
        by_name = dict(self._emptied)
        for item in self._listed():
            name = item["InstanceProfileName"]
            for role in item["Roles"]:
                if name == self._name(role["RoleName"]):
                    by_name[name] = role["RoleName"]
        return [ProfileRef(name=name, role=role) for name, role in sorted(by_name.items())]

    def _listed(self) -> Iterator[Any]:
        """Every profile of the account, in pages."""
        more: dict[str, str] = {}
        while True:
            page = self._aws.call(self._aws.iam.list_instance_profiles, MaxItems=PAGE, **more)
            yield from page["InstanceProfiles"]
            if not page.get("IsTruncated"):
                return
            more = {"Marker": page["Marker"]}

    def delete_instance_profile(self, ref: ProfileRef) -> bool:
        """False while an instance runs with it. Raises ProviderError if it has not the cluster's tags."""
        try:
            profile = self._read(ref.name)
        except ProviderError as error:
            self._emptied.pop(ref.name, None)
            if error.class_ is ErrorClass.NOT_FOUND:
                return True
            raise
        marks = {tag["Key"]: tag["Value"] for tag in profile.get("Tags", [])}
        if self._owner.ownership_of(marks) != "owned":
            labels = ", ".join(f"{key}={value}" for key, value in self._owner.labels().items())
            raise errors.misconfigured(
                "ForeignInstanceProfile",
                f"instance profile {ref.name} is without the tags {labels}: give it its tags or delete it",
                operation="DeleteInstanceProfile",
            )
        if self._runs(profile["Arn"]):
            return False
        self._found.clear()
        self._emptied[ref.name] = ref.role
        for role in profile["Roles"]:
            self._aws.call(
                self._aws.iam.remove_role_from_instance_profile,
                InstanceProfileName=ref.name,
                RoleName=role["RoleName"],
            )
        with errors.suppressed(ErrorClass.NOT_FOUND):
            self._aws.call(self._aws.iam.delete_instance_profile, InstanceProfileName=ref.name)
        del self._emptied[ref.name]
        return True

    def _runs(self, arn: str) -> bool:
        chosen: Any = [
            {"Name": "iam-instance-profile.arn", "Values": [arn]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        answer = self._aws.call(self._aws.ec2.describe_instances, Filters=chosen, MaxResults=5)
        return bool(answer["Reservations"])

    def _of_role(self, role: str, labels: Mapping[str, str]) -> str:
        answer = self._aws.call(self._aws.iam.list_instance_profiles_for_role, RoleName=role)
        names = sorted(item["InstanceProfileName"] for item in answer["InstanceProfiles"])
        profile_name = self._name(role)
        if profile_name not in names:
            return self._make(profile_name, role=role, labels=labels)
        if labels:
            self._tag(self._read(profile_name), labels)
        return profile_name

    def _require(self, name: str) -> None:
        """Raises ProviderError if IAM has no such profile, and not if IAM cannot tell."""
        try:
            self._read(name)
        except ProviderError as error:
            if error.class_ is ErrorClass.NOT_FOUND:
                raise

    def _read(self, name: str) -> InstanceProfileTypeDef:
        return self._aws.call(self._aws.iam.get_instance_profile, InstanceProfileName=name)["InstanceProfile"]

    def _tag(self, held: InstanceProfileTypeDef, labels: Mapping[str, str]) -> None:
        """Adds the tags that the profile lacks; of classes that share it, the first value stays."""
        # IAM ignores the case of a key.
        present = {tag["Key"].casefold() for tag in held.get("Tags", [])}
        if missing := {key: value for key, value in labels.items() if key.casefold() not in present}:
            self._aws.call(
                self._aws.iam.tag_instance_profile,
                InstanceProfileName=held["InstanceProfileName"],
                # A policy may allow the call for the cluster's own tag only.
                Tags=_listed({**missing, **self._owner.labels()}),
            )

    def _name(self, role: str) -> str:
        uid = self._owner.uid
        unique = "/".join((self._owner.name, self._aws.region, role, *((uid,) if uid else ())))
        return owned_prefix(self._owner.name) + hashlib.sha256(unique.encode()).hexdigest()[:10]

    def _make(self, name: str, *, role: str, labels: Mapping[str, str]) -> str:
        try:
            self._aws.call(
                self._aws.iam.create_instance_profile,
                InstanceProfileName=name,
                Tags=_listed({**labels, **self._owner.labels()}),
            )
        except ProviderError as error:
            if not errors.already_exists(error):
                raise
        held = self._read(name)
        if not any(item["RoleName"] == role for item in held["Roles"]):
            self._aws.call(
                self._aws.iam.add_role_to_instance_profile, InstanceProfileName=name, RoleName=role
            )
        return name


def _listed(labels: Mapping[str, str]) -> list[TagTypeDef]:
    return [{"Key": key, "Value": value} for key, value in labels.items()]
