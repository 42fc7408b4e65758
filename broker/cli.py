"""The command line: each command builds its clients, calls one module of `commands`, and ends with a code.

0: done; 1: the answer is no (a claim that cannot launch, a demo that did not end as expected); 2: it could
not be asked (a bad option, no such claim, no credentials, no cluster, no permission).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.commands.help import Command, Group
from broker.commands.output import Format, show, show_one
from broker.options import BadOptions, called, options
from broker.settings import Settings

# A command imports what it needs when it is called: the SDKs of Kubernetes and AWS and the solver each take
# longer to import than most commands take to answer.
if TYPE_CHECKING:
    from broker.kube.client import Client
    from providers.aws import AwsProvider

Output = Annotated[Format, typer.Option("--output", "-o", help="table, json or yaml.")]
Claim = Annotated[str, typer.Argument(metavar="NAME", help="Name of the NodeClaim.")]
Files = Annotated[
    list[str],
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Manifest file or folder; - is standard input; may be repeated.",
    ),
]

# A command offers only the settings that it reads.
_AWS: Final = ("region", "aws_endpoint", "aws_profile")
_CLUSTER: Final = ("kubeconfig", "context")
# The plan's own settings, and those of the ownership of slots.
_PLAN: Final = ("vm_memory_overhead_percent", "reserved_enis")
_OWNERSHIP: Final = ("cluster_name", "default_cohort", "strict", "buy_zones")

app = typer.Typer(
    cls=Group,
    name="capacity-broker",
    help="Reserved EC2 capacity for Karpenter: reservations, their use, and the reasons of fallbacks.",
    epilog="Exit codes: 0, done; 1, a negative answer; 2, no answer, with the reason on standard error.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
crds_app = typer.Typer(
    cls=Group, help="The CustomResourceDefinitions that the broker reads.", no_args_is_help=True
)
explain_app = typer.Typer(cls=Group, help="Explain the state of an object.", no_args_is_help=True)
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


def _region(settings: Settings) -> str:
    """The Region: the flag's or AWS_REGION's, else the one that the SDK finds. Raises ValueError."""
    from providers.aws.clients import configured_region, no_region

    region = settings.region or configured_region(settings.aws_profile or None)
    if not region:
        raise ValueError(
            "no AWS Region is set: give --region, set AWS_REGION or AWS_DEFAULT_REGION, or give the profile "
            f"{settings.aws_profile or 'default'!r} of the AWS configuration a `region`"
        )
    if why := no_region(region, endpoint=settings.aws_endpoint):
        where = called("region") if settings.region else "AWS_DEFAULT_REGION, or the profile's region,"
        raise ValueError(f"{where} is {region!r}: {why}")
    return region


def _absent(settings: Settings) -> Iterator[str]:
    """Missing options of `run`, and an invalid Region."""
    from broker.run import unset

    if missing := unset(settings):
        yield missing
    try:
        _region(settings)
    except ValueError as error:
        yield str(error)


def _provider(settings: Settings, **more: Any) -> AwsProvider:
    from providers.aws import AwsProvider

    return AwsProvider(
        region=_region(settings),
        endpoint_url=settings.aws_endpoint or None,
        profile=settings.aws_profile or None,
        **more,
    )


def _asked(settings: Settings, *, cluster: str = "", kubernetes: str = "") -> AwsProvider:
    """For a short command: it need not fetch data that another command fetched within the hour."""
    from providers.aws.provider import KUBERNETES
    from providers.aws.type_store import default_folder

    return _provider(
        settings, cluster=cluster, kubernetes_version=kubernetes or KUBERNETES, type_folder=default_folder()
    )


def _planned_with(settings: Settings, *, kubernetes: str = "") -> AwsProvider:
    """For a command that plans: to whom a reservation belongs depends on the cluster's name."""
    from broker.apis.names import TAG_CLUSTER

    provider = _asked(settings, cluster=settings.cluster_name, kubernetes=kubernetes)
    if not settings.cluster_name:
        named = {each.tags[TAG_CLUSTER] for each in provider.reservations() if TAG_CLUSTER in each.tags}
        if named:
            others = ", ".join(sorted(named))
            typer.echo(
                f"reservations of {others} count as unowned: name the cluster by --cluster-name",
                err=True,
            )
    return provider


