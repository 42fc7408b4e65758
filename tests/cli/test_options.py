"""Values of options are checked before a cluster is read: all of them, with the accepted values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from broker.options import problems, without_effect
from broker.settings import Settings
from providers.model import PLATFORMS

from .kit import main

RIGHT = {
    "--cluster-name": "blue",
    "--cluster-endpoint": "https://blue.example",
    "--cluster-ca": "LS0t",
    "--region": "us-east-1",
}
CASES = [
    ("--cluster-name", "demo.eu", "letters, digits, - and _"),
    ("--cluster-endpoint", "x.example", "a URL such as https://"),
    ("--cluster-ca", "!!", "the CA bundle in base64"),
    ("--service-cidr", "10.100.0.1/16", "a CIDR block such as 10.100.0.0/16"),
    ("--region", "us-esat-1", "us-east-1"),
    ("--aws-endpoint", "localhost:5000", "a URL such as https://"),
    ("--namespace", "Kube_System", "lower case letters"),
    ("--http-port", "99999", "a port from 0 to 65535"),
    ("--http-port", "-1", "a port from 0 to 65535"),
    ("--http-port", "http", "a port from 0 to 65535"),
    ("--webhook-port", "65536", "a port from 0 to 65535"),
    ("--poll-seconds", "0", "from 1 to 1000000000"),
    ("--poll-seconds", "nan", "from 1 to 1000000000"),
    ("--plan-seconds", "0", "above 0 to 1000000000"),
    ("--orphan-grace-seconds", "-1", "from 0 to 1000000000"),
    ("--orphan-grace-seconds", "inf", "from 0 to 1000000000"),
    ("--release-idle-seconds", "-3", "from 0 to 1000000000"),
    ("--reservation-creating-seconds", "0", "from 1 to 1000000000"),
    ("--vm-memory-overhead-percent", "1", "from 0 to below 1"),
    ("--reserved-enis", "1.5", "a count from 0 on"),
    ("--fair-sharing", "Fair", "LessThanInitialShare"),
    ("--buy-dollars", "-1", "from 0 on, or inf"),
    ("--buy-dollars", "nan", "from 0 on, or inf"),
    ("--buy-dollars-each", "abc", "from 0 on, or inf"),
    ("--buy-dollars-namespace", "-1", "from 0 on, or inf"),
    ("--buy-instances-each", "-2", "a count from 0 on"),
    ("--buy-platforms", "Linux", "Linux/UNIX"),
    ("--buy-platforms", "", "Linux/UNIX"),
    ("--buy-tenancies", "default,host", "dedicated, default"),
    ("--adopt-by-annotation", "ml=gpus", "NAMESPACE=cr-0123456789abcdef0"),
    ("--dedicated-node-class", "GPU", "lower case letters"),
    ("--log-level", "loud", "one of debug, info, warning, error"),
    ("--log-format", "xml", "one of json, console, auto"),
]


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An error of its own, if one is looked for."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nope"))


def ran(*arguments: str) -> list[str]:
    """Right values with these over them."""
    given = {**RIGHT, **dict(zip(arguments[::2], arguments[1::2], strict=True))}
    return [word for pair in given.items() for word in pair]


@pytest.mark.parametrize(("option", "value", "write"), CASES)
def test_wrong_value_is_one_line_with_option_value_and_what_to_write(
    capsys: pytest.CaptureFixture[str], option: str, value: str, write: str
) -> None:
    assert main("run", *ran(option, value)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"capacity-broker: {option} (")
    said, _, rest = line.partition(": write ")
    assert said.endswith((f"is {value}", f"is {value!r}"))
    assert write in rest


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--region", "eusc-de-east-1"),
        ("--region", "cn-north-1"),
        ("--service-cidr", "fd00::/108"),
        ("--http-port", "0"),
        ("--buy-dollars", "inf"),
        ("--buy-platforms", "Linux/UNIX, Red Hat Enterprise Linux"),
        ("--buy-tenancies", "dedicated"),
        ("--fair-sharing", "LessThanOrEqualToFinalShare, LessThanInitialShare"),
        ("--adopt-by-annotation", "*"),
        ("--orphan-grace-seconds", "0"),
        ("--release-idle-seconds", "1e9"),
    ],
)
def test_right_value_gets_as_far_as_the_cluster(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert main("run", *ran(option, value)) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_all_that_is_wrong_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKER_POLL_SECONDS", "soon")
    once = {option: value for option, value, _ in CASES}
    for option in (*RIGHT, "--poll-seconds", "--aws-endpoint"):  # an endpoint may have any Region
        once.pop(option, None)
    words = [word for pair in once.items() for word in pair]
    assert main("run", "--region", "us-esat-1", "--cluster-endpoint", "x", *words, "--buy-dollars", "0") == 2
    lines = capsys.readouterr().err.splitlines()
    named = [word for line in lines for word in line.split() if word.startswith("--")]
    wanted = {*once, "--region", "--cluster-endpoint", "--poll-seconds", "--cluster-name", "--cluster-ca"}
    assert wanted - {"--buy-dollars"} == {*named} - {"--buy-dollars"}
    assert any("--poll-seconds (BROKER_POLL_SECONDS) is 'soon'" in line for line in lines)


def test_other_commands_judge_their_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("idle", "--cluster-name", "demo.eu", "--aws-endpoint", "x") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--cluster-name (CLUSTER_NAME) is 'demo.eu'" in first
    assert "--aws-endpoint (AWS_ENDPOINT_URL) is 'x'" in second


def test_switch_s_variable_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKER_STRICT", "maybe")
    assert main("run", *ran()) == 2
    assert "'--strict' (env var: 'BROKER_STRICT'): 'maybe': write true or false" in capsys.readouterr().err


def test_region_of_an_endpoint_of_ones_own_need_not_be_ec2_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = ("--aws-endpoint", "http://127.0.0.1:1")
    assert main("run", *ran("--region", "lab-north-1"), *endpoint) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main("run", *ran("--region", "lab"), *endpoint) == 2
    assert "--region (AWS_REGION) is 'lab': write the name of a Region" in capsys.readouterr().err
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-esat-1")
    assert main("run", *ran("--region", "")) == 2
    assert "AWS_DEFAULT_REGION, or the profile's region, is 'us-esat-1'" in capsys.readouterr().err


def test_platforms_are_those_of_ec2() -> None:
    shape: Any = (
        botocore.session.Session().get_service_model("ec2").shape_for("CapacityReservationInstancePlatform")
    )
    assert {*shape.enum} == PLATFORMS


def test_caps_of_a_part_have_no_effect_while_buying_is_paused() -> None:
    paused = Settings(buy_dollars=0.0, buy_dollars_each=100.0)
    assert not problems(paused, ["buy_dollars", "buy_dollars_each"])
    assert without_effect(paused) == ["--buy-dollars-each (BROKER_BUY_DOLLARS_EACH)"]
    assert not without_effect(replace(paused, buy_dollars=1.0))
