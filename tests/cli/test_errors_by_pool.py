"""`errors --by pool`: EC2's last answer of each pool, skips apart, and pools before other objects."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from broker.apis import names
from broker.apis.core import Event
from broker.apis.karpenter import NodeClaim
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.commands.crds.install import install
from broker.commands.errors import problems
from broker.commands.errors.problems_by import GroupBy
from broker.commands.output import table
from broker.history.recorder import batch_of
from broker.history.store import HistoryStore
from broker.kube.client import Client
from broker.oncall.journal import dump
from broker.text import format_time
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from providers.errors import ErrorClass

from .kit import claim, run

NOW = datetime.now(UTC).replace(microsecond=0)
RESERVED = Pool(
    capacity_type="reserved",
    instance_type="p5.48xlarge",
    zone="us-east-1a",
    reservation="cr-0123456789abcdef0",
)
SKIPPED_ONLY = Pool(capacity_type="on-demand", instance_type="p5.48xlarge", zone="us-east-1b")
REFUSED = Attempt(
    claim="train-0",
    node_class="training",
    pool=RESERVED,
    outcome=Outcome.REFUSED,
    at=NOW - timedelta(minutes=20),
    code="ReservationCapacityExceeded",
    class_=ErrorClass.RESERVATION_FULL,
    message="the reservation has no free instance",
    request_id="11111111-2222-3333-4444-555555555555",
)
SKIP = replace(
    REFUSED,
    outcome=Outcome.SKIPPED,
    at=NOW - timedelta(minutes=10),
    code="ReservationFull",
    class_=None,
    message="0 of 1 slot free",
    request_id="",
)
ATTEMPTS = [
    replace(REFUSED, at=REFUSED.at - timedelta(minutes=5), request_id="an-older-request"),
    REFUSED,
    SKIP,
    replace(SKIP, at=SKIP.at + timedelta(minutes=5)),
    replace(SKIP, pool=SKIPPED_ONLY, code="BackingOff"),
]
PODS = 7


def event(name: str, kind: str, reason: str) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": kind, "namespace": "default", "name": name},
        "type": "Warning",
        "reason": reason,
        "message": f"{name} has a problem",
        "lastTimestamp": format_time(NOW),
        "source": {"component": "capacity-broker"},
    }


@contextmanager
def served(folder: Path, *events: dict[str, Any]) -> Iterator[tuple[Client, str]]:
    """A cluster with these events, and the path of its kubeconfig."""
    with ApiServer(Cluster()) as server:
        path = folder / "kubeconfig"
        path.write_text(server.kubeconfig())
        client = Client(InProcessTransport(server.cluster))
        install(client)
        for n, body in enumerate(events):
            metadata = {"name": f"event-{n}", "namespace": "default"}
            client.create(Event.KIND, {**body, "metadata": metadata})
        yield client, str(path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The options for a cluster that has more events of other objects than refusals."""
    events = [event("waiting", "Pod", "FailedScheduling")] * PODS
    events += [event("gpus", "CapacityReservation", "PurchaseRefused")] * 6
    with served(tmp_path_factory.mktemp("pools"), *events) as (client, path):
        body = claim("train-0", "reserved")
        body["metadata"]["annotations"] = {names.ATTEMPTS: dump(ATTEMPTS)}
        client.create(NodeClaim.KIND, body)
        yield "--kubeconfig", path, "--since", "24h"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options for a history of the same attempts."""
    path = str(tmp_path_factory.mktemp("pools") / "history.db")
    store = HistoryStore(path)
    store.open()
    store.write(batch_of([*ATTEMPTS]))
    store.close()
    return "--history", path, "--since", "24h"


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run("errors", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    listed: list[dict[str, Any]] = json.loads(result.stdout)
    return listed


@pytest.mark.covers("USR-25")
@pytest.mark.parametrize("source", ["cluster", "history"])
def test_later_skip_does_not_hide_the_refusal_of_ec2(source: str, request: pytest.FixtureRequest) -> None:
    by_key = {row["key"]: row for row in rows(*request.getfixturevalue(source), "--by", "pool")}
    row = by_key[str(RESERVED)]
    assert (row["count"], row["refused"], row["skipped"]) == (4, 2, 2)
    assert (row["code"], row["request_id"]) == (REFUSED.code, REFUSED.request_id)
    assert (row["message"], row["class"]) == (REFUSED.message, "reservation-full")
    assert row["result_at"] == format_time(REFUSED.at)
    assert row["last"] == format_time(SKIP.at + timedelta(minutes=5))
    skips = by_key[str(SKIPPED_ONLY)]
    assert (skips["refused"], skips["skipped"], skips["code"]) == (0, 1, "BackingOff")


@pytest.mark.parametrize("source", ["cluster", "history"])
def test_table_has_the_request_of_ec2_and_both_counts(source: str, request: pytest.FixtureRequest) -> None:
    result = run("errors", *request.getfixturevalue(source), "--by", "pool")
    assert result.exit_code == 0
    heading, *lines = result.stdout.splitlines()
    start = heading.index("POOL, AND LAST RESULT")
    cells = " ".join(" ".join(line[start:].split()) for line in lines)
    assert "REFUSED  SKIPPED  FIRST AND LAST " in heading
    assert f"{REFUSED.code}: {REFUSED.message} AWS request {REFUSED.request_id} at " in cells
    assert cells.count(SKIP.message) == 1  # of the pool that EC2 was not asked for


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    ("source", "names_", "counts"),
    [
        ("cluster", ["COUNT", "REFUSED", "SKIPPED"], [[4, 2, 2], [1, 0, 1], [6, 0, 0]]),
        ("history", ["REFUSED", "SKIPPED"], [[2, 2], [0, 1]]),
    ],
)
def test_columns_are_aligned_and_fit(
    source: str, names_: list[str], counts: list[list[int]], width: int, request: pytest.FixtureRequest
) -> None:
    listed = rows(*request.getfixturevalue(source), "--by", "pool")
    out = io.StringIO()
    columns = problems.headings(listed, GroupBy.POOL)
    Console(file=out, width=width).print(table("", [*problems.format_rows(listed)], columns=columns))
    heading, *lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    ends = [heading.index(name) + len(name) for name in names_]
    counted = [line for line in lines if line[: ends[0]].strip()]
    assert [[int(word) for word in line.split()[: len(ends)]] for line in counted] == counts
    assert all(line[end - 1].isdigit() and line[end] == " " for line in counted for end in ends)
    assert REFUSED.request_id in out.getvalue() or (source, width) == ("cluster", 80)


def test_pools_come_first_and_pods_are_counted_below(cluster: tuple[str, ...]) -> None:
    keys = [row["key"] for row in rows(*cluster, "--by", "pool")]
    assert keys == [str(RESERVED), str(SKIPPED_ONLY), "CapacityReservation default/gpus"]
    shown = run("errors", *cluster).stdout
    assert "Pod default/" not in shown
    assert shown.splitlines()[-1] == f"{PODS} events of pods: --by class and --by code count them"
    assert {row["key"]: row["count"] for row in rows(*cluster, "--by", "code")}["FailedScheduling"] == PODS


def test_events_of_pods_alone_are_no_all_clear(tmp_path: Path) -> None:
    with served(tmp_path, event("waiting", "Pod", "FailedScheduling")) as (_, path):
        shown = run("errors", "--kubeconfig", path).stdout.splitlines()
    assert shown == [
        "no refusal and no problem of a pool in the last 1h",
        "1 event of pods: --by class and --by code count them",
    ]
