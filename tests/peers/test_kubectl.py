"""Unmodified kubectl against the server: commands and their output.

One server for all of them; each test works in a namespace or on a node of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.kube import ApiServer, Cluster, Collector
from tests.unit.apiserver.objects import DEFINITIONS, definition

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: see its page on kubernetes.io"),
]
LONG = 60
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "containers": [{"name": "main", "image": "nginx:1", "resources": {"requests": {"cpu": "500m"}}}]
    },
}
SIZES = {
    "type": "object",
    "description": "The desired state of a widget.",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "description": "How large it is."},
        "zone": {"type": "string"},
    },
}


@dataclass(frozen=True, slots=True)
class Kubectl:
    folder: Path
    cluster: Cluster
    namespace: str = ""

    def arguments(self, *words: str) -> list[str]:
        assert KUBECTL is not None
        return [KUBECTL, *(["-n", self.namespace] if self.namespace else []), *words]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "config"),
            "PATH": os.environ["PATH"],
        }

    def run(self, *words: str, given: Any = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, with an object as its standard input and more in its environment."""
        return subprocess.run(
            self.arguments(*words),
            input=None if given is None else json.dumps(given),
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )

    def __call__(self, *words: str, given: Any = None, **more: str) -> str:
        """The output of a command that should succeed."""
        ended = self.run(*words, given=given, **more)
        assert ended.returncode == 0, f"kubectl {' '.join(words)}: {ended.stdout}{ended.stderr}"
        return ended.stdout.strip()

    def refused(self, *words: str, given: Any = None) -> str:
        """The error of a command that should fail."""
        ended = self.run(*words, given=given)
        assert ended.returncode != 0, ended.stdout
        return ended.stderr


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    cluster, folder = Cluster(), tmp_path_factory.mktemp("kubectl")
    cluster.create(DEFINITIONS, definition(SIZES, subresources={"status": {}}))
    with ApiServer(cluster) as server, Collector(cluster):
        (folder / "config").write_text(server.kubeconfig())
        yield Kubectl(folder, cluster)


@pytest.fixture
def kubectl(everywhere: Kubectl, request: pytest.FixtureRequest) -> Kubectl:
    name = request.node.name.replace("_", "-")[:60].rstrip("-")
    everywhere.cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return Kubectl(everywhere.folder, everywhere.cluster, name)


def test_create_without_files(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-made"
    assert kubectl("create", "ns", name) == f"namespace/{name} created"
    assert kubectl("create", "cm", "c", "--from-literal=a=b") == "configmap/c created"
    assert kubectl("create", "deployment", "d", "--image=i") == "deployment.apps/d created"
    assert "already exists" in kubectl.refused("create", "cm", "c")
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data.a}") == "b"


def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", given=POD) == "pod/web created"
    assert kubectl("apply", "-f", "-", given=POD) == "pod/web unchanged"
    changed = json.loads(json.dumps(POD))
    changed["spec"]["containers"][0]["image"] = "nginx:2"
    changed["metadata"]["labels"] = {"tier": "front"}
    assert kubectl("apply", "-f", "-", given=changed) == "pod/web configured"
    shown = yaml.safe_load(kubectl("get", "pod", "web", "-o", "yaml"))
    assert shown["metadata"]["labels"] == {"tier": "front"}
    assert shown["spec"]["containers"][0]["image"] == "nginx:2"


def test_server_side_apply_names_the_manager_of_a_conflict(kubectl: Kubectl) -> None:
    cm = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    apply_as_ours = ("apply", "--server-side", "--field-manager=ours", "-f", "-")
    apply_as_theirs = ("apply", "--server-side", "--field-manager=theirs", "-f", "-")
    assert kubectl(*apply_as_ours, given=cm) == "configmap/c serverside-applied"
    other = {**cm, "data": {"a": "2"}}
    output = kubectl.refused(*apply_as_theirs, given=other)
    assert 'Apply failed with 1 conflict: conflict with "ours": .data.a' in output
    assert kubectl(*apply_as_theirs, "--force-conflicts", given=other) == "configmap/c serverside-applied"
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data.a}") == "2"


