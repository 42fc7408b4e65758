"""A second cluster with a broker of its own in the account of a stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Condition, condition
from broker.app import Broker
from broker.kube.client import Client
from broker.kube.identity import cluster_uid
from local.in_process import InProcessTransport
from tests.cluster import objects
from tests.cluster.account import CLUSTER, REGION, A
from tests.cluster.clocks import HastyClock
from tests.cluster.objects import ON_DEMAND, Json
from tests.cluster.stack import Provider, Stack
from tests.support.definitions import defined


class Twin:
    """The cluster's API, and its broker, which the test starts. `key`: its own access key."""

    def __init__(self, stack: Stack, name: str = CLUSTER, *, key: str = "", **settings: Any) -> None:
        self.aws = stack.aws
        self.client = Client(InProcessTransport(defined()), field_manager="test")
        self.uid = cluster_uid(self.client)
        provider = Provider(
            cluster=name, region=REGION, endpoint_url=stack.server.endpoint, clock=HastyClock(stack.clock)
        )
        if key:
            keys: Any = provider._aws._session.get_credentials()
            keys.access_key = key
        provider.instance_types()
        chosen = {"cluster_name": name, "orphan_grace_seconds": 0.0, **settings}
        self.broker = Broker(self.client, provider, replace(stack.settings, **chosen), clock=stack.clock)

    def node_class(self, name: str = "gpu", spec: Json | None = None) -> None:
        body = objects.node_class(
            name,
            image=self.aws.image,
            subnets=[self.aws.subnets[A]],
            security_group=self.aws.security_group,
            spec=spec or objects.reservation_spec(preference="none"),
        )
        self.client.create(EC2NodeClass.KIND, body)

    def claim(self, name: str, *capacity: str, **more: Any) -> None:
        more = {"node_class": "gpu", "types": ("m5.large",), "capacity": capacity or (ON_DEMAND,), **more}
        self.client.create(NodeClaim.KIND, objects.claim(name, **more))

    def instance(self, name: str) -> str:
        return NodeClaim.decode(self.client.get(NodeClaim.KIND, name)).instance_id

    def claim_condition(self, name: str, type_: str) -> Condition | None:
        return condition(NodeClaim.decode(self.client.get(NodeClaim.KIND, name)).status.conditions, type_)
