"""Simulates a cluster's machines: a node joins for each running instance, and goes with it.

It reads EC2 as cloud-controller-manager does and writes Nodes as a kubelet does; the broker cannot see a
difference. New nodes carry the taint of the unregistered and are not ready at first, as real ones are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.label_names import RENAMED
from broker.apis.meta import condition
from broker.capacity.types import type_labels, zone_labels
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import NotFound
from broker.kube.removal import remove
from broker.placement.quantities import EPHEMERAL_STORAGE
from broker.text import format_time
from local.demo.simulated import Simulated
from providers.model import Instance, InstanceType

_ROOT: Final = "20Gi"  # of an instance that no claim has


class Machines(Protocol):
    """The instances of an account, and their types."""

    def instances(self) -> Sequence[Instance]: ...
    def instance_types(self) -> Mapping[str, InstanceType]: ...


class Kubelets(Simulated):
    """One thread for all nodes; `step` is one round, for tests."""

    def __init__(self, client: Client, ec2: Machines, *, clock: Clock, every: float = 0.2) -> None:
        super().__init__("kubelets", clock=clock, every=every)
        self._client, self._ec2 = client, ec2
        self._joined: set[str] = set()

    def step(self) -> None:
        """Nodes for instances that run, none for those that do not. Raises ApiError, ProviderError."""
        # Nodes first: one that is let go once its instance has ended would be made again otherwise.
        nodes = {node.name: node for node in map(Node.decode, self._client.list(Node.KIND)[0])}
        running = {_node_name(i): i for i in self._ec2.instances() if i.state == "running"}
        types = self._ec2.instance_types()
        for name, instance in running.items():
            if name not in nodes:
                self._joined.add(name)
                self._client.create(Node.KIND, _node(name, instance, types[instance.instance_type]))
            elif (ready := condition(nodes[name].status.conditions, names.READY)) and ready.status != "True":
                status = {"conditions": [self._ready()], **self._storage(nodes[name])}
                self._client.patch(Node.KIND, name, {"status": status}, subresource="status")
        for name, node in nodes.items():
            if name not in running and (names.REGISTERED in node.labels or name in self._joined):
                remove(self._client, node)

    def _storage(self, node: Node) -> dict[str, Any]:
        """The room on the root volume: that of its claim, as EC2 does not describe it with the instance."""
        claims: Sequence[Mapping[str, Any]] = ()
        with suppress(NotFound):  # no such kind
            claims = self._client.list(NodeClaim.KIND)[0]
        by_id = {status.get("providerID"): status for status in (raw.get("status", {}) for raw in claims)}
        known = by_id.get(node.spec.provider_id, {})
        return {
            part: {EPHEMERAL_STORAGE: known.get(part, {}).get(EPHEMERAL_STORAGE, _ROOT)}
            for part in ("capacity", "allocatable")
        }

    def _ready(self) -> dict[str, Any]:
        return {
            "type": names.READY,
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastTransitionTime": format_time(self._clock.now()),
            "lastHeartbeatTime": format_time(self._clock.now()),
        }


def _node_name(instance: Instance) -> str:
    return instance.private_dns_name or f"{instance.id}.ec2.internal"


def _labels(name: str, instance: Instance, type_: InstanceType) -> dict[str, str]:
    """The labels that the kubelet, the cloud controller and the EBS driver write, under all their names."""
    labels = type_labels(type_) | zone_labels(instance.zone, instance.zone_id)
    own = {key: value for key, value in labels.items() if not key.startswith(f"{names.KARPENTER_AWS}/")} | {
        names.HOSTNAME: name
    }
    return own | {old: own[new] for old, new in RENAMED.items()}


def _node(name: str, instance: Instance, type_: InstanceType) -> dict[str, Any]:
    resources: Mapping[str, str] = {
        "cpu": str(type_.vcpus),
        "memory": f"{int(type_.memory_mib * 0.92)}Mi",
        "pods": str(type_.max_pods),
        **{f"{g.manufacturer.lower()}.com/gpu": str(g.count) for g in type_.gpus},
        **({"vpc.amazonaws.com/efa": str(type_.efa_interfaces)} if type_.efa_interfaces else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": _labels(name, instance, type_)},
        "spec": {
            "providerID": f"aws:///{instance.zone}/{instance.id}",
            "taints": [{"key": names.UNREGISTERED_TAINT, "effect": "NoExecute"}],
        },
        "status": {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [{"type": names.READY, "status": "False", "reason": "KubeletNotReady"}],
        },
    }
