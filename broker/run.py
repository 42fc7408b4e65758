"""`capacity-broker run`: the process around the broker: logs, HTTP, signals, leadership."""

from __future__ import annotations

import resource
import signal
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from errno import EACCES, EADDRINUSE
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from broker import logs, memory
from broker.app import LEASE, REGISTRIES, Broker
from broker.commands.explain.live import LIVE
from broker.kube.client import Client
from broker.kube.clock import Clock, SystemClock
from broker.kube.errors import ApiError
from broker.kube.identity import NAMESPACE, IdentityDiffers, cluster_uid, compare, pin
from broker.kube.lease import Elector, LeaseLost
from broker.notifications.notifier import Notifier
from broker.oncall.http import HttpServer
from broker.options import BadOptions, called, exposed, problems, without_effect
from broker.scheduler import SCHEDULER_LEASE, Scheduler
from broker.settings import Settings
from broker.webpage.assembly import OnCallViews
from providers.base import CapacityProvider
from providers.errors import ProviderError
from providers.model import EksCluster

if TYPE_CHECKING:
    from broker.admission.webhook import Webhook

# In a pod, the CA of the cluster's own API server.
SERVICE_ACCOUNT_CA = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
# Seconds between two attempts to read cluster, account and Region.
UNKNOWN = 5.0
# The seconds between two comparisons by a leader: its credentials may change to another account's.
COMPARE = 60.0

P = TypeVar("P", Broker, Scheduler)

_log = structlog.get_logger("app")


def discovered(settings: Settings, describe: Callable[[], EksCluster]) -> Settings:
    """The settings with endpoint and CA of the EKS cluster where they are empty.

    In a pod the CA is the service account's. Raises ValueError with the ways out.
    """
    ca = settings.cluster_ca
    if not ca and SERVICE_ACCOUNT_CA.is_file():
        ca = b64encode(SERVICE_ACCOUNT_CA.read_bytes()).decode()
    if settings.cluster_endpoint and ca:
        return replace(settings, cluster_ca=ca)
    try:
        facts = describe()
    except ProviderError as error:
        raise ValueError(
            f"endpoint and CA of cluster {settings.cluster_name} are not known: {error}. Allow "
            "eks:DescribeCluster on this cluster, correct --cluster-name (CLUSTER_NAME) or --region "
            "(AWS_REGION), or set --cluster-endpoint (CLUSTER_ENDPOINT) and --cluster-ca (CLUSTER_CA_BUNDLE)"
        ) from error
    endpoint = settings.cluster_endpoint or facts.endpoint
    return replace(settings, cluster_endpoint=endpoint, cluster_ca=ca or facts.ca_bundle)


def serve(
    settings: Settings,
    client: Client,
    provider: CapacityProvider,
    *,
    registries: Sequence[CollectorRegistry] = (),
) -> None:
    """Runs until SIGTERM or SIGINT; /metrics shows `registries` besides the broker's own. The scheduler runs
    beside the broker unless the settings switch it off.

    Raises ValueError for an invalid setting, IdentityDiffers if cluster, account, Region or cluster name is
    not the pinned one.
    """
    if wrong := [*problems(settings), *exposed(settings)]:
        raise BadOptions(wrong)
    stop = _prepared(settings)
    leading: list[Broker | None] = [None]
    views = OnCallViews(settings, client, clock=SystemClock(), explainer=LIVE)

    def running(broker: Broker | None) -> None:
        leading[0] = broker
        views.follow(broker)

    http = _probes(settings, leading, registries)
    if parts := without_effect(settings):
        _log.warning("--buy-dollars is 0: nothing is bought, and these have no effect", options=parts)
    cluster, endpoint = settings.cluster_name, settings.cluster_endpoint
    _log.info("serving", url=http.url, cluster=cluster, endpoint=endpoint, region=settings.region)
    webhook = _webhook(settings, client)
    notifier = Notifier(
        settings, views.live, lambda: leading[0].client if leading[0] else None, clock=SystemClock()
    )
    try:
        if webhook is not None:  # standbys answer reviews, too
            _listen(webhook.start, settings, "webhook_port")
        _listen(views.start, settings, "web_port")
        if views.page is not None:
            _log.info("web page", url=views.page.url)
        notifier.start()
        lead(
            client,
            provider,
            settings,
            clock=SystemClock(),
            stop=stop,
            running=running,
            scheduling=views.record,
        )
    finally:
        if webhook is not None:
            webhook.close()
        notifier.close()
        views.close()
        http.close()