def test_diff_shows_the_changes_of_apply(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=POD)
    assert kubectl("diff", "-f", "-", given=POD) == ""
    changed = json.loads(json.dumps(POD).replace("nginx:1", "nginx:2"))
    ended = kubectl.run("diff", "-f", "-", given=changed)
    assert ended.returncode == 1
    assert "-  - image: nginx:1" in ended.stdout
    assert "+  - image: nginx:2" in ended.stdout


def test_get_as_table_wide_yaml_and_by_selector(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=POD)
    kubectl("run", "other", "--image=i")
    head, first, second = kubectl("get", "pods").splitlines()
    assert head.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert first.split()[:4] == ["other", "0/1", "Pending", "0"]
    assert second.split()[0] == "web"
    assert kubectl("get", "pods", "-o", "wide").splitlines()[0].split()[5:7] == ["IP", "NODE"]
    assert kubectl("get", "pods", "-l", "app=web", "-o", "name") == "pod/web"
    assert kubectl("get", "pods", "--field-selector", "metadata.name=other", "-o", "name") == "pod/other"
    assert yaml.safe_load(kubectl("get", "pod", "web", "-o", "yaml"))["kind"] == "Pod"
    assert 'pods "none" not found' in kubectl.refused("get", "pod", "none")


def test_get_watches(kubectl: Kubectl) -> None:
    words = kubectl.arguments(
        "get", "cm", "-w", "-o", "name", "--field-selector", "metadata.name!=kube-root-ca.crt"
    )
    seen: list[str] = []
    listening = threading.Event()
    with subprocess.Popen(words, env=kubectl.environment, stdout=subprocess.PIPE, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(line.strip())
                listening.set()

        reader = threading.Thread(target=read)
        reader.start()
        kubectl("create", "cm", "first")
        assert listening.wait(LONG)
        listening.clear()
        kubectl("create", "cm", "second")
        assert listening.wait(LONG)
        process.terminate()
        reader.join()
    assert seen == ["configmap/first", "configmap/second"]


def test_describe(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=POD)
    output = kubectl("describe", "pod", "web")
    assert "Image:      nginx:1" in output
    assert "Tolerations:" in output
    node = f"{kubectl.namespace}-node"
    capacity = {"cpu": "4", "memory": "8Gi"}
    status = {"capacity": capacity, "allocatable": capacity}
    kubectl.cluster.create("/api/v1/nodes", {"metadata": {"name": node}, "status": status})
    assert "Non-terminated Pods:" in kubectl("describe", "node", node)


def test_edit(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("create", "cm", "c", "--from-literal=a=before")
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i "s/before/after/" "$1"\n')
    editor.chmod(0o755)
    assert kubectl("edit", "cm", "c", KUBE_EDITOR=str(editor)) == "configmap/c edited"
    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data.a}") == "after"


def test_explain_knows_fields_of_built_in_and_custom_kinds(kubectl: Kubectl) -> None:
    assert "VERSION:    v1" in kubectl("explain", "pod.spec.containers.image")
    output = kubectl("explain", "widget.spec")
    assert "The desired state of a widget." in output
    assert "size\t<integer> -required-" in output
    assert 'field "frob" does not exist' in kubectl.refused("explain", "widget.spec.frob")


def test_patch_in_three_ways_and_the_status(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=POD)
    for kind, patch in (
        ("strategic", '{"metadata":{"labels":{"z":"1"}}}'),
        ("merge", '{"metadata":{"labels":{"z":"2"}}}'),
        ("json", '[{"op":"replace","path":"/metadata/labels/z","value":"3"}]'),
    ):
        assert kubectl("patch", "pod", "web", "--type", kind, "-p", patch) == "pod/web patched"
    assert kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.labels.z}") == "3"
    running = '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
    kubectl("patch", "pod", "web", "--subresource=status", "-p", running)
    assert kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=30s") == "pod/web condition met"
    failed = ("wait", "--for=jsonpath={.status.phase}=Failed", "pod/web", "--timeout=0")
    assert "condition not met" in kubectl.refused(*failed)


def test_labels_and_annotations(kubectl: Kubectl) -> None:
    kubectl("create", "cm", "c")
    assert kubectl("label", "cm", "c", "a=1") == "configmap/c labeled"
    assert "already has a value" in kubectl.refused("label", "cm", "c", "a=2")
    assert kubectl("label", "cm", "c", "a=2", "--overwrite") == "configmap/c labeled"
    assert kubectl("annotate", "cm", "c", "n=1") == "configmap/c annotated"
    assert kubectl("label", "cm", "c", "a-") == "configmap/c unlabeled"
    meta = json.loads(kubectl("get", "cm", "c", "-o", "json"))["metadata"]
    assert "labels" not in meta
    assert meta["annotations"] == {"n": "1"}


