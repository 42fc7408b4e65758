"""The webhook beside the broker: it runs in every replica, leader or standby.

Invariant: nothing depends on it. Requests that it cannot check are admitted and checked by the controllers.
A replica without a certificate answers no handshake, and API servers go on without it (failurePolicy
Ignore).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson
from aiohttp import web
from prometheus_client import Counter, Gauge

from broker.admission import certificates, registration
from broker.admission.certificates import StoredCertificates
from broker.admission.reads import RecentReads
from broker.admission.registration import WebhookRegistration
from broker.admission.review import NotAReview, answer
from broker.admission.rules import KINDS, Rules
from broker.kube.batch import Batcher
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded
from broker.kube.singleton import Singleton
from broker.web import WebServer

EVERY: Final = 60.0  # seconds between two checks of certificates and registration
LARGEST: Final = 8 << 20  # bytes of a review, which holds two objects
AT_ONCE: Final = 16  # reviews under way; API servers go on without the answer to one more
BODY: Final = 5.0  # seconds in which a review arrives
# Keys are handed to the TLS library as files; here they never come to a disk.
_MEMORY: Final = Path("/dev/shm")

REVIEWS = Counter(
    "capacity_broker_webhook_reviews",
    "Reviews that the webhook answered, by kind and outcome: admitted, warned, refused, failed, busy.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
ENDS = Gauge(
    "capacity_broker_webhook_certificate_end_timestamp_seconds",
    "When the certificate ends that the webhook serves with; it is renewed a month before.",
    registry=REGISTRY,
)


@dataclass(frozen=True, kw_only=True)
class WebhookService:
    """The Service by which API servers reach the webhook, and the host and port where it listens.

    `url`: API servers do not reach the Service, and use the host and port themselves.
    """

    namespace: str
    service: str
    host: str
    port: int
    url: bool = False


class Webhook:
    """Serves from `start` to `close`."""

    def __init__(
        self,
        client: Client,
        address: WebhookService,
        *,
        default_cohort: str,
        strict: bool,
        clock: Clock,
    ) -> None:
        # It must have an answer before the API server gives up on it.
        reads = RecentReads(client.replace(timeout=registration.SECONDS / 2), clock=clock)
        self._rules = Rules(reads=reads, default_cohort=default_cohort, strict=strict)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._serving: StoredCertificates | None = None
        self._under_way = 0  # in the server's thread only
        self.server = WebServer(
            [web.post(registration.PATH, self._review)],
            host=address.host,
            port=address.port,
            name="webhook",
            tls=self._tls,
            largest=LARGEST,
        )
        self._client, self._clock = client, clock
        self._by_url = address.host if address.url else ""
        self._address, self._names = registration.service(address.service, address.namespace)
        self._namespace = address.namespace
        self._loop = Singleton(
            "webhook", self._keep, batcher=Batcher[str]("webhook", clock=clock), clock=clock, every=EVERY
        )

    def start(self) -> None:
        """Raises OSError naming the address when the port is taken."""
        self.server.start()
        if self._by_url:
            self._address, self._names = {"url": self.server.url + registration.PATH}, (self._by_url,)
        self._loop.start()

    def close(self) -> None:
        self._loop.stop()
        self.server.close()

    def _keep(self, _items: Sequence[str]) -> None:
        kept = WebhookRegistration(
            client=self._client,
            namespace=self._namespace,
            dns=self._names,
            address=self._address,
            clock=self._clock,
        ).keep()
        served = self._serving.serving if self._serving is not None else None
        if kept.serving is not None and (served is None or served.certificate != kept.serving.certificate):
            self.server.between_requests(lambda: _load(self._tls, kept))
            ENDS.set(kept.serving.ends.timestamp())
        self._serving = kept

    async def _review(self, request: web.Request) -> web.Response:
        if self._under_way >= AT_ONCE:
            REVIEWS.labels("unknown", "busy").inc()
            return web.Response(status=429, text=f"{AT_ONCE} reviews are under way already: try again\n")
        self._under_way += 1
        try:
            async with asyncio.timeout(BODY):
                content = await request.read()
            return await asyncio.to_thread(self._answer, orjson.loads(content))
        except TimeoutError:
            return web.Response(status=408, text=f"the review was not complete within {BODY:.0f} s\n")
        except orjson.JSONDecodeError as error:
            return web.Response(status=400, text=f"not JSON: {error}\n")
        finally:
            self._under_way -= 1

    def _answer(self, body: Any) -> web.Response:
        kind = _kind(body)
        with guarded("webhook", kind=kind):
            try:
                reply = answer(body, self._rules)
            except NotAReview as error:
                return web.Response(status=400, text=f"{error}\n")
            response = reply["response"]
            outcome = (
                "refused" if not response["allowed"] else "warned" if "warnings" in response else "admitted"
            )
            REVIEWS.labels(kind, outcome).inc()
            return web.json_response(body=orjson.dumps(reply))
        REVIEWS.labels(kind, "failed").inc()
        return web.Response(status=500, text="a bug, see the log of this replica\n")


def _kind(body: Any) -> str:
    """One of a few, since it is a label."""
    try:
        kind = body["request"]["kind"]["kind"]
    except (KeyError, TypeError):
        return "unknown"
    return kind if isinstance(kind, str) and kind in KINDS else "unknown"


def _load(tls: ssl.SSLContext, kept: StoredCertificates) -> None:
    """Handshakes from now on are answered with it."""
    certificate, key = certificates.chain(kept)
    with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        file = Path(folder) / "serving.pem"
        file.touch(mode=0o600)
        file.write_bytes(certificate + key)
        tls.load_cert_chain(file)
