"""Sends alerts while this process leads, in its own thread: no loop of the broker waits for it.

Alertmanager gets every alert at each check, as a heartbeat, with an end that comes by itself if this process
dies. A webhook gets one message when an alert begins and one when it is over. An alert is over once it was
absent for `HOLD`: a new leader, which has little data at first, ends none too early, and a flapping alert is
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
import structlog
import tenacity
import urllib3
from prometheus_client import Counter
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers, parse_url

from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.kube.panics import guarded
from broker.notifications import record
from broker.notifications.alerts import FiringAlert, firing_alerts
from broker.oncall.metrics import REGISTRY
from broker.settings import Settings
from broker.webpage.live import Live

INTERVAL: Final = 30.0  # seconds
HOLD: Final = timedelta(minutes=5)
LASTS: Final = timedelta(minutes=4)  # of an alert in Alertmanager without another message
ALERTMANAGER, WEBHOOK = "alertmanager", "webhook"
PATH: Final = "/api/v2/alerts"

SENT: Final = Counter(
    "capacity_broker_notifications",
    "Messages about alerts, by target (alertmanager, webhook) and result (sent, failed).",
    ["target", "result"],
    registry=REGISTRY,
)
_log = structlog.get_logger("notifications")
CONNECT: Final = 3.0
READ: Final = 5.0
ATTEMPTS: Final = 3
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class Notifier:
    """`start` begins to check. `live` is the state to report, and `client` writes the record: both are None
    while this process does not lead.
    """

    def __init__(
        self, settings: Settings, live: Live, client: Callable[[], Client | None], *, clock: Clock
    ) -> None:
        self._live, self._client, self._clock = live, client, clock
        self._cluster, self._runbooks = settings.cluster_name, runbooks_url(settings)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._alertmanager = self._receiver(alerts_url(settings.notify_alertmanager))
        self._webhook = self._receiver(settings.notify_webhook)
        self._forget()

    @property
    def enabled(self) -> bool:
        return self._alertmanager is not None or self._webhook is not None

    def start(self) -> None:
        if self.enabled:
            self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def check(self) -> None:
        """Compares the present alerts with those that were sent, and sends the difference."""
        live = self._live()
        if live is None or live.described is None:
            if live is None:
                self._forget()
            return
        if self._sent is None and not self._read(live.now):
            return
        present = {alert.id: alert for alert in firing_alerts(live, cluster=self._cluster)}
        for id_, alert in present.items():
            first = self._firing.get(id_, alert)
            self._firing[id_] = FiringAlert(
                labels=alert.labels, description=alert.description, since=min(first.since, alert.since)
            )
            self._seen[id_] = live.now
        over = {id_ for id_ in self._firing if live.now - self._seen[id_] >= HOLD}
        self._heartbeat(over, live.now)
        self._send_changes(over, live.now)
        for id_ in over - {*(self._sent or {})}:
            del self._firing[id_], self._seen[id_]

    # ---- how

    def _receiver(self, url: str) -> Receiver | None:
        return Receiver(url, sleep=self._pause) if url else None

    def _pause(self, seconds: float) -> None:
        self._clock.wait(self._stop, seconds)

    def _forget(self) -> None:
        """At the end of a term: the next leader may be another process."""
        self._firing: dict[str, FiringAlert] = {}
        self._seen: dict[str, datetime] = {}
        self._sent: dict[str, FiringAlert] | None = None

    def _run(self) -> None:
        while not self._clock.wait(self._stop, INTERVAL):
            with guarded("notifications"):
                self.check()

    def _read(self, now: datetime) -> bool:
        """Whether the record of the leader before is known."""
        recorded: dict[str, FiringAlert] = {}
        client = self._client()
        if self._webhook is not None:
            if client is None:
                return False
            try:
                recorded = record.read(client)
            except ApiError as error:
                _log.warning("alerts of the leader before not read: nothing is sent", error=str(error))
                return False
        self._sent = recorded
        self._firing, self._seen = dict(recorded), dict.fromkeys(recorded, now)
        return True

    def _heartbeat(self, over: set[str], now: datetime) -> None:
        """All alerts in one message; those that are over end now."""
        if self._alertmanager is None or not self._firing:
            return
        bodies = [
            alert.body(now, now if id_ in over else now + LASTS, runbooks=self._runbooks)
            for id_, alert in self._firing.items()
        ]
        self._send(ALERTMANAGER, self._alertmanager, bodies)

    def _send_changes(self, over: set[str], now: datetime) -> None:
        """A message for each alert that began or is over. After a failure the rest waits."""
        if self._webhook is None or self._sent is None:
            return
        sent = dict(self._sent)
        begun = [id_ for id_ in self._firing if id_ not in over and id_ not in sent]
        for id_ in [*begun, *(over & sent.keys())]:
            alert, ends = self._firing[id_], now if id_ in over else None
            if not self._send(
                WEBHOOK, self._webhook, message(alert, now, ends=ends, runbooks=self._runbooks)
            ):
                break
            if ends:
                del sent[id_]
            else:
                sent[id_] = alert
        self._record_sent(sent)

    def _record_sent(self, sent: dict[str, FiringAlert]) -> None:
        if sent.keys() == (self._sent or {}).keys():
            return
        self._sent = sent
        client = self._client()
        try:
            if client is not None:
                record.write(client, sent)
        except ApiError as error:
            _log.warning("sent alerts not recorded: a restart may repeat them", error=str(error))

    def _send(self, target: str, receiver: Receiver, body: object) -> bool:
        try:
            receiver.send(body)
        except DeliveryError as error:
            SENT.labels(target, "failed").inc()
            _log.warning("notification not sent", target=target, error=str(error))
            return False
        SENT.labels(target, "sent").inc()
        return True


def alerts_url(url: str) -> str:
    """The address of Alertmanager's alerts, of its own address or with the path already; empty for none."""
    if not url or (parse_url(url).path or "").endswith(PATH):
        return url
    return url.rstrip("/") + PATH


