"""The command line: each command builds its clients, calls one module of `commands`, and ends with a code.

0: done; 1: the answer is no (a claim that cannot launch, a demo that did not end as expected); 2: there is no
answer (a bad option, no such claim, no credentials, no cluster, no permission).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker import memory
from broker.commands import advice_commands, explain_commands, oncall_commands, verb_commands
from broker.commands.examples import are_examples, local
from broker.commands.explain_commands import AWS, OWNERSHIP, PLAN
from broker.commands.help import Command, Group, KindGroup
from broker.commands.output import Format, Output, show
from broker.commands.verb_commands import CLUSTER
from broker.options import options, region_of
from broker.settings import Settings

# A command imports its modules when it is called: the SDKs of Kubernetes and AWS and the solver each take
# longer to import than most commands take to answer.
if TYPE_CHECKING:
    from broker.kube.client import Client
    from broker.kube.transports import NoClusterNamed
    from providers.aws import AwsProvider

Files = Annotated[
    list[str],
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Manifest file, or folder (without its sub-folders); - is standard input; may be repeated.",
    ),
]

_ROOMS: Final = (
    *("scheduler_names", "reservation_ttl", "longest_reservation_ttl", "kept_room_share"),
    *("gpu_memory_gb", "quota_absent_is_zero"),
)

app = typer.Typer(
    cls=Group,
    name="capacity-broker",
    help="Reserved EC2 capacity for Karpenter: reservations, their use, and the reasons of fallbacks.",
    epilog="Exit codes: 0, done; 1, a negative answer; 2, no answer, with the reason on standard error.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
crds_app = typer.Typer(
    cls=Group, help="The CustomResourceDefinitions that the broker reads.", no_args_is_help=True
)
explain_app = typer.Typer(
    cls=KindGroup, help="Explain the state of an object: TYPE NAME or TYPE/NAME.", no_args_is_help=True
)
app.add_typer(crds_app, name="crds")
app.add_typer(explain_app, name="explain")


def _client(settings: Settings) -> Client:
    from broker import logs
    from broker.kube.client import Client
    from broker.kube.transports import HttpTransport

    logs.configure(level="error", format_="auto")  # a command answers on standard output; `run` sets its own
    return Client(
        HttpTransport.from_kubeconfig(settings.kubeconfig or None, context=settings.context or None)
    )


def _unusable_options(settings: Settings) -> Iterator[str]:
    """Missing options of `run`, an invalid Region, and ports that are in use."""
    from broker.run import taken_ports

    alone = settings.scheduler == "only"
    if not settings.cluster_name and not alone:
        yield "not set, though nodes cannot join without: --cluster-name (CLUSTER_NAME)"
    yield from taken_ports(settings)
    if alone:
        return
    try:
        region_of(settings)
    except ValueError as error:
        yield str(error)


def _provider(settings: Settings, **more: Any) -> AwsProvider:
    from providers.aws import AwsProvider

    return AwsProvider(
        region=region_of(settings),
        endpoint_url=settings.aws_endpoint or None,
        profile=settings.aws_profile or None,
        **more,
    )


def _cached_provider(settings: Settings, *, cluster: str = "", kubernetes: str = "") -> AwsProvider:
    """For a short command: it reuses data that another command fetched within the hour."""
    from providers.aws.provider import KUBERNETES, CatalogSources
    from providers.aws.type_store import default_folder

    return _provider(
        settings,
        cluster=cluster,
        kubernetes_version=kubernetes or KUBERNETES,
        catalog=CatalogSources(folder=default_folder()),
    )


def _planning_provider(settings: Settings, *, kubernetes: str = "") -> AwsProvider:
    """For a command that plans: the owner of a reservation depends on the cluster's name."""
    from providers.names import TAG_CLUSTER

    provider = _cached_provider(settings, cluster=settings.cluster_name, kubernetes=kubernetes)
    if not settings.cluster_name:
        clusters = {odcr.tags[TAG_CLUSTER] for odcr in provider.reservations() if TAG_CLUSTER in odcr.tags}
        if clusters:
            others = ", ".join(sorted(clusters))
            typer.echo(
                f"reservations of {others} count as unowned: name the cluster by --cluster-name",
                err=True,
            )
    return provider


