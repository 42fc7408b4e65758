"""The world of one run: a cluster, an account, processes of the broker, and time.

Invariant: it is made of the seed alone and driven from one thread. Acts of the world itself (users, EC2,
machines) go past the gate. Checks read moto's and the API server's own memory, never the broker's.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

import structlog
from moto import backends
from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data
from moto.ec2.models import ec2_backends
from moto.ec2.utils import random_rsa_key_pair
from moto.moto_api._internal import mock_random

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from broker.kube.client import Client
from broker.settings import Settings
from local.aws import LocalAws
from local.aws.control import Control
from local.aws.ec2.world import world as aws_world
from local.in_process import InProcessTransport
from local.kube.collector import Collector
from providers.aws import clients
from providers.names import TAG_CLUSTER
from tests.cluster import objects
from tests.cluster.account import ACCOUNT, CLUSTER, REGION, A, Account
from tests.cluster.stack import Provider
from tests.simulation.chance import EPOCH, Time, ruled
from tests.simulation.memo import Memo
from tests.simulation.process import Process
from tests.simulation.wire import Gate, Session, core
from tests.support import direct
from tests.support.definitions import defined
from tests.support.direct import local_aws_here

if TYPE_CHECKING:
    from tests.simulation.broken import Kubelets
    from tests.simulation.pools import PoolFacts

Json = dict[str, Any]
Store = Mapping[tuple[str, str], Json]
ENDED = ("shutting-down", "terminated")
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
SETTINGS = Settings(
    cluster_name=CLUSTER,
    cluster_endpoint="https://blue.example",
    cluster_ca="Zm9v",
    region=REGION,
    aws_endpoint="local",
    poll_seconds=45.0,
    orphan_grace_seconds=60.0,
    leader_election=False,
    buy_dollars=5000.0,
    buy_instances=4,
    buy_instances_each=3,
    buy_instances_namespace=4,
    buy_dollars_each=float("inf"),
    buy_dollars_namespace=float("inf"),
    buy_zones=A,
    reservation_steady_seconds=10.0,
    reservation_creating_seconds=120.0,
    reservation_updating_seconds=120.0,
    dedicated_wait_seconds=120.0,
)


class Lab:
    """Shared by all runs of a process: local AWS, the SDK's clients, the definitions."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.panics: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._prepare(stack)
            self._stack = stack.pop_all()
        return self

    def _prepare(self, stack: ExitStack) -> None:
        enter = stack.enter_context
        enter(patch.dict(os.environ, ENVIRONMENT))
        self.server: LocalAws = enter(local_aws_here())
        self.memo = Memo(direct.answering[self.server])
        enter(patch.dict(direct.answering, {self.server: self.memo}))
        # The files that moto reads at each request do not change.
        modules = [*backends.list_of_moto_modules()]
        enter(patch.object(backends, "list_of_moto_modules", modules.copy))
        enter(patch.object(clients, "boto3", SimpleNamespace(Session=Session)))
        enter(patch.object(clients, "_core", cache(core)))
        # No run logs in; a key for each account takes as long as a tenth of a run.
        pair = random_rsa_key_pair()
        enter(patch("moto.ec2.models.key_pairs.random_rsa_key_pair", lambda: pair))
        before = structlog.get_config()
        structlog.configure(
            processors=[self._captured], cache_logger_on_first_use=False, wrapper_class=structlog.BoundLogger
        )
        stack.callback(lambda: structlog.configure(**before))
        # Values that are read once a process are read now, so that the first run is like the others.
        Provider(cluster=CLUSTER, region=REGION, endpoint_url=self.server.endpoint).instance_types()
        Account(self.server)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Session.gate = None
        self._stack.close()

    def _captured(self, _: object, method: str, event: MutableMapping[str, Any]) -> Any:
        """Keeps the product's panics; drops everything else that it logs."""
        error = event.get("exc_info")
        if method in ("error", "exception") and isinstance(error, BaseException):
            self.panics.append(_where(event, error))
        raise structlog.DropEvent


def _where(event: Mapping[str, Any], error: BaseException) -> str:
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{code.co_filename.rpartition('/broker/')[2]}:{trace.tb_lineno} {code.co_name}"
        trace = trace.tb_next
    return f"{event.get('where')}: {type(error).__name__}: {str(error)[:200]} at {place}"


def _forget_aws(seed: str) -> None:
    """moto's own reset makes backends anew, some after they were forgotten, with ids of their own."""
    for service in [*BackendDict._instances]:  # type: ignore[misc]
        service.clear()
    BackendDict._instances.clear()  # type: ignore[misc]
    reset_model_data()
    mock_random.seed(f"{seed} moto")


@dataclass
class Facts:
    """Facts about the history of the world that the invariants need and cannot see in it."""

    requested: dict[str, int] = field(default_factory=dict)  # reservation -> most instances ever requested
    foreign: set[str] = field(default_factory=set)  # ids in EC2 that are another cluster's or a person's
    shrunk: set[str] = field(default_factory=set)  # EC2 reservations that were ended or resized by others
    forced: set[str] = field(default_factory=set)  # uids of claims that were deleted past their finalizer
    # Launch id -> uids of the claims that named it.
    launches: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    ahead: float = 0.0  # how far in the future, in seconds, a process may have dated its writes
    broken_by_hand: bool = False  # a record that the broker wrote for itself was removed
    clusters: dict[str, int] = field(default_factory=dict)  # dedicated cluster -> most instances requested


