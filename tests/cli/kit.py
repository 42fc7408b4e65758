"""Shared set-up of the tests of commands: an account with one reservation, and manifests that use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from typer.testing import CliRunner, Result

from broker import cli

REGION = "us-east-1"
ACCOUNT = "account 123456789012"  # local AWS's


@dataclass(frozen=True)
class World:
    endpoint: str
    odcr: str
    image: str
    ec2: Any


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def main(*arguments: str) -> int:
    """The exit code of the entry point, where errors of the world end in one line."""
    with patch("sys.argv", ["capacity-broker", *arguments]), pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def files(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def node_class(world: World, **spec: Any) -> dict[str, Any]:
    subnets = [s["SubnetId"] for s in world.ec2.describe_subnets()["Subnets"]]
    groups = [g["GroupId"] for g in world.ec2.describe_security_groups()["SecurityGroups"]]
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": "training"},
        "spec": {
            "capacityReservationSpec": {"capacityReservationTarget": {"capacityReservationId": world.odcr}},
            "amiFamily": "Custom",
            "amiSelectorTerms": [{"id": world.image}],
            "subnetSelectorTerms": [{"id": subnet_id} for subnet_id in subnets],
            "securityGroupSelectorTerms": [{"id": group_id} for group_id in groups],
            "role": "node",
            **spec,
        },
    }


def claim(name: str, *capacity_types: str) -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name},
        "spec": {
            "nodeClassRef": {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "training"},
            "requirements": [
                {
                    "key": "node.kubernetes.io/instance-type",
                    "operator": "In",
                    "values": ["p5.48xlarge"],
                },
                {
                    "key": "karpenter.sh/capacity-type",
                    "operator": "In",
                    "values": list(capacity_types or ("reserved",)),
                },
            ],
        },
    }
