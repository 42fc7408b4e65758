"""`explain claim`: the record of attempts, and the options of a waiting claim."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.capacity.shortages import Scope, Shortages
from broker.commands.crds.install import install
from broker.commands.explain import claims
from broker.controllers.launch.published import PublishedShortages
from broker.kube.client import Client
from broker.oncall.journal import dump
from providers.errors import ErrorClass
from providers.model import CapacityType

from .kit import World, claim, main, node_class, run

Cluster = tuple[Client, str]
P5 = "p5.48xlarge"


def pool(kind: CapacityType, zone: str = "us-east-1a", **more: str) -> Pool:
    return Pool(capacity_type=kind, instance_type=P5, zone=zone, **more)


def attempt(pool: Pool, outcome: Outcome = Outcome.REFUSED, **more: Any) -> Attempt:
    known: dict[str, Any] = {"at": datetime(2026, 11, 21, 3, 0, tzinfo=UTC)}
    return Attempt(claim="train-0", node_class="training", pool=pool, outcome=outcome, **known | more)


def put(client: Client, document: dict[str, Any], attempts: Sequence[Attempt] = ()) -> None:
    if attempts:
        document["metadata"]["annotations"] = {names.ATTEMPTS: dump(attempts)}
    client.create(NodeClaim.KIND, document)


def explained(world: World, kubeconfig: str, name: str = "train-0") -> dict[str, Any]:
    result = run(
        "explain", "claim", name, "--kubeconfig", kubeconfig, "--aws-endpoint", world.endpoint, "-o", "json"
    )
    assert result.exit_code == 0, result.output
    explanation: dict[str, Any] = json.loads(result.stdout)
    return explanation


def text(world: World, kubeconfig: str, name: str = "train-0") -> str:
    return run("explain", "claim", name, "--kubeconfig", kubeconfig, "--aws-endpoint", world.endpoint).stdout


@pytest.fixture
def training(world: World, cluster: Cluster) -> Cluster:
    """A cluster with the class of the world's one reservation (two free slots of p5.48xlarge)."""
    install(cluster[0])
    cluster[0].create(EC2NodeClass.KIND, node_class(world))
    return cluster


@pytest.mark.covers("CAP-17")
def test_each_attempt_has_its_code_class_request_and_time(world: World, training: Cluster) -> None:
    client, kubeconfig = training
    refused = attempt(
        pool("reserved", reservation="cr-1"),
        code="ReservationCapacityExceeded",
        class_=ErrorClass.RESERVATION_FULL,
        request_id="11111111-2222",
        next_step="the next option is tried",
    )
    put(client, claim("train-0"), [refused])
    row = explained(world, kubeconfig)["attempts"][0]
    assert (row["pool"], row["code"], row["class"], row["request_id"], row["at"]) == (
        "reserved:p5.48xlarge:us-east-1a:cr-1",
        "ReservationCapacityExceeded",
        "reservation-full",
        "11111111-2222",
        "2026-11-21T03:00:00Z",
    )
    shown = text(world, kubeconfig)
    assert shown.startswith("NodeClaim train-0, class training")
    for word in ("2026-11-21 03:00:00Z", "ReservationCapacityExceeded", "AWS request 11111111-2222"):
        assert word in shown


def test_yaml_and_json_have_the_same_content(world: World, training: Cluster) -> None:
    client, kubeconfig = training
    put(client, claim("train-0"))
    options = ("--kubeconfig", kubeconfig, "--aws-endpoint", world.endpoint)
    explanation = yaml.safe_load(run("explain", "claim", "train-0", *options, "-o", "yaml").stdout)
    assert explanation == explained(world, kubeconfig)


def test_launched_claim_is_explained_from_its_record_alone(cluster: Cluster) -> None:
    """The record of attempts needs no AWS: the right to read claims is enough."""
    client, kubeconfig = cluster
    install(client)
    launched = attempt(pool("reserved", reservation="cr-1"), Outcome.LAUNCHED, instance_id="i-0abc")
    put(client, claim("train-0"), [launched])
    body = {"status": {"providerID": "aws:///us-east-1a/i-0abc"}}
    client.patch(NodeClaim.KIND, "train-0", body, subresource="status")
    result = run(
        "explain",
        "claim",
        "train-0",
        "--kubeconfig",
        kubeconfig,
        "--aws-endpoint",
        "http://127.0.0.1:1",
        "-o",
        "json",
    )
    explanation = json.loads(result.stdout)
    assert (explanation["instance"], explanation["attempts"][0]["instance"]) == ("i-0abc", "i-0abc")
    assert "options" not in explanation