class World:
    """`lab` is empty when it begins: one world at a time."""

    def __init__(self, lab: Lab, seed: str) -> None:
        self._stack = ExitStack()
        self.lab, self.server = lab, lab.server
        self.time = Time()
        self._stack.enter_context(ruled(seed, self.time))
        lab.panics.clear()
        _forget_aws(seed)
        lab.memo.forget()
        self.gate = Gate(self.time, lab.server.endpoint)
        Session.gate = self.gate
        self.facts = Facts()
        self.settings = SETTINGS
        self.control = Control()
        self.aws = Account(lab.server)
        self.cluster = defined(clock=lambda: EPOCH.timestamp() + self.time.seconds, seed=1)
        self.client = Client(InProcessTransport(self.cluster), field_manager="user")
        self.collector = Collector(self.cluster)
        self.processes: list[Process] = []
        self.stubborn: set[str] = set()  # instances with a machine that never joins
        self.sick: set[str] = set()  # nodes with a kubelet that does not report
        self.with_pools = False  # whether NodePools and their pods are part of it
        self.pool_facts: PoolFacts = None  # type: ignore[assignment]  # set if they are
        self.kubelets: Kubelets | None = None  # set if machines break
        self._joined: set[str] = set()
        self.random = random.Random(seed)
        self._started = 0
        self.restart_at = 0.0
        self.roles: tuple[str, ...] = ("on",)  # the option `scheduler` of each process

    def close(self) -> None:
        for process in self.processes:
            process.die()
        self._stack.close()

    def set(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    # ---- processes

    def events_a_watch(self) -> int:
        return self.random.choice((1, 1, 2, 3, 10, 100))

    def start(self, *, skew: float = 0.0) -> Process:
        """Starts a process for the first role that none has."""
        self._started += 1
        missing = [*self.roles]
        for process_ in self.running:
            missing.remove(process_.scheduler)
        process = Process(self, f"p{self._started}", skew=skew, scheduler=missing[0])
        self.processes = [process_ for process_ in self.processes if process_.alive]
        self.processes.append(process)
        return process

    @property
    def running(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    # ---- machines

    def machines(self) -> None:
        """Nodes for the instances that run, ready one look later; none for those that do not."""
        nodes = self.objects(Node.KIND)
        running = {f"{i.id}.ec2.internal": i for i in self.instances() if i.state == "running"}
        for name, instance in running.items():
            node = nodes.get(("", name))
            if instance.id in self.stubborn:
                continue
            if node is None and instance.id not in self._joined:
                self._joined.add(instance.id)
                self.client.create(Node.KIND, self._node(name, instance))
            elif node is not None and name not in self.sick and (status := self.reported(node, instance)):
                self.client.patch(Node.KIND, name, {"status": status}, subresource="status")
        for _, name in nodes:
            if name.endswith(".ec2.internal") and name not in running:
                self.client.delete(Node.KIND, name)
        self.collector.collect()

    def reported(self, node: Json, instance: Any) -> Json:
        """The status that the kubelet writes now; empty if the Node has it."""
        if self.kubelets is not None:
            return self.kubelets.reported(node, instance)
        if ready(node):
            return {}
        return {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}

    def _node(self, name: str, instance: Any) -> Json:
        kind = Provider.known[instance.instance_type]
        resources = {
            "cpu": str(kind.vcpus),
            "memory": f"{int(kind.memory_mib * 0.92)}Mi",
            "pods": str(kind.max_pods),
            **{f"{gpu.manufacturer.lower()}.com/gpu": str(gpu.count) for gpu in kind.gpus},
            **({"vpc.amazonaws.com/efa": str(kind.efa_interfaces)} if kind.efa_interfaces else {}),
        }
        return {
            "metadata": {"name": name, "labels": {names.HOSTNAME: name, names.ARCH: kind.architecture}},
            "spec": {
                "providerID": f"aws:///{instance.placement.zone}/{instance.id}",
                "taints": [{"key": names.UNREGISTERED_TAINT, "effect": "NoExecute"}],
            },
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}],
            },
        }

    # ---- the objects of users

    def node_class(self, name: str, *, zones: Iterable[str] = (A,), **spec: str) -> None:
        body = objects.node_class(
            name,
            image=self.aws.image,
            subnets=[self.aws.subnets[zone] for zone in zones],
            security_group=self.aws.security_group,
            spec=objects.reservation_spec(**spec),
        )
        self.client.create(EC2NodeClass.KIND, body)

    # ---- the truth

    def objects(self, kind: Kind) -> Store:
        """Every object of a kind, as the API server has it."""
        items = self.cluster.state.store.collection(f"{kind.plural}.{kind.group}").items
        return {key: item.obj for key, item in items.items()}

    def claims(self) -> list[Json]:
        return [*self.objects(NodeClaim.KIND).values()]

    def pods(self) -> list[Json]:
        return [*self.objects(Pod.KIND).values()]

    def all_instances(self) -> Iterator[Any]:
        """moto's own, of every cluster and state."""
        for reservation in ec2_backends[ACCOUNT][REGION].reservations.values():
            yield from reservation.instances

    def instances(self) -> list[Any]:
        """The cluster's own that are alive."""
        return [
            i
            for i in self.all_instances()
            if i.state not in ENDED
            and self.tags(i.id).get(TAG_CLUSTER) == CLUSTER
            and i.id not in self.facts.foreign
        ]

    def tags(self, id_: str) -> Mapping[str, str]:
        """EC2's own record of a resource."""
        return dict(ec2_backends[ACCOUNT][REGION].tags.get(id_, {}))

    def odcrs(self) -> list[Any]:
        """Local AWS's own reservations."""
        self.catch_up_ec2()
        return [*aws_world().ledger.reservations.values()]

    def catch_up_ec2(self) -> None:
        """Carries out all that is due by EC2's clock."""
        self.lab.memo.catch_up()


def ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def condition(obj: Json, type_: str) -> Json:
    conditions = obj.get("status", {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type_), {})
