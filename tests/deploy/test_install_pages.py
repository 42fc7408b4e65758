"""The commands of the pages that install the broker and its definitions, on a cluster with Karpenter's."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker import cli
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.meta import Kind
from broker.kube.client import Client
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from tests.deploy import helm
from tests.docs.blocks import DOCS, blocks
from tests.docs.commands import Command, commands
from tests.docs.owners import INSTALL_TEST, owner, plain

DEPLOYMENT = Kind(group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True)
# A reader's names, for those of the pages.
REPLACED = {"REPOSITORY": "123456789012.dkr.ecr.us-east-1.amazonaws.com", "sha256:...": "sha256:" + "0" * 64}
COMMANDS = [
    command
    for command in commands()
    if (by := owner(command)) and by.file == INSTALL_TEST and by.reads == "INSTALL_TEST"
]
CHARTS = [command for command in COMMANDS if plain(command).startswith("helm install ")]
DEFINITIONS = sorted({plain(command) for command in COMMANDS} - {plain(chart) for chart in CHARTS})
CHECK = "capacity-broker crds check"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with ApiServer(Cluster()) as api:
        client = Client(InProcessTransport(api.cluster))
        for definition in load():
            if definition["spec"]["group"].startswith("karpenter."):
                client.create(CRD, definition)
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PATH", f"{Path(helm.program()).parent}{os.pathsep}{os.environ['PATH']}")
        yield client


def run(text: str) -> str:
    for name, value in REPLACED.items():
        text = text.replace(name, value)
    if text.startswith("capacity-broker "):
        called = CliRunner().invoke(cli.app, shlex.split(text)[1:])
        assert called.exit_code == 0, called.output
        return called.output
    done = subprocess.run(["bash", "-c", text], cwd=helm.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"$ {text}\n{done.stderr}"
    return done.stdout


@pytest.mark.covers("USR-24")
@pytest.mark.parametrize("command", CHARTS, ids=lambda command: command.page)
def test_shown_installation_runs_the_broker_until_it_is_uninstalled(command: Command, client: Client) -> None:
    """The upgrades are those of the page about taking over, there and back."""
    run(plain(command))
    container, given = deployed(client)
    assert container["image"] == "/capacity-broker@".join(REPLACED.values())
    assert (given["CLUSTER_NAME"], given["AWS_REGION"]) == ("prod", "us-east-1")
    for upgrade, value in zip(blocks(DOCS / "operate/take-over.md", "sh"), ("true", "false"), strict=True):
        run(upgrade)
        assert deployed(client)[1].get("BROKER_TAKE_OVER_KARPENTER", "false") == value
    (uninstall,) = blocks(DOCS / "operate/back-out.md", "sh")
    run(uninstall)
    assert client.list(DEPLOYMENT)[0] == []


def deployed(client: Client) -> tuple[dict[str, Any], dict[str, str]]:
    """The container of the broker, and its environment."""
    (deployment,) = client.list(DEPLOYMENT)[0]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container, {
        variable["name"]: variable["value"] for variable in container["env"] if "value" in variable
    }


@pytest.mark.covers("USR-24")
@pytest.mark.parametrize("text", [definition for definition in DEFINITIONS if definition != CHECK])
def test_shown_installation_of_the_definitions_is_complete(text: str, client: Client) -> None:
    assert CHECK in DEFINITIONS
    run(text)
    assert {line.split()[1] for line in run(CHECK).splitlines()[1:]} == {"same"}
