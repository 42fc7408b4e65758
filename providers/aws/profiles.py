"""The instance profile to launch with: as given, or one of the broker's own for the role.

Another profile with the role has another owner, which deletes it without notice: Karpenter deletes its own
with its class, a node group with the group.

Invariant: making one is idempotent. Its name follows from the cluster's name and UID, Region and role. IAM's
"already exists" is success, for the profile and for the role in it (IAM API Reference, CreateInstanceProfile,
a profile has one role).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from providers.aws import errors, tags
from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.launch import ProfileRef
from providers.model import ErrorClass, ProviderError, owned_prefix

PAGE = 1000


class Profiles:
    """Finds or makes a profile, and remembers it for a quarter of an hour."""

    def __init__(self, aws: Aws, *, cluster: tags.Owner) -> None:
        self._aws = aws
        self._cluster = cluster
        self._found: TtlCache[str, str] = TtlCache(ttl=900, monotonic=aws.clock.monotonic)
        self._emptied: dict[str, str] = {}  # to be deleted, and without its role by now: name -> role

    def resolve(self, *, role: str, profile: str) -> str:
        """The profile's name (or ARN, as given)."""
        if profile:
            return profile
        if not role:
            raise errors.misconfigured(
                "NoInstanceProfile",
                "the class names neither role nor instanceProfile: set one of them",
                operation="instance_profile",
            )
        name = role.rpartition("/")[2]
        return self._found.get(name, lambda: self._of_role(name))

    def forget(self) -> None:
        """EC2 does not know one of the profiles: each is read again."""
        self._found.clear()

    def managed(self) -> list[ProfileRef]:
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

    def delete(self, ref: ProfileRef) -> bool:
        """False while an instance runs with it. Raises ProviderError if it has not the cluster's tags."""
        try:
            held = self._aws.call(self._aws.iam.get_instance_profile, InstanceProfileName=ref.name)
        except ProviderError as error:
            self._emptied.pop(ref.name, None)
            return _gone(error)
        profile = held["InstanceProfile"]
        marks = {tag["Key"]: tag["Value"] for tag in profile.get("Tags", [])}
        if self._cluster.ownership_of(marks) != "owned":
            labels = ", ".join(f"{key}={value}" for key, value in self._cluster.labels().items())
            raise errors.misconfigured(
                "ForeignInstanceProfile",
                f"instance profile {ref.name} is without the tags {labels}: give it its tags or delete it",
                operation="DeleteInstanceProfile",
            )
        if self._runs(profile["Arn"]):
            return False
        self._found.drop(ref.role)
        self._emptied[ref.name] = ref.role
        for role in profile["Roles"]:
            self._aws.call(
                self._aws.iam.remove_role_from_instance_profile,
                InstanceProfileName=ref.name,
                RoleName=role["RoleName"],
            )
        try:
            self._aws.call(self._aws.iam.delete_instance_profile, InstanceProfileName=ref.name)
        except ProviderError as error:
            _gone(error)
        del self._emptied[ref.name]
        return True

    def _runs(self, arn: str) -> bool:
        chosen: Any = [
            {"Name": "iam-instance-profile.arn", "Values": [arn]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        answer = self._aws.call(self._aws.ec2.describe_instances, Filters=chosen, MaxResults=5)
        return bool(answer["Reservations"])

    def _of_role(self, role: str) -> str:
        answer = self._aws.call(self._aws.iam.list_instance_profiles_for_role, RoleName=role)
        names = sorted(item["InstanceProfileName"] for item in answer["InstanceProfiles"])
        profile_name = self._name(role)
        return profile_name if profile_name in names else self._make(profile_name, role=role)

    def _name(self, role: str) -> str:
        uid = self._cluster.uid
        unique = "/".join((self._cluster.name, self._aws.region, role, *((uid,) if uid else ())))
        return owned_prefix(self._cluster.name) + hashlib.sha256(unique.encode()).hexdigest()[:10]

    def _make(self, name: str, *, role: str) -> str:
        try:
            self._aws.call(
                self._aws.iam.create_instance_profile,
                InstanceProfileName=name,
                Tags=[{"Key": key, "Value": value} for key, value in self._cluster.labels().items()],
            )
        except ProviderError as error:
            if not errors.already_exists(error):
                raise
        held = self._aws.call(self._aws.iam.get_instance_profile, InstanceProfileName=name)
        if not any(item["RoleName"] == role for item in held["InstanceProfile"]["Roles"]):
            self._aws.call(
                self._aws.iam.add_role_to_instance_profile, InstanceProfileName=name, RoleName=role
            )
        return name


def _gone(error: ProviderError) -> bool:
    """True where there is nothing left to delete; any other error is raised."""
    if error.class_ is not ErrorClass.NOT_FOUND:
        raise error
    return True
