"""The machines that demos and tests simulate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from broker.apis.core import Node
from broker.kube.client import Client
from local.demo.kubelets import Kubelets
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.model import Instance, InstanceType
from tests.support.clock import FakeClock

RUNNING = Instance(
    id="i-1",
    state="running",
    instance_type="m5.large",
    zone="us-east-1a",
    private_dns_name="ip-1.internal",
)


class Ec2:
    """One instance. If `quick`, the instance and its node go right after the description."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.described: Sequence[Instance] = [RUNNING]
        self.quick = False

    def instances(self) -> Sequence[Instance]:
        before = self.described
        if self.quick:
            self.described = []
            for node in self.client.list(Node.KIND)[0]:
                self.client.delete(Node.KIND, node["metadata"]["name"])
        return before

    def instance_types(self) -> dict[str, InstanceType]:
        return {"m5.large": InstanceType(name="m5.large", vcpus=2, memory_mib=8192)}


def test_nodes_of_ended_instances_are_deleted() -> None:
    client = Client(InProcessTransport(Cluster()), field_manager="test")
    ec2 = Ec2(client)
    kubelets = Kubelets(client, cast(Any, ec2), clock=FakeClock())

    def nodes() -> list[str]:
        return [node["metadata"]["name"] for node in client.list(Node.KIND)[0]]

    kubelets.step()
    kubelets.step()
    assert nodes() == [RUNNING.private_dns_name]
    ec2.quick = True
    kubelets.step()
    assert nodes() == []

    ec2.quick, ec2.described = False, [RUNNING]
    kubelets.step()
    assert nodes() == [RUNNING.private_dns_name]
    ec2.described = []  # gone before the broker registered its node
    kubelets.step()
    assert nodes() == []
