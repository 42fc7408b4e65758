"""The servers of a demo: local AWS, an embedded API server, and a broker on both; with waiting and
printing.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from broker import logs
from broker.app import LEASE, Broker
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.commands.crds.install import install
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.identity import NAMESPACE
from broker.kube.lease import Elector
from broker.scheduler import Scheduler
from broker.settings import Settings
from local.aws import LocalAws
from local.demo import account
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from local.kube.collector import Collector
from providers.aws import AwsProvider

NAME = "capacity-broker"
PATIENCE = 240.0  # seconds, on a slow machine
DOLLARS = 100.0  # an hour, without a real cost: the examples with purchases can be tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that a demo runs on. The Lease shows other commands that a broker runs."""

    aws: LocalAws
    api: ApiServer
    client: Client
    provider: AwsProvider
    ids: account.ExampleIds
    broker: Broker
    scheduler: Scheduler
    elector: Elector
    settings: Settings

    def start(self) -> None:
        leading = threading.Event()

        def lead(lost: threading.Event) -> None:
            leading.set()
            lost.wait()

        threading.Thread(target=self.elector.run, args=(lead,), name="lease", daemon=True).start()
        leading.wait()
        self.broker.start()
        self.scheduler.start()

    def stop(self) -> None:
        self.scheduler.stop()
        self.broker.stop()
        self.elector.stop()


def build(
    settings: Settings,
    aws: LocalAws,
    api: ApiServer,
    clock: Clock,
    registry: CollectorRegistry,
    *,
    make: Callable[[str], account.ExampleIds],
) -> Stage:
    """`make` makes the account."""
    ids = make(aws.endpoint)
    client = Client(InProcessTransport(api.cluster))
    install(client)
    provider = AwsProvider(
        cluster=account.CLUSTER, region=account.REGION, endpoint_url=aws.endpoint, registry=registry
    )
    own_settings = replace(
        settings,
        cluster_name=account.CLUSTER,
        cluster_endpoint=api.url,
        region=account.REGION,
        aws_endpoint=aws.endpoint,
        buy_dollars=DOLLARS,
    )
    return Stage(
        aws=aws,
        api=api,
        client=client,
        provider=provider,
        ids=ids,
        broker=Broker(client, provider, own_settings, clock=clock),
        scheduler=Scheduler(client, own_settings, clock=clock),
        elector=Elector(client, LEASE, NAMESPACE, settings.identity, clock),
        settings=own_settings,
    )


def prepare(settings: Settings) -> None:
    """Prepares the process for a demo: no account of the user's, and little of the broker's log."""
    own_credentials()
    # A demo prints its own output; the broker's log is optional.
    logs.configure(
        level="error" if settings.log_level == Settings.log_level else settings.log_level,
        format_=settings.log_format,
    )


@contextmanager
def servers() -> Iterator[tuple[LocalAws, ApiServer, Path]]:
    """Local AWS, an API server that tidies up, and a folder; all gone at the end."""
    cluster = Cluster()
    with (
        LocalAws() as aws,
        Collector(cluster),
        ApiServer(cluster) as api,
        tempfile.TemporaryDirectory() as folder,
    ):
        yield aws, api, Path(folder)


def own_credentials() -> None:
    """The demo never uses the user's account, even if one is configured."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        os.environ.pop(name, None)
    os.environ.update(
        AWS_ACCESS_KEY_ID="demo",
        AWS_SECRET_ACCESS_KEY="demo",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        AWS_EC2_METADATA_DISABLED="true",
    )


def where(pool: Pool) -> str:
    return f"{pool.capacity_type} {pool.instance_type} {pool.zone}"


def line(attempt: Attempt) -> str:
    """One line of the output: claim, result, pool; the full record is in `explain`."""
    match attempt.outcome:
        case Outcome.LAUNCHED | Outcome.ADOPTED:
            colour, rest = "green", attempt.instance_id
        case _:
            colour, rest = "yellow", attempt.code
    word = str(attempt.outcome).lower()
    return f"[{colour}]{attempt.claim:<14} {word:<8}[/{colour}] {where(attempt.pool):<36} {rest}"


def hints(kubeconfig: Path, endpoint: str, *commands: str, page: str = "") -> str:
    """Lines to paste: the command as it was called, and credentials without meaning outside of the demo.

    They name the cluster, because otherwise reservations with an owner in their tags count as unowned.
    `page`: the address of the web page, if it is served.
    """
    called = sys.argv[0] if Path(sys.argv[0]).name == NAME else NAME
    called_commands = (
        command.replace(NAME, called, 1) if command.startswith(NAME) else command for command in commands
    )
    return (
        f"\nIt stays up until Ctrl-C{f', with a web page at {page}' if page else ''}. "
        "In another terminal, in this folder:\n"
        f"  export KUBECONFIG={kubeconfig} CLUSTER_NAME={account.CLUSTER}\n"
        # boto3 reads AWS_DEFAULT_REGION only, other SDKs AWS_REGION.
        f"  export AWS_ENDPOINT_URL={endpoint} AWS_REGION={account.REGION} "
        f"AWS_DEFAULT_REGION={account.REGION}\n"
        "  export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo\n"
        + "".join(f"  {command}\n" for command in called_commands)
    )


def until(done: Callable[[], object], clock: Clock) -> bool:
    """Whether it came true within the demo's patience."""
    deadline = clock.monotonic() + PATIENCE
    while not done():
        if clock.monotonic() > deadline:
            return False
        clock.sleep(0.05)
    return True
