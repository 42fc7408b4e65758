"""Reads the use of each slot of reservations, as EC2 and Kubernetes show it, a few times a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.placement.claims import taken_over
from local.demo.simulated import Simulated
from local.demo.slot_timeline import DRAINS, NEW, OLD, STARTS, SlotSample, SlotTimeline
from providers.base import InstanceCalls
from providers.model import Instance

EVERY: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPool:
    """A NodePool with its reservations, and the workload on it: `pods` of them with the label app=`app`."""

    name: str
    odcr_ids: Collection[str]
    slots: int
    app: str
    pods: int


class SlotWatch(Simulated):
    """One thread; `step` records one sample. The instances of the first one are the old ones.

    `failed`: claims of the pool that ended without an instance. `changed` is called after each sample.
    """

    def __init__(
        self,
        client: Client,
        provider: InstanceCalls,
        pool: WatchedPool,
        *,
        clock: Clock,
        changed: Callable[[SlotTimeline], None] = lambda _: None,
    ) -> None:
        super().__init__("slots", clock=clock, every=EVERY)
        self._client, self._provider, self._pool = client, provider, pool
        self._changed = changed
        self.timeline = SlotTimeline(pool.slots)
        self.failed: set[str] = set()
        self._waiting: set[str] = set()
        self._old: frozenset[str] | None = None

    def step(self) -> None:
        """Raises ApiError, ProviderError."""
        sample = self.sample()
        if self._old is None:
            self._old = frozenset(sample.instances)
            self.failed.clear()
        self.timeline.record(sample)
        self._changed(self.timeline)

    def sample(self) -> SlotSample:
        """Raises ApiError, ProviderError."""
        pool = self._pool
        instances = [instance for instance in self._provider.instances() if instance.alive]
        claims = [
            claim
            for claim in map(NodeClaim.decode, self._client.list(NodeClaim.KIND)[0])
            if claim.labels.get(names.NODEPOOL) == pool.name
        ]
        pods = map(Pod.decode, self._client.list(Pod.KIND, label_selector=f"app={pool.app}")[0])
        running = Counter(
            pod.spec.node_name for pod in pods if pod.status.phase == "Running" and not pod.deleting
        )
        owners = {claim.instance_id: claim for claim in claims if claim.status.provider_id}
        inside = {instance.id for instance in instances if instance.reservation_id in pool.odcr_ids}
        self._note_failures(claims)
        uses = {
            instance.id: self._use(instance, owners.get(instance.id), running)
            for instance in instances
            if instance.id in inside or instance.id in owners
        }
        # Of as many empty slots the picture shows that they are kept.
        kept = sum(claim.waits and taken_over(claim)[0] in pool.odcr_ids for claim in claims)
        return SlotSample(
            at=self._clock.monotonic(),
            reserved={id_: use for id_, use in uses.items() if id_ in inside},
            outside={id_: use for id_, use in uses.items() if id_ not in inside},
            kept=kept,
            missing=max(0, pool.pods - running.total()),
        )

    def _use(self, instance: Instance, claim: NodeClaim | None, running: Counter[str]) -> str:
        if self._old is None or instance.id in self._old:
            return DRAINS if claim is None or claim.deleting else OLD
        return NEW if claim is not None and running[claim.status.node_name] else STARTS

    def _note_failures(self, claims: Collection[NodeClaim]) -> None:
        present = {claim.name for claim in claims}
        launched = {claim.name for claim in claims if claim.status.provider_id}
        self.failed |= self._waiting - present
        self._waiting = (self._waiting | present) - launched - self.failed
