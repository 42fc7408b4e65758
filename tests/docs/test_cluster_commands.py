"""The commands of the pages that need a cluster, run in order on one cluster with the demo's account."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml
from typer.testing import CliRunner

from broker import cli
from broker.apis.admission import ValidatingWebhookConfiguration
from broker.apis.core import ConfigMap, Event
from broker.apis.karpenter import NodeClaim
from broker.apis.names import AWS_REQUESTS, KARPENTER_AWS
from broker.apis.ome import CapacityReservation
from broker.commands import manifests
from broker.kube import identity
from local.demo import account as demo_account
from local.demo.examples import apply
from local.demo.kubelets import Kubelets
from local.demo.workloads import DEPLOYMENTS
from local.in_process import InProcessTransport
from local.kube import ApiServer, Collector
from tests.cluster import karpenter, objects
from tests.cluster.account import REGION, A
from tests.cluster.stack import Provider, Stack
from tests.cluster.test_prometheus import led
from tests.docs.blocks import DOCS, ROOT, blocks
from tests.docs.commands import Command, commands
from tests.docs.owners import CLUSTER_PAGES, CLUSTER_TEST, owner, plain
from tests.kueue.definitions import install
from tests.support.definitions import defined
from tests.support.direct import local_aws_here
from tests.support.service_models import models_read_once

__all__ = ["models_read_once"]
# Names on a page that its reader replaces, and those of this cluster.
REPLACED: Final[Mapping[str, Mapping[str, str]]] = {
    "docs/operate/operations.md": {"cr-0123456789abcdef0": "${ODCR_OPEN}"},
    "docs/operate/troubleshooting.md": {
        "pod NAME -n NAMESPACE": "pod train-0 -n default",
        "claim NAME": "claim overflow-0",
        "class NAME": "class full",
    },
}
# The beginning of a command, and a part of its output. Other commands print nothing.
PRINTS: Final[Mapping[str, str]] = {
    "kubectl annotate --overwrite ec2nodeclass training": "annotated",
    "kubectl annotate capacityreservation training": "annotated",
    "kubectl apply -f examples/reservations/bought.yaml": "nodeclaim.karpenter.sh/research-0",
    "kubectl apply -f examples/reservations/dedicated-cluster.yaml": "ome.io/tenant created",
    "kubectl create clusterrolebinding gpu-team": "gpu-team created",
    "kubectl delete -f examples/reservations/bought.yaml": '"research" deleted',
    "kubectl delete -f examples/reservations/dedicated-cluster.yaml": '"production" deleted',
    "kubectl delete dedicatedaicluster tenant": '"tenant" deleted',
    "kubectl delete validatingwebhookconfiguration": '"capacity-broker" deleted',
    "kubectl --namespace kube-system delete configmap": '"capacity-broker-identity" deleted',
    "kubectl --namespace kube-system get lease": "replica-0",
    "kubectl --namespace kube-system patch configmap": "capacity-broker-purchases patched",
    "kubectl describe capacityreservation gpus": "Capacity Reservation Lifecycle State",
    "kubectl get capacityreservations -A -l cohort=ml": "training",
    "kubectl get capacityreservations -A": "research",
    "kubectl get capacityreservations -n research --watch": "Active",
    "kubectl get clusterqueues -l capacity-reservation=training": "training",
    "kubectl get configmap capacity-broker-shortages": "InsufficientInstanceCapacity",
    "kubectl create deployment hello": "created",
    "kubectl get dedicatedaiclusters --watch": "ACTIVE",
    "kubectl get ec2nodeclass NAME -o yaml": "capacityReservations:",
    "kubectl get ec2nodeclass by-group -o yaml": "capacityReservations:",
    "kubectl get ec2nodeclass training -o jsonpath": "1 ",
    "kubectl get events --all-namespaces": '"kind": "Event"',
    "kubectl get localqueues -A": "training",
    "kubectl get nodeclaims --output json": "lost-0",
    "kubectl get nodeclaims -L": "CAPACITY-RESERVATION-ID",
    "kubectl get nodeclaims": "overflow-0",
    "kubectl get nodes -l capacity-broker.io/dedicated-cluster=tenant": " Ready ",
    "kubectl get odcr": "g6.12xlarge",
    "kubectl get workloads -A": "No resources found",
    "kubectl scale deployment shop": "scaled",
    "capacity-broker adopt research/gpus": "capacity-broker.io/reservation-ids",
    "capacity-broker crds patch": "v1       there",
    "capacity-broker errors --since 1h --by pool": "ReservationFull",
    "capacity-broker explain claim NAME": "ReservationFull",
    "capacity-broker explain claim overflow-0": "ReservationFull",
    "capacity-broker explain claim research-0": "Launched=True",
    "capacity-broker explain claim train-0": "Launched=True",
    "capacity-broker explain pod": "Pod default/train-0: waits for",
    "capacity-broker explain class training": "ReservationsFound",
    "capacity-broker explain cluster": "2 claims wait",
    "capacity-broker explain reservation research/gpus": "ReservationActive",
    "capacity-broker give-back research/gpus": "Cancel",
    "capacity-broker hold research/gpus": "Hold",
    "capacity-broker idle": "slots idle",
    "capacity-broker inventory": "research/gpus",
    "capacity-broker plan -f class": "planned-0",
    "capacity-broker resume research/gpus": "Hold",
    "capacity-broker watch": "waits-0",
}
READS: Final = re.compile(r"kubectl (get|describe) |capacity-broker (errors|explain|idle|inventory)")
# Commands that end when the broker has done its part, as its time moves.
WAITS: Final = re.compile(r"kubectl (delete|.*--watch)")
# Commands that end when they are interrupted.
ENDLESS: Final = re.compile(r"kubectl .*--watch|capacity-broker watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedCluster:
    """A cluster that has the objects of the pages, and a reader's terminal."""

    stack: Stack
    account: demo_account.ExampleIds
    folder: Path
    environment: Mapping[str, str]

    def follow(self, command: Command) -> None:
        """Runs a command. A command that reads is repeated until the broker has caught up."""
        text = plain(command)
        expected = next((part for begin, part in PRINTS.items() if text.startswith(begin)), "")
        for name, value in REPLACED.get(command.page, {}).items():
            text = text.replace(name, self.account.fill(value))
        run = self._call if text.startswith("capacity-broker ") and not ENDLESS.match(text) else self._spawn
        printed = [run(command.shell, text, expected)]

        def right() -> bool:
            if not correct(*printed[-1], expected, command.output) and READS.match(text):
                printed.append(run(command.shell, text, expected))
            return correct(*printed[-1], expected, command.output)

        try:
            if READS.match(text):
                self.stack.until(right, text, step=1.0)
            assert right()
        except AssertionError as error:
            code, output = printed[-1]
            raise AssertionError(
                f"{command.page}\n$ {text}\nended with {code}, without {expected!r}:\n{output}"
            ) from error

    def _call(self, _shell: str, text: str, _expected: str) -> tuple[int, str]:
        """In this process, which imports the modules of the command line once."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            done = CliRunner().invoke(cli.app, shlex.split(text)[1:], env=dict(self.environment))
        return done.exit_code, done.output + (repr(done.exception) if done.exception else "")

    def _spawn(self, shell: str, text: str, expected: str) -> tuple[int, str]:
        """Of the shell."""
        file, endless = self.folder / "output", bool(ENDLESS.match(text))
        with (
            file.open("w") as output,
            subprocess.Popen(
                ["bash", "-c", f"{shell}\n{'exec ' * endless}{text}"],
                cwd=self.folder,
                env=dict(self.environment),
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):

            def ended() -> bool:
                return process.poll() is not None or (endless and expected in file.read_text())

            try:
                self.stack.until(ended, text, step=1.0 if WAITS.match(text) else 0.0)
            finally:
                process.kill()
        return 0 if endless else process.returncode, file.read_text()


def correct(code: int, output: str, expected: str, shown: str) -> bool:
    """Whether the output has the expected part, and begins like the one on the page."""
    begins = [text.splitlines()[0].split() for text in (output, shown) if text.strip()]
    same = not shown or begins[0] == begins[-1]
    return code == 0 and same and (expected in output if expected else not output)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DocumentedCluster]:
    served = defined()
    with (
        pytest.MonkeyPatch.context() as patch,
        local_aws_here() as aws,
        Collector(served),
        ApiServer(served) as api,
    ):
        patch.setattr("tests.cluster.stack.CLUSTER", demo_account.CLUSTER)
        patch.setattr("providers.aws.AwsProvider", Provider)  # commands read few types of instances, too
        aws.reset()
        account = demo_account.build(aws.endpoint)
        stack = Stack(aws, InProcessTransport(served))
        stack.kubelets = Kubelets(stack.client, stack.provider(), clock=stack.clock, every=0.1)
        try:
            prepare(stack, account)
            save(account, api, tmp_path)
            request_id = stack.until(lambda: requests(stack), "an Event has the id of a request")[0]
            with led(stack):
                yield DocumentedCluster(
                    stack=stack,
                    account=account,
                    folder=tmp_path,
                    environment={
                        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                        "PYTHONPATH": str(ROOT),
                        "HOME": str(tmp_path),
                        "KUBECONFIG": str(tmp_path / "kubeconfig"),
                        "CLUSTER_NAME": demo_account.CLUSTER,
                        "AWS_ENDPOINT_URL": aws.endpoint,
                        "AWS_REGION": REGION,
                        "AWS_DEFAULT_REGION": REGION,
                        "AWS_ACCESS_KEY_ID": "testing",
                        "AWS_SECRET_ACCESS_KEY": "testing",
                        "REQUEST_ID": request_id,
                    },
                )
        finally:
            stack.close()


def prepare(stack: Stack, account: demo_account.ExampleIds) -> None:
    """The demo's classes and claims, and the objects that pages name: `gpus`, `training`, `lost-0`."""
    client = stack.client
    demo_account.rival(stack.server.endpoint, account, account.names["ODCR_FULL"])
    for name in ("full-reservation", "reservation-by-id", "reservation-group"):
        apply(client, manifests.read([str(ROOT / f"examples/{name}.yaml")], fill=account.fill))
    stack.node_class("training", id_=account.names["ODCR_P5"])
    karpenter.pool(stack, node_class="training")
    gpus = yaml.safe_load(blocks(DOCS / "use/reservations.md", "yaml")[0])
    training = {**gpus, "metadata": {"name": "training"}, "spec": {**gpus["spec"], "cohort": "ml"}}
    for body in (gpus, training):
        body["metadata"]["namespace"] = "default"
        client.create(CapacityReservation.KIND, body)
    stack.start(cluster_name=demo_account.CLUSTER, buy_dollars=100.0)
    stack.until_ready("overflow-0", "train-0", "train-1")
    stack.claim("waits-0", node_class="by-id", types=("p5.48xlarge",))
    stack.pod("train-0")
    stack.control.pool(instance_type="m5.large", zone=A, size=0)
    stack.claim("short-0", node_class="training", zones=(A,), capacity=(objects.ON_DEMAND,))
    stack.until_waiting("short-0", "InsufficientCapacity")
    lost = objects.claim("lost-0", node_class="training", types=("m5.large",), capacity=(objects.RESERVED,))
    lost["spec"]["nodeClassRef"]["group"] = KARPENTER_AWS
    client.create(NodeClaim.KIND, lost)
    missing = {
        "type": "InstanceListed",
        "status": "False",
        "reason": "MassLoss",
        "message": "not listed",
        "lastTransitionTime": "2026-11-23T03:00:00Z",
    }
    client.patch(NodeClaim.KIND, "lost-0", {"status": {"conditions": [missing]}}, subresource="status")
    client.create(ValidatingWebhookConfiguration.KIND, {"metadata": {"name": "capacity-broker"}})
    client.create(ConfigMap.KIND, {"metadata": {"name": identity.NAME, "namespace": identity.NAMESPACE}})
    shop = next(
        d
        for d in manifests.read([str(ROOT / "examples/pods")], fill=account.fill)
        if d["metadata"]["name"] == "shop"
    )
    client.create(DEPLOYMENTS, {**shop, "metadata": {"name": "shop", "namespace": "default"}})


