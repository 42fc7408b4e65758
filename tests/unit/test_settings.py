"""Every option once: one flag, one variable, one default, shown by --help."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from broker.options import HINTS, called, options, problems
from broker.settings import Settings


def probe() -> tuple[typer.Typer, list[Settings]]:
    seen: list[Settings] = []
    app = typer.Typer()

    @app.command()
    @options()
    def command(settings: Settings) -> None:
        seen.append(settings)

    return app, seen


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Settings:
    app, seen = probe()
    result = CliRunner().invoke(app, list(arguments), env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_flag_over_environment_over_default() -> None:
    assert invoke().region == ""
    assert invoke(env={"AWS_REGION": "eu-west-1"}).region == "eu-west-1"
    assert invoke("--region", "us-west-2", env={"AWS_REGION": "eu-west-1"}).region == "us-west-2"


def test_switches_have_both_sides() -> None:
    assert invoke("--take-over-karpenter").take_over_karpenter is True
    assert invoke("--no-leader-election").leader_election is False


@pytest.mark.parametrize("name", [f.name for f in fields(Settings)])
def test_each_option_has_a_variable_and_a_meaning(name: str) -> None:
    option = HINTS[name].__metadata__[0]
    assert option.help
    assert option.envvar


def test_no_two_options_share_a_variable() -> None:
    variables = [HINTS[f.name].__metadata__[0].envvar for f in fields(Settings)]
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize(
    "name", [f.name for f in fields(Settings) if get_args(HINTS[f.name])[0] in (int, float)]
)
def test_an_invalid_number_is_refused(name: str) -> None:
    app, seen = probe()
    result = CliRunner().invoke(app, [f"--{name.replace('_', '-')}", "soon"])
    assert not seen and f"{called(name)} is 'soon': write " in str(result.exception)


def test_defaults_are_valid() -> None:
    assert problems(Settings()) == []


def test_an_unknown_option_name_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="no such settings: regoin"):
        options("regoin")
