"""`capacity-broker plan -f` for pods: the claims that the broker would make for the pods of the files.

Pods and workloads of the files count as pods that kube-scheduler found no room for yet. The pods that wait in
the cluster are planned with them. The code is that of provisioning: existing nodes and claims take pods
first, and the others are packed. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.capacity.inventory import Inventory
from broker.capacity.model import NodeClass
from broker.capacity.reasons import CLASS_NOT_FOUND, CLASS_NOT_READY
from broker.capacity.supply import LaunchSupply
from broker.commands.dry_run import AccountReads, DryRun, read_once
from broker.commands.explain.permitted import ODDS, SHORTAGES, listed, published
from broker.commands.plan.claims import considered
from broker.commands.plan.pod_manifests import existing_pods, pods_of, remarks
from broker.commands.plan.priorities import PriorityClasses
from broker.commands.plan.volumes import planned_storage
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.controllers.nodereservation.occupancy import OccupancyReader
from broker.controllers.nodereservation.reads import SchedulerReads
from broker.controllers.nominations import preempting
from broker.controllers.provisioning.awaited import awaited, decide_beside
from broker.controllers.provisioning.decide import (
    LaunchState,
    ProvisioningCluster,
    ProvisioningDecision,
    ProvisioningPlanner,
)
from broker.controllers.provisioning.elastic_sizes import gpu_sizes, with_quota
from broker.controllers.provisioning.learned import RoomLearner, fingerprint
from broker.controllers.provisioning.other_pools import OtherPools
from broker.controllers.provisioning.pending import (
    Draw,
    drawing_in,
    pending_pod,
    pending_reservations,
    provisionable,
)
from broker.controllers.provisioning.pool_reasons import PoolFault
from broker.controllers.provisioning.pools import (
    PoolNotServed,
    ServedPool,
    class_hashes,
    served,
)
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.provisioning.refusals import refusals
from broker.controllers.provisioning.unused import held_back
from broker.informers import Informers
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.oncall.state import is_brokers
from broker.placement.gangs import GroupSizes
from broker.placement.model import PodInfo
from broker.placement.packing_model import PendingPod
from broker.placement.pool_choice import of_broker, static_pool
from broker.quota.resolve import UnresolvedName
from broker.settings import Settings
from broker.text import abridged

Json = Mapping[str, Any]
MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """`claims`: the documents of the claims that would be made. `notes`: the pods of each of them, and the
    pods without a new claim.

    `unserved`: the number of pods of the files that get no node at all.
    """

    claims: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()
    unserved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pools:
    """The broker's pools of the files and the cluster; `faults`: why others are not served, by name."""

    served: Sequence[ServedPool]
    faults: Mapping[str, str]
    classes: Mapping[str, NodeClass]
    inventory: Inventory


def _pools(
    every: Sequence[NodePool],
    claims: Sequence[NodeClaim],
    client: Client,
    provider: AccountReads,
    settings: Settings,
    now: datetime,
) -> _Pools:
    pools = [pool for pool in every if of_broker(pool)]
    named = {pool.spec.template.spec.node_class_ref.name for pool in pools}
    classes = [item for item in listed(client, EC2NodeClass) if item.name in named]
    odds = published(client, ODDS)
    inputs = considered(
        classes, (), provider, among=claims, now=now, defaults=settings.launch_defaults, odds=odds
    )

    def ready(name: str) -> LaunchClass:
        if name in inputs.ready:
            return inputs.ready[name]
        if name in inputs.problems:
            raise Unresolved(CLASS_NOT_READY, inputs.problems[name])
        raise Unresolved(CLASS_NOT_FOUND, f"there is no EC2NodeClass {name}")

    good: list[ServedPool] = []
    faults: dict[str, str] = {}
    for pool in pools:
        try:
            served_pool = served(pool, ready)
        except PoolNotServed as error:
            faults[pool.name] = error.message
            continue
        if waits := static_pool(pool) or held_back(pool, now):
            faults[pool.name] = waits
        else:
            good.append(served_pool)
    return _Pools(served=good, faults=faults, classes=inputs.classes, inventory=inputs.inventory)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pods:
    """`given`: keys of the files' pods, and of their workloads' pods in the cluster. `all_`: the files' pods
    with those of the `cluster`. `waiting` need a node.
    """

    given: frozenset[str]
    cluster: Sequence[Pod]
    all_: Sequence[Pod]
    waiting: Sequence[Pod]
    notes: Sequence[str]


