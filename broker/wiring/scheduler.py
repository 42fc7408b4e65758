"""The triggers of the scheduler and of reservations on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod, ResourceQuota
from broker.apis.godel import GodelDeployment
from broker.apis.kueue import Namespace
from broker.controllers.elasticquota.controller import ElasticQuotaController
from broker.controllers.elasticquota.reading import ElasticPods
from broker.controllers.nodereservation.godel import GodelPodController, GodelReservationController
from broker.controllers.nodereservation.godel_reading import SCHEDULER, GodelAnnotations
from broker.controllers.nodereservation.koordinator import (
    BY_RESERVATION,
    KoordinatorController,
    by_reservation,
)
from broker.controllers.nodereservation.reads import SchedulerReads, scheduler_of
from broker.controllers.scheduler.loop import PodScheduler
from broker.kube.batch import Batcher
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.settings import Settings
from broker.wiring.predicates import differ, gone, spec

# Seconds: a decision that time changes, such as the end of a hold, waits no longer.
EVERY: Final = 15.0
NOS_SCHEDULER: Final = "nos-scheduler"


def add_scheduler(
    manager: ControllerManager,
    context: ControllerContext,
    settings: Settings,
    reads: SchedulerReads,
    *,
    pods: Informer[Pod],
    nodes: Informer[Node],
    namespaces: Informer[Namespace],
    synced: Callable[[], bool],
) -> None:
    """Declares the scheduler and the controllers of its kinds."""
    manager.follow(*reads.named.values())

    def complete() -> bool:
        return synced() and reads.synced()

    scheduler = PodScheduler(
        context,
        reads,
        pods=pods.cache,
        nodes=nodes.cache,
        namespaces=namespaces.cache,
        settings=settings,
    )

    def run(items: Sequence[str]) -> Result | None:
        manager.isolation.readmit()
        return scheduler.run(items)

    # A run costs little, so that none waits for changes to come.
    batcher = Batcher[str]("scheduler", clock=context.clock, idle=0.0)
    loop = manager.singleton("scheduler", run, every=EVERY, batcher=batcher, synced=complete)
    loop.watches(pods, predicate=differ(_decisive)).watches(nodes, predicate=differ(_offered))
    loop.watches(reads.koordinator)
    loop.watches(reads.quotas).watches(reads.composites).watches(reads.godel)
    reservations = reads.koordinator.cache
    controller = KoordinatorController(
        context,
        reservations,
        nodes.cache,
        owners=lambda uid: pods.cache.by(BY_RESERVATION, uid),
        schedulers=reads.served_names,
        bounds=settings.room_bounds,
    )

    def taken(pod: Pod) -> Iterable[str]:
        uids = by_reservation(pod)
        return [item.name for item in reservations.list() if item.uid in uids] if uids else ()

    def on_node(node: Node) -> Iterable[str]:
        return [item.name for item in reservations.list() if item.status.node_name == node.name]

    (
        manager.controller("koordinator", controller.reconcile, synced=complete)
        .watches(reads.koordinator)
        .watches(pods, taken)
        .watches(nodes, on_node, gone)
        .watches(pods, lambda pod: [item.name for item in reservations.list()] if scheduler_of(pod) else ())
    )
    _add_godel(manager, context, settings, reads, pods, namespaces, complete)
    if NOS_SCHEDULER in settings.schedulers:
        _add_elastic(manager, context, settings, reads, pods, nodes, complete)


def _add_elastic(
    manager: ControllerManager,
    context: ControllerContext,
    settings: Settings,
    reads: SchedulerReads,
    pods: Informer[Pod],
    nodes: Informer[Node],
    synced: Callable[[], bool],
) -> None:
    elastic = ElasticQuotaController(
        context,
        reads.all_quotas,
        pods=pods.cache,
        reading=ElasticPods(nodes.cache, gpu_gb=settings.gpu_memory_gb),
    )

    def run(items: Sequence[str]) -> None:
        if NOS_SCHEDULER in reads.served_names():
            elastic.run(items)

    (
        manager.singleton("elastic", run, synced=synced)
        .watches(pods, predicate=differ(_decisive))
        .watches(reads.quotas)
        .watches(reads.composites)
    )


def _add_godel(
    manager: ControllerManager,
    context: ControllerContext,
    settings: Settings,
    reads: SchedulerReads,
    pods: Informer[Pod],
    namespaces: Informer[Namespace],
    complete: Callable[[], bool],
) -> None:
    rules = reads.rules(settings.room_bounds, namespaces.cache)
    annotations = GodelAnnotations(reads.deployments.cache, reads.replica_sets.cache, rules=rules)
    pod_controller = GodelPodController(
        context,
        pods.cache,
        annotations,
        served=lambda: SCHEDULER in reads.served_names(),
    )

    def of(namespace: str) -> Iterable[str]:
        own = (pod for pod in pods.cache.list() if pod.namespace == namespace)
        return [pod.key for pod in own if pod.spec.scheduler_name == SCHEDULER]

    def of_namespace(deployment: GodelDeployment) -> Iterable[str]:
        return of(deployment.namespace)

    def of_itself(namespace: Namespace) -> Iterable[str]:
        return of(namespace.name)

    def concerned(old: Pod | None, new: Pod | None) -> bool:
        pod = new or old
        return pod is not None and pod.spec.scheduler_name == SCHEDULER

    (
        manager.controller("godel-pods", pod_controller.reconcile, synced=complete)
        .watches(pods, predicate=concerned)
        .watches(reads.deployments, of_namespace)
        .watches(namespaces, of_itself, differ(_granted))
    )
    if SCHEDULER not in settings.schedulers:
        return  # reservations are left to Gödel
    reservations = reads.godel.cache
    ends = GodelReservationController(
        context, reservations, owners=lambda uid: pods.cache.by(BY_RESERVATION, uid), rules=rules
    )

    def end(key: str) -> Result | None:
        return ends.reconcile(key) if SCHEDULER in reads.served_names() else Result(EVERY)

    def taken(pod: Pod) -> Iterable[str]:
        uids = by_reservation(pod)
        return [item.key for item in reservations.list() if item.uid in uids] if uids else ()

    def kept_in(granting: Namespace | ResourceQuota) -> Iterable[str]:
        namespace = granting.namespace or granting.name
        return [item.key for item in reservations.list() if item.namespace == namespace]

    (
        manager.controller("godel", end, synced=complete)
        .watches(reads.godel)
        .watches(pods, taken)
        .watches(namespaces, kept_in, differ(_granted))
        .watches(reads.resource_quotas, kept_in, differ(spec))
    )


def _decisive(pod: Pod | None) -> object:
    """The parts of a pod that may change a decision: not a condition or a heartbeat."""
    return pod and (pod.sizes, pod.labels, pod.annotations, pod.status.phase, pod.deleting)


def _granted(namespace: Namespace | None) -> object:
    return namespace and namespace.annotations.get(names.KEPT_ROOM)


def _offered(node: Node | None) -> object:
    return node and (node.spec, node.labels, node.status.allocatable)
