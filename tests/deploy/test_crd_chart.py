"""The chart of the definitions: its content, its package, and one owner for each definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.commands.crds import skew
from broker.commands.crds.install import install
from broker.kube.client import Client
from broker.version import version
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.deploy import helm, strict
from tests.deploy.strict import Json

CHART = helm.ROOT / "deploy" / "chart" / "capacity-broker-crds"
KARPENTER: set[str] = {"karpenter.sh", "karpenter.k8s.aws"}
EVERYTHING: dict[str, Any] = {"groups": dict.fromkeys(sorted(KARPENTER), True)}


def render(chart: Path = CHART, **values: Any) -> list[Json]:
    text = helm.run(
        *("template", "definitions", str(chart), "--kube-version", "1.36.0", "--values", "-"),
        given=yaml.safe_dump(values),
    )
    return strict.documents(text)


def by_name(definitions: list[Json]) -> dict[str, Json]:
    return {definition["metadata"]["name"]: definition["spec"] for definition in definitions}


@pytest.mark.covers("USR-32")
def test_chart_holds_the_definitions_without_those_of_karpenter() -> None:
    expected = by_name(load())
    assert by_name(render(**EVERYTHING)) == expected
    left = {name for name, spec in expected.items() if spec["group"] not in KARPENTER}
    assert set(by_name(render())) == left
    assert "ome.io" not in {definition["spec"]["group"] for definition in render(groups={"ome.io": False})}


@pytest.mark.covers("USR-32")
def test_definitions_stay_after_an_uninstall_and_name_their_version() -> None:
    wave = {"argocd.argoproj.io/sync-wave": "-1"}
    for definition in render(annotations=wave):
        annotations = definition["metadata"]["annotations"]
        assert annotations["helm.sh/resource-policy"] == "keep"
        assert annotations[skew.VERSION] == version()
        assert wave.items() <= annotations.items()
    assert "helm.sh/resource-policy" not in render(keep=False)[0]["metadata"]["annotations"]
    with pytest.raises(helm.Refused, match=r"karpenter\.io"):
        render(groups={"karpenter.io": True})


@pytest.mark.covers("USR-32")
def test_command_leaves_the_definitions_of_the_chart_alone() -> None:
    cluster = Cluster()
    assert strict.create(strict.embedded(cluster), render(**EVERYTHING)) == []
    client = Client(InProcessTransport(cluster))
    before = client.list(CRD)[0]
    assert {row["did"] for row in install(client)} == {"kept"}
    assert client.list(CRD)[0] == before
    rows = skew.check(client)
    assert {(row["state"], row["version"]) for row in rows} == {("same", version())}


@pytest.mark.covers("USR-32")
def test_package_holds_the_files_and_renders_the_same(tmp_path: Path) -> None:
    helm.run("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("capacity-broker-crds-*.tgz")
    assert render(package, **EVERYTHING) == render(**EVERYTHING)
