"""The commands `explain class|reservation|cluster`, `errors` and `watch` of the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from broker.commands.errors.problems_by import GroupBy
from broker.commands.help import Command
from broker.commands.output import Format, Output, show_one, table
from broker.commands.verb_commands import CLUSTER
from broker.options import options
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.apis.meta import Object
    from broker.kube.client import Client
    from broker.oncall.situation import Situation

ClassName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the EC2NodeClass.")]
ReservationName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="[NAMESPACE/]NAME of a CapacityReservation, or the id of an EC2 reservation.",
    ),
]
Since = Annotated[str, typer.Option("--since", metavar="DURATION", help="How far back: 30m, 1h, 24h.")]
Key = Annotated[GroupBy, typer.Option("--by", help="The value to count by: pool, class or code.")]
Every = Annotated[
    float,
    typer.Option("--every", metavar="SECONDS", min=0.5, max=86400, help="Seconds between two readings."),
]


def register(app: typer.Typer, explain_app: typer.Typer, client: Callable[[Settings], Client]) -> None:
    """Adds the commands to the program. `client` connects to the cluster."""

    def situation(settings: Settings) -> Situation:
        from broker.commands.explain.reading import read
        from broker.kube.clock import SystemClock

        return read(client(settings), SystemClock().now())

    @explain_app.command("class", cls=Command)
    @options(*CLUSTER)
    def explain_class(settings: Settings, name: ClassName, output: Output = Format.TABLE) -> None:
        """Show the shortages, waiting claims, attempts, next steps and costs of an EC2NodeClass."""
        from broker.commands.explain.parts import of_class

        subject, part = of_class(situation(settings), name)
        _explained(part, subject, output)

    @explain_app.command("reservation", cls=Command)
    @options(*CLUSTER)
    def explain_reservation(settings: Settings, name: ReservationName, output: Output = Format.TABLE) -> None:
        """Show the state, slots with their users, shortages, waiting claims, attempts and costs of a
        reservation."""
        from broker.commands.explain.parts import of_reservation

        subject, part = of_reservation(situation(settings), name)
        _explained(part, subject, output)

    @explain_app.command("cluster", cls=Command)
    @options(*CLUSTER)
    def explain_cluster(settings: Settings, output: Output = Format.TABLE) -> None:
        """Show everything that is short or waits in the cluster, since when, and the remedy."""
        _explained(situation(settings), None, output)

    @app.command("errors", cls=Command)
    @options("history", *CLUSTER)
    def errors_command(
        settings: Settings, since: Since = "1h", by: Key = GroupBy.POOL, output: Output = Format.TABLE
    ) -> None:
        """Count the refusals and problems of the last hour, by pool, class or code. They come from --history
        if it is set, else from the existing claims, the published shortages and the Warning events.
        """
        from broker.commands.errors import problems
        from broker.commands.explain.present import page
        from broker.kube.clock import SystemClock

        now = SystemClock().now()
        begin = problems.beginning(now, since)
        history = problems.stored(settings.history, begin, now)
        listed, pools = history or ([], {})
        if history is None:
            current = situation(settings)
            for note in current.unread:
                typer.echo(note, err=True)
            listed = problems.published(current, begin)
        rows = problems.rows(listed, by, pools)
        note = problems.of_pods(listed, by)
        if output is not Format.TABLE:
            show_one(rows, format_=output)
        elif not rows:
            of_a_pool = " of a pool" if note else ""
            typer.echo(f"no refusal and no problem{of_a_pool} in the last {since}")
        else:
            shown = [*problems.format_rows(rows)]
            page().print(table("", shown, columns=problems.headings(rows, by)))
        if note:
            typer.echo(note, err=output is not Format.TABLE)

    @app.command("watch", cls=Command)
    @options(*CLUSTER)
    def watch_command(settings: Settings, every: Every = 2.0) -> None:
        """Show shortages, waiting claims and costs live, until Ctrl-C. On a pipe, print a line a change."""
        import time

        from broker.commands import watch
        from broker.commands.explain.present import page
        from broker.commands.explain.reading import read
        from broker.kube.clock import SystemClock

        clock, connected = SystemClock(), client(settings)

        def present() -> Situation:
            return read(connected, clock.now())

        present()  # an error of the set-up ends the command
        try:
            if sys.stdout.isatty():
                watch.screen(present, time.sleep, every, page(200))
            else:
                watch.lines(present, time.sleep, clock.now, every, typer.echo)
        except KeyboardInterrupt:
            return


def _explained(part: Situation, subject: Object | None, output: Format) -> None:
    from broker.commands.explain.explanation import explain
    from broker.commands.explain.present import page, rendered

    explanation = explain(part, subject)
    if output is Format.TABLE:
        page().print(rendered(explanation), crop=False)  # a long command stays whole
    else:
        show_one(explanation.document(), format_=output)
