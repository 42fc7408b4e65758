"""The command `demo` of the command line.

It imports nothing slow before it is called, so that other commands answer at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Final

import typer

from broker.commands.help import Command
from broker.options import options
from broker.settings import Settings

INTERRUPTED: Final = 128 + signal.SIGINT


class Story(StrEnum):
    """The modules of the stories, beside the way of a claim."""

    CLAIM = "run"
    TEAMS = "teams"
    ROOM = "rooms"
    ROLLOUT = "rollout"


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""

    @app.command("demo", cls=Command)
    @options("log_level", "log_format")
    def demo_command(
        settings: Settings,
        once: Annotated[
            bool, typer.Option("--once", help="End by itself; exit 0 only if all went as expected.")
        ] = False,
        teams: Annotated[
            bool,
            typer.Option(
                "--teams", help="Two teams: one borrows the other's idle slots, and gives one back."
            ),
        ] = False,
        room: Annotated[
            bool,
            typer.Option(
                "--room", help="Room on nodes: kept while its pods are away, borrowed and reclaimed."
            ),
        ] = False,
        rollout: Annotated[
            bool, typer.Option("--rollout", help="A new image for all nodes of a full reservation.")
        ] = False,
    ) -> None:
        """Local AWS, a Kubernetes API and the broker on this machine; needs neither account nor cluster."""
        chosen = {Story.TEAMS: teams, Story.ROOM: room, Story.ROLLOUT: rollout}
        stories = [story for story, wanted in chosen.items() if wanted] or [Story.CLAIM]
        if len(stories) > 1:
            raise typer.BadParameter(
                "--teams, --room and --rollout are demos of their own: run one after the other"
            )
        raise typer.Exit(play(lambda: _story(stories[0])(settings, once=once)))


def play(begin: Callable[[], int]) -> int:
    """The exit code of a story, with a first and a last line; that of an interrupt if a signal ends it."""
    from broker.commands.output import console
    from local.demo.session import session

    # A signal may also come while the story is imported.
    try:
        with session(console()):
            return begin()
    except KeyboardInterrupt:
        return INTERRUPTED


def _story(story: Story) -> Callable[..., int]:
    demo: Callable[..., int] = import_module(f"local.demo.{story}").demo
    return demo