def _pods(
    documents: Sequence[Json],
    cluster: Sequence[Pod],
    evicting: Collection[str],
    reads: ProvisioningReads,
    priorities: PriorityClasses,
) -> _Pods:
    """A pod of the files that the cluster has already stays as it is there.

    `evicting`: pods that get the room of others.
    """
    by_key = {pod.key: pod for pod in cluster}
    given = pods_of(documents, cluster)
    owned = [pod for document in documents for pod in existing_pods(document, cluster)]
    new = reads.admitted(pod for pod in given if pod.key not in by_key)
    gated = [pod for pod in new if pod.spec.scheduling_gates]
    placed = [pod for pod in new if pod.spec.node_name]
    fresh = [pod for pod in new if not pod.spec.scheduling_gates and not pod.spec.node_name]
    notes = [*priorities.unread, *priorities.unknown(new)]
    notes += [f"pod {pod.key}: it gets no node until its scheduling gates are removed" for pod in gated]
    notes += [
        f"pod {pod.key}: spec.nodeName is {pod.spec.node_name!r}, so no scheduler places it, and it gets no "
        "claim: leave it out, and name nodes by nodeSelector"
        for pod in placed
    ]
    for pod in given:
        if (known := by_key.get(pod.key)) is not None and known.spec.node_name:
            notes.append(f"pod {pod.key}: is on {known.spec.node_name} already")
    waiting_others = [pod for pod in by_key.values() if provisionable(pod) and pod.key not in evicting]
    keys = frozenset(pod.key for pod in (*given, *owned))
    if names_ := sorted(pod.key for pod in waiting_others if pod.key not in keys):
        notes.append(f"planned with the pods that wait in the cluster: {abridged(names_, MOST_NAMED)}")
    return _Pods(
        given=keys,
        cluster=cluster,
        all_=[*by_key.values(), *new],
        waiting=[*waiting_others, *fresh],
        notes=notes,
    )


def _pending(
    pods: _Pods,
    infos: Mapping[str, PodInfo],
    draw: Draw,
    priorities: PriorityClasses,
    group_size: GroupSizes,
) -> list[PendingPod]:
    stored = {pod.key for pod in pods.cluster}
    pending_pods = [pending_pod(pod, draw, group_size, infos[pod.key]) for pod in pods.waiting]
    return [
        pending if pod.key in stored else replace(pending, priority=priorities.of(pod))
        for pending, pod in zip(pending_pods, pods.waiting, strict=True)
    ]


def _reads(client: Client, settings: Settings, clock: Clock) -> ProvisioningReads:
    """The nodes, the reservations that keep room on them, and all else that provisioning reads."""
    cluster = Informers(client, clock=clock)
    served = settings.schedulers
    rooms = SchedulerReads(client, cluster.pods.cache, clock=clock, names=served) if served else None
    namespaces = Informer(client, Namespace, clock=clock)
    occupancy = OccupancyReader(
        rooms, cluster.nodes.cache, cluster.pods.cache, namespaces, bounds=settings.room_bounds
    )
    reads = ProvisioningReads(
        client,
        occupancy,
        clock=clock,
        leases=cluster.leases.cache,
        nodes=cluster.nodes.cache,
        settings=settings,
    )
    kept = (*rooms.rooms.values(), rooms.resource_quotas) if rooms is not None else ()
    read_once(cluster.nodes, namespaces, *kept, *reads.informers)
    return reads


