"""The quick start on EKS: each command of the page, by the real tools, on local servers.

No controller runs pods here. So helm installs the chart as it stands on the page, and the broker then runs
with the arguments, the environment and the service account of the Deployment that helm made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker.apis.core import Pod
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from tests.cluster.account import REGION, A, B
from tests.controlplane.server import free_port, kubeconfig
from tests.deploy import helm
from tests.docs.blocks import DOCS, ROOT, blocks
from tests.peers import objects
from tests.peers.objects import ON_DEMAND, Json
from tests.peers.programs import clean, until
from tests.peers.stage import BROKER, Stage, missing
from tests.peers.terraform import TerraformMissing, offline

pytestmark = pytest.mark.peers
PAGE = DOCS / "use/quickstart-eks.md"
TYPE = "g6.12xlarge"
TOOLS = ("aws", "kubectl", "terraform")
DEPLOYMENT = Kind(group="apps", version="v1", kind="Deployment", plural="deployments", namespaced=True)
SERVICE_ACCOUNT = Kind(
    group="", version="v1", kind="ServiceAccount", plural="serviceaccounts", namespaced=True
)
PATIENCE = 120.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    reason = missing() or (f"no {', '.join(absent)} on PATH" if absent else "")
    if reason and os.environ.get("CI_REQUIRE_PEERS") == "1":
        pytest.fail(f"CI_REQUIRE_PEERS=1, but {reason}")
    if reason:
        pytest.skip(reason)
    with Stage(cluster="prod", broker=False) as running:
        yield running


@pytest.fixture
def environment(stage: Stage, tmp_path: Path) -> Mapping[str, str]:
    """An administrator's terminal in a copy of the repository."""
    try:
        terraform = offline(tmp_path)
    except TerraformMissing as error:
        pytest.skip(str(error))
    shutil.copytree(ROOT / "deploy" / "chart", tmp_path / "deploy" / "chart")
    path = f"{Path(helm.program()).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **clean({}),
        **terraform,
        **stage.environment(BROKER),
        "AWS_DEFAULT_REGION": REGION,
        "PATH": path,
        "HOME": str(tmp_path),
    }


def run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=dict(environment),
        input="yes\n",  # to terraform's question
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    return done.stdout


def start_broker(stage: Stage, folder: Path) -> None:
    """The process of the Deployment's pod, with the effect of its volume, network and token."""
    deployment = stage.client.get(DEPLOYMENT, "capacity-broker", namespace="capacity-broker")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    ports = {name: str(free_port()) for name in given if name.endswith("_PORT")}
    (mount,) = container["volumeMounts"]
    path = SERVICE_ACCOUNT.path(namespace="capacity-broker", name=spec["serviceAccountName"])
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = stage.client.raw("POST", f"{path}/token", {}, body)["status"]["token"]
    config = folder / "broker.kubeconfig"
    config.write_text(kubeconfig(url=stage.plane.url, token=token, ca=stage.plane.ca))
    environment = {
        **stage.environment(BROKER),
        **given,
        **ports,
        "BROKER_HTTP_HOST": "127.0.0.1",
        "BROKER_HISTORY": given["BROKER_HISTORY"].replace(mount["mountPath"], str(folder)),
        "BROKER_NAMESPACE": deployment["metadata"]["namespace"],
        "HOSTNAME": "capacity-broker-0",
        "KUBECONFIG": str(config),
    }
    stage.start("broker", [sys.executable, "-m", "broker.cli", *container["args"]], environment)


def save(folder: Path) -> None:
    """The two files that the reader of the page writes."""
    (variables,) = blocks(PAGE, "hcl")
    (folder / "terraform/examples/eks/terraform.tfvars").write_text(variables)
    (manifest,) = blocks(PAGE, "yaml")
    (folder / "quickstart.yaml").write_text(manifest)


def offer(stage: Stage) -> list[str]:
    """The reader's cluster: Karpenter with a class and a NodePool, and two ODCRs."""
    odcrs = [stage.aws.odcr(TYPE, zone, 1) for zone in (A, B)]
    node_class = objects.node_class("default", stage.aws)
    pool = objects.node_pool("default", node_class="default", types=["m5.large"], capacity=[ON_DEMAND])
    stage.offer(node_class, pool)
    return odcrs


@pytest.mark.covers("USR-21")
def test_each_command_of_the_quick_start_leads_to_a_pod_in_a_reservation(
    stage: Stage, environment: Mapping[str, str], tmp_path: Path
) -> None:
    odcrs = offer(stage)
    commands = blocks(PAGE, "sh")
    assert len(commands) <= 10
    save(tmp_path)
    outputs: dict[str, str] = {}
    for command in commands:
        if command.startswith("kubectl wait"):
            run_pod(stage)
        outputs[command] = run(command, tmp_path, environment)
        if "helm install capacity-broker " in command:
            start_broker(stage, tmp_path)
        if command.startswith("kubectl annotate"):
            until(lambda: advised(stage) == {*odcrs}, "the broker names the reservations to Karpenter")

    (claim,) = stage.claims("reserved")
    pod = stage.client.get(Pod.KIND, "hello", namespace="default")
    assert (pod["spec"]["nodeName"], pod["status"]["phase"]) == (claim.status.node_name, "Running")
    used = stage.aws.instance(claim.status.provider_id.rpartition("/")[2])["CapacityReservationId"]
    assert used in odcrs and stage.aws.free(used) == 0
    last = outputs[commands[-1]]
    assert claim.name in last and "reserved" in last and all(odcr in last for odcr in odcrs)


def run_pod(stage: Stage) -> None:
    """The kubelet's part, once kube-scheduler has bound the pod to its node."""

    def bound() -> bool:
        return bool(stage.client.get(Pod.KIND, "hello", namespace="default")["spec"].get("nodeName"))

    until(bound, "the pod has a node")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    stage.client.patch(Pod.KIND, "hello", {"status": status}, namespace="default", subresource="status")


def advised(stage: Stage) -> set[str]:
    node_class: Json = stage.client.get(EC2NodeClass.KIND, "default")
    return {
        term["id"] for term in node_class["spec"].get("capacityReservationSelectorTerms", ()) if "id" in term
    }
