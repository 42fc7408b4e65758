"""Keeps a ClusterQueue for each reservation, and a LocalQueue in each bound namespace.

Invariant: an object with the broker's mark is kept as `render` makes it; an object without it is never
written. An object in its desired state is not written either. A new object is created first, which fails if
the name is taken, and only then completed by server-side apply. The apply is forced, since Kueue's own writes
(finalizer, defaults) make Kueue a manager of the same fields. Kueue's finalizer
kueue.x-k8s.io/resource-in-use keeps a deleted ClusterQueue until no workload holds its quota; the reservation
is kept as long.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

from broker.apis import names
from broker.apis.kueue import ClusterQueue, LocalQueue, StopPolicy
from broker.apis.kueue_versions import cluster_queue_spec
from broker.apis.meta import Json, Object
from broker.apis.ome_rules import JudgedSpec
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.kueue.check import AdmissionCheckReconciler, uses_check
from broker.controllers.kueue.render import (
    cluster_queue,
    differs,
    leftover,
    local_queue,
    skeleton,
)
from broker.controllers.snapshot import Snapshot
from broker.kube.controller import Result
from broker.kube.errors import ApiError, Forbidden, Invalid, NotFound, Unavailable, WebhookFailed
from broker.kube.events import Reference
from broker.kube.served_informer import ServedInformer
from broker.quota.tree import cycle
from broker.quota.usage import ReservationKey
from broker.reservations.annotations import ADMISSION, INVALID_ANNOTATION, STOP
from broker.reservations.drawing import DrawRights
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import (
    BY_RESERVATION,
    local_queue_name,
    lost_mark,
    owner_of,
    queue_name,
)
from broker.reservations.ownership import ReservationProblem
from broker.reservations.queue_problems import (
    COHORT_CYCLE,
    CONFLICT,
    REFUSED,
    REMOVED,
    STOPPED,
    TERMINATING,
    UNAVAILABLE,
    UNMARKED,
)
from broker.reservations.reading import read
from broker.reservations.spec import Reservation, reserved_of

M = TypeVar("M", ClusterQueue, LocalQueue)

REVERTED: Final = "EditReverted"
# Seconds until a conflict or a refused write is tried again.
RETRY_SECONDS: Final = {CONFLICT: 300.0, REFUSED: 300.0, UNAVAILABLE: 30.0}


class QueueController:
    """`reconcile` takes a reservation's key."""

    def __init__(self, shared: ReservationDependencies, check: AdmissionCheckReconciler) -> None:
        self._client, self._recorder = shared.client, shared.recorder
        self._reads = shared.reads
        self._check = check
        self._was_present = False  # whether this process has seen Kueue
        # By kind and key: the body that this process applied last. Other clients wrote any difference.
        self._made: dict[tuple[str, str], Json] = {}

    def reconcile(self, key: str) -> Result | None:
        reserved = ReservationKey.parse(key)
        cache = self._reads.cache_of(reserved)
        reservation: Reservation | None = cache.find(str(reserved))
        if reservation is None and str(reserved) in cache.broken:
            return None  # its objects in Kueue stay until it can be read again
        try:
            problems = tuple(self._problems(reserved, reservation))
        except (Invalid, Forbidden, NotFound, Unavailable, WebhookFailed) as error:
            if not error.status:
                raise  # no answer came: the API server failed, not Kueue
            problems = (_refusal(f"ClusterQueue {queue_name(reserved)}", error),)
        news = self._reads.snapshots.report(reserved, problems)
        if news and reservation is not None:
            for problem in problems:
                self._recorder.event(Reference.of(reservation), "Warning", problem.reason, problem.message)
        waits = [RETRY_SECONDS[problem.reason] for problem in problems if problem.reason in RETRY_SECONDS]
        return Result(requeue_after=min(waits)) if waits else None

    def _problems(
        self, reserved: ReservationKey, reservation: Reservation | None
    ) -> Generator[ReservationProblem, None, None]:
        """Reconciles the reservation's queues and yields the problems. Raises ApiError."""
        if not self._reads.kueue:
            if self._was_present and reservation is not None:
                yield ReservationProblem(reason=REMOVED, message=_removed(reserved))
            return
        self._was_present = True
        snapshot = self._reads.snapshot()
        if reservation is None or reservation.deleting:
            self._end(reserved, reservation, snapshot)
            return
        judged = snapshot.judged(reservation)
        if judged.problems or snapshot.refusals.get(reserved):
            # The reservation's own status has the reason. Its earlier quota is neither used nor lent.
            self._stop(reserved, "Hold")
            self._made.pop((ClusterQueue.KIND.kind, f"/{queue_name(reserved)}"), None)
            return
        if uses_check(reservation) and not self._check.ready_for_queues:
            # A queue with an inactive check admits no workload. The check's change triggers a reconcile.
            if self._check.error is not None:
                yield _refusal(f"AdmissionCheck {CHECK}", self._check.error)
            return
        yield from self._keep(reservation, judged, snapshot)

    def _bound(self, reservation: Reservation, rights: DrawRights) -> tuple[str, ...]:
        """The namespaces that may use the reservation: its own, or those that name it in an annotation."""
        if reservation.namespace:
            return (reservation.namespace,)
        return tuple(
            sorted(
                namespace.name
                for namespace in self._reads.namespaces.cache.list()
                if not namespace.deleting and rights.of_namespace(namespace) == reserved_of(reservation)
            )
        )

    def _keep(
        self, reservation: Reservation, judged: JudgedSpec, snapshot: Snapshot
    ) -> Generator[ReservationProblem, None, None]:
        reserved = reserved_of(reservation)
        _, invalid = ADMISSION.read(reservation)
        if invalid:
            yield ReservationProblem(reason=INVALID_ANNOTATION, message=f"{invalid}; it counts as Hold")
        check = CHECK if uses_check(reservation) else ""
        if check and self._check.problem:
            yield self._check.problem
            check = ""
        if check and self._check.terminating:
            yield self._check.terminating
        if ring := cycle(judged.spec.cohort, {cohort.name: cohort.parent for cohort in snapshot.cohorts}):
            yield ReservationProblem(
                reason=COHORT_CYCLE,
                message="cohorts are each other's parents, so Kueue admits no workload: "
                f"{' in '.join(ring)}; change spec.parentName of one of these Cohorts",
            )
        bound = self._bound(reservation, snapshot.rights)
        stop = yield from _stops(reservation, snapshot.full.get(reserved, ""))
        desired = cluster_queue(reservation, judged.spec, namespaces=bound, check=check, stop=stop)
        problem = self._put(self._reads.cluster_queues, desired, reservation)
        if problem is not None:
            yield problem
            return
        for queue in self._reads.cluster_queues.cache.by(BY_RESERVATION, str(reserved)):
            if queue.name != queue_name(reserved):  # made by an earlier broker under another name
                self._delete(self._reads.cluster_queues, queue)
        for namespace in bound:
            problem = self._put(self._reads.local_queues, local_queue(reservation, namespace), reservation)
            if problem is not None:
                yield problem
        for local in self._reads.local_queues.cache.by(BY_RESERVATION, str(reserved)):
            if local.namespace not in bound or local.name != local_queue_name(reserved):
                self._delete(self._reads.local_queues, local)

    def _put(
        self, informer: ServedInformer[M], desired: Json, reservation: Reservation
    ) -> ReservationProblem | None:
        """Writes the desired object; returns a problem if it is not the broker's, terminating, or refused."""
        meta, reserved = desired["metadata"], reserved_of(reservation)
        current = informer.cache.get(meta["name"], meta.get("namespace"))
        title = f"{informer.kind.kind} {meta['name']}"
        if current is not None and owner_of(current) != reserved:
            owner = owner_of(current)
            if current.deleting:
                return ReservationProblem(
                    reason=TERMINATING,
                    message=f"{title} was not made for {reserved} and is being deleted; it is kept by "
                    f"{', '.join(current.metadata.finalizers)}; then one is made for {reserved}",
                )
            if command := lost_mark(current, reserved):
                return ReservationProblem(
                    reason=UNMARKED,
                    message=f"{title} was made for {reserved} and has lost a part of the broker's mark, so "
                    f"it is left as it is: put it back ({command}), or delete the {informer.kind.kind} to "
                    "have it made anew",
                )
            return ReservationProblem(
                reason=CONFLICT,
                message=f"{title} exists and was "
                + (f"made for {owner}" if owner else "not made by the broker")
                + f", so it is left alone and {reserved} has none: delete it, or rename the reservation",
            )
        if current is not None and current.deleting:
            return ReservationProblem(
                reason=TERMINATING,
                message=f"{title} was deleted and is kept by {', '.join(current.metadata.finalizers)} until "
                "no workload holds its quota; then it is made anew",
            )
        if isinstance(current, LocalQueue) and current.spec.cluster_queue != desired["spec"]["clusterQueue"]:
            self._delete(informer, current)  # the field is immutable
            current = None
        try:
            self._write(informer, current, desired, reservation)
        except (Invalid, Forbidden, NotFound, Unavailable, WebhookFailed) as error:
            if not error.status:
                raise
            return _refusal(title, error)
        return None

    def _write(
        self, informer: ServedInformer[M], current: M | None, desired: Json, reservation: Reservation
    ) -> None:
        """Creates the object if `current` is None, and applies `desired` if it differs. Raises ApiError."""
        meta = desired["metadata"]
        key = (informer.kind.kind, f"{meta.get('namespace', '')}/{meta['name']}")
        if current is None:
            created = self._client.create(
                informer.kind, self._versioned(informer, skeleton(desired, reserved_of(reservation)))
            )
            informer.cache.observe(created)
        elif not differs(current, desired):
            self._made[key] = desired
            return
        elif self._made.get(key) == desired:
            self._recorder.event(reservation, "Warning", REVERTED, _reverted(current, desired, reservation))
        raw = self._client.apply(informer.kind, self._versioned(informer, desired))
        self._made[key] = desired
        informer.cache.observe(raw)
        if informer is self._reads.cluster_queues:
            self._clear(ClusterQueue.decode(raw), desired)

    def _clear(self, queue: ClusterQueue, desired: Json) -> None:
        """Removes fields that another manager set and that the broker omits on purpose."""
        if spec := leftover(queue, desired):
            kind = self._reads.cluster_queues.kind
            body = {
                "metadata": {"resourceVersion": queue.metadata.resource_version},
                "spec": cluster_queue_spec(spec, kind.version),
            }
            self._reads.cluster_queues.cache.observe(self._client.patch(kind, queue.name, body))

    def _versioned(self, informer: ServedInformer[M], body: Json) -> Json:
        return body | {"spec": cluster_queue_spec(body["spec"], informer.kind.version)}

    def _stop(self, reserved: ReservationKey, policy: StopPolicy) -> None:
        queue = self._reads.cluster_queues.cache.get(queue_name(reserved))
        if queue is None or owner_of(queue) != reserved or queue.spec.stop_policy == policy:
            return
        raw = self._client.patch(
            self._reads.cluster_queues.kind, queue.name, {"spec": {"stopPolicy": policy}}
        )
        self._reads.cluster_queues.cache.observe(raw)

    def _end(self, reserved: ReservationKey, reservation: Reservation | None, snapshot: Snapshot) -> None:
        """Stops admission and deletes the queues. Admitted workloads run to their end, unless the broker is
        to cancel the instances too. With dedicated clusters they always do: the reservation waits for
        these."""
        drains = (
            reservation is not None
            and _gives_back(reservation, snapshot)
            and not _dedicated(reserved, snapshot)
        )
        self._stop(reserved, "HoldAndDrain" if drains else "Hold")
        for queue in self._reads.cluster_queues.cache.by(BY_RESERVATION, str(reserved)):
            self._delete(self._reads.cluster_queues, queue)
        for local in self._reads.local_queues.cache.by(BY_RESERVATION, str(reserved)):
            self._delete(self._reads.local_queues, local)

    def _delete(self, informer: ServedInformer[Any], obj: Object) -> None:
        if not obj.deleting:
            informer.delete(self._client, obj)


