"""`capacity-broker run`: the process around the broker: logs, HTTP, signals, leadership."""

from __future__ import annotations

import signal
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from errno import EACCES, EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from broker import files, logs, memory
from broker.app import LEASE, REGISTRIES, Broker
from broker.kube.client import Client
from broker.kube.clock import Clock, SystemClock
from broker.kube.errors import ApiError
from broker.kube.identity import NAMESPACE, IdentityDiffers, cluster_uid, compare, pin
from broker.kube.lease import Elector
from broker.oncall.http import HttpServer
from broker.oncall.metrics import tune_collector
from broker.options import BadOptions, called, problems, without_effect
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.model import ProviderError

if TYPE_CHECKING:
    from broker.admission.webhook import Webhook

# In a pod, the CA of the cluster's own API server.
SERVICE_ACCOUNT_CA = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
# Seconds between two attempts to read cluster, account and Region.
UNKNOWN = 5.0
# The seconds between two comparisons by a leader: its credentials may change to another account's.
COMPARE = 60.0

_log = structlog.get_logger("app")


def unset(settings: Settings) -> str:
    """The missing options without which nodes cannot join; empty if all are set."""
    given = {
        "--cluster-name (CLUSTER_NAME)": settings.cluster_name,
        "--cluster-endpoint (CLUSTER_ENDPOINT)": settings.cluster_endpoint,
        "--cluster-ca (CLUSTER_CA_BUNDLE)": settings.cluster_ca or SERVICE_ACCOUNT_CA.is_file(),
    }
    empty = [option for option, value in given.items() if not value]
    return f"not set, though nodes cannot join without: {', '.join(empty)}" if empty else ""


def serve(
    settings: Settings,
    client: Client,
    provider: CapacityProvider,
    *,
    registries: Sequence[CollectorRegistry] = (),
) -> None:
    """Runs until SIGTERM or SIGINT; /metrics shows `registries` besides the broker's own.

    Raises ValueError for an invalid setting, IdentityDiffers if cluster, account, Region or cluster name is
    not the pinned one.
    """
    if problem := unset(settings):
        raise ValueError(problem)
    if not settings.cluster_ca:
        settings = replace(settings, cluster_ca=b64encode(SERVICE_ACCOUNT_CA.read_bytes()).decode())
    if wrong := problems(settings):
        raise BadOptions(wrong)
    logs.configure(level=settings.log_level, format_=settings.log_format)
    tune_collector()
    memory.share()
    files.allow_many()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    leading: list[Broker | None] = [None]

    def ready() -> Mapping[str, bool]:
        # A standby is ready: it can take over at any time.
        return leading[0].ready() if leading[0] else {"standby": True}

    def running(broker: Broker | None) -> None:
        leading[0] = broker

    http = HttpServer(
        host=settings.http_host,
        port=settings.http_port,
        ready=ready,
        healthy=lambda: {"process": True},
        registries=(*REGISTRIES, *registries),
    )
    _listen(http.start, settings, "http_port")
    if parts := without_effect(settings):
        _log.warning("--buy-dollars is 0: nothing is bought, and these have no effect", options=parts)
    _log.info("serving", url=http.url, cluster=settings.cluster_name, region=settings.region)
    webhook = _webhook(settings, client)
    try:
        if webhook is not None:  # standbys answer reviews, too
            _listen(webhook.start, settings, "webhook_port")
        lead(client, provider, settings, clock=SystemClock(), stop=stop, running=running)
    finally:
        if webhook is not None:
            webhook.close()
        http.close()


def _listen(start: Callable[[], None], settings: Settings, port: str) -> None:
    """Starts a server. Raises ValueError, which names the option to change."""
    try:
        start()
    except OSError as error:
        host, number = settings.http_host, getattr(settings, port)
        if error.errno in (EADDRINUSE, EACCES):
            why = "another process has it" if error.errno == EADDRINUSE else "this process may not take it"
            raise ValueError(f"{called(port)} is {number}: {why} at {host}; write a free port") from error
        raise ValueError(f"{called('http_host')} is {host!r}: nothing can listen there: {error}") from error


def _webhook(settings: Settings, client: Client) -> Webhook | None:
    if not settings.webhook_port:
        return None
    from broker.admission.webhook import Webhook  # with all of TLS, which other code does not need

    return Webhook(
        client,
        namespace=settings.namespace,
        service=settings.webhook_service,
        host=settings.http_host,
        port=settings.webhook_port,
        default_cohort=settings.default_cohort,
        strict=settings.strict,
        clock=SystemClock(),
    )


def lead(
    client: Client,
    provider: CapacityProvider,
    settings: Settings,
    *,
    clock: Clock,
    stop: threading.Event,
    running: Callable[[Broker | None], None],
) -> None:
    """Runs brokers, one in each term of leadership, until `stop` is set. Reports each to `running`.

    A cluster has one Lease, whatever the settings are. A leader compares its identity with the stored one
    before anything else, and again while it leads (broker.kube.identity). Raises IdentityDiffers after it
    released the Lease. A process with a different identity at its start does not even stand for election.
    """

    def facts() -> Mapping[str, str]:
        return {
            "clusterUID": cluster_uid(client),
            "clusterName": settings.cluster_name,
            "accountID": provider.account_id(cached=False),
            "region": settings.region,
        }

    def term(lost: threading.Event, writer: Client) -> None:
        while not _known(lambda: pin(writer, facts()), "not leading"):
            if clock.wait(lost, UNKNOWN):
                return
        broker = Broker(writer, provider, settings, clock=clock)
        differing: list[IdentityDiffers] = []

        def compare_again() -> None:
            """In a thread of its own: a slow answer of AWS must not delay the end of the term."""
            while not clock.wait(lost, COMPARE):
                try:
                    _known(lambda: compare(client, facts()), "not compared")
                except IdentityDiffers as error:
                    differing.append(error)
                    lost.set()

        running(broker)
        broker.start()
        threading.Thread(target=compare_again, name="identity", daemon=True).start()
        try:
            clock.wait(lost)
        finally:
            running(None)
            broker.stop()
        if differing:
            raise differing[0]

    _known(lambda: compare(client, facts()), "not compared")
    if not settings.leader_election:
        _log.warning("--no-leader-election: this replica never leads, so it launches and changes nothing")
        clock.wait(stop)
        return
    elector = Elector(client, LEASE, NAMESPACE, settings.identity, clock)

    def end() -> None:
        clock.wait(stop)
        elector.stop()

    threading.Thread(target=end, name="end of election", daemon=True).start()
    elector.run(lambda lost: term(lost, client.replace(guard=elector.guard)))


def _known(look: Callable[[], object], otherwise: str) -> bool:
    """True if cluster and account could be read. Otherwise it logs the consequence `otherwise`."""
    try:
        look()
    except (ApiError, ProviderError) as error:
        _log.warning(f"cluster, account and Region are not known yet: {otherwise}", error=str(error))
        return False
    return True
