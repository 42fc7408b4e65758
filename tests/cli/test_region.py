"""The Region is the flag's, the environment's or the profile's, in this order, and there is no default."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from .kit import ACCOUNT, World, main, run

FLAG, FIRST, SECOND, PROFILE = "eu-west-1", "eu-west-2", "eu-west-3", "eu-north-1"


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place names another Region."""
    file = tmp_path / "config"
    keys = "aws_access_key_id = testing\naws_secret_access_key = testing"
    file.write_text(f"[default]\n[profile prod]\nregion = {PROFILE}\n{keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    monkeypatch.setenv("AWS_REGION", FIRST)
    monkeypatch.setenv("AWS_DEFAULT_REGION", SECOND)
    monkeypatch.setenv("AWS_PROFILE", "prod")


@pytest.mark.covers("SAF-02")
@pytest.mark.parametrize(
    ("flags", "without", "region"),
    [
        (("--region", FLAG), (), FLAG),
        ((), (), FIRST),
        ((), ("AWS_REGION",), SECOND),
        ((), ("AWS_REGION", "AWS_DEFAULT_REGION"), PROFILE),
        (("--aws-profile", "prod"), ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"), PROFILE),
    ],
    ids=["flag", "AWS_REGION", "AWS_DEFAULT_REGION", "profile", "profile of the flag"],
)
def test_region_is_found_in_the_order_of_the_sdk(
    world: World,
    configured: None,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    without: tuple[str, ...],
    region: str,
) -> None:
    for name in without:
        monkeypatch.delenv(name)
    result = run("inventory", "--aws-endpoint", world.endpoint, *flags)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{ACCOUNT}, {region}: no capacity reservation\n"


@pytest.mark.covers("SAF-02")
@pytest.mark.parametrize("command", [("inventory",), ("run", "--cluster-name", "blue")])
def test_missing_region_is_an_error_that_names_every_way_to_set_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert main(*command) == 2
    printed = capsys.readouterr().err
    assert "no AWS Region is set" in printed
    assert all(way in printed for way in ("--region", "AWS_REGION", "AWS_DEFAULT_REGION", "'default'"))


class FailingPage(BaseHTTPRequestHandler):
    """Answers as a server does that has no such Region."""

    def do_POST(self) -> None:
        page = b"<!doctype html>\n<title>500 Internal Server Error</title>\n<p>Sorry.</p>\n"
        self.send_response(500)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.mark.covers("SAF-02")
def test_region_that_an_endpoint_does_not_have_is_named_with_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("providers.aws.clients.repeated", lambda once, **_: once())
    with ThreadingHTTPServer(("127.0.0.1", 0), FailingPage) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        assert main("inventory", "--aws-endpoint", endpoint, "--region", "us-esat-1") == 2
        server.shutdown()
    (line,) = capsys.readouterr().err.splitlines()
    sender = f"{endpoint} of Region us-esat-1 sent an answer that is not AWS's (500 Internal Server Error)"
    assert line.startswith("capacity-broker: AWS: ") and f"UnreadableAnswer: {sender}: check " in line
    assert "the Region (--region), the endpoint (--aws-endpoint)" in line
    assert "<" not in line


def test_run_reports_all_missing_options_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "CLUSTER_NAME", "CLUSTER_ENDPOINT", "CLUSTER_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert main("run") == 2
    printed = capsys.readouterr().err
    assert "--cluster-name (CLUSTER_NAME)" in printed and "give --region, set AWS_REGION" in printed
    assert "CLUSTER_ENDPOINT" not in printed and "CLUSTER_CA_BUNDLE" not in printed, "EKS describes them"


@pytest.mark.covers("SAF-02")
def test_profile_that_is_not_there_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert main("inventory", "--aws-endpoint", world.endpoint, "--aws-profile", "prod") == 2
    assert "prod" in capsys.readouterr().err