def test_a_node_is_tainted_cordoned_and_drained(kubectl: Kubectl) -> None:
    node = f"{kubectl.namespace}-n"
    kubectl.cluster.create("/api/v1/nodes", {"metadata": {"name": node}})
    assert kubectl("taint", "node", node, "a=b:NoSchedule") == f"node/{node} tainted"
    assert kubectl("cordon", node) == f"node/{node} cordoned"
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    pod = json.loads(json.dumps(POD))
    pod["spec"]["nodeName"] = node
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    kubectl("apply", "-f", "-", given=pod)
    assert "cannot delete" in kubectl.refused("drain", node)
    output = kubectl("drain", node, "--force", "--grace-period=0", f"--timeout={LONG}s")
    assert f"node/{node} drained" in output
    assert "not found" in kubectl.refused("get", "pod", "web")
    assert kubectl("uncordon", node) == f"node/{node} uncordoned"


def test_an_eviction_that_the_disruption_budget_forbids_is_refused(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", given=POD)
    kubectl("patch", "pod", "web", "--subresource=status", "-p", '{"status":{"phase":"Running"}}')
    kubectl("create", "pdb", "b", "--selector=app=web", "--min-available=1")
    observed = '{"status":{"observedGeneration":1}}'
    kubectl("patch", "pdb", "b", "--subresource=status", "--type=merge", "-p", observed)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/web/eviction"
    output = kubectl.refused("create", "--raw", path, "-f", "-", given=eviction)
    assert "Cannot evict pod as it would violate the pod's disruption budget." in output


def test_custom_resources_are_checked_by_their_schema(kubectl: Kubectl) -> None:
    custom = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 0},
    }
    output = kubectl.refused("apply", "-f", "-", given=custom)
    assert 'The Widget "w" is invalid: spec.size: Invalid value: 0' in output
    misspelt = {**custom, "spec": {"size": 1, "zoen": "a"}}
    assert 'unknown field "spec.zoen"' in kubectl.refused("apply", "-f", "-", given=misspelt)
    assert (
        kubectl("apply", "-f", "-", given={**custom, "spec": {"size": 1}}) == "widget.example.com/w created"
    )
    assert kubectl("get", "wd", "-o", "name") == "widget.example.com/w"


def test_kind_that_is_not_installed_is_reported_as_one(kubectl: Kubectl) -> None:
    group = {"apiVersion": "example.com/v1", "kind": "Absent", "metadata": {"name": "a"}}
    assert 'no matches for kind "Absent"' in kubectl.refused("apply", "-f", "-", given=group)


def test_delete_waits_until_it_is_gone(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "d", "--image=i")
    assert kubectl("delete", "deployment", "d", "--wait") == 'deployment.apps "d" deleted'
    name = f"{kubectl.namespace}-gone"
    kubectl("create", "ns", name)
    kubectl.cluster.create(f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "c"}})
    assert kubectl("delete", "ns", name, f"--timeout={LONG}s") == f'namespace "{name}" deleted'
    assert "not found" in kubectl.refused("get", "ns", name)


def test_scale_and_rollout(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "d", "--image=i")
    assert kubectl("scale", "deployment", "d", "--replicas=3") == "deployment.apps/d scaled"
    assert kubectl("get", "deployment", "d", "--no-headers").split()[1] == "0/3"
    assert kubectl("rollout", "restart", "deployment", "d") == "deployment.apps/d restarted"


def test_served_resources_and_permissions(kubectl: Kubectl) -> None:
    assert "Server Version: v1." in kubectl("version")
    listed = kubectl("api-resources", "--api-group=example.com", "--no-headers").split()
    assert listed == ["widgets", "wd", "example.com/v1", "true", "Widget"]
    assert kubectl("auth", "can-i", "delete", "nodes") == "yes"
    assert "admin" in kubectl("auth", "whoami")
    assert 'the server doesn\'t have a resource type "frobs"' in kubectl.refused("get", "frobs")
