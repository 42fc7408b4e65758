"""The examples of the pages work unchanged: manifests, commands, code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from broker.apis.crds import load as load_crds
from broker.apis.kueue import VERSIONS
from broker.apiserver import ApiServer, Cluster
from broker.apiserver.cluster import NAMESPACES
from providers.local import LocalAws
from tests.deploy import helm, strict
from tests.docs.blocks import DOCS, ROOT, blocks, pages, steps
from tests.kueue.definitions import definitions

KEYS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
# What differs from run to run.
VARYING = (
    (re.compile(r"cr-[0-9a-f]{17}"), "cr-0123456789abcdef0"),
    (re.compile(r"errors\.pydantic\.dev/[\d.]+"), "errors.pydantic.dev"),
)
BETWEEN = "---- next ----"


def told(text: str) -> str:
    for pattern, constant in VARYING:
        text = pattern.sub(constant, text)
    return text.rstrip()


def run_through(page: Path, *, env: dict[str, str]) -> list[tuple[str, str, str]]:
    """Each console command of the page, in one shell: its output, and the output on the page."""
    asked = steps(page)
    script = "shopt -s expand_aliases\n" + "".join(f"{step.command}\necho '{BETWEEN}'\n" for step in asked)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env={"PATH": path, "HOME": "/nonexistent", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = done.stdout.split(f"{BETWEEN}\n")[:-1]
    assert len(printed) == len(asked), done.stdout
    return [(step.command, told(out), told(step.output)) for step, out in zip(asked, printed, strict=True)]


def need(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"no {program} on PATH")


@pytest.fixture
def local_aws() -> Iterator[LocalAws]:
    with LocalAws() as server:
        server.reset()
        server.control.reset()
        server.control.clear_calls()
        yield server
        server.reset()
        server.control.reset()


def test_the_knobs_of_local_aws_as_shown(local_aws: LocalAws) -> None:
    need("curl")
    said = run_through(DOCS / "contribute/local-aws.md", env={**KEYS, "AWS_ENDPOINT_URL": local_aws.endpoint})
    assert len(said) > 10
    for command, printed, shown in said:
        assert printed == shown, command


@pytest.mark.kubectl
def test_kubectl_on_the_embedded_server_as_shown(tmp_path: Path) -> None:
    need("kubectl")
    with ApiServer(Cluster()) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        said = run_through(
            DOCS / "contribute/embedded-api.md", env={"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
        )
    for command, printed, shown in said:
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
    ask = strict.embedded(Cluster())
    assert strict.create(ask, [*load_crds(), *definitions(VERSIONS)]) == []
    whole = [
        d
        for p in pages()
        for b in blocks(p, "yaml")
        for d in strict.documents(b)
        if "apiVersion" in d and "metadata" in d
    ]
    assert {d["kind"] for d in whole} >= {"EC2NodeClass", "NodeClaim", "ResourceQuota"}
    whole.sort(key=lambda d: d["kind"] != "Namespace")
    there = {*NAMESPACES, *(d["metadata"]["name"] for d in whole if d["kind"] == "Namespace")}
    spaces = {d["metadata"]["namespace"] for d in whole if "namespace" in d["metadata"]} - there
    made = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(spaces)]
    assert strict.create(ask, [*made, *whole]) == []


def test_the_chart_installs_with_the_values_that_are_shown() -> None:
    (install,) = [b for b in blocks(DOCS / "operate/install.md", "sh") if "helm install" in b]
    given = dict(
        each.split("=", 1)
        for each in re.findall(r"--set (\S+?=(?:\$\(.*?\)|\S+))", install.replace("\\\n", " "))
    )
    required = {"clusterName", "region"}
    assert set(given) == required | {"image.repository", "image.digest", "'networkPolicy.apiServerCIDRs"}
    values = {key: helm.GIVEN.get(key, value) for key, value in given.items() if "." not in key}
    image = {**helm.GIVEN["image"], "repository": given["image.repository"]}
    manifests = helm.render({**values, "image": image, "networkPolicy": helm.GIVEN["networkPolicy"]})
    assert (
        "capacity-broker/capacity-broker"
        in f"{helm.NAMESPACE}/{helm.one(manifests, 'ServiceAccount')['metadata']['name']}"
    )
    assert yaml.safe_load((helm.CHART / "values.yaml").read_text())["serviceAccount"]["name"] == ""
