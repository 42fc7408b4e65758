"""A cluster with unmodified peers and the broker: each a process of its own, on local AWS.

etcd, kube-apiserver and kube-scheduler come from tests/controlplane. Karpenter comes from its module, with
the CRDs of its release (`make peers`). The broker and Karpenter have a user and an access key each, so that
the API server's audit log and EC2's log of calls separate them. Only the machines are played.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import yaml

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.commands.crds.install import install
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.kube.transports import HttpTransport
from local.aws.control import Control
from local.demo.kubelets import Kubelets
from providers.aws import AwsProvider
from providers.aws.provider import CatalogSources
from providers.model import Instance
from tests.cluster.account import CLUSTER, REGION, Account
from tests.controlplane import server
from tests.controlplane.server import ControlPlane, free_port
from tests.peers.programs import NO_CREDENTIALS, Program, ProgramError, until

# KARPENTER=1.14 runs that release, as `make peers KARPENTER=1.14` has built it.
BUILT = Path(__file__).resolve().parents[2] / ".cache" / "peers" / (os.environ.get("KARPENTER") or "bin")
KARPENTER, BROKER, MACHINES = "karpenter", "broker", "machines"
KEYS = {KARPENTER: "AKIAKARPENTER0000000", BROKER: "AKIABROKER0000000000"}
HARMLESS = ("cluster is waiting on sync for extended duration", "skipping, node overlays are not applied")
# As Go's log package writes it: "SDK 2026/11/28 04:04:58 WARN …".
SDK_WARNING = re.compile(r"SDK \S+ \S+ WARN ")
OVERLAYS = "nodeoverlay.controller"
UNEVALUATED = "nodepool requirements filtered out all available instance types"
# Karpenter's alpha gates, which are off by default; an older release ignores those that it does not know.
ALPHA = ",".join(
    f"{gate}=true"
    for gate in (
        *("NodeRepair", "SpotToSpotConsolidation", "NodeOverlay", "StaticCapacity", "CapacityBuffer"),
        *("TerminateFirstDrift", "TerminateFirstRepair", "PodDeletionCostManagement"),
    )
)
UNPLAYED = "tests/no-machine"  # an instance with this tag never becomes a node
# The types of a stage's machines.
TYPES = (
    *("c5.large", "c5.xlarge", "m5.large", "m5.xlarge", "m5.2xlarge", "r5.large"),
    *("g5.12xlarge", "g6.12xlarge", "p5.48xlarge"),
)
ATTEMPTS = 3  # a port that was free a moment ago may be taken when Karpenter binds it

KINDS = {model.KIND.kind: model for model in (EC2NodeClass, NodeClaim, NodePool, Pod)}

Json = dict[str, Any]


def missing() -> str:
    """Why the peers cannot run here; empty when they can."""
    folder = server.find()
    if folder is None or not os.access(folder / "kube-scheduler", os.X_OK):
        return "no etcd, kube-apiserver and kube-scheduler: run `make peers` (it needs Go)"
    if not os.access(BUILT / "karpenter", os.X_OK):
        return f"no Karpenter in {BUILT}: run `make peers` (it needs Go)"
    return ""


class Machines(AwsProvider):
    """EC2 as the played machines see it: the instances of all programs."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            cluster=CLUSTER, region=REGION, endpoint_url=endpoint, catalog=CatalogSources(isolated_vpc=True)
        )
        # To read all types takes half a minute.
        self._aws.ec2.meta.events.register("provide-client-params.ec2.DescribeInstanceTypes", _only_these)

    def instances(self, ids: Collection[str] | None = None) -> Sequence[Instance]:
        if ids is None:
            pages = self._aws.pages(self._aws.ec2.describe_instances)
            ids = [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]
        return [instance for instance in super().instances(ids) if UNPLAYED not in instance.tags]


def _only_these(params: Json, **_: object) -> None:
    params.clear()
    params["InstanceTypes"] = [*TYPES]


