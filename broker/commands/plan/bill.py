"""What a plan costs: the price of each option, and the sum of what it buys.

Invariant: a slot of a reservation adds nothing to the bill, since it is paid for with or without an instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from broker.capacity.model import Option
from broker.commands.inventory.prices import shown_price
from broker.placement.node_prices import total
from broker.text import abridged, counted, plain, with_unpriced

RESERVED: Final = "reserved"
_BOUGHT: Final = {"on-demand": "on demand", "spot": "as spot"}
MOST_TYPES: Final = 3  # of the options after the first, each with a line of its own
Row = Mapping[str, Any]


def usd_hour(option: Option) -> float | None:
    """US dollars an hour that a launch adds to the bill; None for an unknown price."""
    return 0.0 if option.pool.capacity_type == RESERVED else option.usd_hour


def alternative(option: Option) -> dict[str, Any]:
    """An option after the first."""
    pool = option.pool
    return {
        "pool": str(pool),
        "capacity_type": pool.capacity_type,
        "instance_type": pool.instance_type,
        "usd_hour": usd_hour(option),
    }


def alternatives(options: Iterable[Row]) -> Iterator[str]:
    """A line for neighbours of one type, with their price; one for all options after `MOST_TYPES` of them."""
    by_type = groupby(options, key=lambda o: (o["capacity_type"], o["instance_type"]))
    neighbours = [[*members] for _, members in by_type]
    for alike in neighbours[:MOST_TYPES]:
        yield f"{abridged([plain(option['pool']) for option in alike], 1)}: {_shown(alike)}"
    if rest := [option for alike in neighbours[MOST_TYPES:] for option in alike]:
        yield f"{counted(len(rest), 'more option')}: {_shown(rest)}"


def _shown(options: Sequence[Row]) -> str:
    bought = [option["usd_hour"] for option in options if option["capacity_type"] != RESERVED]
    return f"{shown_price('', bought)} $/h" if bought else shown_price(RESERVED, ())


def summary(rows: Sequence[Row]) -> str:
    """One line: what the plan buys and for how much, what it takes, and what waits."""
    launched = [row for row in rows if row["launches"]]
    runs = sum(row["runs"] for row in rows)
    counts = {
        "in reserved slots, which are paid for": sum(r["capacity_type"] == RESERVED for r in launched),
        "with an instance already": runs,
        "without an instance": len(rows) - len(launched) - runs,
    }
    return "; ".join(
        [_bought(launched), *(f"{counted(n, 'claim')} {text}" for text, n in counts.items() if n)]
    )


def _bought(launched: Iterable[Row]) -> str:
    bought = [row for row in launched if row["capacity_type"] in _BOUGHT]
    kinds = [
        (text, [row for row in bought if row["capacity_type"] == kind]) for kind, text in _BOUGHT.items()
    ]
    parts = [f"{counted(len(alike), 'instance')} {text} for {_sum(alike)}" for text, alike in kinds if alike]
    in_all = f", in all {_sum(bought)}" if len(parts) > 1 else ""
    return f"Buys {' and '.join(parts) or 'nothing'}{in_all}"


def _sum(bought: Iterable[Row]) -> str:
    known, unpriced = total(row["usd_hour"] for row in bought)
    return with_unpriced(f"{known:.2f} $/h", unpriced)