@app.command("run", cls=Command)
@options(besides=_absent)
def run_command(settings: Settings) -> None:
    """Run the broker until a signal stops it."""
    from prometheus_client import CollectorRegistry

    from broker.kube.clock import SystemClock
    from broker.kube.version import ServerVersion
    from broker.run import serve

    settings = replace(settings, region=_region(settings))
    aws, client = CollectorRegistry(auto_describe=True), _client(settings)
    version = ServerVersion(client, clock=SystemClock())
    version()  # without an API server nothing is begun
    provider = _provider(
        settings,
        cluster=settings.cluster_name,
        registry=aws,
        kubernetes_version=version,
        isolated_vpc=settings.isolated_vpc,
        offers=settings.offers,
    )
    serve(settings, client, provider, registries=[aws])


@app.command("demo", cls=Command)
@options("log_level", "log_format")
def demo_command(
    settings: Settings,
    once: Annotated[
        bool, typer.Option("--once", help="End by itself; exit 0 only if all went as expected.")
    ] = False,
    teams: Annotated[
        bool,
        typer.Option("--teams", help="Two teams: one borrows the other's idle slots, and gives one back."),
    ] = False,
) -> None:
    """Local AWS, a Kubernetes API and the broker on this machine; needs neither account nor cluster."""
    try:
        from broker.demo.run import demo
        from broker.demo.teams import demo as teams_demo
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"the demo needs {error.name}: install capacity-broker[local], or use `make demo`"
        ) from error
    raise typer.Exit((teams_demo if teams else demo)(settings, once=once))


@app.command("plan", cls=Command)
@options("plan_seconds", *_PLAN, *_OWNERSHIP, *_AWS, *_CLUSTER)
def plan_command(settings: Settings, filename: Files, output: Output = Format.TABLE) -> None:
    """Show a dry run for the NodeClaims of these files. Changes nothing. Classes, reservations, flavors and
    cohorts are those of the cluster; those in the files replace them.
    """
    from broker.commands import drafts, manifests, plan
    from broker.controllers.preemption.once import entitlements_once
    from broker.kube.clock import SystemClock

    documents = manifests.read(filename)
    objects = [o for d in documents if (o := manifests.decode(d))]
    plan.check(objects, where=", ".join(filename))
    clock, provider = SystemClock(), _planned_with(settings)
    client, alone = drafts.drafted(documents, lambda: _client(settings))
    if left_out := alone or plan.uncounted(client, objects):
        typer.echo(left_out, err=True)
    rows, solution = plan.rows(
        [*objects, *plan.classes(client, objects)],
        provider,
        now=clock.now(),
        seconds=settings.plan_seconds,
        timer=clock.monotonic,
        where="in the files" if alone else "in the files or the cluster",
        overhead=settings.overhead,
        entitle=entitlements_once(client, settings, clock),
    )
    told = plan.told(rows) if output is Format.TABLE else rows
    show(told, columns=plan.COLUMNS, extra=plan.EXTRA, format_=output)
    if solution.needs:
        typer.echo(f"Solved by {solution}", err=output is not Format.TABLE)
    raise typer.Exit(0 if all(row["launches"] for row in rows) else 1)


@explain_app.command("claim", cls=Command)
@options(*_PLAN, *_OWNERSHIP, *_AWS, *_CLUSTER)
def explain_command(settings: Settings, name: Claim, output: Output = Format.TABLE) -> None:
    """Show every attempt for a NodeClaim, in order, with EC2's codes and request ids. For a waiting claim,
    also show every present option and the reason why it is not taken.
    """
    from broker.commands import explain
    from broker.controllers.preemption.once import entitlements_once
    from broker.kube.clock import SystemClock
    from broker.kube.version import ServerVersion

    client = _client(settings)
    one = explain.claim(client, name)
    found = explain.prospects(
        one,
        client,
        lambda: _planned_with(settings, kubernetes=ServerVersion(client, clock=SystemClock())()),
        now=SystemClock().now(),
        overhead=settings.overhead,
        entitle=lambda _: entitlements_once(client, settings, SystemClock()),
    )
    if output is not Format.TABLE:
        show_one(explain.document(one, found), format_=output)
        return
    sys.stdout.write("\n".join(explain.headline(one)) + "\n\n")
    show(
        explain.told_attempts(explain.attempts(one)),
        columns=explain.ATTEMPT_COLUMNS,
        format_=output,
        nothing="no launch was tried yet",
    )
    if found is not None:
        sys.stdout.write(f"\nNow: {found.decision}\n")
        if found.rows:
            sys.stdout.write("\n")
            show(explain.told_options(found.rows), columns=explain.OPTION_COLUMNS, format_=output)


