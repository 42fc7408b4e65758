"""`capacity-broker crds patch` as a person runs it."""

from __future__ import annotations

import json

import pytest

from broker import cli
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter_aws_definition import NAME
from broker.kube.client import Client
from tests.cluster.karpenter import shipped_definition

from .kit import run


@pytest.mark.covers("KRP-03")
def test_property_is_reported_missing_then_added_then_there(cluster: tuple[Client, str]) -> None:
    client, kubeconfig = cluster
    client.create(CRD, shipped_definition())
    arguments = ("crds", "patch", "--kubeconfig", kubeconfig, "-o", "json")
    check = run(*arguments, "--check")
    assert (check.exit_code, json.loads(check.stdout)) == (1, [{"version": "v1", "property": "missing"}])
    rows = json.loads(run("crds", "install", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    (why,) = [row["why"] for row in rows if row["name"] == NAME]
    assert "left as it is" in why and "crds patch" in why
    done = run(*arguments)
    assert (done.exit_code, json.loads(done.stdout)) == (0, [{"version": "v1", "property": "added"}])
    second_check = run(*arguments, "--check")
    assert (second_check.exit_code, json.loads(second_check.stdout)) == (
        0,
        [{"version": "v1", "property": "there"}],
    )
    assert "capacityReservationSpec" in run("crds", "patch", "--kubeconfig", kubeconfig).stdout


def test_a_cluster_without_the_kind_is_one_line_and_exit_2(
    cluster: tuple[Client, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["capacity-broker", "crds", "patch", "--kubeconfig", cluster[1]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "crds install" in capsys.readouterr().err