def serve_scheduler(settings: Settings, client: Client) -> None:
    """Runs the scheduler alone until SIGTERM or SIGINT. It needs no right in AWS.

    Raises ValueError for an invalid setting.
    """
    if wrong := problems(settings):
        raise BadOptions(wrong)
    if not settings.schedulers:
        raise ValueError(
            f"{called('scheduler')} is only, and {called('scheduler_names')} is empty: name a scheduler, or "
            "write on or off"
        )
    stop = _prepared(settings)
    leading: list[Scheduler | None] = [None]

    http = _probes(settings, leading)
    _log.info("serving the scheduler alone", url=http.url, names=settings.schedulers)
    try:
        lead_scheduler(
            client, settings, clock=SystemClock(), stop=stop, running=partial(leading.__setitem__, 0)
        )
    finally:
        http.close()


def _probes(
    settings: Settings,
    leading: Sequence[Broker | Scheduler | None],
    registries: Sequence[CollectorRegistry] = (),
) -> HttpServer:
    """Serves probes and metrics. A standby is ready: it can take over at any time."""

    def ready() -> Mapping[str, bool]:
        return leading[0].ready() if leading[0] else {"standby": True}

    http = HttpServer(
        host=settings.http_host,
        port=settings.http_port,
        ready=ready,
        registries=(*REGISTRIES, *registries),
    )
    _listen(http.start, settings, "http_port")
    return http


def _prepared(settings: Settings) -> threading.Event:
    """Prepares the process; returns the event that a signal sets."""
    logs.configure(level=settings.log_level, format_=settings.log_format)
    memory.share()
    allow_many_files()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def taken_ports(settings: Settings) -> Iterator[str]:
    """A sentence for each port that this process cannot have now, or for its address."""
    with ExitStack() as listeners:
        listening = {"http_port": True, "webhook_port": settings.webhook_port > 0, "web_port": settings.web}
        names = [name for name, serves in listening.items() if serves and not problems(settings, [name])]
        for place, name in enumerate(names):
            number = getattr(settings, name)
            if other := next((item for item in names[:place] if 0 < getattr(settings, item) == number), ""):
                yield f"{called(name)} is {number}: {called(other)} has it; write another port"
                continue
            try:
                listener = socket.create_server((_host(settings, name), number))
            except OSError as error:
                yield _refused(error, settings, name)
            else:
                listeners.enter_context(listener)


def _listen(start: Callable[[], None], settings: Settings, port: str) -> None:
    """Starts a server. Raises ValueError, which names the option to change."""
    try:
        start()
    except OSError as error:
        raise ValueError(_refused(error, settings, port)) from error


def _refused(error: OSError, settings: Settings, port: str) -> str:
    host, number = _host(settings, port), getattr(settings, port)
    if error.errno in (EADDRINUSE, EACCES):
        why = "another process has it" if error.errno == EADDRINUSE else "this process may not take it"
        return f"{called(port)} is {number}: {why} at {host}; write a free port"
    name = "web_host" if port == "web_port" else "http_host"
    return f"{called(name)} is {host!r}: nothing can listen there: {error}"


def _host(settings: Settings, port: str) -> str:
    return settings.web_host if port == "web_port" else settings.http_host