def _refusal(name: str, error: ApiError) -> ReservationProblem:
    """The problem of a failed write, with the API server's own message: it names the webhook behind it."""
    if isinstance(error, Unavailable | NotFound | WebhookFailed):
        return ReservationProblem(
            reason=UNAVAILABLE,
            message=f"{name} cannot be written: {error.message}; see whether Kueue's controller runs and its "
            "webhook answers (kubectl get pods -n kueue-system); it stays as it is and is tried again",
        )
    return ReservationProblem(
        reason=REFUSED,
        message=f"{name} is refused by Kueue, or by the rights that the broker has: {error.message}; "
        "it stays as it is until the reservation, the webhook or the rights are changed",
    )


def _removed(reserved: ReservationKey) -> str:
    return (
        f"Kueue's definitions were removed, and ClusterQueue {queue_name(reserved)} with them: nothing is "
        "admitted through it, and the broker counts quota itself; install Kueue again, or restart the broker "
        "if Kueue is to stay away"
    )


def _stops(reservation: Reservation, full: str) -> Generator[ReservationProblem, None, StopPolicy]:
    """Returns the stop policy from the reservation's annotation, and yields the problems to report.

    `full`: why the reservation admits nothing now. Kueue counts a renamed flavor as new quota beside the old.
    """
    policy, invalid = STOP.read(reservation)
    if invalid:
        yield ReservationProblem(reason=INVALID_ANNOTATION, message=f"{invalid}; it counts as {policy}")
    if policy != "None":
        ends = ", and Kueue evicts those that run" if policy == "HoldAndDrain" else ""
        yield ReservationProblem(
            reason=STOPPED,
            message=f"annotation {names.STOP_POLICY} is {policy}: ClusterQueue "
            f"{queue_name(reserved_of(reservation))} admits no workloads{ends}; take the annotation away to "
            "admit them again",
        )
    elif full:
        yield ReservationProblem(
            reason=STOPPED,
            message=f"{full}: until then ClusterQueue {queue_name(reserved_of(reservation))} is stopped "
            "(Hold); end these users, or give the flavor its earlier name again",
        )
        return "Hold"
    return policy


def _reverted(current: ClusterQueue | LocalQueue, desired: Json, reservation: Reservation) -> str:
    message = f"{current.KIND.kind} {current.name} was edited by hand and is again as the reservation has it"
    now, again = current.spec.stop_policy, desired["spec"]["stopPolicy"]
    if now == again:
        return f"{message}: edit the {reservation.KIND.kind} instead"
    where = f" -n {reservation.namespace}" if reservation.namespace else ""
    return (
        f"{message}: spec.stopPolicy was {now} and is {again}; to stop admitting, run kubectl "
        f"annotate{where} {reservation.KIND.plural} {reservation.name} {names.STOP_POLICY}={now}"
    )


def _gives_back(reservation: Reservation, snapshot: Snapshot) -> bool:
    """Whether the instances end with the reservation, by its annotations."""
    return read(reservation, snapshot.judged(reservation), snapshot.flavors.instances({}, ())).gives_back


def _dedicated(reserved: ReservationKey, snapshot: Snapshot) -> bool:
    """Whether a dedicated cluster holds quota of the reservation."""
    return any(
        cluster.status.admission is not None and cluster.status.admission.reservation == str(reserved)
        for cluster in snapshot.clusters
    )
