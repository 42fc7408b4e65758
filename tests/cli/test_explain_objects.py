"""`explain class|reservation|cluster`, `errors` and `watch`: one shortage at night, seen by each of them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Event
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import CapacityReservation
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.capacity.shortages import Scope, Shortage, Shortages
from broker.commands import watch
from broker.commands.crds.install import install
from broker.commands.explain.advice import advice
from broker.commands.explain.reading import read
from broker.controllers.launch.published import PublishedShortages
from broker.history.entries import of_attempt
from broker.history.recorder import batch_of
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.kube.errors import Unavailable
from broker.oncall.journal import dump
from broker.oncall.situation import Situation
from broker.text import format_time
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from providers.errors import ErrorClass
from providers.model import CapacityType

from .kit import claim, main, run

P5, ODCR = "p5.48xlarge", "cr-0123456789abcdef0"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/h100"
NOW = datetime.now(UTC).replace(microsecond=0)
SINCE = NOW - timedelta(minutes=12)


class Night(NamedTuple):
    client: Client
    kubeconfig: str


def pool(kind: CapacityType, reservation: str = "") -> Pool:
    return Pool(capacity_type=kind, instance_type=P5, zone="us-east-1a", reservation=reservation)


def attempt(name: str, pool: Pool, *, at: datetime, **more: Any) -> Attempt:
    known = {
        "outcome": Outcome.REFUSED,
        "code": "InsufficientInstanceCapacity",
        "class_": ErrorClass.CAPACITY,
    }
    return Attempt(claim=name, node_class="training", pool=pool, at=at, **known | more)


ON_DEMAND = attempt(
    "train-0",
    pool("on-demand"),
    at=SINCE,
    request_id="11111111-2222",
    message="no room",
    next_step="tries its pools again in 3 min",
)
IN_GROUP = attempt("train-0", pool("reserved", GROUP), at=SINCE - timedelta(seconds=1), message="full")


@pytest.fixture(scope="module", autouse=True)
def _clock() -> Iterator[None]:
    """It stays the night of the import, however long other tests take before these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: NOW)
        yield


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """A full reservation, a pool without capacity, one claim that waits and one that fell back."""
    with ApiServer(Cluster()) as server:
        path = tmp_path_factory.mktemp("night") / "kubeconfig"
        path.write_text(server.kubeconfig())
        client = Client(InProcessTransport(server.cluster))
        install(client)
        _fill(client)
        yield Night(client, str(path))


def _fill(client: Client) -> None:
    def put(model: Any, body: dict[str, Any], status: dict[str, Any], namespace: str | None = None) -> None:
        client.create(model.KIND, body)
        if status:
            client.patch(
                model.KIND,
                body["metadata"]["name"],
                {"status": status},
                namespace=namespace,
                subresource="status",
            )

    def condition(type_: str, status: str, reason: str, message: str) -> dict[str, Any]:
        return {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": format_time(SINCE),
        }

    target = {"capacityReservationTarget": {"capacityReservationResourceGroupArn": GROUP}}
    terms = [{"id": "subnet-0123456789abcdef0"}]
    spec = {
        "capacityReservationSpec": target,
        "amiFamily": "Custom",
        "amiSelectorTerms": [{"id": "ami-0123456789abcdef0"}],
        "subnetSelectorTerms": terms,
        "securityGroupSelectorTerms": [{"id": "sg-0123456789abcdef0"}],
        "role": "node",
    }
    for name in ("training", "serving"):
        ready = condition("Launchable", "True", "Resolved", f"images and subnets of {name}")
        put(EC2NodeClass, {"metadata": {"name": name}, "spec": spec}, {"conditions": [ready]})
    waiting, fallen = claim("train-0", "reserved"), claim("train-1", "reserved", "on-demand")
    waiting["metadata"] |= {
        "annotations": {names.ATTEMPTS: dump([IN_GROUP, ON_DEMAND]), names.DRAWS_FROM: "default/gpus"}
    }
    fallen["metadata"] |= {
        "labels": {names.CAPACITY_TYPE: "on-demand", names.INSTANCE_TYPE: P5, names.ZONE: "us-east-1a"}
    }
    put(
        NodeClaim,
        waiting,
        {"conditions": [condition("Launched", "False", "InsufficientCapacity", "group h100 is full")]},
    )
    put(NodeClaim, fallen, {"providerID": "aws:///us-east-1a/i-0abc"})
    mirror = {
        "type": P5,
        "zone": "us-east-1a",
        "total": 2,
        "available": 1,
        "state": "active",
        "nodeClasses": ["training"],
        "idleCostPerHour": "55.04",
    }
    put(OnDemandCapacityReservation, {"metadata": {"name": ODCR}}, mirror)
    quota = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
    annotations = {names.STOP_POLICY: "Hold"}
    put(
        CapacityReservation,
        {
            "metadata": {"name": "gpus", "namespace": "default", "annotations": annotations},
            "spec": {"resourceGroups": groups},
        },
        {
            "capacityReservationLifecycleState": "Active",
            "cloudReservations": [{"id": ODCR, "state": "active", "total": 2, "available": 1}],
            "summary": {"gpuTotal": 16, "gpuAllocated": 8, "gpuBorrowed": 0, "gpuAllocatable": 16},
        },
        "default",
    )
    short = Shortage(
        scope=Scope("reservation", ODCR),
        class_=ErrorClass.RESERVATION_FULL,
        code="ReservationCapacityExceeded",
        since=SINCE,
        last=SINCE,
        until=NOW + timedelta(minutes=15),
        step=3,
    )
    PublishedShortages(client).publish(Shortages({short.scope: short}), {}, NOW)
    about = {"kind": "CapacityReservation", "namespace": "default", "name": "gpus"}
    client.create(
        Event.KIND,
        {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": about,
            "type": "Warning",
            "reason": "PurchaseRefused",
            "message": "2 instances of p5.48xlarge are not bought",
            "lastTimestamp": format_time(SINCE),
            "source": {"component": "capacity-broker"},
        },
    )


