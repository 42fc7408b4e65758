"""The option `--version` and the commands `hold`, `resume`, `give-back` and `adopt` of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker.commands.help import Command
from broker.commands.output import Format, Output, show
from broker.commands.uninstall import command as uninstall_command
from broker.options import options
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.kube.client import Client
    from providers.aws import AwsProvider

CLUSTER: Final = ("kubeconfig", "context")
Reservation = Annotated[
    str,
    typer.Argument(
        metavar="RESERVATION",
        help="NAMESPACE/NAME of a CapacityReservation, or NAME of a ClusterCapacityReservation.",
    ),
]
Drain = Annotated[bool, typer.Option("--drain", help="Also evict the workloads that run.")]
Remove = Annotated[bool, typer.Option("--remove", help="Stop counting these reservations.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of EC2 capacity reservations.")]


def print_version(requested: bool) -> None:
    """Prints the version and ends the program if the option is given."""
    if requested:
        from broker.version import version

        typer.echo(f"capacity-broker {version()}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
]


def begin(version: Version = False) -> None:
    """Options without a command."""


def register(
    app: typer.Typer, client: Callable[[Settings], Client], provider: Callable[..., AwsProvider]
) -> None:
    """Adds the commands to the program. `client` connects to the cluster, `provider` to AWS."""
    uninstall_command.register(app, client, provider)

    @app.command("hold", cls=Command)
    @options(*CLUSTER)
    def hold_command(
        settings: Settings, reservation: Reservation, drain: Drain = False, output: Output = Format.TABLE
    ) -> None:
        """Admit no more workloads to a reservation's queue, until `resume`."""
        from broker.commands import verbs

        connected = client(settings)
        rows = verbs.hold(connected, reservation, drain=drain)
        show(rows, columns=verbs.COLUMNS, format_=output)
        if why := verbs.unqueued(connected, reservation):
            typer.echo(why, err=True)

    @app.command("resume", cls=Command)
    @options(*CLUSTER)
    def resume_command(settings: Settings, reservation: Reservation, output: Output = Format.TABLE) -> None:
        """Admit workloads to a reservation's queue again."""
        from broker.commands import verbs

        show(verbs.resume(client(settings), reservation), columns=verbs.COLUMNS, format_=output)

    @app.command("give-back", cls=Command)
    @options(*CLUSTER)
    def give_back_command(
        settings: Settings, reservation: Reservation, output: Output = Format.TABLE
    ) -> None:
        """Let the broker cancel its purchases that a reservation no longer needs."""
        from broker.commands import verbs

        show(verbs.give_back(client(settings), reservation), columns=verbs.COLUMNS, format_=output)

    @app.command("adopt", cls=Command)
    @options(*CLUSTER)
    def adopt_command(
        settings: Settings,
        reservation: Reservation,
        ids: Ids,
        remove: Remove = False,
        output: Output = Format.TABLE,
    ) -> None:
        """Count existing EC2 capacity reservations for a reservation, if --adopt-by-annotation allows it."""
        from broker.commands import verbs

        connected = client(settings)
        if not remove and (unadoptable := verbs.unadoptable(connected, ids)):
            for line in (*unadoptable, "nothing was changed"):
                typer.echo(line, err=True)
            raise typer.Exit(1)
        rows = verbs.adopt(connected, reservation, ids, remove=remove)
        show(rows, columns=verbs.COLUMNS, format_=output)
        if not remove:
            typer.echo(verbs.adoption_hint(reservation), err=True)