def _webhook(settings: Settings, client: Client) -> Webhook | None:
    if not settings.webhook_port:
        return None
    from broker.admission.webhook import (  # with all of TLS, which other code does not need
        Webhook,
        WebhookService,
    )

    return Webhook(
        client,
        WebhookService(
            namespace=settings.namespace,
            service=settings.webhook_service,
            host=settings.http_host,
            port=settings.webhook_port,
        ),
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
    scheduling: Callable[[Scheduler | None], None] = lambda _: None,
) -> None:
    """Runs brokers, one in each term of leadership, until `stop` is set. Reports each to `running`.

    A cluster has one Lease, whatever the settings are. A leader compares its identity with the stored one
    before anything else, and again while it leads (broker.kube.identity). Raises IdentityDiffers after it
    released the Lease. A process with a different identity at its start does not take part in the election.

    Unless the settings switch it off, the scheduler competes for its own Lease beside the broker.
    """

    def facts() -> Mapping[str, str]:
        return {
            "clusterUID": cluster_uid(client),
            "clusterName": settings.cluster_name,
            "accountID": provider.account_id(cached=False),
            "region": settings.region,
        }

    def term(lost: LeaseLost) -> None:
        writer = client.replace(guard=lost.guard)
        while not _known(lambda: pin(writer, facts()), "not leading"):
            if clock.wait(lost, UNKNOWN):
                return
        broker = Broker(writer, provider, settings, clock=clock)
        differing: list[IdentityDiffers] = []

        def compare_again() -> None:
            """In its own thread: a slow answer of AWS must not delay the end of the term."""
            while not clock.wait(lost, COMPARE):
                try:
                    _known(lambda: compare(client, facts()), "not compared")
                except IdentityDiffers as error:
                    differing.append(error)
                    lost.set()

        threading.Thread(target=compare_again, name="identity", daemon=True).start()
        _lead_until(lost, broker, running, clock)
        if differing:
            raise differing[0]

    _known(lambda: compare(client, facts()), "not compared")
    if not settings.leader_election:
        _log.warning("--no-leader-election: this replica never leads, so it launches and changes nothing")
        clock.wait(stop)
        return
    elector = Elector(client, LEASE, NAMESPACE, settings.identity, clock)
    ended = threading.Event()

    def end() -> None:
        clock.wait(stop)
        ended.set()
        elector.stop()

    threading.Thread(target=end, name="end of election", daemon=True).start()
    with ThreadPoolExecutor(1, "scheduler") as pool:
        beside = None
        if settings.scheduler == "on" and settings.schedulers:
            beside = pool.submit(
                lead_scheduler, client, settings, clock=clock, stop=ended, running=scheduling
            )
            beside.add_done_callback(lambda _: elector.stop())  # its failure ends the process
        try:
            elector.run(term)
        finally:
            ended.set()
        if beside is not None:
            beside.result()


def lead_scheduler(
    client: Client,
    settings: Settings,
    *,
    clock: Clock,
    stop: threading.Event,
    running: Callable[[Scheduler | None], None] = lambda _: None,
) -> None:
    """Runs schedulers, one in each term of leadership, until `stop` is set. Reports each to `running`.

    Its Lease is its own: neither this leadership nor that of the broker ends with the other.
    """
    if not settings.leader_election:
        _log.warning("--no-leader-election: this replica never leads, so it places no pod")
        clock.wait(stop)
        return
    elector = Elector(client, SCHEDULER_LEASE, NAMESPACE, settings.identity, clock)

    def term(lost: LeaseLost) -> None:
        scheduler = Scheduler(client.replace(guard=lost.guard), settings, clock=clock)
        _lead_until(lost, scheduler, running, clock)

    def end() -> None:
        clock.wait(stop)
        elector.stop()

    threading.Thread(target=end, name="end of scheduling", daemon=True).start()
    elector.run(term)


def _lead_until(lost: LeaseLost, part: P, running: Callable[[P | None], None], clock: Clock) -> None:
    running(part)
    part.start()
    try:
        clock.wait(lost)
    finally:
        running(None)
        part.stop()


def _known(read: Callable[[], object], otherwise: str) -> bool:
    """True if cluster and account could be read. Otherwise it logs the consequence `otherwise`."""
    try:
        read()
    except (ApiError, ProviderError) as error:
        _log.warning(f"cluster, account and Region are not known yet: {otherwise}", error=str(error))
        return False
    return True


def allow_many_files() -> None:
    """Raises the soft limit to the hard one; many systems start a process with 1,024, as select(2) needs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
