"""`capacity-broker run`: the process around the broker: logs, HTTP, signals, leadership."""

from __future__ import annotations

import signal
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from broker import logs
from broker.app import REGISTRIES, Broker, lead
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.oncall.http import HttpServer
from broker.oncall.metrics import tune_collector
from broker.settings import Settings
from providers.base import CapacityProvider

# In a pod, the CA of the cluster's own API server.
SERVICE_ACCOUNT_CA = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")

_log = structlog.get_logger("app")


def serve(
    settings: Settings,
    client: Client,
    provider: CapacityProvider,
    *,
    registries: Sequence[CollectorRegistry] = (),
) -> None:
    """Runs until SIGTERM or SIGINT; `registries` are shown on /metrics besides the broker's own.

    Raises ValueError for a bad setting, OSError for a taken port."""
    if not settings.cluster_ca and SERVICE_ACCOUNT_CA.is_file():
        settings = replace(settings, cluster_ca=b64encode(SERVICE_ACCOUNT_CA.read_bytes()).decode())
    for option, value in (
        ("--cluster-name (CLUSTER_NAME)", settings.cluster_name),
        ("--cluster-endpoint (CLUSTER_ENDPOINT)", settings.cluster_endpoint),
        ("--cluster-ca (CLUSTER_CA_BUNDLE)", settings.cluster_ca),
    ):
        if not value:
            raise ValueError(f"{option} is empty: nodes cannot join without it")
    logs.configure(level=settings.log_level, format_=settings.log_format)
    tune_collector()
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
    http.start()
    _log.info("serving", url=http.url, cluster=settings.cluster_name, region=settings.region)
    try:
        lead(client, provider, settings, clock=SystemClock(), stop=stop, running=running)
    finally:
        http.close()
