"""The triggers of the scheduler and of reservations on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod, ResourceQuota
from broker.apis.godel import GodelDeployment
from broker.apis.kueue import Namespace
from broker.controllers.elasticquota.controller import ElasticQuotaController
from broker.controllers.elasticquota.reading import ElasticPods, declaration
from broker.controllers.nodereservation.godel import GodelPodController, GodelReservationController
from broker.controllers.nodereservation.godel_reading import GodelAnnotations
from broker.controllers.nodereservation.koordinator import (
    BY_RESERVATION,
    KoordinatorController,
    by_reservation,
)
from broker.controllers.nodereservation.reads import GODEL, SchedulerReads, scheduler_of
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.controllers.scheduler.loop import PodScheduler
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.kube.singleton import Singleton
from broker.settings import Settings
from broker.wiring.predicates import differ, gone, spec

# Seconds: a decision that time changes, such as the end of a hold, waits no longer.
EVERY: Final = 15.0
NOS_SCHEDULER: Final = "nos-scheduler"


@dataclass(frozen=True, kw_only=True)
class SchedulerTerm(ControllerContext):
    """The values that the loops of one term share. `synced`: whether all kinds are read."""

    manager: ControllerManager
    settings: Settings
    reads: SchedulerReads
    pods: Informer[Pod]
    nodes: Informer[Node]
    namespaces: Informer[Namespace]
    synced: Callable[[], bool]


def add_scheduler(term: SchedulerTerm) -> None:
    """Declares the scheduler and the controllers of its kinds."""
    term.manager.follow(*term.reads.named.values())
    _add_loop(term)
    _add_koordinator(term)
    rules = term.reads.rules(term.settings.room_bounds, term.namespaces.cache)
    _add_godel_pods(term, rules)
    if GODEL in term.settings.schedulers:  # else reservations are left to Gödel
        _add_godel_reservations(term, rules)
    if NOS_SCHEDULER in term.settings.schedulers:
        _add_elastic(term)


def _add_loop(term: SchedulerTerm) -> None:
    reads = term.reads
    scheduler = PodScheduler(
        term,
        reads,
        pods=term.pods.cache,
        nodes=term.nodes.cache,
        namespaces=term.namespaces.cache,
        settings=term.settings,
    )

    # A run costs little, so that none waits for changes to come.
    loop: Singleton[str] = term.manager.singleton(
        "scheduler", scheduler.run, every=EVERY, idle=0.0, synced=term.synced
    )
    loop.watches(term.pods, predicate=differ(_decisive)).watches(term.nodes, predicate=differ(_offered))
    loop.watches(reads.koordinator)
    loop.watches(reads.quotas).watches(reads.composites).watches(reads.godel)


def _add_koordinator(term: SchedulerTerm) -> None:
    pods, nodes, reservations = term.pods, term.nodes, term.reads.koordinator.cache
    controller = KoordinatorController(
        term,
        reservations,
        nodes.cache,
        owners=lambda uid: pods.cache.by(BY_RESERVATION, uid),
        schedulers=term.reads.served_names,
        bounds=term.settings.room_bounds,
    )

    def taken(pod: Pod) -> Iterable[str]:
        uids = by_reservation(pod)
        return [item.name for item in reservations.list() if item.uid in uids] if uids else ()

    def on_node(node: Node) -> Iterable[str]:
        return [item.name for item in reservations.list() if item.status.node_name == node.name]

    (
        term.manager.controller("koordinator", controller.reconcile, synced=term.synced)
        .watches(term.reads.koordinator)
        .watches(pods, taken)
        .watches(nodes, on_node, gone)
        .watches(pods, lambda pod: [item.name for item in reservations.list()] if scheduler_of(pod) else ())
    )


def _add_elastic(term: SchedulerTerm) -> None:
    reads = term.reads
    elastic = ElasticQuotaController(
        term,
        lambda: reads.all_quotas(declaration),
        pods=term.pods.cache,
        reading=ElasticPods(term.nodes.cache, gpu_gb=term.settings.gpu_memory_gb),
    )

    def run(items: Sequence[str]) -> None:
        if NOS_SCHEDULER in reads.served_names():
            elastic.run(items)

    (
        term.manager.singleton("elastic", run, synced=term.synced)
        .watches(term.pods, predicate=differ(_decisive))
        .watches(reads.quotas)
        .watches(reads.composites)
    )


def _add_godel_pods(term: SchedulerTerm, rules: RoomRules) -> None:
    pods, reads = term.pods, term.reads
    annotations = GodelAnnotations(reads.deployments.cache, reads.replica_sets.cache, rules=rules)
    controller = GodelPodController(
        term, pods.cache, annotations, served=lambda: GODEL in reads.served_names()
    )

    def of(namespace: str) -> Iterable[str]:
        own = (pod for pod in pods.cache.list() if pod.namespace == namespace)
        return [pod.key for pod in own if pod.spec.scheduler_name == GODEL]

    def of_namespace(deployment: GodelDeployment) -> Iterable[str]:
        return of(deployment.namespace)

    def of_itself(namespace: Namespace) -> Iterable[str]:
        return of(namespace.name)

    def concerned(old: Pod | None, new: Pod | None) -> bool:
        pod = new or old
        return pod is not None and pod.spec.scheduler_name == GODEL

    (
        term.manager.controller("godel-pods", controller.reconcile, synced=term.synced)
        .watches(pods, predicate=concerned)
        .watches(reads.deployments, of_namespace)
        .watches(term.namespaces, of_itself, differ(_granted))
    )


def _add_godel_reservations(term: SchedulerTerm, rules: RoomRules) -> None:
    pods, reads, reservations = term.pods, term.reads, term.reads.godel.cache
    controller = GodelReservationController(
        term,
        reservations,
        term.nodes.cache,
        owners=lambda uid: pods.cache.by(BY_RESERVATION, uid),
        rules=rules,
    )

    def end(key: str) -> Result | None:
        return controller.reconcile(key) if GODEL in reads.served_names() else Result(EVERY)

    def taken(pod: Pod) -> Iterable[str]:
        uids = by_reservation(pod)
        return [item.key for item in reservations.list() if item.uid in uids] if uids else ()

    def on_node(node: Node) -> Iterable[str]:
        return [item.key for item in reservations.list() if item.spec.node_name == node.name]

    def kept_in(granting: Namespace | ResourceQuota) -> Iterable[str]:
        namespace = granting.namespace or granting.name
        return [item.key for item in reservations.list() if item.namespace == namespace]

    (
        term.manager.controller("godel", end, synced=term.synced)
        .watches(reads.godel)
        .watches(pods, taken)
        .watches(term.nodes, on_node, gone)
        .watches(term.namespaces, kept_in, differ(_granted))
        .watches(reads.resource_quotas, kept_in, differ(spec))
    )


def _decisive(pod: Pod | None) -> object:
    """The parts of a pod that may change a decision: not a condition or a heartbeat."""
    return pod and (pod.sizes, pod.labels, pod.annotations, pod.status.phase, pod.deleting)


def _granted(namespace: Namespace | None) -> object:
    return namespace and namespace.annotations.get(names.KEPT_ROOM)


def _offered(node: Node | None) -> object:
    return node and (node.spec, node.labels, node.status.allocatable)
