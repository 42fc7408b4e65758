"""A rollout of the broker in simulated time: full reservations with a pod a node, and all nodes drift.

The broker is the real one with its default settings, on local AWS in a process of its own and on the embedded
API server. Played are the machines, which are Ready a minute after their launch, the controllers of the
Deployment, and kube-scheduler. Whether EC2 counts a running instance in a slot that becomes free is a
parameter: AWS does not document that it does. Time moves on in steps, of a second while a slot is empty or a
pod waits, and for minutes after all nodes are new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks.processes import local_aws, own_credentials, until, usage
from benchmarks.recording import offer_only
from broker import logs
from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load as load_crds
from broker.apis.godel import GodelDeployment
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.app import Broker
from broker.capacity.attempts import Attempt, Outcome
from broker.kube.client import Client
from broker.memory import collect_seldom
from broker.settings import Settings
from local.aws import LocalAws
from local.aws.control import Control
from local.demo.kubelets import Kubelets
from local.demo.rollout import RolloutResult, deployment, full, over
from local.demo.scheduling import schedule
from local.demo.slot_watch import SlotWatch, WatchedPool
from local.demo.workloads import Workloads
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.aws import AwsProvider
from providers.model import Instance, InstanceType
from tests.cluster import objects
from tests.cluster.account import CLUSTER, REGION, A, Account
from tests.cluster.clocks import HastyClock, MovableClock

TYPE: Final = "m5.large"
NAME: Final = "web"
NEED: Final = {"cpu": "1500m"}  # a pod a node
BOOT: Final = 60.0  # simulated seconds from launch to a Node
STEP: Final = 5.0
FINE: Final = 1.0
SETTLING: Final = 60.0
# Simulated seconds after the last new node, by whether EC2 counts instances in freed slots.
SETTLES: Final = {True: 300.0, False: 900.0}
LONGEST: Final = 86400.0  # simulated seconds of a rollout


class BootedMachines:
    """EC2 as the kubelets show it: an instance has a node only after BOOT."""

    def __init__(self, provider: AwsProvider, clock: MovableClock) -> None:
        self._provider, self._clock = provider, clock
        self._due: dict[str, float] = {}
        self.boots = BOOT  # of instances that are seen for the first time

    def instances(self, ids: Collection[str] | None = None) -> Sequence[Instance]:
        now = self._clock.monotonic()
        instances = self._provider.instances(ids)
        self._due = {i.id: self._due.get(i.id, now + self.boots) for i in instances}
        return [i for i in instances if self._due[i.id] <= now]

    def instance_types(self) -> Mapping[str, InstanceType]:
        return self._provider.instance_types()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRollout:
    """`refused`: launches that EC2 refused. `seconds`: until all nodes were new."""

    result: RolloutResult
    refused: int
    seconds: float


class RolloutWorld:
    """One broker with full reservations: `reservations` of so many slots."""

    def __init__(
        self,
        endpoint: str,
        reservations: int,
        slots: int,
        *,
        capacity: Sequence[str],
        way: str,
        absorbs: bool,
    ) -> None:
        self._control = Control(endpoint)
        self._account = Account(cast(LocalAws, SimpleNamespace(endpoint=endpoint, control=self._control)))
        self._control.freed_slot_absorbs(absorbs)
        self._settles = SETTLES[absorbs]
        self._clock = MovableClock()
        self._client = Client(InProcessTransport(Cluster()), field_manager="benchmark")
        self._nodes = reservations * slots
        self._refused = 0
        self._provider = AwsProvider(
            cluster=CLUSTER, region=REGION, endpoint_url=endpoint, clock=HastyClock(self._clock)
        )
        offer_only(self._provider, (TYPE,))
        self._provider.instance_types()
        for crd in load_crds():
            self._client.create(CRD, crd)
        odcrs = [self._account.odcr(TYPE, A, slots) for _ in range(reservations)]
        self._create_objects(odcrs, capacity, way)
        settings = Settings(cluster_name=CLUSTER, cluster_endpoint="https://blue.example", region=REGION)
        self.broker = Broker(self._client, self._provider, settings, clock=self._clock)
        self.broker.journal.subscribe(self._note)
        self._machines = BootedMachines(self._provider, self._clock)
        self._kubelets = Kubelets(self._client, self._machines, clock=self._clock)
        self._workloads = Workloads(self._client, clock=self._clock)
        pool = WatchedPool(name=NAME, odcr_ids=odcrs, slots=self._nodes, app=NAME, pods=self._nodes)
        self._watch = SlotWatch(self._client, self._provider, pool, clock=self._clock)

    def play(self) -> SimulatedRollout:
        """Fills the reservations, lets all nodes drift, and returns when all are new."""
        first = self._watch
        self._machines.boots = 0.0
        self._until(lambda: full(first.sample(), self._nodes) and self._known(), "full reservations", STEP)
        self._machines.boots = BOOT
        self._refused = 0
        first.step()
        changed = {"spec": {"template": {"metadata": {"labels": {"example.com/version": "2"}}}}}
        self._client.patch(NodePool.KIND, NAME, changed)
        began = self._clock.monotonic()
        self._until(self._over, "new nodes")
        seconds = self._clock.monotonic() - began
        self._settle()
        result = RolloutResult(by="broker", timeline=first.timeline, failed=len(first.failed))
        return SimulatedRollout(result=result, refused=self._refused, seconds=seconds)

    def _settle(self) -> None:
        ends = self._clock.monotonic() + self._settles
        while self._clock.monotonic() < ends:
            self._step(SETTLING if self._over() else self._next_step())
        self._watch.step()

    def _create_objects(self, odcrs: Sequence[str], capacity: Sequence[str], way: str) -> None:
        body = objects.node_class(
            NAME,
            image=self._account.image,
            subnets=[self._account.subnets[A]],
            security_group=self._account.security_group,
            spec=objects.reservation_spec(group=self._account.group(*odcrs)),
        )
        self._client.create(EC2NodeClass.KIND, body)
        pool: dict[str, Any] = objects.node_pool(NAME, node_class=NAME)
        pool["metadata"]["annotations"] = {names.REPLACE: way}
        pool["spec"]["disruption"] = {"consolidateAfter": "1m", "budgets": [{"nodes": "100%"}]}
        pool["spec"]["template"]["spec"]["requirements"] = [
            {"key": names.INSTANCE_TYPE, "operator": "In", "values": [TYPE]},
            {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*capacity]},
        ]
        self._client.create(NodePool.KIND, pool)
        self._client.create(GodelDeployment.KIND, deployment(NAME, self._nodes, NEED))

    def _note(self, attempt: Attempt) -> None:
        self._refused += attempt.outcome is Outcome.REFUSED

    def _known(self) -> bool:
        claims = map(NodeClaim.decode, self._client.list(NodeClaim.KIND)[0])
        return all(
            names.NODEPOOL_HASH in claim.annotations and claim.labels.get(names.RESERVATION_ID)
            for claim in claims
        )

    def _over(self) -> bool:
        self._watch.step()
        return over(self._watch.timeline, self._nodes)

    def _until(self, happened: Any, goal: str, step: float = 0.0) -> None:
        began = self._clock.monotonic()
        while not happened():
            if self._clock.monotonic() - began > LONGEST:
                raise TimeoutError(f"a day of simulated time without {goal}")
            self._step(step or self._next_step())

    def _next_step(self) -> float:
        """Short while something is about to happen but the boot of a machine."""
        sample = self._watch.timeline.last
        booting = sum(use == "s" for use in (*sample.reserved.values(), *sample.outside.values()))
        empty = len(sample.reserved) < self._nodes and not sample.outside
        return FINE if empty or "d" in sample.reserved.values() or sample.missing > booting else STEP

    def _step(self, seconds: float) -> None:
        """Moves time on, and plays all but the broker; returns when the broker has done its due work."""
        self._control.advance(seconds)
        self._clock.advance(seconds)
        self._play()
        self._idle()
        self._play()

    def _play(self) -> None:
        self._kubelets.step()
        self._workloads.step()
        schedule(self._client)
        self._workloads.step()

    def _idle(self) -> None:
        """Returns when several reads in a row show no work: no call to AWS, no CPU time used."""
        seen: tuple[object, ...] = ()
        calm = 0

        def quiet() -> bool:
            nonlocal seen, calm
            now = (sum(self._control.calls().values()), round(usage().cpu, 1))
            calm = calm + 1 if now == seen else 0
            seen = now
            return calm >= 3

        until(quiet, "broker that is done")


@contextmanager
def running(broker: Broker) -> Iterator[None]:
    broker.start()
    try:
        yield
    finally:
        broker.stop()


def simulated(
    reservations: int,
    slots: int,
    *,
    capacity: Sequence[str] = (objects.RESERVED, objects.ON_DEMAND),
    way: str = "auto",
    absorbs: bool = True,
) -> SimulatedRollout:
    """One rollout in simulated time. `absorbs`: whether EC2 counts a running instance in a freed slot."""
    logs.configure(level="error", format_="json")
    collect_seldom()
    with own_credentials(), local_aws() as (_, endpoint):
        world = RolloutWorld(endpoint, reservations, slots, capacity=capacity, way=way, absorbs=absorbs)
        with running(world.broker):
            return world.play()
