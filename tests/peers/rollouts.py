"""A rollout over a full reservation by Karpenter or the broker, on a stage with both.

The Deployment's controllers and the kubelets are played; kube-scheduler binds the pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from broker.apis import names
from broker.apis.godel import GodelDeployment
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.clock import SystemClock
from local.demo.account import PLATFORM
from local.demo.rollout import RolloutResult, deployment, full, over
from local.demo.slot_timeline import SlotTimeline
from local.demo.slot_watch import SlotWatch, WatchedPool
from local.demo.workloads import Workloads
from tests.cluster.account import A
from tests.cluster.objects import reservation_spec
from tests.peers import objects
from tests.peers.objects import ON_DEMAND, RESERVED, Json
from tests.peers.programs import until
from tests.peers.stage import BROKER, KARPENTER, Machines, Stage

SHOWN = {BROKER: "broker", KARPENTER: "Karpenter 1.15"}
NEED = {"cpu": "1500m"}  # fills an instance of two vCPUs
STAYS = 5.0  # seconds that are watched after the end


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCase:
    """A NodePool, and what is beside its pods. `kind`: of its instances, which no other pool of a stage has.

    `rival`: a pod more than slots, which waits. `static`: a pool of a number of nodes. `image`: the nodes
    drift by a new image, otherwise by a new label of the NodePool.
    """

    name: str
    nodes: int
    kind: str = "m5.large"
    capacity: Sequence[str] = (RESERVED,)
    rival: bool = False
    static: bool = False
    image: bool = False
    patience: float = 240.0


FALLBACK = (RESERVED, ON_DEMAND)


class Rollout:
    """One rollout of one program; `play` returns when it is over, or patience is."""

    def __init__(self, stage: Stage, program: str, case: RolloutCase) -> None:
        self._stage, self._program, self._case = stage, program, case
        self._name = f"{program}-{case.name}"
        self._odcr = stage.aws.odcr(case.kind, A, case.nodes)
        self._provider = Machines(stage.endpoint)
        self._clock = SystemClock()

    def play(self, changed: Callable[[SlotTimeline], None] = lambda _: None) -> RolloutResult:
        case, client = self._case, self._stage.client
        self._offer()
        with playing(self._stage):
            self._deploy(self._name, case.nodes)
            pool = WatchedPool(
                name=self._name, odcr_ids=[self._odcr], slots=case.nodes, app=self._name, pods=case.nodes
            )
            first = SlotWatch(client, self._provider, pool, clock=self._clock)
            until(
                lambda: full(first.sample(), case.nodes), f"pods of {self._name} in all slots", interval=0.5
            )
            if case.rival:
                self._deploy(f"{self._name}-rival", 1)
            self._until_known()
            watch = SlotWatch(client, self._provider, pool, clock=self._clock, changed=changed)
            watch.step()
            watch.start()
            self._drift()
            with suppress(AssertionError):  # the figures of that time are its result
                until(lambda: over(watch.timeline, case.nodes), "all nodes are new", patience=case.patience)
            time.sleep(STAYS)
            watch.stop()
            self._end()
            return RolloutResult(by=SHOWN[self._program], timeline=watch.timeline, failed=len(watch.failed))

    def _offer(self) -> None:
        case, aws = self._case, self._stage.aws
        if self._program == KARPENTER:
            node_class = objects.node_class(self._name, aws, terms=[{"id": self._odcr}])
            group = names.KARPENTER_AWS
        else:
            node_class = objects.node_class(self._name, aws, spec=reservation_spec(id_=self._odcr))
            group = names.BROKER
        pool = objects.node_pool(
            self._name, node_class=self._name, types=[case.kind], capacity=case.capacity, group=group
        )
        pool["spec"]["disruption"]["budgets"] = [{"nodes": "1"}]
        if case.static:
            pool["spec"]["replicas"] = case.nodes
        self._stage.offer(node_class, pool)

    def _deploy(self, name: str, replicas: int) -> None:
        body = deployment(name, replicas, NEED, nodeSelector={names.NODEPOOL: self._name})
        self._stage.client.create(GodelDeployment.KIND, body)

    def _until_known(self) -> None:
        """Both compare drift with hashes, and the broker with EC2's count of each instance."""

        def known() -> bool:
            claims = self._stage.claims(self._name)
            return all(
                names.NODEPOOL_HASH in claim.annotations and claim.labels.get(names.RESERVATION_ID)
                for claim in claims
            )

        until(known, f"the claims of {self._name} have hashes and reservations")

    def _drift(self) -> None:
        client = self._stage.client
        if self._case.image:
            body: Json = {"spec": {"amiSelectorTerms": [{"id": self._other_image()}]}}
            client.patch(EC2NodeClass.KIND, self._name, body)
            return
        labels = {"spec": {"template": {"metadata": {"labels": {"tests": "changed"}}}}}
        client.patch(NodePool.KIND, self._name, labels)

    def _other_image(self) -> str:
        images = self._stage.aws.ec2.describe_images(
            Filters=[{"Name": "architecture", "Values": ["x86_64"]}]
        )["Images"]
        linux = (image["ImageId"] for image in images if image.get("PlatformDetails") == PLATFORM)
        return str(next(id_ for id_ in linux if id_ != self._stage.aws.image))

    def _end(self) -> None:
        """Ends pods and the pool, so that little goes on beside the next rollout; its nodes follow."""
        client = self._stage.client
        for name in (self._name, f"{self._name}-rival") if self._case.rival else (self._name,):
            client.patch(GodelDeployment.KIND, name, {"spec": {"replicas": 0}}, namespace="default")
        client.delete(NodePool.KIND, self._name)


@contextmanager
def playing(stage: Stage) -> Iterator[None]:
    """Plays the controllers of Deployments, and the containers of bound pods."""
    played = Workloads(stage.client, clock=SystemClock())
    played.start()
    try:
        yield
    finally:
        played.stop()