def runbooks_url(settings: Settings) -> str:
    """The URL of the runbooks' folder: that of the settings, else on the web page; empty without a page."""
    page = f"http://127.0.0.1:{settings.web_port}/docs/runbooks" if settings.web else ""
    return settings.runbooks.rstrip("/") or page


def message(
    alert: FiringAlert, now: datetime, *, ends: datetime | None = None, runbooks: str = ""
) -> Mapping[str, object]:
    """The webhook's JSON: the form of Alertmanager's own webhook messages (https://prometheus.io/docs/alerting/
    latest/configuration/#webhook_config), with one alert."""
    status = "resolved" if ends else "firing"
    body = alert.body(now, ends, runbooks=runbooks)
    alerts: Sequence[Mapping[str, object]] = [{"status": status, "fingerprint": alert.id, **body}]
    return {
        "version": "4",
        "groupKey": alert.id,
        "status": status,
        "receiver": "capacity-broker",
        "groupLabels": {"alertname": alert.labels["alertname"]},
        "commonLabels": body["labels"],
        "commonAnnotations": body["annotations"],
        "externalURL": "",
        "truncatedAlerts": 0,
        "alerts": alerts,
    }


class DeliveryError(Exception):
    """A message was not accepted. `retryable`: whether the same message may be accepted later."""

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


def _retryable(error: BaseException) -> bool:
    return isinstance(error, DeliveryError) and error.retryable


class Receiver:
    """An address that takes JSON. `sleep` waits between two attempts.

    A URL may hold a token or a password, so neither the log nor an error has more of it than the host.
    """

    def __init__(self, url: str, *, sleep: Callable[[float], None]) -> None:
        parsed = parse_url(url)
        self.host = parsed.host or ""
        headers = {"Content-Type": "application/json", "User-Agent": "capacity-broker"}
        if parsed.auth:
            headers |= make_headers(basic_auth=parsed.auth)
        self._url, self._headers = parsed._replace(auth=None).url, headers
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=CONNECT, read=READ), retries=False, maxsize=1
        )
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
            retry=tenacity.retry_if_exception(_retryable),
            sleep=sleep,
            reraise=True,
        )

    def send(self, body: Any) -> None:
        """Raises DeliveryError after the last attempt."""
        self._retrying(self._post, orjson.dumps(body))

    def close(self) -> None:
        self._pool.clear()

    def _post(self, body: bytes) -> None:
        try:
            response = self._pool.request(
                "POST", self._url, body=body, headers=self._headers, redirect=False, preload_content=False
            )
        except HTTPError as error:  # its text has the path of the URL
            raise DeliveryError(
                f"{self.host} gave no answer: {type(error).__name__}", retryable=True
            ) from None
        response.close()  # the body is not read: it may be large
        if response.status >= 300:
            raise DeliveryError(
                f"{self.host} answered {response.status}", retryable=response.status in _RETRYABLE
            )