@app.command("run", cls=Command)
@options(besides=_unusable_options)
def run_command(settings: Settings) -> None:
    """Run the broker until a signal stops it."""
    from prometheus_client import CollectorRegistry

    from broker.kube.clock import SystemClock
    from broker.kube.version import ServerVersion
    from broker.run import discovered, serve, serve_scheduler
    from providers.aws.provider import CatalogSources

    if settings.scheduler == "only":
        serve_scheduler(settings, _client(settings))
        return
    settings = replace(settings, region=region_of(settings))
    aws, client = CollectorRegistry(auto_describe=True), _client(settings)
    version = ServerVersion(client, clock=SystemClock())
    version()  # without an API server nothing is begun
    provider = _provider(
        settings,
        cluster=settings.cluster_name,
        registry=aws,
        kubernetes_version=version,
        catalog=CatalogSources(isolated_vpc=settings.isolated_vpc, offers=settings.offers),
    )
    settings = discovered(settings, provider.cluster_facts)
    serve(settings, client, provider, registries=[aws])


if (register_demo := local("demo")) is not None:
    register_demo(app)


@app.command("plan", cls=Command)
@options("plan_seconds", "preference_policy", *PLAN, *_ROOMS, *OWNERSHIP, *AWS, *CLUSTER)
def plan_command(settings: Settings, filename: Files, output: Output = Format.TABLE) -> None:
    """Show a dry run for the NodeClaims and pods of these files, and the claims that it would evict. Changes
    nothing. Classes, claims, reservations, flavors and cohorts are those of the cluster; those in the files
    replace them. Claims that wait in the cluster take part; a claim that already runs is not planned again.
    """
    example_account = local("example-account") if are_examples(filename) else None
    if example_account is None:
        raise typer.Exit(_plan(settings, filename, output, lambda: _client(settings)))
    note = str(_example_only())
    typer.echo(note, err=True)  # the account takes seconds to start
    with example_account(settings) as (example_settings, fill):
        raise typer.Exit(_plan(example_settings, filename, output, _no_cluster, fill, note))


def _example_only() -> NoClusterNamed:
    from broker.commands.plan.drafts import ExampleAccount

    return ExampleAccount()


def _no_cluster() -> Client:
    raise _example_only()


def _plan(
    settings: Settings,
    filename: list[str],
    output: Format,
    connect: Callable[[], Client],
    fill: Callable[[str], str] = str,
    printed: str = "",
) -> int:
    """Prints the plan of the files, and returns the exit code. `fill` replaces placeholders. `printed`: the
    line about its source, if a person has it already.
    """
    from broker.commands import manifests
    from broker.commands.dry_run import DryRun
    from broker.commands.plan import bill, claims, drafts, pods
    from broker.kube.clock import SystemClock

    documents = manifests.read(filename, fill=fill, warn=partial(typer.echo, err=True))
    clock, provider = SystemClock(), _planning_provider(settings)
    client, alone = drafts.drafted(documents, connect)
    read = cache(partial(DryRun, client, provider, settings, clock))
    packed = pods.planned_pods(documents, client, provider, settings, clock, dry_run=read)
    documents = [*documents, *packed.claims]
    objects = [o for d in documents if (o := manifests.decode(d))]
    if not packed.notes:
        claims.check(objects, documents, where=", ".join(filename))
    if ignored := claims.unread_claims(documents):
        typer.echo(ignored, err=True)
    if packed.claims:
        client, alone = drafts.drafted(documents, connect)
    dry_run = DryRun(client, provider, settings, clock)
    if (note := alone or claims.also_planned(objects, dry_run)) and note != printed:
        typer.echo(note, err=True)
    rows, evictions, solution = claims.rows(
        [*objects, *claims.classes(client, objects, dry_run)],
        provider,
        now=clock.now(),
        seconds=settings.plan_seconds,
        timer=time.thread_time,  # a busy machine changes no answer
        where="in the files" if alone else "in the files or the cluster",
        defaults=settings.launch_defaults,
        dry_run=dry_run,
    )
    for line in (bill.summary(rows), *claims.unplanned_pools(objects), *packed.notes):
        typer.echo(line, err=output is not Format.TABLE)
    shown = claims.format_rows(rows) if output is Format.TABLE else rows
    show(shown, columns=claims.COLUMNS, extra=claims.EXTRA, format_=output)
    for eviction in evictions:
        typer.echo(str(eviction), err=output is not Format.TABLE)
    if solution.bundles:
        typer.echo(f"Solved by {solution}", err=output is not Format.TABLE)
    served = all(row["launches"] or row["runs"] for row in rows) and not packed.unserved
    return 0 if served else 1