@pytest.mark.covers("CAP-17")
def test_waiting_claim_shows_its_next_option_and_the_later_ones(world: World, training: Cluster) -> None:
    client, kubeconfig = training
    put(client, claim("train-0", "reserved", "on-demand"))
    explanation = explained(world, kubeconfig)
    assert explanation["decision"] == f"is launched next into {world.odcr} ({P5}, us-east-1a)"
    first, *rest = explanation["options"]
    assert (first["verdict"], first["reservation"], first["free"]) == ("next", world.odcr, 2)
    assert {(row["verdict"], row["capacity_type"]) for row in rest} == {("then", "on-demand")}


@pytest.mark.covers("CAP-17")
def test_slots_that_go_to_earlier_claims_are_reported(world: World, training: Cluster) -> None:
    client, kubeconfig = training
    for number in range(3):
        put(client, claim(f"train-{number}"))
    third = explained(world, kubeconfig, "train-2")
    assert third["decision"].startswith("waits: AllReservationsFull")
    (row,) = third["options"]
    assert (row["verdict"], row["reason"], row["free"]) == ("skipped", "OutbidInPlan", 2)
    assert explained(world, kubeconfig, "train-1")["options"][0]["verdict"] == "next"


def publish(client: Client, scope: Scope, at: datetime) -> None:
    """A shortage, as the running broker publishes it."""
    known: dict[str, Any] = {"class_": ErrorClass.CAPACITY, "code": "InsufficientInstanceCapacity"}
    shortages = Shortages().record(scope, now=at, message="none left", **known)
    PublishedShortages(client).publish(shortages, {}, at)


@pytest.mark.covers("CAP-17")
def test_published_shortage_keeps_a_claim_from_an_option(world: World, training: Cluster) -> None:
    """EC2 showed the slots of the reservation free all the time."""
    client, kubeconfig = training
    now = datetime.now(UTC)
    publish(client, Scope("reservation", world.odcr), now - timedelta(minutes=1))
    put(client, claim("train-0"))
    explanation = explained(world, kubeconfig)
    (row,) = explanation["options"]
    assert (row["verdict"], row["reason"], row["class"]) == ("skipped", "BackingOff", "capacity")
    assert "InsufficientInstanceCapacity: none left" in row["message"]
    assert f"tried again at {now + timedelta(minutes=2):%Y-%m-%dT%H:%M}" in explanation["decision"]


@pytest.mark.covers("CAP-17")
def test_refusal_that_the_broker_no_longer_remembers_keeps_no_claim(world: World, training: Cluster) -> None:
    """A minute ago the pool refused the claim; a later launch of another claim, which is gone, ended that."""
    client, kubeconfig = training
    now = datetime.now(UTC)
    refused = attempt(
        pool("reserved", reservation=world.odcr),
        at=now - timedelta(minutes=1),
        code="InsufficientInstanceCapacity",
        class_=ErrorClass.CAPACITY,
    )
    publish(client, Scope("reservation", world.odcr), now - timedelta(hours=1))
    put(client, claim("train-0"), [refused])
    explanation = explained(world, kubeconfig)
    assert explanation["options"][0]["verdict"] == "next"
    assert explanation["shortages"] == []


def test_unfit_reservation_shows_the_reason(world: World, training: Cluster) -> None:
    client, kubeconfig = training
    document = claim("train-0", "on-demand")
    document["spec"]["requirements"][0]["values"] = ["m5.large"]
    put(client, document)
    unfit = [row for row in explained(world, kubeconfig)["options"] if row["verdict"] == "unfit"]
    assert [(row["reservation"], row["reason"]) for row in unfit] == [(world.odcr, "CapacityTypeMismatch")]


