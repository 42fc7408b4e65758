"""The broker's tags, and the one tag that it never sets.

Invariant: nothing that this package tags carries `eks:eks-cluster-name`. Karpenter adopts an instance with
all of `karpenter.sh/nodepool`, `karpenter.k8s.aws/ec2nodeclass` and `eks:eks-cluster-name`, and terminates
it if it has no NodeClaim for it. It adopts a launch template with the last one, and later deletes it.
Without `eks:eks-cluster-name` the three are never together, even if other programs add the other two.

Ownership is decided here alone, by the cluster's UID: two clusters may have one name, and each would end the
other's resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any

from providers.aws import errors
from providers.model import Ownership
from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID, TAG_EKS_CLUSTER

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import TagTypeDef


@dataclass(slots=True)
class Owner:
    """The cluster that resources belong to; `uid` is empty until it is known."""

    name: str
    uid: str = ""

    def labels(self) -> dict[str, str]:
        """The tags of resources that are made for the cluster."""
        return {TAG_CLUSTER: self.name, TAG_CLUSTER_UID: self.uid} if self.uid else {TAG_CLUSTER: self.name}

    def ownership_of(self, carried: Mapping[str, str]) -> Ownership:
        """The owner of a resource with these tags. Without a UID to compare with, the name decides."""
        uid, carried_uid = self.uid, carried.get(TAG_CLUSTER_UID)
        if uid and carried_uid:
            return "owned" if carried_uid == uid else "foreign"
        if carried.get(TAG_CLUSTER) not in (None, self.name):
            return "foreign"
        return "unproven" if uid or TAG_CLUSTER not in carried else "owned"


NO_OWNER = Owner("")


def checked(tags: Mapping[str, str]) -> Mapping[str, str]:
    """The tags, if the broker may set them."""
    if TAG_EKS_CLUSTER in tags:
        raise errors.misconfigured(
            "ReservedTag",
            f"tag {TAG_EKS_CLUSTER}={tags[TAG_EKS_CLUSTER]} belongs to Karpenter, which would take the "
            "resource for its own: remove it from the tags of the class",
            operation="tags",
        )
    return tags


def to_ec2(tags: Mapping[str, str]) -> list[TagTypeDef]:
    """EC2's list, in the order of the keys."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def from_ec2(tags: Iterable[TagTypeDef]) -> dict[str, str]:
    return {text(tag, "Key"): text(tag, "Value") for tag in tags}


def text(item: Mapping[str, Any], name: str, otherwise: str = "") -> str:
    """A text of an answer. The SDK makes one for each item; thousands of items share it."""
    return intern(item.get(name) or otherwise)


def texts(values: Iterable[str]) -> frozenset[str]:
    """A set of texts of an answer. Thousands of items share it, as they share a text."""
    return _shared(frozenset(map(intern, values)))


@lru_cache(maxsize=4096)
def _shared(values: frozenset[str]) -> frozenset[str]:
    return values
