"""Alerts reach a real HTTP server: at each look for Alertmanager, at begin and end for a webhook."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from broker.kube.client import Client
from broker.notifications import record
from broker.notifications.alerts import ENDING, MIN_FAILED_RETRIES, MOST_ALERTS, firing_alerts
from broker.notifications.notifier import ATTEMPTS, HOLD, LASTS, Notifier
from broker.options import problems
from broker.settings import Settings
from broker.text import decode_time
from broker.webpage.live import LiveState
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock
from tests.unit.webpage.world import odcr, state

TOKEN = "secret-token"
Json = dict[str, Any]


class Inbox:
    """A receiver; `answers` are the next statuses, then 200."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = inbox.answers.pop(0) if inbox.answers else 200
                inbox.headers.append({name.lower(): value for name, value in self.headers.items()})
                if status < 300:
                    inbox.bodies.append((self.path, body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Logs nothing: the test asserts the received messages."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        serve = partial(self._server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def taken(self) -> list[tuple[str, Any]]:
        taken, self.bodies = self.bodies, []
        return taken


class NoWait(FakeClock):
    """Pauses between two attempts end at once."""

    def wait(self, signal: Any, timeout: float | None = None) -> bool:
        return False


class World:
    """One process after another, on one cluster, with a state that the test sets."""

    def __init__(self, inbox: Inbox, *, webhook: bool) -> None:
        self.inbox = inbox
        self.client = Client(InProcessTransport(Cluster()), field_manager="test")
        url = f"http://user:{TOKEN}@{inbox.host}"
        given: Json = {"notify_webhook": f"{url}/hook/{TOKEN}"} if webhook else {"notify_alertmanager": url}
        self.settings = Settings(cluster_name="prod", region="us-east-1", **given)
        self.live: LiveState | None = state()
        self.restart()

    def restart(self) -> None:
        self.notifier = Notifier(self.settings, lambda: self.live, lambda: self.client, clock=NoWait())

    def check(self, seconds: float = 0.0, **more: Any) -> list[tuple[str, Any]]:
        """The messages of a check, after this time and with these values."""
        assert self.live is not None
        self.live = replace(self.live, now=self.live.now + timedelta(seconds=seconds), **more)
        self.notifier.check()
        return self.inbox.taken()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    server = Inbox()
    yield server
    server.close()


def troubles(live: LiveState) -> Json:
    """A lasting shortage, an ending reservation and a reached cap."""
    problem = (
        "SpendingCapReached",
        "3 more p5.48xlarge are wanted: raise --buy-dollars (BROKER_BUY_DOLLARS)",
    )
    return {
        "shortages": [replace(live.shortages[0], failed_retries=MIN_FAILED_RETRIES)],
        "odcrs": [odcr(end=live.now + timedelta(minutes=30))],
        "reservations": [replace(live.reservations[0], problems=(problem,))],
    }


def over(live: LiveState) -> Json:
    calm = state()
    return {"shortages": calm.shortages, "odcrs": calm.odcrs, "reservations": calm.reservations}


def test_alerts_have_the_facts_of_the_state_and_the_labels_of_the_rules() -> None:
    live = state()
    assert firing_alerts(live, cluster="prod") == []
    cap, ending, shortage = firing_alerts(replace(live, **troubles(live)), cluster="prod")
    assert "team/gpus: 3 more p5.48xlarge are wanted" in cap.description
    assert cap.labels == {
        "alertname": "CapacityBrokerSpendingCapReached",
        "severity": "warning",
        "cluster": "prod",
        "source": "capacity-broker",
        "capacity_namespace": "team",
        "reservation": "gpus",
    }
    assert ending.labels["odcr"] == "cr-1" and "for team/gpus) ends at" in ending.description
    assert "refused 3 times in a row" in shortage.description
    assert "InsufficientInstanceCapacity: no capacity Wait, or allow more zones." in shortage.description
    shown = shortage.body(live.now, runbooks="https://wiki.example")["annotations"]
    assert shown["runbook_url"] == "https://wiki.example/capacity-broker-shortage.md"


def test_a_reservation_is_ending_from_its_notice_to_its_end() -> None:
    live = state()

    def ends(left: timedelta, **more: Any) -> int:
        return len(firing_alerts(replace(live, odcrs=[odcr(end=live.now + left, **more)]), cluster=""))

    assert [ends(ENDING + timedelta(seconds=1)), ends(ENDING), ends(timedelta(0))] == [0, 1, 1]
    assert ends(timedelta(minutes=119), reservation_type="capacity-block") == 1
    assert ends(timedelta(minutes=5), state="expired") == 0


def test_alertmanager_gets_each_alert_at_each_check_until_it_is_resolved(inbox: Inbox) -> None:
    world = World(inbox, webhook=False)
    assert world.live is not None and world.check() == []
    given = troubles(world.live)
    ((path, first),) = world.check(30, **given)
    ((_, second),) = world.check(30)
    assert path == "/api/v2/alerts" and len(first) == len(second) == 3
    assert [alert["labels"] for alert in first] == [alert["labels"] for alert in second]
    assert [alert["startsAt"] for alert in first] == [alert["startsAt"] for alert in second]
    now = world.live.now
    assert {decode_time(alert["endsAt"]) for alert in second} == {now + LASTS}
    assert inbox.headers[0]["authorization"].startswith("Basic ")

    ((_, held),) = world.check(30, **over(world.live))
    assert {decode_time(alert["endsAt"]) for alert in held} == {world.live.now + LASTS}
    ((_, resolved),) = world.check(HOLD.total_seconds())
    assert {decode_time(alert["endsAt"]) for alert in resolved} == {world.live.now}
    assert world.check(30) == []


def test_a_webhook_gets_one_message_at_start_and_end_even_after_a_restart(inbox: Inbox) -> None:
    world = World(inbox, webhook=True)
    assert world.live is not None
    world.check()
    begun = world.check(30, **troubles(world.live))
    assert {path for path, _ in begun} == {f"/hook/{TOKEN}"}
    assert [body["status"] for _, body in begun] == ["firing"] * 3
    assert len({body["groupKey"] for _, body in begun}) == 3
    assert world.check(30) == []
    assert len(record.read(world.client)) == 3

    world.restart()
    assert world.check(30) == []
    # A new leader ends no alert before it has read for a while.
    world.restart()
    assert world.check(0, **over(world.live)) == []
    ended = world.check(HOLD.total_seconds())
    assert [body["status"] for _, body in ended] == ["resolved"] * 3
    assert {body["groupKey"] for _, body in ended} == {body["groupKey"] for _, body in begun}
    assert all(body["alerts"][0]["endsAt"] for _, body in ended)
    assert world.check(30) == [] and record.read(world.client) == {}


def test_a_problem_that_soon_recurs_is_the_same_alert(inbox: Inbox) -> None:
    world = World(inbox, webhook=True)
    assert world.live is not None
    given = troubles(world.live)
    assert len(world.check(0, **given)) == 3
    assert world.check(60, **over(world.live)) == []
    assert world.check(HOLD.total_seconds() - 90) == []
    assert world.check(30, **given) == []


def test_shortage_of_a_reservation_that_ec2_no_longer_shows_is_the_same_alert(inbox: Inbox) -> None:
    """Its type and zone are unknown then, so its name for a person is another."""
    world = World(inbox, webhook=True)
    assert world.live is not None
    (shortage,) = troubles(world.live)["shortages"]
    assert len(world.check(0, shortages=[shortage])) == 1
    withdrawn = [replace(shortage, scope="EC2 reservation cr-1")]
    assert world.check(30, shortages=withdrawn) == []
    assert world.check(HOLD.total_seconds(), shortages=withdrawn) == []


def test_a_failed_message_is_retried_and_no_secret_is_logged(inbox: Inbox) -> None:
    world = World(inbox, webhook=True)
    assert world.live is not None
    inbox.answers = [503] * (ATTEMPTS - 1)
    assert len(world.check(0, **troubles(world.live))) == 3, "the third attempt is accepted"

    world = World(inbox, webhook=True)
    inbox.answers = [503] * ATTEMPTS
    with capture_logs() as logs:
        assert world.live is not None and world.check(0, **troubles(world.live)) == []
        inbox.answers = [400]
        assert world.check(30) == []
        assert len(world.check(30)) == 3
        inbox.close()
        world.restart()
        world.check(60, **over(world.live))
        world.check(HOLD.total_seconds())
    assert [entry["event"] for entry in logs] == ["notification not sent"] * 3
    assert logs[0]["error"] == "127.0.0.1 answered 503"
    assert TOKEN not in json.dumps(logs, default=str)
    structlog.reset_defaults()


def test_alerts_are_bounded_and_a_standby_sends_none(inbox: Inbox) -> None:
    world = World(inbox, webhook=False)
    assert world.live is not None
    many = [odcr(f"cr-{n}", end=world.live.now) for n in range(MOST_ALERTS + 10)]
    ((_, bodies),) = world.check(0, odcrs=many)
    assert len(bodies) == MOST_ALERTS
    world.live = None
    world.notifier.check()
    assert inbox.taken() == []


def test_a_wrong_url_is_reported_without_its_value() -> None:
    assert not Notifier(Settings(), lambda: None, lambda: None, clock=NoWait()).enabled
    for start in ("hooks.example", "https://hooks.example:99999", "https://[hooks.example", "https://:443"):
        (problem,) = problems(Settings(notify_webhook=f"{start}/{TOKEN}"), ["notify_webhook"])
        assert "--notify-webhook (BROKER_NOTIFY_WEBHOOK)" in problem and TOKEN not in problem


@pytest.mark.parametrize("start", ["https://user[:password@hooks.example:8443", "http://[::1]:9093"])
def test_every_accepted_url_can_be_sent_to(start: str) -> None:
    url = f"{start}/{TOKEN}"
    settings = Settings(notify_alertmanager=url, notify_webhook=url)
    assert problems(settings, ["notify_alertmanager", "notify_webhook"]) == []
    assert Notifier(settings, lambda: None, lambda: None, clock=NoWait()).enabled