@app.command("inventory", cls=Command)
@options("cluster_name", *AWS, *CLUSTER)
def inventory_command(settings: Settings, output: Output = Format.TABLE) -> None:
    """List every capacity reservation that the account sees: owner, idle slots and their cost."""
    from broker.commands.inventory import inventory

    odcrs, account = _inventory(settings)
    if output is not Format.TABLE:
        show(odcrs, columns=inventory.COLUMNS, format_=output)
        return
    rows = inventory.format_rows(odcrs)
    nothing = f"{account}: no capacity reservation"
    shown = inventory.columns(odcrs)
    show(rows, columns=shown, extra=inventory.EXTRA, format_=output, nothing=nothing)
    if odcrs:
        typer.echo(inventory.total(odcrs, account=account))


@app.command("idle", cls=Command)
@options("cluster_name", *AWS, *CLUSTER)
def idle_command(settings: Settings, output: Output = Format.TABLE) -> None:
    """List the idle reserved slots: owner, count, cost an hour, and time."""
    from broker.commands.inventory import inventory

    everything, account = _inventory(settings)
    idle_odcrs = inventory.idle(everything)
    if output is not Format.TABLE:
        show(idle_odcrs, columns=inventory.IDLE_COLUMNS, format_=output)
        return
    rows = inventory.format_rows(idle_odcrs)
    nothing = f"{account}: no slot is idle"
    show(rows, columns=inventory.IDLE_COLUMNS, extra=inventory.IDLE_EXTRA, format_=output, nothing=nothing)
    if idle_odcrs:
        typer.echo(inventory.total(idle_odcrs, account=account))


def _inventory(settings: Settings) -> tuple[list[dict[str, Any]], str]:
    """The rows, and the account and Region that they are of."""
    from broker.commands.inventory import inventory
    from broker.kube.clock import SystemClock

    seen, trouble = inventory.read_records(lambda: _client(settings))
    provider = _cached_provider(settings)
    odcrs = inventory.rows(provider, seen, cluster=settings.cluster_name, now=SystemClock().now())
    if trouble and odcrs:
        typer.echo(trouble, err=True)
    return odcrs, f"account {provider.account_id()}, {region_of(settings)}"


verb_commands.register(app, _client, _cached_provider)
oncall_commands.register(app, explain_app, _client)
advice_commands.register(app)
explain_commands.register(explain_app, _client, _planning_provider)
app.callback()(verb_commands.begin)


@crds_app.command("print", cls=Command)
def crds_print() -> None:
    """Print the definitions as YAML."""
    from broker.commands.crds.install import text

    sys.stdout.write(text())


@crds_app.command("check", cls=Command)
@options(*CLUSTER)
def crds_check(settings: Settings, output: Output = Format.TABLE) -> None:
    """Compare the cluster's definitions with this version's; exit 1 if a kind or a field is missing."""
    from broker.commands.crds import skew

    rows = skew.check(_client(settings))
    show(rows, columns=skew.COLUMNS, format_=output)
    raise typer.Exit(0 if skew.acceptable(rows) else 1)


@crds_app.command("install", cls=Command)
@options(*CLUSTER)
def crds_install(settings: Settings, output: Output = Format.TABLE) -> None:
    """Install the definitions that the cluster lacks; Karpenter's own stay as they are."""
    from broker.commands.crds.install import COLUMNS, install

    show(install(_client(settings)), columns=COLUMNS, format_=output)


@crds_app.command("patch", cls=Command)
@options(*CLUSTER)
def crds_patch(
    settings: Settings,
    check: Annotated[
        bool, typer.Option("--check", help="Only check; exit 1 if the property is missing or outdated.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Add capacityReservationSpec to Karpenter's definition of EC2NodeClass; nothing else in it changes."""
    from broker.commands.crds.install import PROPERTY_COLUMNS, complete, patch

    rows = patch(_client(settings), check=check)
    show(rows, columns=PROPERTY_COLUMNS, format_=output)
    raise typer.Exit(0 if complete(rows) else 1)


def main() -> None:
    """The entry point: an expected error ends in one line, not in a traceback."""
    memory.collect_seldom()
    try:
        app(prog_name=_called())
    except Exception as error:
        from broker.commands import troubles  # only when something went wrong: it knows both SDKs

        if not isinstance(error, troubles.EXPECTED_ERRORS):
            raise
        _fail(*troubles.format_errors(error))


def _called() -> str:
    """The command as it was typed: kubectl finds `kubectl-odcr` by its name."""
    return "kubectl odcr" if Path(sys.argv[0]).name == "kubectl-odcr" else "capacity-broker"


def _fail(*lines: str) -> None:
    sys.stderr.write("".join(f"{_called()}: {line}\n" for line in lines))
    raise SystemExit(2)


if __name__ == "__main__":
    main()