def explained(night: Night, *arguments: str) -> dict[str, Any]:
    result = run("explain", *arguments, "--kubeconfig", night.kubeconfig, "-o", "json")
    assert result.exit_code == 0, result.output
    explanation: dict[str, Any] = json.loads(result.stdout)
    return explanation


@pytest.mark.parametrize(("policy", "held"), [("None", False), ("hold on", True), ("HoldAndDrain", True)])
def test_only_a_queue_that_is_held_is_to_be_resumed(policy: str, held: bool) -> None:
    annotations = {names.STOP_POLICY: policy}
    reservation = CapacityReservation.decode(
        {"metadata": {"name": "gpus", "namespace": "ml", "annotations": annotations}, "spec": {}}
    )
    commands = [row["command"] for row in advice(Situation(now=NOW, reservations=[reservation]))]
    assert ("capacity-broker resume ml/gpus" in commands) == held


def text(night: Night, *arguments: str) -> str:
    result = run(*arguments, "--kubeconfig", night.kubeconfig)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.covers("USR-25")
@pytest.mark.parametrize("arguments", [("class", "training"), ("reservation", "default/gpus"), ("cluster",)])
def test_a_page_answers_every_question_of_the_night(night: Night, arguments: tuple[str, ...]) -> None:
    explanation = explained(night, *arguments)
    (short,) = explanation["short"]
    assert (short["pool"], short["since"]) == (ODCR, format_time(SINCE))  # short, and since when
    assert short["until"] == format_time(NOW + timedelta(minutes=15))
    assert [row["claim"] for row in explanation["waiting"]] == ["train-0"]
    assert [(row["pool"], row["code"], row["request_id"]) for row in explanation["tried"]] == [
        (str(ON_DEMAND.pool), "InsufficientInstanceCapacity", "11111111-2222"),
        (str(IN_GROUP.pool), "InsufficientInstanceCapacity", ""),
    ]
    assert explanation["next"][0] == "1 claim of class training: tries its pools again in 3 min"
    assert explanation["costs"][0]["usd_hour"] == 55.04
    commands = [row["command"] for row in explanation["do"]]
    assert "capacity-broker explain claim train-0" in commands
    assert ("capacity-broker resume default/gpus" in commands) == (arguments != ("class", "training"))
    assert ("1 shortage, since" in explanation["headline"]) and ("1 claim waits" in explanation["headline"])


@pytest.mark.covers("USR-25")
def test_another_class_is_well(night: Night) -> None:
    explanation = explained(night, "class", "serving")
    assert (
        not explanation["short"]
        and not explanation["waiting"]
        and not explanation["tried"]
        and not explanation["do"]
    )
    shown = text(night, "explain", "class", "serving")
    assert "nothing is short" in shown and "no claim waits" in shown and "nothing needs to be done" in shown