def planned_pods(
    documents: Sequence[Json],
    client: Client,
    provider: AccountReads,
    settings: Settings,
    clock: Clock,
    *,
    dry_run: Callable[[], DryRun],
) -> PodPlan:
    """The claims for the pods of the documents. Raises BadManifest, ApiError, ProviderError.

    `dry_run`: reads the reservations; not called if there are no pods.
    """
    if not pods_of(documents):
        return PodPlan(notes=remarks(documents))
    cluster = listed(client, Pod)
    every = listed(client, NodePool)
    claims = listed(client, NodeClaim)
    pools = _pools(every, claims, client, provider, settings, clock.now())
    reads = _reads(client, settings, clock)
    priorities = PriorityClasses.read(client, documents)
    evicting = preempting(cluster, listed(client, Node), claims)
    pods = _pods(documents, cluster, evicting, reads, priorities)
    room = reads.occupancy.read(clock.now(), pods.all_)
    others = OtherPools(every, provider.instance_types)
    rights = dry_run().rights
    draw = drawing_in(rights, every)
    pending = _pending(pods, room.infos, draw, priorities, reads.group_size)
    of_others = {pod.key: pool.shown for pod in pending if (pool := others.of(pod.info)) is not None}
    daemons = reads.daemons()
    requesting_pods = [pod for pod in pending if pod.key not in of_others]
    requesting_pods, too_large = reads.elastic().within(
        requesting_pods,
        {pod.key: pod for pod in pods.waiting},
        room.pods,
        claims,
        gpu_sizes(pools.served, provider.instance_types()),
    )
    kept = awaited(
        requesting_pods, {pod.key: pod for pod in pods.waiting}, room, reads.occupancy, clock.now()
    )
    requesting_pods += pending_reservations(room.unplaced, draw, reads.group_size)
    learned = RoomLearner().observe(
        room.nodes,
        claims,
        pods.all_,
        fingerprint(daemons),
        classes=class_hashes(pools.served),
        now=clock.now(),
    )
    planner = ProvisioningPlanner(
        pools=pools.served,
        pending=requesting_pods,
        cluster=ProvisioningCluster(
            pods=pods.all_,
            claims=claims,
            occupancy=room,
            daemons=daemons,
            learned=learned,
            storage=planned_storage(reads.storage(), documents, pods.all_),
            group_size=reads.group_size,
            pools=[pool.name for pool in every],
        ),
        launches=lambda: LaunchState(
            supply=LaunchSupply(
                classes=pools.classes,
                types=provider.instance_types(),
                inventory=pools.inventory,
                shortages=published(client, SHORTAGES),
                now=clock.now(),
            ),
            entitle=lambda claims, machines: dry_run().entitlements(claims, pools.inventory, machines),
            owns=is_brokers,
            launching=lambda _: False,
        ),
        now=clock.now(),
        seconds=settings.plan_seconds,
        timer=time.thread_time,  # a busy machine changes no answer
        respect=settings.respects_preferences,
        faults=[
            PoolFault(pool=pool, message=pools.faults[pool.name])
            for pool in every
            if pool.name in pools.faults
        ],
    )
    decision = decide_beside(planner, kept)
    decision = replace(decision, reasons=with_quota(decision.reasons, too_large))
    refused = refusals(pending, decision, pools.served, rights)
    return _reported(decision, documents, pods, of_others, refused)


def _reported(
    decision: ProvisioningDecision,
    documents: Sequence[Json],
    pods: _Pods,
    of_others: Mapping[str, str],
    refused: Mapping[str, UnresolvedName],
) -> PodPlan:
    reasons = decision.reasons
    on_claims = [
        f"NodeClaim {item.name}: for pods {abridged(sorted(pod.key for pod in item.packed.pods), MOST_NAMED)}"
        for item in decision.created
    ]
    released = [
        f"NodeClaim {claim.name}: EC2 refuses it; it is deleted, since its pods get room elsewhere"
        for claim in decision.released
    ]
    assigned = decision.assigned
    fates = {
        **{key: f"{pool} serves it" for key, pool in sorted(of_others.items())},
        **{key: f"NodeClaim {node} is there for it" for key, node in assigned.nominated.items()},
        **{key: f"fits on {node}" for key, node in assigned.taken.items()},
        **reasons,
    }
    fates_and_draws = [*fates.items(), *((key, name.message) for key, name in refused.items())]
    notes = [
        *remarks(documents, pods.cluster),
        *pods.notes,
        *released,
        *on_claims,
        *(f"pod {key}: {text}" for key, text in fates_and_draws if key in pods.given),
    ]
    return PodPlan(
        claims=[item.body for item in decision.created],
        notes=notes,
        unserved=len(reasons.keys() & pods.given),
    )