@app.command("inventory", cls=Command)
@options("cluster_name", *_AWS, *_CLUSTER)
def inventory_command(settings: Settings, output: Output = Format.TABLE) -> None:
    """List every capacity reservation that the account sees: owner, idle slots and their cost."""
    from broker.commands import inventory

    found, account = _inventory(settings)
    if output is not Format.TABLE:
        show(found, columns=inventory.COLUMNS, format_=output)
        return
    rows = inventory.told(found)
    nothing = f"{account}: no capacity reservation"
    show(rows, columns=inventory.COLUMNS, extra=inventory.EXTRA, format_=output, nothing=nothing)
    if found:
        typer.echo(inventory.total(found, account=account))


@app.command("idle", cls=Command)
@options("cluster_name", *_AWS, *_CLUSTER)
def idle_command(settings: Settings, output: Output = Format.TABLE) -> None:
    """List the idle reserved slots: owner, count, cost an hour, and time."""
    from broker.commands import idle, inventory

    everything, account = _inventory(settings)
    found = idle.rows(everything)
    if output is not Format.TABLE:
        show(found, columns=idle.COLUMNS, format_=output)
        return
    rows = inventory.told(found)
    nothing = f"{account}: no slot is idle"
    show(rows, columns=idle.COLUMNS, extra=idle.EXTRA, format_=output, nothing=nothing)
    if found:
        typer.echo(inventory.total(found, account=account))


def _inventory(settings: Settings) -> tuple[list[dict[str, Any]], str]:
    """The rows, and the account and Region that they are of."""
    from broker.commands import inventory
    from broker.kube.clock import SystemClock

    seen, trouble = inventory.seen(lambda: _client(settings))
    provider = _asked(settings)
    found = inventory.rows(provider, seen, cluster=settings.cluster_name, now=SystemClock().now())
    if trouble and found:
        typer.echo(trouble, err=True)
    return found, f"account {provider.account_id()}, {_region(settings)}"


@crds_app.command("print", cls=Command)
def crds_print() -> None:
    """Print the definitions as YAML."""
    from broker.commands import crds

    sys.stdout.write(crds.text())


@crds_app.command("install", cls=Command)
@options(*_CLUSTER)
def crds_install(settings: Settings, output: Output = Format.TABLE) -> None:
    """Install the definitions that the cluster lacks; Karpenter's own stay as they are."""
    from broker.commands import crds

    show(crds.install(_client(settings)), columns=crds.COLUMNS, format_=output)


@crds_app.command("patch", cls=Command)
@options(*_CLUSTER)
def crds_patch(
    settings: Settings,
    check: Annotated[
        bool, typer.Option("--check", help="Only check; exit 1 if the property is missing or outdated.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Add capacityReservationSpec to Karpenter's definition of EC2NodeClass; nothing else in it changes."""
    from broker.commands import crds

    rows = crds.patch(_client(settings), check=check)
    show(rows, columns=crds.PROPERTY_COLUMNS, format_=output)
    raise typer.Exit(0 if crds.complete(rows) else 1)


def main() -> None:
    """The entry point: errors of the world end in one line, not in a traceback."""
    try:
        app(prog_name=_called())
    except Exception as error:
        from broker.commands import troubles  # only when something went wrong: it knows both SDKs

        if not isinstance(error, troubles.EXPECTED_ERRORS):
            raise
        _fail(*(error.problems if isinstance(error, BadOptions) else [troubles.told(error)]))


def _called() -> str:
    """The command as it was typed: kubectl finds `kubectl-odcr` by its name."""
    return "kubectl odcr" if Path(sys.argv[0]).name == "kubectl-odcr" else "capacity-broker"


def _fail(*lines: str) -> None:
    sys.stderr.write("".join(f"{_called()}: {line}\n" for line in lines))
    raise SystemExit(2)


if __name__ == "__main__":
    main()
