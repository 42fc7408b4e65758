"""An EKS cluster as EKS describes it: the facts that nodes need to join.

https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
"""

from __future__ import annotations

from typing import Any

from providers.aws.clients import Aws
from providers.errors import ErrorClass, ProviderError
from providers.model import EksCluster


def describe(aws: Aws, name: str) -> EksCluster:
    """Class NOT_FOUND if there is no such cluster, or EKS still creates it."""
    cluster: dict[str, Any] = aws.call(aws.eks.describe_cluster, name=name)["cluster"]
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