def test_the_next_step_of_a_claim_without_a_class_is_not_a_launch(night: Night) -> None:
    astray = claim("astray", "reserved")
    astray["spec"]["nodeClassRef"]["name"] = "nosuch"
    night.client.create(NodeClaim.KIND, astray)
    launched = {"type": "Launched", "status": "Unknown", "reason": "NodeClassNotFound"}
    launched |= {"message": "no such EC2NodeClass", "lastTransitionTime": format_time(SINCE)}
    status = {"status": {"conditions": [launched]}}
    night.client.patch(NodeClaim.KIND, "astray", status, subresource="status")
    try:
        steps = explained(night, "cluster")["next"]
        assert "1 claim of class nosuch: NodeClassNotFound: no such EC2NodeClass" in steps
    finally:
        night.client.delete(NodeClaim.KIND, "astray")


def test_the_next_step_after_a_refusal_ends_with_the_claims_reason(night: Night) -> None:
    gone = attempt(
        "moved",
        pool("reserved", ODCR),
        at=SINCE,
        code="InvalidCapacityReservationState",
        class_=ErrorClass.RESERVATION_GONE,
        next_step="reservations are described again",
    )
    moved = claim("moved", "reserved")
    moved["spec"]["nodeClassRef"]["name"] = "serving"
    moved["metadata"]["annotations"] = {names.ATTEMPTS: dump([gone])}
    night.client.create(NodeClaim.KIND, moved)
    steps = []
    try:
        for reason in ("ReservationNotUsable", "NoUsableReservation"):
            launched = {"type": "Launched", "status": "Unknown", "reason": reason, "message": "none fits"}
            launched["lastTransitionTime"] = format_time(SINCE)
            status = {"status": {"conditions": [launched]}}
            night.client.patch(NodeClaim.KIND, "moved", status, subresource="status")
            steps += explained(night, "class", "serving")["next"]
    finally:
        night.client.delete(NodeClaim.KIND, "moved")
    assert steps == [
        "1 claim of class serving: reservations are described again",
        "1 claim of class serving: NoUsableReservation: none fits",
    ]


