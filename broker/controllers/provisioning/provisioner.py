"""Makes claims for pending pods, and for reservations of room that no node can hold: observe, pack, create.

Invariant: no pod gets two machines. Claims in flight count with the pods that they were made for; a created
claim is in the cache at once; and its name follows from its pods. A run lists pods once, and claims before
nodes: a pod that is bound meanwhile has its room, and a claim that gets its node meanwhile is one of the two.
Pods that a Ready NodePool of another controller accepts are that controller's (`other_pools`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

import structlog
from prometheus_client import Histogram

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.capacity.supply import LaunchSupply
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.claim_status import patch
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.nominations import try_nomination
from broker.controllers.provisioning.awaited import awaited
from broker.controllers.provisioning.creation import ClaimCreator, LaunchProgress
from broker.controllers.provisioning.decide import (
    LaunchState,
    NewClaim,
    ProvisioningCluster,
    ProvisioningDecision,
    ProvisioningPlanner,
    of_gangs,
)
from broker.controllers.provisioning.elastic_sizes import gpu_sizes
from broker.controllers.provisioning.existing import read_in_flight
from broker.controllers.provisioning.learned import fingerprint
from broker.controllers.provisioning.other_pools import OtherPools, without_controller
from broker.controllers.provisioning.pending import (
    drawing_in,
    pending_pod,
    pending_reservations,
    waiting_pods,
)
from broker.controllers.provisioning.pool_reasons import PoolFault
from broker.controllers.provisioning.pools import (
    PoolNotServed,
    ServedPool,
    class_hashes,
    served,
)
from broker.controllers.provisioning.published import PublishedReports, PublishedTypes
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.provisioning.refusals import refusals
from broker.controllers.provisioning.refused import made_for_pods
from broker.controllers.provisioning.report import PodReporter, PoolReporter, Waiting, log_packing
from broker.controllers.provisioning.undeclared_taints import undeclared_taints
from broker.controllers.provisioning.unused import held_back
from broker.controllers.provisioning.within_quota import decide_within_quota
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.snapshot import Snapshot
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.derived import Derived
from broker.kube.errors import ApiError, Unavailable
from broker.kube.lease_holders import LeaseHolders
from broker.kube.removal import remove
from broker.kube.writers import WriterPool
from broker.oncall.metrics import REGISTRY
from broker.oncall.pod_reports import PodReport
from broker.placement.claims import in_gangs
from broker.placement.packing_model import PendingPod
from broker.placement.pool_choice import not_serving, of_broker, static_pool
from broker.quota.resolve import UnresolvedName
from providers.errors import ProviderError

AGAIN: Final = 10.0  # seconds, while pods wait: as Karpenter requeues them
SOON: Final = 0.5
PATIENCE: Final = 5.0  # seconds that all pods wait for a class that is resolved in a moment
_SECONDS = Histogram(
    "capacity_broker_provisioning_seconds",
    "Time that a run from pending pods to claims took.",
    registry=REGISTRY,
)
_log = structlog.get_logger("provisioning")


class Provisioner:
    """`run` is one run, in one thread."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        ec2: Ec2State,
        nodeclasses: NodeClassController,
        reads: ProvisioningReads,
        slots: PreemptionController,
        *,
        launches: LaunchProgress,
    ) -> None:
        self._lessees = LeaseHolders()
        self._faults: dict[str, PoolFault] = {}  # of pools that are not served, by name
        self._absent: dict[str, str] = {}  # why no controller serves pools of other groups, by name
        self._unresolved: dict[str, float] = {}  # since when, by pool
        self._client, self._clock = context.client, context.clock
        self._caches, self._ec2, self._nodeclasses = caches, ec2, nodeclasses
        self._reads, self._slots = reads, slots
        self._readable_claims = Derived(lambda: caches.claims.readable(read_in_flight), caches.claims)
        self._pods_in_flight = Derived(
            lambda: [(claim, pods_of(claim)) for claim in caches.waiting().values() if made_for_pods(claim)],
            caches.claims,
            also=caches.taken,
        )
        self._launches, self._wait = launches, AGAIN
        self._pods = PodReporter(context)
        self._pools = PoolReporter(context, caches.pools)
        self._types = PublishedTypes(context.client)
        self._reports = PublishedReports(context.client, context.clock)
        self._writers = WriterPool("provisioning")

    def close(self) -> None:
        self._writers.close()

    @property
    def reports(self) -> Mapping[str, PodReport]:
        """Why no machine is opened for pods, or which other pods' machine has room for them, by their uid."""
        return self._pods.reports

    def run(self, _items: Sequence[str]) -> Result | None:
        """Creates the claims that pending pods need. Raises ApiError, ProviderError."""
        self._pods.begin()
        pools = self._served()
        now = self._clock.monotonic()
        if any(now - since < PATIENCE for since in self._unresolved.values()):
            return Result(requeue_after=SOON)  # its pool may have more weight than the others
        pods, claims = self._caches.pods.list(), self._readable_claims()
        waiting = waiting_pods(pods, claims, self._caches, partial(self._pods.failed, held=True))
        unplaced = self._reads.occupancy.unplaced()
        self._pods.keep(item.uid for item in (*waiting, *unplaced.values()))
        if waiting:
            self._publish_types()
        if not any(map(of_broker, self._caches.pools.list())) or not (waiting or unplaced):
            self._pools.offering((pool.pool for pool in pools), None)
            self._report()
            return None if self._release(()) else Result(requeue_after=AGAIN)
        if not self._ec2.inventory.described:
            return Result(requeue_after=1.0)
        self._wait = AGAIN
        with _SECONDS.time():
            used = self._serve(pools, waiting, pods, claims)
        self._release(used)
        self._report()
        return Result(requeue_after=self._wait)

    def _report(self) -> None:
        """Publishes the reports of a run that looked at all pods: a new leader's first runs may not."""
        self._pods.finish()
        self._reports.publish(self.reports)

    def _publish_types(self) -> None:
        try:
            self._types.publish(self._slots.snapshot().types)
        except ProviderError as error:
            _log.warning("instance types not published", error=str(error))

    def _release(self, used: Collection[str]) -> bool:
        """Deletes claims without an instance if neither a pod of theirs nor another, as in `used`, needs
        them. Whether none was refused. Raises Unavailable.
        """
        released = True
        for claim, keys in self._pods_in_flight():
            needed = claim.name in used or any(map(self._needs_node, keys))
            if not needed:
                released &= self._released(claim, "its pods need it no more")
        return released

    def _released(self, claim: NodeClaim, why: str) -> bool:
        """Whether the claim ends, or is gone: not if it was launched meanwhile. Raises Unavailable."""
        try:
            if remove(self._client, claim, self._caches.claims, unchanged=True):
                _log.info("claim released", claim=claim.name, why=why)
        except Unavailable:
            raise
        except ApiError as error:  # the other claims and all pods are served
            _log.warning("claim not released", claim=claim.name, error=str(error))
            return False
        return True

    def _needs_node(self, key: str) -> bool:
        pod = self._caches.pods.find(key)
        if pod is None:
            return not self._caches.pods.lacks(key) or self._reads.occupancy.may_wait(key)
        return not pod.spec.node_name and not pod.deleting

    # ---- observe

    def _served(self) -> list[ServedPool]:
        """The pools that can be served; writes the conditions of all pools of the broker's group.

        A pool with a class that is resolved in a moment is left out, and is in `_unresolved`.
        """
        served_pools: list[ServedPool] = []
        leases = self._reads.leases.list()
        alive = self._lessees.alive(leases, now=self._clock.monotonic())
        known = bool(leases) or not alive  # a new process learns only in time that there is no Lease
        self._faults, self._absent, before, self._unresolved = {}, {}, self._unresolved, {}
        for pool in sorted(self._caches.pools.list(), key=lambda pool: pool.name):
            with self._caches.pools.guard(pool):
                theirs = not of_broker(pool)
                if pool.deleting or (theirs and not_serving(pool)):
                    self._faults[pool.name] = PoolFault(pool=pool, message=not_serving(pool))
                if pool.deleting:
                    continue
                if theirs:
                    absent = without_controller(pool, karpenter_alive=alive) if known else None
                    if absent is not None:
                        self._absent[pool.name] = absent.message
                    if known:
                        self._pools.other(pool, absent)
                    continue
                try:
                    served_pool = served(pool, self._nodeclasses.ready)
                except Unresolved as error:
                    self._unresolved[pool.name] = before.get(pool.name, self._clock.monotonic())
                    self._faults[pool.name] = PoolFault(pool=pool, message=error.message)
                except PoolNotServed as error:
                    self._faults[pool.name] = PoolFault(pool=pool, message=error.message)
                    self._pools.write(pool, error)
                else:
                    self._pools.write(pool, None)
                    if waits := static_pool(pool) or held_back(pool, self._clock.now()):
                        self._faults[pool.name] = PoolFault(pool=pool, message=waits)
                    else:
                        served_pools.append(served_pool)
        return served_pools

    def _serve(
        self,
        pools: Sequence[ServedPool],
        waiting: Sequence[Pod],
        pods: Sequence[Pod],
        claims: Sequence[NodeClaim],
    ) -> Collection[str]:
        """The nodes and claims that pods wait for."""
        room = self._reads.occupancy.read(self._clock.now(), pods)
        objects: dict[str, Waiting] = {**{pod.key: pod for pod in waiting}, **room.unplaced}
        snapshot = self._slots.snapshot()
        draw = drawing_in(snapshot.rights, (pool.pool for pool in pools))
        every = self._caches.pools.readable(lambda pool: OtherPools([pool], lambda: snapshot.types))
        others = OtherPools(every, lambda: snapshot.types)
        theirs = {
            key: pool for key, info in room.infos.items() if key in objects and (pool := others.of(info))
        }
        for key, pool in theirs.items():
            if pool.name in self._absent:
                self._pods.failed(objects[key], f"{pool.shown} accepts it: {self._absent[pool.name]}")
        pending: list[PendingPod] = []
        for pod in waiting:
            if pod.key in room.infos and pod.key not in theirs:
                with self._caches.pods.guard(pod):
                    pending.append(pending_pod(pod, draw, self._reads.group_size, room.infos[pod.key]))
        sizes = gpu_sizes(pools, snapshot.types)
        by_key = {pod.key: pod for pod in waiting}
        elastic = self._reads.elastic()
        pending, too_large = elastic.within(pending, by_key, room.pods, claims, sizes)
        daemons, now, occupancy = self._reads.daemons(), self._clock.now(), self._reads.occupancy
        kept = awaited(pending, by_key, room, occupancy, now)
        pending += pending_reservations(room.unplaced, draw, self._reads.group_size, occupancy.guard)
        learned = self._reads.learner.observe(
            room.nodes, claims, pods, fingerprint(daemons), classes=class_hashes(pools), now=now
        )
        planner = ProvisioningPlanner(
            pools=pools,
            pending=pending,
            cluster=ProvisioningCluster(
                pods=pods,
                claims=claims,
                occupancy=room,
                daemons=daemons,
                learned=learned,
                storage=self._reads.storage(),
                group_size=self._reads.group_size,
                pools=[pool.name for pool in self._caches.pools.list()],
            ),
            launches=lambda: self._launch_state(snapshot, pools, claims),
            now=now,
            seconds=self._reads.settings.plan_seconds,
            timer=self._clock.monotonic,
            faults=[*self._faults.values()],
            respect=self._reads.settings.respects_preferences,
        )
        decision = decide_within_quota(planner, kept, elastic, too_large, min(sizes, default=0))
        self._pools.offering((pool.pool for pool in pools), decision.empty)
        log_packing(decision.packing, len(decision.assigned.unassigned))
        self._pods.kept_off(objects, undeclared_taints([pod.info for pod in pending], claims, room.nodes))
        refused = refusals(pending, decision, pools, snapshot.rights)
        return self._act(decision, refused, pending, objects, {claim.uid for claim in claims})

    def _launch_state(
        self, snapshot: Snapshot, pools: Sequence[ServedPool], claims: Sequence[NodeClaim]
    ) -> LaunchState:
        waiting = {c.spec.node_class_ref.name for c in claims if c.waits and self._caches.owns(c)}
        classes = self._nodeclasses.plans(waiting) | {pool.node_class.name: pool.node_class for pool in pools}
        supply = LaunchSupply(
            classes=classes,
            types=snapshot.types,
            inventory=snapshot.inventory,
            shortages=self._launches.shortages,
            now=self._clock.now(),
        )
        return LaunchState(
            supply=supply,
            entitle=lambda claims, machines: self._slots.entitlements(claims, snapshot, machines),
            owns=self._caches.owns,
            launching=self._launches.launching,
        )

    # ---- act

    def _act(
        self,
        decision: ProvisioningDecision,
        refused: Mapping[str, UnresolvedName],
        pending: Sequence[PendingPod],
        objects: Mapping[str, Waiting],
        seen: Collection[str],
    ) -> Collection[str]:
        """`seen`: the claims (by uid) that the decision read."""
        assigned = decision.assigned
        self._pods.refused(objects, refused)
        for key, pod in objects.items():
            if isinstance(pod, Pod) and pod.status.nominated_node_name not in (
                "",
                assigned.nominated.get(key),
            ):
                try_nomination(self._client, pod, None)
        for key, node in assigned.taken.items():
            self._pods.room(objects[key], node, claim=self._caches.nodes.get(node) is None)
        reasons = dict(decision.reasons)
        kept = self._give_way(decision.released)
        created = [item for item in decision.created if kept.isdisjoint(pod.key for pod in item.packed.pods)]
        creator = ClaimCreator(
            self._client,
            self._caches,
            self._nodeclasses,
            self._slots,
            launches=self._launches,
            writers=self._writers,
            created=partial(self._nominate, objects),
        )
        reasons |= creator.create(created, seen)
        self._wait = SOON if creator.overtaken else AGAIN
        self._shrink({pod.gang for pod in pending} - {pod.gang for pod in pending if pod.key in reasons})
        for key, reason in reasons.items():
            self._pods.failed(objects[key], reason, held=key in decision.held)
        return {*assigned.nominated.values(), *assigned.taken.values()}

    def _nominate(self, objects: Mapping[str, Waiting], item: NewClaim) -> None:
        for pod in item.packed.pods:
            self._pods.made(objects[pod.key], item.name)

    def _give_way(self, claims: Sequence[NodeClaim]) -> Set[str]:
        """Deletes claims that EC2 refuses. Returns the pods of those that could not be deleted.

        A claim that changed since is kept: it may be launched now.
        """
        refused = partial(self._released, why="EC2 refuses it: its pods get room elsewhere")
        deleted = self._writers.each(refused, claims)
        kept: set[str] = set()
        for claim in (claim for claim, gone in zip(claims, deleted, strict=True) if not gone):
            gang = claim.gang or claim.name
            kept.update(*(pods_of(c) for c in claims if gang in (c.gang, c.name)))
        return kept

    def _shrink(self, gangs: Set[str]) -> None:
        """Lowers the size of gangs, all pods of which have machines, to the number of their claims.

        Why: a run that was stopped may have needed more claims than the next one. Without this the gang
        would wait for the others for ever.
        """
        every = self._caches.claims.list()
        claims = of_gangs(every, gangs)
        launched = Counter({gang: len(members) for gang, members in in_gangs(every).items()})
        sizes = launched + Counter(claim.annotations[names.GANG] for claim in claims)

        def lower(newest: NodeClaim) -> Mapping[str, Any]:
            size = sizes[newest.gang]
            size_text = newest.annotations.get(names.GANG_SIZE, "")
            too_large = size_text.isdecimal() and 0 < size < int(size_text)
            return {"annotations": {names.GANG_SIZE: str(size)}} if too_large else {}

        for claim in claims:
            try:
                patch(self._client, self._caches.claims, claim, lower)
            except ApiError as error:
                _log.warning("gang size not lowered", claim=claim.name, error=str(error))
