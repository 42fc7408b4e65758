"""When a joined node takes pods: Karpenter's tables of startup and ephemeral taints and of resources."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_INSTANCE, by_instance
from broker.controllers.lifecycle.registration import Registration
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from local.in_process import InProcessTransport
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.support.definitions import defined

STARTUP = {"key": "example.com/starting", "effect": "NoSchedule", "value": "true"}
GPU = "nvidia.com/gpu"


def taint(key: str, effect: str, value: str = "") -> dict[str, Any]:
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


# changes to the node -> the reason why it takes no pods yet; Initialized if it takes them
ROWS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("as-it-is", {}, "Initialized"),
    ("not-ready", {"ready": "False"}, "NodeNotReady"),
    ("readiness-unknown", {"ready": "Unknown"}, "NodeNotReady"),
    ("startup", {"taints": [STARTUP]}, "StartupTaintsExist"),
    ("startup-by-another-value", {"taints": [{**STARTUP, "value": "x"}]}, "StartupTaintsExist"),
    ("another-effect", {"taints": [{**STARTUP, "effect": "NoExecute"}]}, "Initialized"),
    (
        "not-ready-no-schedule",
        {"taints": [taint(names.NODE_NOT_READY_TAINT, "NoSchedule")]},
        "KnownEphemeralTaintsExist",
    ),
    (
        "not-ready-no-execute",
        {"taints": [taint(names.NODE_NOT_READY_TAINT, "NoExecute")]},
        "KnownEphemeralTaintsExist",
    ),
    (
        "unreachable",
        {"taints": [taint(names.NODE_UNREACHABLE_TAINT, "NoSchedule")]},
        "KnownEphemeralTaintsExist",
    ),
    (
        "no-cloud-provider",
        {"taints": [taint(names.CLOUD_UNINITIALIZED_TAINT, "NoSchedule", "true")]},
        "KnownEphemeralTaintsExist",
    ),
    (
        "a-rule-of-readiness",
        {"taints": [taint("readiness.k8s.io/network", "NoSchedule")]},
        "KnownEphemeralTaintsExist",
    ),
    ("foreign-taint", {"taints": [taint("example.com/gpu", "NoSchedule")]}, "Initialized"),
    ("without-the-resource", {"allocatable": {"cpu": "4"}}, "ResourceNotRegistered"),
    ("none-of-the-resource", {"allocatable": {"cpu": "4", GPU: "0"}}, "ResourceNotRegistered"),
    ("no-request", {"allocatable": {"cpu": "4"}, "requests": {"cpu": "1", GPU: "0"}}, "Initialized"),
)


@pytest.mark.covers("KRP-23")
def test_a_node_is_initialized_when_ready_and_without_startup_taints() -> None:
    client, clock = Client(InProcessTransport(defined())), FakeClock()
    claims: Cache[NodeClaim] = Cache(NodeClaim, indexes={BY_INSTANCE: by_instance})
    nodes: Cache[Node] = Cache(Node, indexes={BY_INSTANCE: by_instance})

    def nominate(claim: NodeClaim, node: str) -> None:
        raise AssertionError(f"{node} was registered before, and nominated for the pods of {claim.name} then")

    context = ControllerContext(client=client, recorder=Recorder(client, "test", clock), clock=clock)

    def lost(claim: NodeClaim, why: str) -> None:
        raise AssertionError(f"{claim.name} is not lost: {why}")

    joining = Registration(context, claim_caches(claims, nodes), nominate=nominate, lost=lost)

    reasons = {}
    for name, more, _ in ROWS:
        claims.observe(_claim(client, name, more))
        nodes.observe(_node(client, name, more))
        joining.reconcile(NodeClaim.decode(client.get(NodeClaim.KIND, name)))
        reconciled = NodeClaim.decode(client.get(NodeClaim.KIND, name))
        (initialized,) = [
            condition
            for condition in reconciled.status.conditions
            if condition.type == names.INITIALIZED_CONDITION
        ]
        labelled = client.get(Node.KIND, name)["metadata"]["labels"].get(names.INITIALIZED) == "true"
        assert labelled is (initialized.status == "True"), name
        reasons[name] = initialized.reason
    assert reasons == {name: reason for name, _, reason in ROWS}


def _claim(client: Client, name: str, more: dict[str, Any]) -> Any:
    spec = {
        "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"},
        "requirements": [],
        "startupTaints": [STARTUP],
        "resources": {"requests": more.get("requests", {"cpu": "1", GPU: "1"})},
    }
    meta = {"name": name, "finalizers": [names.TERMINATION_FINALIZER]}
    client.create(NodeClaim.KIND, {"metadata": meta, "spec": spec})
    now = "2030-01-01T00:00:00Z"
    joined = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now}
        for kind in (names.LAUNCHED, names.REGISTERED_CONDITION)
    ]
    status = {"providerID": f"aws:///us-east-1a/i-{name}", "nodeName": name, "conditions": joined}
    return client.patch(NodeClaim.KIND, name, {"status": status}, subresource="status")


def _node(client: Client, name: str, more: dict[str, Any]) -> Any:
    spec = {"providerID": f"aws:///us-east-1a/i-{name}", "taints": more.get("taints", [])}
    client.create(Node.KIND, {"metadata": {"name": name, "labels": {names.REGISTERED: "true"}}, "spec": spec})
    status = {
        "allocatable": more.get("allocatable", {"cpu": "4", GPU: "8"}),
        "conditions": [{"type": "Ready", "status": more.get("ready", "True")}],
    }
    return client.patch(Node.KIND, name, {"status": status}, subresource="status")
