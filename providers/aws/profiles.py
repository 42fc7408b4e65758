"""The instance profile to launch with: as given, or one of the broker's own for the role.

Another that holds the role is somebody else's, who deletes it without asking us: Karpenter's with its
class, a node group's with the group.

Invariant: making one is idempotent. Its name follows from cluster, Region and role; IAM's "already exists"
is success, for the profile and for the role in it (IAM API Reference, CreateInstanceProfile, a profile has
one role).
"""

from __future__ import annotations

import hashlib

from providers.aws import errors, tags
from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.model import ProviderError


class Profiles:
    """Finds or makes; what was found is remembered for a quarter of an hour."""

    def __init__(self, aws: Aws, *, cluster: str) -> None:
        self._aws = aws
        self._cluster = cluster
        self._found: TtlCache[str, str] = TtlCache(ttl=900, monotonic=aws.clock.monotonic)

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

    def _of_role(self, role: str) -> str:
        answer = self._aws.call(self._aws.iam.list_instance_profiles_for_role, RoleName=role)
        names = sorted(item["InstanceProfileName"] for item in answer["InstanceProfiles"])
        ours = self._name(role)
        return ours if ours in names else self._make(ours, role=role)

    def _name(self, role: str) -> str:
        unique = f"{self._cluster}/{self._aws.region}/{role}"
        return f"{self._cluster[:80]}_{hashlib.sha256(unique.encode()).hexdigest()[:20]}"

    def _make(self, name: str, *, role: str) -> str:
        try:
            self._aws.call(
                self._aws.iam.create_instance_profile,
                InstanceProfileName=name,
                Tags=[{"Key": tags.CLUSTER, "Value": self._cluster}],
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
