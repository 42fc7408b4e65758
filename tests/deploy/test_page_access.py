"""The web page's rights on the real API server: the chart's rules are enough, and its authorizer decides."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from broker.kube.client import Client
from broker.kube.transports import HttpTransport
from broker.webpage.access import AccessRules, PageAccess
from tests.controlplane.client import Api
from tests.deploy import helm
from tests.deploy.requests import Recording, allows, grants
from tests.deploy.test_user_roles import bind, chart, until_may
from tests.docs.blocks import DOCS, blocks
from tests.support.clock import FakeClock
from tests.unit.webpage.test_access import SECRET, history, two_namespaces
from tests.unit.webpage.world import get, page

BROKER = "system:serviceaccount:capacity-broker:page"


@pytest.mark.real
@pytest.mark.covers("CAP-16")
def test_a_token_of_the_cluster_shows_the_namespaces_of_its_roles(real: Api, tmp_path: Path) -> None:
    rules = [
        rule
        for part in ("web", "web-tokens")
        for rule in yaml.safe_load((helm.CHART / "rbac" / f"{part}.yaml").read_text())
    ]
    bind(real, "ClusterRole", {"metadata": {"name": "page"}, "rules": rules}, user=BROKER)
    account = "system:serviceaccount:default:ana"
    body = {"metadata": {"name": "ana"}}
    assert real.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=body).status == 201
    token = real.request("POST", "/api/v1/namespaces/default/serviceaccounts/ana/token", body={"spec": {}})
    headers = {"Authorization": f"Bearer {token.body['status']['token']}"}
    until_may(real, ["create"], "tokenreviews.authentication.k8s.io", user=BROKER)
    until_may(real, ["create"], "subjectaccessreviews.authorization.k8s.io", user=BROKER)

    assert real.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "team"}}).status in (
        201,
        409,
    )
    bind(real, "ClusterRole", chart("view"), namespace="team", user=account)
    until_may(real, ["list"], "capacityreservations.ome.io", namespace="team", user=account)
    file = tmp_path / "kubeconfig"
    file.write_text(real.kubeconfig())
    recording = Recording(HttpTransport.from_kubeconfig(file), BROKER)
    clock = FakeClock()
    access = PageAccess(AccessRules(tokens=True), Client(recording), clock=clock)
    with page(history(), two_namespaces(), access) as url:
        shown = get(f"{url}/reservations", **headers).data.decode()
        assert "team/gpus" in shown and SECRET not in shown and "cr-1" not in shown
        assert get(url, Authorization="Bearer forged").status == 401
        bind(real, "ClusterRole", chart("cluster"), user=account)
        until_may(real, ["list"], "clustercapacityreservations.ome.io", user=account)
        clock.advance(60)
        shown = get(f"{url}/reservations", **headers).data.decode()
        assert "cr-1" in shown and "another namespace" in shown and SECRET not in shown
    assert recording.refused == []
    assert all(any(allows(rule, access) for rule in rules) for access in recording.seen)
    assert all(any(allows(grant, access) for access in recording.seen) for grant in grants(rules))


@pytest.mark.real
@pytest.mark.kubectl
@pytest.mark.covers("USR-24")
@pytest.mark.skipif(not all(map(shutil.which, ("kubectl", "curl"))), reason="no kubectl or no curl on PATH")
def test_shown_request_with_a_token_reads_the_record(real: Api, tmp_path: Path) -> None:
    (command,) = (b for b in blocks(DOCS / "operate/web-page.md", "sh") if b.startswith("curl "))
    body = {"metadata": {"name": "grafana"}}
    assert real.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=body).status == 201
    account = "system:serviceaccount:default:grafana"
    bind(real, "ClusterRole", chart("cluster"), user=account)
    until_may(real, ["list"], "nodeclaims.karpenter.sh", user=account)
    file = tmp_path / "kubeconfig"
    file.write_text(real.kubeconfig())
    access = PageAccess(
        AccessRules(tokens=True), Client(HttpTransport.from_kubeconfig(file)), clock=FakeClock()
    )
    with page(history(), two_namespaces(), access) as url:
        done = subprocess.run(
            ["bash", "-c", command.replace("http://capacity-broker.capacity-broker:8081", url)],
            env={"PATH": os.environ["PATH"], "KUBECONFIG": str(file), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert "<title>Record" in done.stdout, done
