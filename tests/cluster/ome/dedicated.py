"""Dedicated clusters made by a test, and their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import PriorityClass
from broker.apis.meta import Condition, condition
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from tests.cluster.account import A
from tests.cluster.ome.reserved import GPU, flavor, flavors_alone, reserve
from tests.cluster.stack import Stack
from tests.kueue.definitions import install, ready

Json = dict[str, Any]

TYPE = "p5.48xlarge"
KIND = DedicatedAICluster.KIND


class World:
    """Reservations of H100s, eight to an instance, and the class that launches them."""

    def __init__(self, stack: Stack, instances: int, *, kueue: bool = False, **quotas: int) -> None:
        """`quotas`: by the name of a reservation, in instances; `instances` are in one EC2 reservation."""
        self.stack = stack
        if kueue:
            install(stack.client)
            stack.until(lambda: ready(stack.client, "v1beta2"), "Kueue's kinds are served")
        else:
            flavors_alone(stack)
        flavor(stack, "h100", {names.INSTANCE_TYPE: TYPE, names.ZONE: A})
        first = next(iter(quotas))
        mark = [{"Key": names.TAG_RESERVATION, "Value": f"default/{first}"}]
        self.odcr = stack.aws.odcr(
            TYPE,
            count=instances,
            TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": mark}],
        )
        stack.node_class("default", group=stack.aws.group(self.odcr))
        self.quotas = quotas

    def reserve(self, name: str, **more: Any) -> None:
        reserve(self.stack, name, quotas={GPU: str(8 * self.quotas[name])}, **more)

    def priority(self, name: str, value: int) -> None:
        self.stack.client.create(PriorityClass.KIND, {"metadata": {"name": name}, "value": value})

    def profile(self, name: str, gpus: int, **more: Any) -> None:
        spec = {"resources": {"requests": {GPU: gpus}}, **more}
        self.stack.client.create(DedicatedAIClusterProfile.KIND, {"metadata": {"name": name}, "spec": spec})

    def cluster(
        self,
        name: str,
        instances: int,
        reservation: str,
        *,
        labels: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        spec: Json = {"capacityReservationId": reservation, **more}
        if instances:
            spec["resources"] = {"requests": {GPU: 8 * instances}}
        metadata = {"name": name, "labels": dict(labels or {})}
        self.stack.client.create(KIND, {"metadata": metadata, "spec": spec})

    def resize(self, name: str, instances: int) -> None:
        spec = {"resources": {"requests": {GPU: 8 * instances}}}
        self.stack.edit(DedicatedAICluster, name, {"spec": spec})

    def find(self, name: str) -> DedicatedAICluster | None:
        return self.stack.find(DedicatedAICluster, name)

    def until(self, name: str, state: str, *, text: str = "") -> DedicatedAICluster:
        def reached() -> DedicatedAICluster | None:
            cluster = self.find(name)
            good = cluster is not None and cluster.status.dac_lifecycle_state == state
            return cluster if good and cluster and text in cluster.status.lifecycle_detail else None

        cluster = self.stack.until(reached, f"cluster {name} {state} {text}: {self.state_text(name)}")
        assert cluster is not None
        return cluster

    def condition(self, name: str, type_: str) -> Condition | None:
        cluster = self.find(name)
        return condition(cluster.status.conditions, type_) if cluster else None

    def state_text(self, name: str) -> str:
        cluster = self.find(name)
        return (
            f"{cluster.status.dac_lifecycle_state}: {cluster.status.lifecycle_detail}" if cluster else "gone"
        )

    def claims(self, name: str) -> list[NodeClaim]:
        """The cluster's claims that are not terminating."""
        return sorted(
            (
                claim
                for claim in self.stack.all(NodeClaim)
                if claim.labels.get(names.DEDICATED) == name and not claim.deleting
            ),
            key=lambda claim: claim.name,
        )

    def running(self) -> int:
        return len(self.stack.aws.instances())
