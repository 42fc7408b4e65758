"""Nodes, pods and explanations for the pages of one object."""

from __future__ import annotations

from typing import Any

from broker.webpage.details import Details
from broker.webpage.nodes import Fill, NodeRow, PodRow
from tests.unit.history.facts import AT

GPU_NODE = (
    Fill(resource="cpu", requested=48_500, allocatable=192_000),
    Fill(resource="memory", requested=512 * 2**30, allocatable=2048 * 2**30),
    Fill(resource="nvidia.com/gpu", requested=6, allocatable=8),
)
WEB_NODE = (
    Fill(resource="cpu", requested=3_000, allocatable=4_000),
    Fill(resource="memory", requested=6 * 2**30, allocatable=16 * 2**30),
)


def node(name: str = "ip-train-1", *, reservation: str = "cr-1", **more: Any) -> NodeRow:
    given: dict[str, Any] = {
        "claim": "train-1",
        "instance_type": "p5.48xlarge",
        "node_pool": "gpu",
        "state": "",
        "pods": 2,
        "usd_hour": 55.04,
        "unused": 13.76,
        "owner": "team/gpus" if reservation else "",
        "fills": GPU_NODE,
    } | more
    return NodeRow(
        name=name,
        zone="us-east-1a",
        capacity_type="reserved" if reservation else "on-demand",
        reservation=reservation,
        created=AT,
        **given,
    )


def pod(name: str = "worker-0", namespace: str = "team", **more: Any) -> PodRow:
    given: dict[str, Any] = {"owner": "team/gpus", "state": "Running", "usd_hour": 41.28} | more
    return PodRow(
        namespace=namespace,
        name=name,
        node="ip-train-1",
        claim="train-1",
        reservation="cr-1",
        since=AT,
        **given,
    )


def option(verdict: str, reservation: str = "", **more: str) -> dict[str, Any]:
    return {
        "pool": "p5",
        "capacity_type": "reserved" if reservation else "on-demand",
        "instance_type": "p5.48xlarge",
        "zone": "us-east-1a",
        "reservation": reservation,
        "odcrs": [reservation] if reservation else [],
        "free": 0 if reservation else None,
        "lent": 1 if reservation else 0,
        "usd_hour": 55.04,
        "verdict": verdict,
        "reason": "",
        "class": "",
        "message": "",
    } | more


OPTIONS = [
    option("skipped", "cr-1", reason="SlotsTaken", message="its slots are those of secret-project/hush"),
    option("next"),
]
SLOT = {
    "role": "waits for",
    "slot": "cr-1",
    "type": "p5.48xlarge",
    "zone": "us-east-1a",
    "owner": "team/gpus",
    "holder": "claim train-2",
    "claim": "train-2",
    "pods": ["team/worker-2", "secret-project/hush-0"],
    "draws_from": "secret-project/hush",
    "for": "1h",
    "until": None,
    "why_until": "",
}


def claim_document(name: str) -> dict[str, Any] | None:
    if name != "train-1":
        return None
    return {
        "pods": ["team/worker-0", "secret-project/hush-0"],
        "requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["reserved", "on-demand"]}
        ],
        "decision": "is launched next into on-demand p5.48xlarge in us-east-1a, after secret-project/hush",
        "options": OPTIONS,
    }


def pod_document(key: str) -> dict[str, Any] | None:
    if key not in ("team/worker-0", "team/waits-0", "secret-project/hush-0"):
        return None
    common = {"subject": f"Pod {key}", "do": [], "next": ["nothing: its node stays"]}
    if key == "team/waits-0":
        why = {
            "reason": "RESERVATIONS_FULL",
            "message": "held by secret-project/hush-0",
            "own_message": "0/1 nodes are available",
            "nodepool": "gpu",
            "claim": "train-1",
            "alike": [key, "team/waits-1"],
        }
        pools = {"verdict": "first", "nodepool": "gpu", "weight": 0, "class": "gpu", "message": "the broker"}
        parts = {"why": [why], "nodepools": [pools], "options": OPTIONS, "slots": [SLOT]}
        return {**common, "headline": "waits for 1h: RESERVATIONS_FULL", **parts}
    placed = {
        "claim": "train-1",
        "node": "ip-train-1",
        "nodepool": "gpu",
        "capacity_type": "reserved",
        "instance_type": "p5.48xlarge",
        "zone": "us-east-1a",
        "reservation": "cr-1",
        "owner": "team/gpus",
        "draws_from": "team/gpus",
        "pods": ["team/worker-0", "secret-project/hush-0"],
        "usd_hour": 55.04,
        "until": None,
        "why_until": "",
    }
    return {**common, "headline": "running on node ip-train-1 for 1h", "placed": [placed]}


def pods(namespace: str, owner: str) -> list[PodRow]:
    every = [
        pod(),
        pod("waits-0", state="waits", usd_hour=0.0),
        pod("hush-0", "secret-project", owner="secret-project/hush"),
        pod("helper-0", "secret-project"),
    ]
    return [row for row in every if namespace in ("", row.namespace) and owner in ("", row.owner)]


DETAILS = Details(
    nodes=lambda: [
        node(),
        node("ip-train-2", claim="train-2", reservation="cr-2", owner="secret-project/hush"),
        node(
            "ip-web-1",
            reservation="",
            claim="web-1",
            instance_type="m7i.xlarge",
            node_pool="web",
            pods=6,
            usd_hour=0.2,
            fills=WEB_NODE,
        ),
    ],
    pods=pods,
    claim=claim_document,
    pod=pod_document,
)