@pytest.mark.covers("USR-25")
def test_a_page_fits_a_hundred_columns_without_colour_and_arns(night: Night) -> None:
    shown = [text(night, "explain", *arguments) for arguments in (("class", "training"), ("cluster",))]
    shown += [text(night, "errors", "--by", by) for by in ("pool", "class", "code")]
    for page in shown:
        assert max(map(len, page.splitlines())) <= 100
        assert "\x1b" not in page
        assert "arn:" not in page
    assert "group h100 (p5.48xlarge, us-east-1a)" in shown[0]
    # Both whole, so that they can be searched and copied.
    assert re.search(rf"^{ODCR} \({P5}, us-east-1a\) +ReservationCapacityExceeded ", shown[0], re.MULTILINE)
    assert len({line.index("Refused") for line in shown[0].splitlines() if "  Refused  " in line}) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("class", "trainning"), "no EC2NodeClass 'trainning' in this cluster: did you mean training?"),
        (("reservation", "default/gpu"), "is 'default/gpu' in this cluster: did you mean default/gpus?"),
        (
            ("odcr", "nothing"),
            "no CapacityReservation, and no EC2 reservation in use, is 'nothing' in this cluster: there are "
            f"CapacityReservations default/gpus and EC2 reservations {ODCR}",
        ),
        (("odcr", f"{ODCR[:-1]}f"), f"did you mean {ODCR}?"),
        (("reservation", "cr-0abc"), "capacity-broker inventory shows all of EC2"),
    ],
)
def test_an_unknown_name_is_answered_with_known_ones(
    night: Night, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main("explain", *arguments, "--kubeconfig", night.kubeconfig) == 2
    assert words in capsys.readouterr().err


def test_a_reservation_needs_no_namespace_if_its_name_is_unique(night: Night) -> None:
    assert explained(night, "reservation", "gpus")["subject"] == "CapacityReservation default/gpus"


def counts(night: Night, *arguments: str) -> dict[str, int]:
    result = run("errors", *arguments, "--kubeconfig", night.kubeconfig, "-o", "json")
    assert result.exit_code == 0, result.output
    return {row["key"]: row["count"] for row in json.loads(result.stdout)}


def test_errors_without_a_history_are_those_of_claims_shortages_and_events(night: Night) -> None:
    assert counts(night, "--by", "class") == {"capacity": 2, "reservation-full": 1, "PurchaseRefused": 1}
    assert counts(night, "--by", "code")["InsufficientInstanceCapacity"] == 2
    assert counts(night)["on-demand:p5.48xlarge:us-east-1a"] == 1
    assert counts(night, "--since", "5m") == {}


def test_errors_with_a_history_are_its_entries(night: Night, tmp_path: Path) -> None:
    path = str(tmp_path / "history.sqlite")
    store = HistoryStore(path)
    store.open()
    attempts = [replace(ON_DEMAND, claim=f"gone-{n}") for n in range(7)]
    store.write(Batch(entries=[of_attempt(attempt) for attempt in attempts]))
    store.close()
    assert counts(night, "--history", path, "--by", "pool") == {"on-demand:p5.48xlarge:us-east-1a": 7}
    assert counts(night, "--history", path, "--since", "5m") == {}


@pytest.mark.covers("FLT-51")
def test_errors_by_pool_have_the_forecast_of_a_pool(night: Night, tmp_path: Path) -> None:
    path = str(tmp_path / "history.sqlite")
    store = HistoryStore(path)
    store.open()
    store.write(batch_of([replace(ON_DEMAND, at=NOW - timedelta(minutes=n)) for n in (2, 9, 16)]))
    store.close()
    arguments = ("errors", "--history", path, "--kubeconfig", night.kubeconfig)
    (row,) = json.loads(run(*arguments, "-o", "json").stdout)
    assert (row["chance"], row["wait_seconds"]) == (None, None)
    assert "chance to launch now: too few attempts (3 of 10)" in run(*arguments).stdout
    store = HistoryStore(path)
    store.open()
    store.write(batch_of([replace(ON_DEMAND, at=NOW - timedelta(minutes=n)) for n in range(3, 16, 2)]))
    store.close()
    (row,) = json.loads(run(*arguments, "-o", "json").stdout)
    assert row["chance"] < 0.1 and 1000 < row["wait_seconds"] < 1800
    shown = run(*arguments).stdout
    assert re.search(r"chance to launch now: \d%, else about \d\d min", shown)
    assert max(map(len, shown.splitlines())) <= 100
    (row,) = json.loads(run(*arguments, "--by", "class", "-o", "json").stdout)
    assert "chance" not in row


def test_errors_refuse_a_duration_that_is_none(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("yesterday", "-1h"):
        assert main("errors", "--since", given, "--kubeconfig", night.kubeconfig) == 2
        assert f"--since is {given!r}: write a positive duration" in capsys.readouterr().err


class Ended(Exception):
    """The end of a test's watch."""


@pytest.mark.covers("USR-25")
def test_watch_on_a_pipe_prints_a_line_for_each_change(night: Night) -> None:
    there = read(night.client, NOW)
    answers: list[Any] = [
        there,
        there,
        Unavailable(0, "Unavailable", "down"),
        replace(there, shortages=[], claims=[]),
    ]
    printed: list[str] = []
    after: list[int] = []

    def next_answer() -> Any:
        if not answers:
            raise Ended
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(Ended):
        watch.lines(next_answer, lambda _: after.append(len(printed)), lambda: NOW, 2.0, printed.append)
    first = [line.removeprefix(f"{format_time(NOW)} ") for line in printed[: after[0]]]
    assert first[0].startswith(f"short: {ODCR}: ReservationCapacityExceeded, next try ")
    assert first[1] == "waits: train-0 of class training: group h100 is full"
    assert after[1] == after[0]  # an unchanged cluster prints nothing
    assert "the cluster cannot be read: " in printed[after[1]]
    assert [line.partition(" ")[2] for line in printed[after[2] :]] == [
        f"over: short: {ODCR}: ReservationCapacityExceeded",
        "over: waits: train-0 of class training: group h100 is full",
    ]


@pytest.mark.covers("USR-25")
@pytest.mark.parametrize("size", [(100, 40), (80, 24)])
def test_watch_on_a_terminal_is_one_screen(night: Night, size: tuple[int, int]) -> None:
    width, height = size
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, highlight=False)

    def wait(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch.screen(lambda: read(night.client, NOW), wait, 2.0, console)
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out.getvalue())
    assert "Short now" in shown and ODCR in shown and "train-0" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width


def test_ctrl_c_ends_watch_without_an_error(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    result = run("watch", "--kubeconfig", night.kubeconfig)
    assert result.exit_code == 0
    assert "waits: train-0" in result.stdout
