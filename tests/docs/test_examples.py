"""The examples of the pages work unchanged: manifests, commands, code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.apis.crds import load as load_crds
from broker.apis.kueue import VERSIONS
from local.aws import control
from local.kube import Cluster
from local.kube.cluster import NAMESPACES
from tests.controlplane.server import free_port
from tests.deploy import strict
from tests.docs.blocks import DOCS, ROOT, blocks, pages, steps
from tests.kueue.definitions import definitions
from tests.peers.programs import Program

KEYS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
# Parts that differ from run to run.
VARYING = (
    (re.compile(r"cr-[0-9a-f]{17}"), "cr-0123456789abcdef0"),
    (re.compile(r"errors\.pydantic\.dev/[\d.]+"), "errors.pydantic.dev"),
)
BETWEEN = "---- next ----"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def normalized(text: str) -> str:
    for pattern, constant in VARYING:
        text = pattern.sub(constant, text)
    return text.rstrip()


def run_through(page: Path, *, env: dict[str, str]) -> list[tuple[str, str, str]]:
    """Each console command of the page, in one shell: its output, and the output on the page."""
    all_steps = steps(page)
    script = "shopt -s expand_aliases\n" + "".join(
        f"{step.command}\necho '{BETWEEN}'\n" for step in all_steps
    )
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={"PATH": PATH, "HOME": "/nonexistent", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = done.stdout.split(f"{BETWEEN}\n")[:-1]
    assert len(printed) == len(all_steps), done.stdout
    return [
        (step.command, normalized(out), normalized(step.output))
        for step, out in zip(all_steps, printed, strict=True)
    ]


def need(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"no {program} on PATH")


@contextmanager
def served(page: Path, folder: Path, **replaced: str) -> Iterator[str]:
    """The server that the `sh` block of the page starts; yields the block's other commands."""
    (block,) = blocks(page, "sh")
    for name, value in replaced.items():
        block = block.replace(name, value)
    begin, name, rest = block.partition("python -m ")
    line, _, others = rest.partition("\n")
    (folder / ".venv").symlink_to(sys.prefix)
    script = ["bash", "-c", f"{begin}exec {name}{line}"]
    environment = {"PYTHONPATH": str(ROOT)}
    with Program("server", script, folder=folder, environment=environment) as server:
        server.until(lambda: any("http://" in line for line in server.lines()), "listening")
        yield others


@pytest.mark.covers("USR-24")
def test_local_aws_starts_as_shown_and_its_knobs_work(tmp_path: Path) -> None:
    need("curl")
    page, port = DOCS / "contribute/local-aws.md", str(free_port())
    with served(page, tmp_path, **{"5000": port}) as others:
        answer = subprocess.run(
            ["bash", "-ec", others],
            env={"PATH": PATH, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.stdout == "account 123456789012, us-east-1: no capacity reservation\n", answer.stderr
        control.Control(f"http://127.0.0.1:{port}").clear_calls()
        results = run_through(page, env={**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
    assert len(results) > 10
    for command, printed, shown in results:
        assert printed == shown, command


@pytest.mark.covers("USR-24")
@pytest.mark.kubectl
def test_embedded_server_starts_as_shown_and_answers_kubectl(tmp_path: Path) -> None:
    need("kubectl")
    page, kubeconfig = DOCS / "contribute/embedded-api.md", str(tmp_path / "kubeconfig")
    with served(page, tmp_path, **{"8001": str(free_port()), "/tmp/embedded.yaml": kubeconfig}) as others:
        assert not others
        results = run_through(page, env={"KUBECONFIG": kubeconfig, "HOME": str(tmp_path)})
    for command, printed, shown in results:
        assert printed == shown, command


@pytest.mark.parametrize(
    ("page", "prints"), [("contribute/local-aws.md", "2\n"), ("contribute/embedded-api.md", "409 Conflict\n")]
)
def test_the_code_runs_as_shown(page: str, prints: str) -> None:
    (code,) = blocks(DOCS / page, "python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **KEYS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (prints, 0), done.stderr


def test_manifests_are_taken_strictly() -> None:
    send = strict.embedded(Cluster())
    assert strict.create(send, [*load_crds(), *definitions(VERSIONS)]) == []
    whole = [
        d
        for p in pages()
        for b in blocks(p, "yaml")
        for d in strict.documents(b)
        if "apiVersion" in d and "metadata" in d
    ]
    assert {d["kind"] for d in whole} >= {"EC2NodeClass", "NodeClaim", "ResourceQuota"}
    whole.sort(key=lambda d: d["kind"] != "Namespace")
    existing = {*NAMESPACES, *(d["metadata"]["name"] for d in whole if d["kind"] == "Namespace")}
    spaces = {d["metadata"]["namespace"] for d in whole if "namespace" in d["metadata"]} - existing
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(spaces)
    ]
    assert strict.create(send, [*namespaces, *whole]) == []
