"""An EKS cluster as EKS describes it: the facts that nodes need to join.

https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
"""

from __future__ import annotations

from typing import Any

from providers.aws.account import AwsAccount
from providers.errors import ErrorClass, ProviderError
from providers.model import EksCluster


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