def save(account: demo_account.ExampleIds, api: ApiServer, folder: Path) -> None:
    """The files of the reader: a checkout's, those that commands name, and the kubeconfig."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "kubeconfig").write_text(api.kubeconfig())
    text = account.fill((ROOT / "examples/full-reservation.yaml").read_text()).replace(
        "overflow-", "planned-"
    )
    node_class, *claims = text.split("---\n")
    (folder / "class.yaml").write_text(node_class)
    (folder / "claim.yaml").write_text("---\n".join(claims))


def requests(stack: Stack) -> list[str]:
    annotations = (event.annotations.get(AWS_REQUESTS, "") for event in stack.all(Event))
    return [request_ids for request_ids in annotations if request_ids]


@pytest.mark.covers("USR-24")
@pytest.mark.kubectl
@pytest.mark.skipif(
    not all(map(shutil.which, ("kubectl", "jq"))) and os.environ.get("CI_REQUIRE_PEERS") != "1",
    reason="no kubectl or no jq on PATH",
)
def test_commands_of_the_pages_on_a_cluster(cluster: DocumentedCluster) -> None:
    """The order matters: a page uses the objects of pages before it. A command that reads runs once."""
    cluster_commands = [
        command for command in commands() if (by := owner(command)) and by.file == CLUSTER_TEST
    ]
    read: set[str] = set()
    before: Mapping[str, Callable[[], None]] = {"docs/use/kueue.md": lambda: install(cluster.stack.client)}
    for page in CLUSTER_PAGES:
        if page in before:
            before[page]()
        for command in cluster_commands:
            text = plain(command)
            if command.page == page and text not in read:
                cluster.follow(command)
            if READS.match(text) or ENDLESS.match(text):
                read.add(text)