def test_hundreds_of_equal_options_are_one_line(world: World, training: Cluster) -> None:
    client, kubeconfig = training
    document = claim("train-0", "on-demand")
    del document["spec"]["requirements"][0]
    put(client, document)
    many = len(explained(world, kubeconfig)["options"])
    assert many > 300
    shown = text(world, kubeconfig)
    options = shown.partition("Now: ")[2].splitlines()[2:]
    assert len(options) < 12
    assert f" {many - 2} options" in shown  # all but the one that is taken and the reservation
    matches = [re.search(r"on-demand [a-z0-9-]+\.", line) for line in options]
    assert len({match.start() for match in matches if match}) == 1, "aligned"


def test_equal_attempts_are_one_line_with_the_last_time() -> None:
    rows = [
        {
            "at": f"2026-11-21T03:{minute:02}:00Z",
            "pool": f"on-demand:{P5}:us-east-1a",
            "also": [],
            "outcome": "Refused",
            "code": "InsufficientInstanceCapacity",
            "class": "capacity",
            "message": "none",
            "instance": "",
            "request_id": f"req-{minute}",
            "next": "",
        }
        for minute in (0, 3, 9, 21)
    ]
    (line,) = claims.format_attempts(rows)
    assert (line["step"], line["when"]) == ("1-4", "4 times, last\n2026-11-21 03:21:00Z")
    assert "req-21" in line["what"]
    assert len(claims.format_attempts(rows[:3])) == 3


def test_without_ec2_the_record_is_still_shown(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client, kubeconfig = cluster
    install(client)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    put(
        client,
        claim("train-0"),
        [attempt(pool("reserved", reservation="cr-1"), code="Code", request_id="r-1")],
    )
    shown = run(
        "explain", "claim", "train-0", "--kubeconfig", kubeconfig, "--aws-endpoint", "http://127.0.0.1:1"
    ).stdout
    assert "AWS request r-1" in shown
    assert "Now: unknown, because EC2 cannot be read" in shown


def test_claim_of_karpenter_is_reported_as_such(cluster: Cluster) -> None:
    client, kubeconfig = cluster
    install(client)
    document = claim("train-0")
    document["spec"]["nodeClassRef"]["group"] = "karpenter.k8s.aws"
    put(client, document)
    nowhere = ("--aws-endpoint", "http://127.0.0.1:1")
    shown = run("explain", "claim", "train-0", "--kubeconfig", kubeconfig, *nowhere).stdout
    assert "not the broker's: spec.nodeClassRef.group is 'karpenter.k8s.aws'" in shown
    assert "unknown, because" not in shown  # Karpenter chooses its options
    assert "Karpenter has reported no attempt; if the broker should launch it, make it with" in shown
    for words in ("reported none", "no launch was tried"):  # of what is not said, or not known
        assert words not in shown


def test_claim_that_the_broker_took_over_from_karpenter_shows_its_options(
    world: World, training: Cluster
) -> None:
    client, kubeconfig = training
    document = claim("train-0")
    document["spec"]["nodeClassRef"]["group"] = "karpenter.k8s.aws"
    put(client, document, [attempt(pool("on-demand"))])
    assert [row["verdict"] for row in explained(world, kubeconfig)["options"]] == ["next"]
    shown = text(world, kubeconfig)
    assert "not the broker's" not in shown
    assert "Now: is launched next into" in shown


def test_a_claim_that_is_not_there(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The kind that is not there, no claim at all, and a name that was not typed well."""
    client, kubeconfig = cluster
    arguments = ("explain", "claim", "trian-0", "--kubeconfig", kubeconfig)
    assert main(*arguments) == 2
    assert "capacity-broker crds install" in capsys.readouterr().err
    install(client)
    assert main(*arguments) == 2
    assert "no NodeClaim 'trian-0' in this cluster: there is none at all" in capsys.readouterr().err
    put(client, claim("train-0"))
    assert main(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "did you mean train-0?" in line
    assert main("explain", "claim", "gpus", "--kubeconfig", kubeconfig) == 2
    assert "no NodeClaim 'gpus' in this cluster: there are train-0 (" in capsys.readouterr().err
