"""From the start of the process to reconciled, with 10,000 claims, 5,000 nodes and 1,000 reservations.

A broker has written every status in that cluster and was stopped, as a rollout stops it; a claim came
meanwhile. Another process starts. It is reconciled when it is ready and that claim, the only work left, has
its instance. The baseline reads the same objects and reservations once, with a bare client, and decides
nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import boto3

from benchmarks.figures import Figure, run
from benchmarks.processes import own_credentials, until, usage
from benchmarks.rest import Cluster, broker, grouped, resting
from benchmarks.resting import class_name
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster import objects
from tests.cluster.account import REGION

TARGET_SECONDS = 10.0
MUTATES = ("Create", "Run", "Terminate", "Modify", "Delete")


def measure(*, small: bool) -> Sequence[Figure]:
    """A broker that starts beside a big cluster: the time until it acts, and repeated writes."""
    claims = 40 if small else 10_000
    with resting(small=small) as cluster:
        with broker(cluster) as first:
            # Passes over a small cluster are minutes apart.
            first.wait_until_idle(cluster, passes=0 if small else 1)
        client = cluster.client()
        client.create(NodeClaim.KIND, _late())
        before = cluster.counts()
        bare, bare_cpu = _read_all(cluster)
        with broker(cluster) as second:
            until(second.ready, "broker that is ready")
            ready, ready_cpu = time.monotonic() - second.began, second.usage().cpu
            until(lambda: _launched(client.get(NodeClaim.KIND, "late")), "instance of the late claim")
            passed, used = time.monotonic() - second.began, second.usage()
            second.wait_until_idle(cluster)
            during = cluster.counts().since(before)
    sys.stderr.write(f"AWS calls: {dict(during.aws)}\nwrites: {grouped(during.writes)}\n")
    changed = {action: n for action, n in during.aws.items() if action.startswith(MUTATES)}
    return [
        Figure(name="claims, of which half run and half wait", measured=claims + 1),
        Figure(name="process start to ready", measured=ready, unit="s"),
        Figure(name="the same in CPU time", measured=ready_cpu, unit="s"),
        Figure(
            name="process start to reconciled",
            measured=passed,
            unit="s",
            most=TARGET_SECONDS,
            baseline=bare,
            of="reading the same, bare",
        ),
        Figure(
            name="the same in CPU time",
            measured=used.cpu,
            unit="s",
            baseline=bare_cpu,
            of="reading the same, bare",
        ),
        Figure(name="memory at most (RSS)", measured=used.peak, unit="MB"),
        Figure(
            name="launches",
            measured=changed.get("CreateFleet", 0),
            least=1,
            most=1,
            baseline=1,
            of="late claim",
        ),
        Figure(
            name="claims and nodes written again",
            measured=sum(
                n
                for written, n in during.writes.items()
                if ("/nodeclaims/" in written or "/nodes/" in written) and "/late" not in written
            ),
            most=0,
        ),
    ]


def _late() -> dict[str, Any]:
    return objects.claim("late", node_class=class_name(0), types=("m5.large",), capacity=(objects.ON_DEMAND,))


def _launched(claim: dict[str, Any]) -> bool:
    return bool(claim.get("status", {}).get("providerID"))


def _read_all(cluster: Cluster) -> tuple[float, float]:
    """Wall and CPU time of the reads of a broker's start."""
    began, spent = time.monotonic(), usage().cpu
    client = cluster.client()
    for kind in (NodeClaim.KIND, Node.KIND, EC2NodeClass.KIND, NodePool.KIND):
        client.list(kind)
    with own_credentials():
        ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=cluster.aws)
        for action in ("describe_capacity_reservations", "describe_instances"):
            token: dict[str, str] = {}
            while True:
                page = getattr(ec2, action)(MaxResults=1000, **token)
                if not page.get("NextToken"):
                    break
                token = {"NextToken": page["NextToken"]}
    return time.monotonic() - began, usage().cpu - spent


if __name__ == "__main__":
    run(measure)
