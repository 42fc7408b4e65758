"""`explain claim` and `plan -f` while free slots are held for a gang: the reason, and until when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.commands.crds.install import install
from broker.kube.client import Client
from broker.text import decode_time, format_time
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster

from .kit import World, claim, files, node_class, run

Connected = tuple[Client, str]
HOLD = timedelta(seconds=600)


def member(name: str, **annotations: str) -> dict[str, Any]:
    document = claim(name)
    document["metadata"]["annotations"] = {
        names.GANG: "train",
        names.GANG_SIZE: "2",
        names.PRIORITY: "1000",
        **{getattr(names, key): value for key, value in annotations.items()},
    }
    return document


class Clock:
    """The API server's, which may be behind."""

    behind = 0.0

    def __call__(self) -> float:
        return time.time() - self.behind


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(tmp_path: Path, clock: Clock) -> Iterator[Connected]:
    with ApiServer(Cluster(clock=clock)) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(server.kubeconfig())
        yield Client(InProcessTransport(server.cluster)), str(path)


@pytest.fixture
def training(world: World, cluster: Connected) -> Connected:
    """One of the world's two slots is taken by another user."""
    world.ec2.run_instances(
        ImageId=world.image,
        InstanceType="p5.48xlarge",
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": "us-east-1a"},
        CapacityReservationSpecification={"CapacityReservationTarget": {"CapacityReservationId": world.odcr}},
    )
    install(cluster[0])
    cluster[0].create(EC2NodeClass.KIND, node_class(world))
    return cluster


def explained(world: World, kubeconfig: str, name: str) -> dict[str, Any]:
    options = ("--kubeconfig", kubeconfig, "--aws-endpoint", world.endpoint, "-o", "json")
    result = run("explain", "claim", name, *options)
    assert result.exit_code == 0, result.output
    explanation: dict[str, Any] = json.loads(result.stdout)
    return explanation


def planned(world: World, kubeconfig: str, path: str) -> dict[str, dict[str, Any]]:
    options = ("--kubeconfig", kubeconfig, "--aws-endpoint", world.endpoint, "-o", "json")
    rows = json.loads(run("plan", "-f", path, *options).stdout)
    return {row["claim"]: row for row in rows}


def created(client: Client, name: str) -> datetime:
    return decode_time(client.get(NodeClaim.KIND, name)["metadata"]["creationTimestamp"])


@pytest.mark.covers("KRP-39")
def test_explain_names_the_gang_and_the_end_of_its_hold(
    world: World, training: Connected, tmp_path: Path
) -> None:
    client, kubeconfig = training
    for document in (member("train-0"), member("train-1"), claim("single")):
        client.create(NodeClaim.KIND, document)
    until = format_time(min(created(client, "train-0"), created(client, "train-1")) + HOLD)
    held = f"free slots (1 of {world.odcr}) are held until {until} for gang train of priority 1000"
    for name in ("train-0", "train-1"):
        waits = explained(world, kubeconfig, name)
        assert "waits: GangIncomplete: gang train launches whole or not at all" in waits["decision"]
        assert held in waits["decision"]
        assert [(row["verdict"], row["reason"]) for row in waits["options"]] == [("skipped", "HeldForGang")]
    single = explained(world, kubeconfig, "single")
    assert single["decision"] == (
        f"waits: HeldForGang: {held}, which needs 2 at once; tried again at {until}"
    )
    assert (single["options"][0]["reason"], single["options"][0]["free"]) == ("HeldForGang", 1)
    assert held in single["options"][0]["message"]
    shown = planned(world, kubeconfig, files(tmp_path, claim("late")))["late"]
    assert (shown["pool"], shown["why"]) == ("-", single["decision"])


@pytest.mark.covers("USR-01")
def test_plan_holds_slots_for_a_gang_of_the_files_as_for_an_applied_one(
    world: World, training: Connected, tmp_path: Path
) -> None:
    path = files(tmp_path, member("train-0"), member("train-1"), claim("single"))
    before = datetime.now(tz=UTC)
    rows = planned(world, training[1], path)
    assert not any(row["launches"] for row in rows.values())
    assert rows["single"]["why"].startswith(f"waits: HeldForGang: free slots (1 of {world.odcr}) are held")
    assert "for gang train of priority 1000" in rows["train-0"]["why"]
    until = decode_time(rows["single"]["why"].rpartition("tried again at ")[2])
    assert timedelta(0) <= until - before.replace(microsecond=0) - HOLD <= timedelta(seconds=60)


@pytest.mark.covers("KRP-39")
def test_hold_of_claims_made_again_ends_with_the_wait_of_their_pods(
    world: World, training: Connected, clock: Clock
) -> None:
    """The claims before them held the slots already."""
    client, kubeconfig = training
    containers = [{"name": "one", "image": "one"}]
    pod = {"metadata": {"name": "worker", "namespace": "default"}, "spec": {"containers": containers}}
    clock.behind = 300.0
    begun = decode_time(client.create(Pod.KIND, pod)["metadata"]["creationTimestamp"])
    clock.behind = 0.0
    again = {"PODS": "default/worker", "WAITING_SINCE": format_time(begun - HOLD)}
    for document in (member("train-0", **again), member("train-1"), claim("single")):
        client.create(NodeClaim.KIND, document)
    assert format_time(begun + HOLD) in explained(world, kubeconfig, "single")["decision"]


def test_explain_counts_launched_members_of_a_gang(world: World, training: Connected) -> None:
    client, kubeconfig = training
    for name in ("train-0", "train-1"):
        client.create(NodeClaim.KIND, member(name))
    body = {"status": {"providerID": "aws:///us-east-1a/i-0abc"}}
    client.patch(NodeClaim.KIND, "train-0", body, subresource="status")
    decision = explained(world, kubeconfig, "train-1")["decision"]
    assert decision == f"is launched next into {world.odcr} (p5.48xlarge, us-east-1a)"
