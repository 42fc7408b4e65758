"""`capacity-broker watch`: the cluster's shortages, waiting claims and costs on one screen, kept current.

On a pipe or in a file it prints a line for each change instead, with its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from broker.commands.explain.explanation import Explanation, explain
from broker.commands.explain.present import rendered
from broker.commands.output import shortage_name
from broker.kube.errors import ApiError
from broker.oncall.situation import Situation
from broker.text import format_time, plain

PARTS: Final = ("broken", "pods", "short", "waiting", "tried", "next", "costs", "do")
_FRAME: Final = 18  # lines of headings and of the shortest tables
Read = Callable[[], Situation]
Wait = Callable[[float], None]


def facts(explanation: Explanation) -> dict[str, str]:
    """A line by fact: a shortage, a claim that waits, an answer of a pool."""
    texts = {}
    for row in explanation.parts["short"]:
        pool = shortage_name(row)
        texts[f"short {row['scope']}:{row['pool']}"] = (
            f"short: {pool}: {row['code']}, next try {row['next_try'] or 'once a slot is free'}"
        )
    for row in explanation.parts["waiting"]:
        texts[f"waits {row['claim']}"] = (
            f"waits: {row['claim']} of class {row['class']}: {plain(row['message'])}"
        )
    for row in explanation.parts["pods"]:
        count = f" ({row['count']} pods)" if row["count"] > 1 else ""
        texts[f"waits {row['who']} {row['nodepool']} {row['reason']}"] = (
            f"waits: {row['who']}{count}: {plain(row['what'])}"
        )
    for row in explanation.parts["tried"]:
        key = f"tried {row['pool']} {row['outcome']} {row['code']}"
        texts[key] = (
            f"{row['outcome'].lower()}: {plain(row['pool'])}: {plain(row['result'])}{_times(row['times'])}"
        )
    return texts


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def changes(before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """New and changed facts, then those that are over."""
    for key, text in now.items():
        if before.get(key) != text:
            yield plain(text)
    for key, text in before.items():
        if key not in now and not key.startswith("tried"):
            yield f"over: {text.partition(', next try')[0]}"


def lines(
    read: Read, wait: Wait, clock: Callable[[], datetime], every: float, out: Callable[[str], None]
) -> None:
    """A line a change, until it is interrupted. An unreadable cluster is one line.

    It begins with the shortages and the claims that wait. Earlier answers of pools are no changes.
    """
    before: dict[str, str] | None = None
    failed = ""
    while True:
        at = format_time(clock())
        try:
            current = facts(explain(read()))
        except ApiError as error:
            if str(error) != failed:
                out(f"{at} the cluster cannot be read: {error}")
            failed = str(error)
        else:
            failed = ""
            if before is None:
                before = {key: text for key, text in current.items() if key.startswith("tried")}
            for change in changes(before, current):
                out(f"{at} {change}")
            before = current
        wait(every)


def screen(read: Read, wait: Wait, every: float, console: Console) -> None:
    """One screen, until it is interrupted; the last answer stays while the cluster cannot be read."""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        shown: Group | None = None
        while True:
            try:
                situation = read()
                shown = view(situation, console.size.height)
                live.update(shown, refresh=True)
            except ApiError as error:
                why = Text(f"the cluster cannot be read: {error}", style="bold")
                live.update(Group(why, *(shown.renderables if shown else ())), refresh=True)
            wait(every)


def view(situation: Situation, height: int) -> Group:
    """The situation in as many rows as a screen of this height has."""
    explanation = explain(situation)
    rows = max((height - _FRAME) // 4, 1)
    most = dict.fromkeys((*PARTS, "state"), rows)
    foot = Text(f"{format_time(situation.now)}; Ctrl-C ends", style="dim")
    return Group(foot, *rendered(explanation, most=most, parts=PARTS).renderables)
