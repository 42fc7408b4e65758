"""The command `uninstall` of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.commands.help import Command
from broker.commands.output import Format, Output, show, show_one
from broker.options import options
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.kube.client import Client
    from providers.aws import AwsProvider

Yes = Annotated[bool, typer.Option("--yes", help="Remove it; without, only show it.")]
Force = Annotated[bool, typer.Option("--force", help="Also while a broker holds the Lease.")]
KeepTerms = Annotated[
    bool, typer.Option("--keep-terms", help="Leave the selector terms and their tags to Karpenter.")
]


def register(
    app: typer.Typer, client: Callable[[Settings], Client], provider: Callable[..., AwsProvider]
) -> None:
    """Adds the command to the program. `client` connects to the cluster, `provider` to AWS."""

    @app.command("uninstall", cls=Command)
    @options("cluster_name", "region", "aws_endpoint", "aws_profile", "kubeconfig", "context")
    def uninstall_command(
        settings: Settings,
        yes: Yes = False,
        force: Force = False,
        keep_terms: KeepTerms = False,
        output: Output = Format.TABLE,
    ) -> None:
        """Show the broker's leftovers in the cluster and in AWS, and with --yes remove them. Ends no instance
        and cancels no reservation: they are listed with the command that does.
        """
        from broker.commands.uninstall import removal
        from broker.kube.clock import SystemClock
        from providers.aws.clients import configured_region

        connected, now = client(settings), SystemClock().now()
        if yes and not force:
            removal.require_no_leader(connected, now)
        account = removal.account_of(
            connected,
            lambda cluster, region: provider(replace(settings, region=region), cluster=cluster),
            cluster=settings.cluster_name,
            region=settings.region or configured_region(settings.aws_profile or None) or "",
        )
        leftovers = removal.find(connected, account, keep_terms=keep_terms)
        rows, stays = list(leftovers.rows(do=yes)), [asdict(item) for item in leftovers.stays]
        failed = any(row["result"].startswith("failed") for row in rows)
        _print(rows, stays, removed=yes, output=output)
        if not yes and (leader := removal.holder(connected, now)):
            typer.echo(f"{leader} leads: stop the broker before `uninstall --yes`", err=True)
        raise typer.Exit(1 if failed else 0)


def _print(rows: list[dict[str, Any]], stays: list[dict[str, Any]], *, removed: bool, output: Format) -> None:
    from broker.commands.uninstall import leftovers

    if output is not Format.TABLE:
        show_one({"removed": removed, "rows": rows, "stays": stays}, format_=output)
        return
    show(rows, columns=leftovers.COLUMNS, format_=output, nothing="nothing of the broker is left to remove")
    if stays:
        typer.echo("")
        show(stays, columns=leftovers.STAYS, format_=output)
    if rows and not removed:
        typer.echo("\nNothing was changed: `capacity-broker uninstall --yes` removes it.")
