"""The broker of the README's command leads a cluster."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

import boto3
import pytest

from local.aws import LocalAws
from local.kube import ApiServer
from tests.cli.kit import ACCOUNT, REGION
from tests.controlplane.server import free_port
from tests.docs.blocks import ROOT
from tests.docs.commands import commands
from tests.docs.owners import plain
from tests.peers.programs import Program
from tests.support.definitions import defined

(RUN,) = {plain(command) for command in commands() if plain(command).startswith("capacity-broker run ")}
PROFILE = """[profile prod]
region = {region}
endpoint_url = {endpoint}
aws_access_key_id = testing
aws_secret_access_key = testing
"""


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.mark.covers("USR-24")
def test_shown_run_leads_a_cluster(aws: LocalAws, tmp_path: Path) -> None:
    aws.reset()
    eks = boto3.client("eks", endpoint_url=aws.endpoint, region_name=REGION)
    role = f"arn:aws:iam::{ACCOUNT.split()[1]}:role/cluster"
    eks.create_cluster(name="prod", roleArn=role, resourcesVpcConfig={})
    port = free_port()
    with ApiServer(defined()) as api:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube/config").write_text(api.kubeconfig())
        (tmp_path / "profiles").write_text(PROFILE.format(region=REGION, endpoint=aws.endpoint))
        environment = {
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "AWS_CONFIG_FILE": str(tmp_path / "profiles"),
            "BROKER_HTTP_PORT": str(port),
        }
        command = ["bash", "-c", f"exec {RUN}"]
        with Program("run", command, folder=tmp_path, environment=environment) as program:
            program.until(lambda: ready(port), "ready")
            program.until(lambda: any('"leading"' in line for line in program.lines()), "leading")