class LocalAccount:
    """Local AWS in another process, with the interface that `Account` uses."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.control = Control(endpoint)


class Stage:
    """`with Stage() as stage:` gives a client, an account, and the logs of all programs."""

    def __init__(
        self, *, poll_seconds: float = 2.0, cluster: str = CLUSTER, broker: bool = True, gates: str = ""
    ) -> None:
        """`broker`: with it and its definitions from the start. `gates`: Karpenter's feature gates."""
        self._poll = poll_seconds
        self._cluster = cluster
        self._with_broker = broker
        self._gates = gates
        self._exits = ExitStack()
        self._brokers: list[Program] = []

    def __enter__(self) -> Self:
        with self._exits:
            self._exits.enter_context(_own_credentials())
            self._folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
            aws = self._start("local-aws", [sys.executable, "-m", "local.aws", "--port", "0"])
            self.plane = self._exits.enter_context(ControlPlane(users=(KARPENTER, BROKER)))
            self.plane.scheduler()
            self.client = self._client()
            self._install_crds()
            aws.until(lambda: bool(_endpoint(aws)), "listening")
            self.endpoint = _endpoint(aws)
            self.aws = Account(LocalAccount(self.endpoint))
            self._make_account()
            self.karpenter = self._start_karpenter(self._gates)
            if self._with_broker:
                self._start_broker()
            self.kubelets = Kubelets(self._client(), Machines(self.endpoint), clock=SystemClock(), every=1.0)
            self.kubelets.start()
            self._exits.callback(self.kubelets.stop)
            self._wait_for_karpenter()
            if self._with_broker:
                self._brokers[-1].until(self._broker_ready, "ready")
            self._exits = self._exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    # ---- acts and views of a user

    def create(self, *bodies: Json) -> None:
        for body in bodies:
            self.client.create(KINDS[body["kind"]].KIND, body)

    def would_create(self, body: Json) -> Json:
        """The object as the API server would keep it."""
        kind = KINDS[body["kind"]].KIND
        typed = {**body, "apiVersion": kind.api_version}
        return self.client.raw("POST", kind.path(), {"dryRun": "All", "fieldManager": "test"}, typed)

    def claims(self, pool: str = "") -> list[NodeClaim]:
        """Those of a NodePool, or all."""
        all_claims = map(NodeClaim.decode, self.client.list(NodeClaim.KIND)[0])
        return [claim for claim in all_claims if not pool or claim.labels.get(names.NODEPOOL) == pool]

    def pods(self, pool: str) -> list[Pod]:
        items = self.client.list(Pod.KIND, namespace="default", label_selector=f"pool={pool}")[0]
        return list(map(Pod.decode, items))

    def bound(self, pool: str) -> int:
        """How many of a NodePool's pods kube-scheduler gave a node."""
        return sum(bool(pod.spec.node_name) for pod in self.pods(pool))

    def offer(self, node_class: Json, pool: Json) -> None:
        """A class and a NodePool; returns when Karpenter reports that it can launch for them.

        The class first: Karpenter logs an error if a NodePool's class is not resolved yet.
        """
        self.create(node_class)
        name = node_class["metadata"]["name"]
        until(lambda: _ready(self.client.get(EC2NodeClass.KIND, name)), f"Karpenter accepts class {name}")
        self.create(pool)
        until(lambda: self.usable(pool["metadata"]["name"]), f"Karpenter accepts the NodePool of {name}")

    def usable(self, pool: str) -> bool:
        """Whether Karpenter can launch for a NodePool, and has seen it and its class as they are now."""
        pool_ = self.client.get(NodePool.KIND, pool)
        ref = pool_["spec"]["template"]["spec"]["nodeClassRef"]
        return all(map(_ready, (pool_, self.client.get(EC2NodeClass.KIND, ref["name"]))))

    def install_karpenter(self) -> None:
        """Karpenter's definitions, as its chart installs and upgrades them."""
        for file in sorted((BUILT / "crds").glob("*.yaml")):
            for definition in yaml.safe_load_all(file.read_text()):
                self.client.apply(CRD, definition)

    def restart_broker(self) -> None:
        """Another broker in place of the one that runs; returns when it has read everything."""
        self._brokers[-1].end()
        self._start_broker()
        self._brokers[-1].until(self._broker_ready, "ready")

    def restart_karpenter(self, *, gates: str) -> None:
        """Another Karpenter, with these feature gates; returns when it is ready."""
        self._gates = gates
        self.karpenter.end()
        self.karpenter = self._start_karpenter(gates)
        self._wait_for_karpenter()

    # ---- output and calls of the peers

    def karpenter_errors(self) -> list[Json]:
        """Karpenter's log lines of level ERROR and above, and lines that are no log lines: a panic.

        Left out are slow cache syncs (half a minute), which it logs as errors: the machine is slow then; and
        warnings of AWS's SDK, such as of a response whose rest came too late. With
        the gate NodeOverlay it skips once a pool that it has not evaluated yet (a pod then finds no type at
        all, if it is the only pool), or whose class has no subnets in its status yet.
        """
        errors = []
        for line in self.karpenter.lines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"level": "WARN" if SDK_WARNING.match(line) else "PANIC", "message": line}
            early = bool(self._gates) and (
                (entry.get("controller") == OVERLAYS and "no subnets found" in entry.get("error", ""))
                or entry.get("error") == UNEVALUATED
            )
            if (
                entry.get("level") not in ("DEBUG", "INFO", "WARN")
                and entry["message"] not in HARMLESS
                and not early
            ):
                errors.append(entry)
        return errors

    def broker_errors(self) -> list[Json]:
        """The same of every broker that has run."""
        entries = [
            json.loads(line) for broker in self._brokers for line in broker.lines() if line.startswith("{")
        ]
        return [entry for entry in entries if entry.get("level") not in ("debug", "info", "warning")]

    def karpenter_metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels; 0 while there are none."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=10).read().decode()
        expected = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(name + "{") and all(label in line for label in expected)
        )

    def calls(self, program: str, *actions: str) -> list[Json]:
        """The calls to AWS that one of the two made, oldest first."""
        return [
            call
            for call in self.aws.server.control.log()
            if call["access_key"] == KEYS[program] and (not actions or call["action"] in actions)
        ]

    # ---- how it comes to be

    def _client(self) -> Client:
        return Client(HttpTransport.from_kubeconfig(self.kubeconfig()), field_manager="test")

    def kubeconfig(self, user: str = server.ADMIN) -> Path:
        path = self._folder / f"{user}.kubeconfig"
        path.write_text(self.plane.kubeconfig(user=user))
        return path

    def start(self, name: str, command: Sequence[str], environment: Json) -> Program:
        """Another program, which ends with the stage."""
        return self._start(name, command, environment)

    def environment(self, user: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEYS[user],
            "AWS_SECRET_ACCESS_KEY": "local",
            "KUBECONFIG": str(self.kubeconfig(user)),
        }

    def _start(self, name: str, command: Sequence[str], environment: Json | None = None) -> Program:
        program = Program(name, command, folder=self._folder, environment=environment or {})
        return self._exits.enter_context(program)

    def _install_crds(self) -> None:
        """Karpenter's CRDs as released, then the broker's remaining ones."""
        self.install_karpenter()
        if self._with_broker:
            install(self.client)
        until(lambda: all(map(_established, self.client.list(CRD)[0])), "every definition is established")

    def _make_account(self) -> None:
        """Karpenter's calls to AWS besides EC2: the cluster, for its service range."""
        self.aws.client("eks").create_cluster(
            name=self._cluster,
            roleArn="arn:aws:iam::123456789012:role/cluster",
            resourcesVpcConfig={"subnetIds": list(self.aws.subnets.values())},
            kubernetesNetworkConfig={"serviceIpv4Cidr": "10.96.0.0/24"},
        )

    @cached_property
    def _ca(self) -> str:
        return b64encode(self.plane.ca.read_bytes()).decode()

    def _start_karpenter(self, gates: str) -> Program:
        self._metrics, self._health = free_port(), free_port()
        command = [
            str(BUILT / "karpenter"),
            *("-cluster-name", self._cluster),
            *("-cluster-endpoint", self.plane.url),
            *("-metrics-port", str(self._metrics)),
            *("-health-probe-port", str(self._health)),
            "-isolated-vpc=true",  # no Pricing API: it has a table of its own
            "-disable-dry-run=true",
            "-disable-leader-election=true",
            *(("-feature-gates", gates) if gates else ()),
        ]
        return self._start(
            "karpenter", command, {**self.environment(KARPENTER), "SYSTEM_NAMESPACE": "kube-system"}
        )

    def _wait_for_karpenter(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.karpenter.until(lambda: _get(f"http://127.0.0.1:{self._health}/readyz") == "ok", "ready")
                return
            except ProgramError as error:
                if "address already in use" not in str(error) or attempt == ATTEMPTS:
                    raise
                self.karpenter = self._start_karpenter(self._gates)

    def _start_broker(self) -> None:
        options = [
            *("--cluster-name", self._cluster),
            *("--cluster-endpoint", self.plane.url),
            *("--cluster-ca", self._ca),
            *("--http-port", "0"),
            *("--poll-seconds", str(self._poll)),
            *("--orphan-grace-seconds", "5"),
            *("--log-format", "json"),
        ]
        command = [sys.executable, "-m", "broker.cli", "run", *options]
        self._brokers.append(self._start(f"broker-{len(self._brokers)}", command, self.environment(BROKER)))

    def _broker_ready(self) -> bool:
        """The leader with everything read; a standby, which it is at first, would report ready too."""
        matches = (
            re.search(r'"url": ?"([^"]+)"', line) for line in self._brokers[-1].lines() if '"serving"' in line
        )
        url = next((match[1] for match in matches if match), "")
        return bool(url) and "[+]ec2-reservations" in _get(f"{url}/readyz")


@contextmanager
def _own_credentials() -> Iterator[None]:
    """This process too never meets the user's account."""
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(
            AWS_ACCESS_KEY_ID="AKIATEST000000000000", AWS_SECRET_ACCESS_KEY="local", **NO_CREDENTIALS
        )
        yield


def _endpoint(aws: Program) -> str:
    return next((line.partition("AWS_ENDPOINT_URL=")[2] for line in aws.lines()), "")


def _ready(body: Json) -> bool:
    """Ready, and of the object as it is now."""
    ready = _condition(body, names.READY)
    return ready.get("status") == "True" and ready.get("observedGeneration") == body["metadata"]["generation"]


def _established(definition: Json) -> bool:
    return _condition(definition, "Established").get("status") == "True"


def _condition(body: Json, type_: str) -> Json:
    conditions = body.get("status", {}).get("conditions") or ()  # null in a definition that is new
    return next((condition for condition in conditions if condition["type"] == type_), {})


def _get(url: str) -> str:
    """The text of a response of any status; nothing while there is no response."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")
    except OSError:
        return ""
