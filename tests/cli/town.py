"""A cluster with one class, and the account that it reads, for the pages of pods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.ome import CapacityReservation
from broker.controllers.provisioning.published import PublishedTypes
from broker.kube.client import Client
from broker.text import format_time
from providers.model import Gpu, InstanceType

from .kit import World, claim, run

P5, A = "p5.48xlarge", "us-east-1a"
SINCE = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
}
DRAWS = {names.DRAWS_FROM: "ml/gpus"}
GPUS = {"nvidia.com/gpu": "8"}
QUOTA = {
    "coveredResources": ["nvidia.com/gpu"],
    "flavors": [{"name": P5, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}],
}


class Town(NamedTuple):
    """A cluster, an account with one reservation of two slots, and the class of that reservation."""

    client: Client
    kubeconfig: str
    world: World

    def explain(self, *arguments: str) -> dict[str, Any]:
        result = run("explain", *arguments, *self.options(arguments), "-o", "json")
        assert result.exit_code == 0, result.output
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    def text(self, *arguments: str) -> str:
        result = run("explain", *arguments, *self.options(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    def options(self, arguments: Sequence[str]) -> tuple[str, ...]:
        kubernetes_alone = arguments[0] in ("cluster", "class", "reservation")
        aws = () if kubernetes_alone else ("--aws-endpoint", self.world.endpoint)
        return ("--kubeconfig", self.kubeconfig, *aws)

    def types(self, *types: InstanceType) -> None:
        """What the broker publishes while it leads: EC2's types."""
        PublishedTypes(self.client).publish({type_.name: type_ for type_ in types})

    def put(
        self, model: type[Any], document: dict[str, Any], status: Mapping[str, Any] | None = None
    ) -> None:
        self.client.create(model.KIND, document)
        if status is not None:
            meta = document["metadata"]
            self.client.patch(
                model.KIND,
                meta["name"],
                {"status": dict(status)},
                namespace=meta.get("namespace"),
                subresource="status",
            )

    def pool(self, name: str, *, group: str = names.BROKER, ready: bool = True, **more: Any) -> None:
        kinds = more.pop("kinds", ["reserved"])
        requirements = [{"key": names.CAPACITY_TYPE, "operator": "In", "values": kinds}]
        requirements.append({"key": names.INSTANCE_TYPE, "operator": "In", "values": [P5]})
        ref = {"group": group, "kind": "EC2NodeClass", "name": "training"}
        spec = {"nodeClassRef": ref, "requirements": requirements, **more.pop("template", {})}
        self.put(
            NodePool,
            {"metadata": {"name": name}, "spec": {"template": {"spec": spec}, **more}},
            {"conditions": [condition("Ready", "True" if ready else "False", "NodeClassNotReady")]},
        )

    def pod(self, name: str, *, node: str = "", status: Mapping[str, Any] | None = None, **more: Any) -> None:
        container = {"name": "main", "image": "pause", "resources": {"requests": GPUS, "limits": GPUS}}
        spec = {"containers": [container], **({"nodeName": node} if node else {}), **more.pop("spec", {})}
        given = status or (
            {"phase": "Running"} if node else {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
        )
        self.put(Pod, {"metadata": {"name": name, "namespace": "ml", **more}, "spec": spec}, given)

    def fill(self) -> None:
        """Both slots of the reservation are used: one by a claim with a pod, one by another account's."""
        group = {"CapacityReservationTarget": {"CapacityReservationId": self.world.odcr}}
        self.world.ec2.run_instances(
            ImageId=self.world.image,
            InstanceType=P5,
            MinCount=2,
            MaxCount=2,
            Placement={"AvailabilityZone": A},
            CapacityReservationSpecification=group,
        )
        self.mirror(free=0)
        self.holder()

    def mirror(self, free: int = 2) -> None:
        status = {"type": P5, "zone": A, "total": 2, "available": free, "state": "active"}
        classes = {"nodeClasses": ["training"]}
        self.put(OnDemandCapacityReservation, {"metadata": {"name": self.world.odcr}}, status | classes)

    def holder(self) -> None:
        held = claim("holder-0")
        held["metadata"] |= {
            "labels": {
                names.RESERVATION_ID: self.world.odcr,
                names.CAPACITY_TYPE: "reserved",
                names.INSTANCE_TYPE: P5,
                names.ZONE: A,
                names.NODEPOOL: "gpu",
            },
            "annotations": DRAWS,
        }
        launched = condition("Launched", "True", "Launched") | {"lastTransitionTime": format_time(SINCE)}
        status = {"providerID": "aws:///us-east-1a/i-0abc", "nodeName": "ip-10-0-0-1"}
        self.put(NodeClaim, held, status | {"conditions": [launched]})
        self.put(
            CapacityReservation,
            {"metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"resourceGroups": [QUOTA]}},
            {"cloudReservations": [{"id": self.world.odcr, "state": "active", "total": 2, "available": 0}]},
        )
        start = format_time(SINCE)
        self.pod(
            "old",
            node="ip-10-0-0-1",
            status={"phase": "Running", "startTime": start},
            spec={"activeDeadlineSeconds": 36000},
        )


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    at = format_time(SINCE)
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at,
    }


def owned_by(kind: str, name: str) -> dict[str, Any]:
    api = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": api, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def p5() -> InstanceType:
    gpus = (Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920),)
    return InstanceType(name=P5, vcpus=192, memory_mib=2 * 2**20, gpus=gpus)
