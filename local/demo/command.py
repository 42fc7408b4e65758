"""The command `demo` of the command line.

It imports nothing slow before it is called, so that other commands answer at once.
"""

from __future__ import annotations

import signal
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
    ) -> None:
        """Local AWS, a Kubernetes API and the broker on this machine; needs neither account nor cluster."""
        if teams and room:
            raise typer.BadParameter("--teams and --room are two demos: run one after the other")
        story = Story.ROOM if room else Story.TEAMS if teams else Story.CLAIM
        raise typer.Exit(_run(story, settings, once=once))


def _run(story: Story, settings: Settings, *, once: bool) -> int:
    """The exit code of a story."""
    from broker.commands.output import console
    from local.demo.session import session

    # A signal may also come while the story is imported.
    try:
        with session(console()):
            code: int = import_module(f"local.demo.{story}").demo(settings, once=once)
            return code
    except KeyboardInterrupt:
        return INTERRUPTED
