"""The server: replicas over real TLS, certificates renewed under them, bodies that are not reviews."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import urllib3
from cryptography import x509

from broker.admission import certificates
from broker.admission import webhook as webhook_module
from broker.admission.registration import SECRET
from broker.admission.review import answer
from broker.admission.webhook import EVERY, Webhook, WebhookService
from broker.apis.admission import Secret
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.ome import CapacityReservation
from broker.kube.client import Client
from broker.kube.errors import Invalid
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock
from tests.unit.admission.reviews import Json, group, reservation, review

SERVICE = ("ns", "capacity-broker", 443)
# Certificates are judged by the real clock, so the broker's clock starts early enough that its certificates
# expire after today.
LONG_AGO = datetime.now(UTC).replace(microsecond=0) - timedelta(days=70)


class World:
    def __init__(self) -> None:
        self.clock = FakeClock(LONG_AGO)
        self.cluster = Cluster()
        self.client = Client(InProcessTransport(self.cluster))
        self.client.create(
            CRD, next(c for c in load() if c["spec"]["names"]["kind"] == "CapacityReservation")
        )
        self.cluster.create("/api/v1/namespaces", {"metadata": {"name": "ns"}})
        self.running: list[Webhook] = []

    def start(self, *, at: int = 0, step: float = 0.0) -> Webhook:
        """Starts a replica on port `at`, once it has a certificate; the Service points to it."""
        webhook = Webhook(
            self.client,
            WebhookService(namespace="ns", service="capacity-broker", host="127.0.0.1", port=at),
            default_cohort="",
            strict=False,
            clock=self.clock,
        )
        self.running.append(webhook)
        webhook.start()
        self.clock.until(lambda: serial(webhook) != 0, step=step)
        self.lead_to(webhook)
        return webhook

    def lead_to(self, webhook: Webhook) -> None:
        self.cluster.services[SERVICE] = ("127.0.0.1", port(webhook))

    def refuses(self) -> bool:
        try:
            body = reservation("wrong", group(), group(), namespace="default")
            self.client.raw(
                "POST", CapacityReservation.KIND.path(namespace="default"), {"dryRun": "All"}, body
            )
        except Invalid as error:
            return "denied the request" in error.message
        return False

    def kept(self) -> certificates.StoredCertificates:
        return certificates.read(self.client.get(Secret.KIND, SECRET, namespace="ns")["data"])


def port(webhook: Webhook) -> int:
    return int(webhook.server.url.rpartition(":")[2])


def serial(webhook: Webhook) -> int:
    """The serial number of the certificate in a handshake; 0 while there is none."""
    trust_all = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust_all.check_hostname, trust_all.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(("127.0.0.1", port(webhook)), 10) as plain,
            trust_all.wrap_socket(plain) as tls,
        ):
            certificate = tls.getpeercert(binary_form=True)
    except OSError:
        return 0
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


@pytest.fixture
def world() -> Iterator[World]:
    environment = World()
    try:
        yield environment
    finally:
        for webhook in environment.running:
            webhook.close()


def test_every_replica_answers_for_the_service(world: World) -> None:
    first, second = world.start(), world.start()
    assert serial(first) == serial(second)
    for webhook in (first, second):
        world.lead_to(webhook)
        assert world.refuses()
    first.close()
    world.running.remove(first)
    assert world.refuses()


def test_certificates_are_renewed_without_a_restart(world: World) -> None:
    webhook = world.start()
    before = serial(webhook)
    world.clock.threads()
    world.clock.advance(timedelta(days=65).total_seconds())
    world.clock.until(lambda: serial(webhook) != before)
    kept = world.kept()
    assert kept.serving is not None
    assert serial(webhook) == kept.serving.certificate.serial_number
    assert world.refuses()


def test_a_replica_serves_the_certificate_that_another_renewed(world: World) -> None:
    webhook = world.start()
    world.client.delete(Secret.KIND, SECRET, namespace="ns")
    other = world.start()
    assert serial(other) != serial(webhook)
    world.clock.until(lambda: serial(webhook) == serial(other), step=EVERY)
    world.lead_to(webhook)
    assert world.refuses()


def test_an_api_server_outage_delays_only_the_certificate(world: World) -> None:
    """Refused at first, then retried: the webhook serves as soon as it may."""
    world.cluster.faults.fail(verb="get", resource="secrets", code=503, times=2)
    world.start(step=1.0)
    assert world.refuses()


BODIES = {
    b"{": "not JSON",
    b'{"kind": "Pod", "apiVersion": "v1"}': "this is Pod of v1",
    b"[]": "this is list",
}


@pytest.mark.covers("FLT-67")
def test_a_body_that_is_no_review_gets_status_400(world: World) -> None:
    webhook = world.start()
    trust = ssl.create_default_context(cadata=world.kept().bundle.decode())
    name = "capacity-broker.ns.svc"
    with urllib3.HTTPSConnectionPool(
        "127.0.0.1", port(webhook), ssl_context=trust, server_hostname=name, assert_hostname=name
    ) as pool:
        for body, words in BODIES.items():
            answer = pool.urlopen("POST", "/validate", body=body)
            assert (answer.status, words in answer.data.decode()) == (400, True)
        answer = pool.request("POST", "/validate", json=review(reservation("r")))
        assert answer.json()["response"] == {"uid": "u-1", "allowed": True}
        kinds: tuple[Any, ...] = ([], {}, None, 3)
        for kind in kinds:
            strange = review(reservation("r"))
            strange["request"]["kind"] = {"kind": kind}
            assert pool.request("POST", "/validate", json=strange).status == 200
        assert pool.urlopen("GET", "/validate").status == 405


@pytest.mark.covers("SAF-58")
def test_reviews_over_the_concurrency_limit_get_status_429(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "AT_ONCE", 1)
    entered, leave = threading.Event(), threading.Event()

    def slow(body: Any, rules: Any) -> Json:
        entered.set()
        assert leave.wait(30)
        return answer(body, rules)

    monkeypatch.setattr(webhook_module, "answer", slow)
    webhook = world.start()
    trust = ssl.create_default_context(cadata=world.kept().bundle.decode())
    name = "capacity-broker.ns.svc"
    with (
        urllib3.HTTPSConnectionPool(
            "127.0.0.1", port(webhook), ssl_context=trust, server_hostname=name, assert_hostname=name
        ) as pool,
        ThreadPoolExecutor(1) as other,
    ):
        first = other.submit(pool.request, "POST", "/validate", json=review(reservation("r")))
        assert entered.wait(30)
        assert pool.request("POST", "/validate", json=review(reservation("r"))).status == 429
        leave.set()
        assert first.result(30).status == 200
        assert pool.request("POST", "/validate", json=review(reservation("r"))).status == 200


def test_a_taken_port_is_an_error_that_names_it(world: World) -> None:
    taken = port(world.start())
    with pytest.raises(OSError, match=str(taken)):
        world.start(at=taken)
