"""Values of options are checked before a cluster is read: all of them, with the accepted values."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml

from broker.options import problems, without_effect
from broker.settings import Settings
from providers.model import PLATFORMS

from .kit import main

RIGHT = {
    "--cluster-name": "blue",
    "--cluster-endpoint": "https://blue.example",
    "--cluster-ca": "LS0t",
    "--region": "us-east-1",
    "--http-port": "0",
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
def test_wrong_value_is_one_line_with_option_value_and_correction(
    capsys: pytest.CaptureFixture[str], option: str, value: str, write: str
) -> None:
    assert main("run", *ran(option, value)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"capacity-broker: {option} (")
    problem, _, rest = line.partition(": write ")
    assert problem.endswith((f"is {value}", f"is {value!r}"))
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
    expected = {*once, "--region", "--cluster-endpoint", "--poll-seconds", "--cluster-name"}
    assert expected - {"--buy-dollars"} == {*named} - {"--buy-dollars"}
    assert any("--poll-seconds (BROKER_POLL_SECONDS) is 'soon'" in line for line in lines)


def test_other_commands_judge_their_options_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("idle", "--cluster-name", "demo.eu", "--aws-endpoint", "x") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--cluster-name (CLUSTER_NAME) is 'demo.eu'" in first
    assert "--aws-endpoint (AWS_ENDPOINT_URL) is 'x'" in second


@pytest.mark.parametrize(
    ("command", "option", "value", "shown", "write"),
    [
        ("inventory", "-o", "xml", "--output is 'xml'", "one of table, json, yaml"),
        ("plan -f x.yaml", "--output", "jsn", "--output is 'jsn'", "one of table, json, yaml"),
        ("errors", "--by", "poool", "--by is 'poool'", "one of pool, class, code"),
        ("watch", "--every", "0.1", "--every is 0.1", "at least 0.5"),
        ("watch", "--every", "inf", "--every is inf", "at most 86400"),
        ("watch", "--every", "nan", "--every is nan", "a number"),
        ("watch", "--every", "soon", "--every is 'soon'", "a number"),
        ("errors", "--since", "5", "--since is '5'", "a positive duration such as 30m or 1h"),
        ("errors", "--since", "-1h", "--since is '-1h'", "a positive duration such as 30m or 1h"),
    ],
)
def test_wrong_value_of_a_command_s_own_option_is_reported_like_that_of_a_setting(
    capsys: pytest.CaptureFixture[str], command: str, option: str, value: str, shown: str, write: str
) -> None:
    assert main(*command.split(), option, value) == 2
    assert capsys.readouterr().err == f"capacity-broker: {shown}: write {write}\n"


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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """An API server for the user's kubeconfig that accepts no connection; tests check that none arrived."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        path = tmp_path / "config"
        path.write_text(kubeconfig(listener.getsockname()[1]))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield listener


def kubeconfig(port: int) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        }
    )


def connected(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.covers("USR-07")
@pytest.mark.parametrize("option", ["--http-port", "--webhook-port"])
def test_port_in_use_is_one_line_before_anything_is_connected(
    capsys: pytest.CaptureFixture[str], server: socket.socket, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = str(other.getsockname()[1])
        assert main("run", *ran(option, number)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"capacity-broker: {option} (")
    assert line.endswith(f"is {number}: another process has it at 127.0.0.1; write a free port")
    assert not connected(server)


@pytest.mark.covers("USR-07")
def test_one_port_for_two_servers_is_in_use(
    capsys: pytest.CaptureFixture[str], server: socket.socket
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = str(other.getsockname()[1])
    assert main("run", *ran("--http-port", number, "--webhook-port", number)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("capacity-broker: --webhook-port (")
    assert not connected(server)


@pytest.mark.covers("USR-07")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a: [b",
        b"\xff\x00\x01",
        b"{}",
        b"[1]",
        b"just words",
        b"current-context: here\ncontexts: [1]",
        b"current-context: here\ncontexts: [{name: here, context: {cluster: x, user: y}}]",
        b"current-context: here\ncontexts: [{name: here, context: 3}]",
        None,
    ],
)
@pytest.mark.parametrize("command", [("run", *[word for pair in RIGHT.items() for word in pair]), ("idle",)])
def test_unreadable_kubeconfig_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...], content: bytes | None
) -> None:
    path = tmp_path / "broken"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert main(*command, "--region", "us-east-1", "--kubeconfig", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("capacity-broker: the cluster: kubeconfig ")
    assert str(path) in line


@pytest.mark.covers("USR-07")
def test_wrong_log_level_is_one_line_before_anything_is_connected(server: socket.socket) -> None:
    """In a process of its own, with the option in the environment."""
    ended = subprocess.run(
        [sys.executable, "-m", "broker.cli", "run", *ran()],
        env={**os.environ, "BROKER_LOG_LEVEL": "loud"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert "--log-level (BROKER_LOG_LEVEL) is 'loud'" in line
    assert "debug, info, warning, error" in line
    assert not connected(server)


@pytest.mark.covers("USR-07")
def test_run_with_right_options_connects(server: socket.socket) -> None:
    """The counterpart of the tests above: with valid options the server gets a connection."""
    with subprocess.Popen(
        [sys.executable, "-m", "broker.cli", "run", *ran()], stderr=subprocess.PIPE
    ) as process:
        server.settimeout(60)
        server.accept()[0].close()
        process.kill()
