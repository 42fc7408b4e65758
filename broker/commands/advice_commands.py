"""The command `advise` of the command line: the number of slots that the record would have needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.commands.help import Command
from broker.commands.output import Format, Output, show_one, table
from broker.options import called, options
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.history.advice import AdviceRow

COLUMNS: Final = {
    "pool": "RESERVATION OR POOL",
    "days": "DAYS",
    "slots": "SLOTS",
    "best": "BEST",
    "count": "REPLAYED",
    "saved": "SAVED $",
    "short": "SHORT H",
    "idle": "IDLE H",
    "demand": "DEMAND",
}
_BARS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 10

Subject = Annotated[
    str,
    typer.Argument(
        metavar="[RESERVATION]",
        help="Id of an EC2 reservation, an instance type, or TYPE:ZONE; default: all.",
    ),
]
Days = Annotated[float, typer.Option("--days", min=2, max=366, help="Days of the record to read.")]
Count = Annotated[
    int | None, typer.Option("--count", min=0, max=1_000_000, help="Replay the record with this many slots.")
]
Hours = Annotated[
    str,
    typer.Option("--hours", metavar="FROM-TO", help="Slots exist in these hours (UTC) only, such as 8-18."),
]
Discount = Annotated[
    float,
    typer.Option(
        "--discount",
        metavar="PERCENT",
        min=0,
        max=99,
        help="How much less a reserved slot costs than on demand.",
    ),
]
ShortCost = Annotated[
    float | None,
    typer.Option(
        "--short-cost",
        metavar="USD",
        min=0,
        help="Dollars of a slot-hour short, at least the price; default: 10 times the price.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""

    @app.command("advise", cls=Command)
    @options("history")
    def advise_command(
        settings: Settings,
        reservation: Subject = "",
        days: Days = 14.0,
        count: Count = None,
        hours: Hours = "",
        discount: Discount = 0.0,
        short_cost: ShortCost = None,
        output: Output = Format.TABLE,
    ) -> None:
        """Advise the number of slots that would have cost least over the record in --history, for each
        reservation and each pool that was short. --count and --hours replay another reservation.
        """
        from broker.commands.errors.stored_history import HistoryUnreadable, opened
        from broker.commands.explain.present import page
        from broker.history.advice import AdviceQuery, advise, chosen, headline, parse_hours, recorded_days
        from broker.history.store import MEMORY
        from broker.kube.clock import SystemClock

        try:
            window = parse_hours(hours) if hours else None
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--hours") from error
        if settings.history in ("", MEMORY):
            raise HistoryUnreadable(
                f"{called('history')} is memory: the broker's process has the record, and its page /advice "
                "shows it: name the database that the broker writes"
            )
        query = AdviceQuery(days=days, count=count, hours=window, discount=discount, short_cost=short_cost)
        with opened(settings.history) as history:
            history.check_levels()
            every = advise(history, query, SystemClock().now())
        rows = [*chosen(every, reservation)]
        if output is not Format.TABLE:
            listed = [row.document() for row in rows]
            show_one(
                {"days": recorded_days(rows), "advice": headline(rows, query), "rows": listed}, format_=output
            )
            return
        for sentence in headline(rows, query).split(". "):
            typer.echo(sentence)
        if rows:
            shown = [*_shown(rows)]
            page().print(table("", shown, columns=COLUMNS))
        elif every:
            typer.echo(f"the record has no reservation and no short pool {reservation}")


def _shown(rows: Sequence[AdviceRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {
            "pool": row.name,
            "days": f"{row.days:.1f}",
            "slots": row.slots,
            "best": "-" if row.best is None else row.best,
            "count": "-" if row.count is None else row.count,
            "saved": "-" if row.saved is None else f"{row.saved:.2f}",
            "short": _change(row.short_hours, row.short_hours_then),
            "idle": _change(row.idle_hours, row.idle_hours_then),
            "demand": _bars(row),
        }


def _change(recorded: float, replayed: float | None) -> str:
    """The hours of the record, and those of the replay."""
    return f"{recorded:.0f}" if replayed is None else f"{recorded:.0f} -> {replayed:.0f}"


def _bars(row: AdviceRow) -> str:
    """The highest demand of each part of the time, as bars, and the peak."""
    first, last = row.spans[0].start, row.spans[-1].end
    width = max(1, -(-(last - first) // _WIDTH))
    heights = [0] * _WIDTH
    for span in row.spans:
        for part in range((span.start - first) // width, (span.end - 1 - first) // width + 1):
            heights[part] = max(heights[part], span.demand)
    bars = "".join(_BARS[-(-height * (len(_BARS) - 1) // max(row.peak, 1))] for height in heights)
    return f"{bars} {row.peak}"
