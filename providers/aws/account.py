"""One cluster's access to one AWS account and Region: the base of a class for each noun of AWS's API.

Invariant: AwsProvider is the sum of these classes, as CapacityProvider is the sum of their protocols
(`providers.base`). So names of methods and attributes are unique among them.
"""

from __future__ import annotations

from typing import Any

from providers.aws.cache import TtlCache
from providers.aws.clients import Aws
from providers.aws.tags import Owner
from providers.errors import ErrorClass, ProviderError
from providers.model import EksCluster

ACCOUNT_TTL = 3600.0


class AwsAccount:
    """The calls, and the cluster that they are made for."""

    def __init__(self, aws: Aws, owner: Owner) -> None:
        self._aws, self._owner = aws, owner
        self._account: TtlCache[str, str] = TtlCache(ttl=ACCOUNT_TTL, monotonic=aws.clock.monotonic)

    def identify(self, cluster_uid: str) -> None:
        self._owner.uid = cluster_uid

    def account_id(self, *, cached: bool = True) -> str:
        def read_account_id() -> str:
            return str(self._aws.call(self._aws.sts.get_caller_identity)["Account"])

        return (self._account.get if cached else self._account.renew)("account", read_account_id)


class Eks(AwsAccount):
    """Reads the cluster from EKS."""

    def cluster_facts(self) -> EksCluster:
        """Describes the EKS cluster with this cluster's name.

        Class NOT_FOUND if there is no such cluster, or EKS still creates it.
        """
        name = self._owner.name
        cluster: dict[str, Any] = self._aws.call(self._aws.eks.describe_cluster, name=name)["cluster"]
        endpoint, ca = cluster.get("endpoint", ""), cluster.get("certificateAuthority", {}).get("data", "")
        if not (endpoint and ca):
            state = cluster.get("status", "in an unknown state")
            raise ProviderError(
                "ClusterNotActive",
                f"cluster {name} is {state} and has no endpoint yet",
                class_=ErrorClass.NOT_FOUND,
                operation="DescribeCluster",
            )
        return EksCluster(endpoint=endpoint, ca_bundle=ca)
