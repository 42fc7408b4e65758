"""The instances of local AWS as their kubelets know them: without a call to EC2, and without its lag.

A simulated kubelet looks ten times a second. As calls of the SDK these looks cost a fourth of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moto.ec2.models import ec2_backends

from local.aws.ec2.world import LOCK, world
from providers.model import Instance, InstanceType
from providers.names import TAG_CLUSTER
from tests.cluster.account import ACCOUNT, CLUSTER, REGION


def moto_instances(cluster: str) -> list[Any]:
    """The instances with the cluster's tag as EC2 knows them now."""
    with LOCK:
        world().ledger.run_due()
        backend = ec2_backends[ACCOUNT][REGION]
        tagged = {TAG_CLUSTER: cluster}.items()
        return [i for i in backend.all_instances() if tagged <= backend.tags.get(i.id, {}).items()]


class LocalInstances:
    """The cluster's instances in this process's local AWS."""

    def __init__(self, types: Callable[[], Mapping[str, InstanceType]]) -> None:
        self.instance_types = types

    def instances(self) -> Sequence[Instance]:
        return [
            Instance(
                id=instance.id,
                instance_type=instance.instance_type,
                zone=str(instance.availability_zone),
                zone_id=str(instance.placement.availability_zone_id or ""),
                state=instance.state,
                private_dns_name=instance.private_dns_name,
            )
            for instance in moto_instances(CLUSTER)
        ]
