"""The AdmissionCheck that holds workloads until their reserved capacity exists.

Invariant: the check stays active from the first leading broker on. Kueue admits no workload through a
ClusterQueue with an inactive check (`AdmissionCheckInactive`), and never writes the status of a check of
another controller. The broker therefore sets Active first. A check of the same name with another controller
is left alone, and no queue of the broker names it.
"""

from __future__ import annotations

from typing import Final

from broker.apis.kueue import ACTIVE, AdmissionCheck, ClusterQueue
from broker.apis.meta import ConditionUpdate, Json, is_true
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.kueue.render import CONTROLLER
from broker.kube.conditions import condition_body, set_conditions
from broker.kube.controller import Result
from broker.kube.errors import ApiError
from broker.kube.removal import remove
from broker.kube.watches import Signal
from broker.reservations.annotations import ADMISSION
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import owner_of
from broker.reservations.ownership import ReservationProblem
from broker.reservations.queue_problems import CONFLICT
from broker.reservations.spec import Reservation
from providers.names import MANAGED_BY, MANAGER

TERMINATING: Final = "AdmissionCheckTerminating"
READY: Final = "BrokerRuns"
MESSAGE: Final = "the capacity broker answers once the reserved instances exist"


class AdmissionCheckReconciler:
    """`run` reconciles the check; the properties report its state."""

    def __init__(self, shared: ReservationDependencies) -> None:
        self._client, self._clock = shared.client, shared.clock
        self._reads = shared.reads
        self.error: ApiError | None = None  # the error that prevented the last write of the check
        self.failed = Signal()  # after each such error

    @property
    def problem(self) -> ReservationProblem | None:
        """The conflict that keeps queues from naming the check; None if there is none."""
        check = self._current()
        if check is None or check.spec.controller_name == CONTROLLER:
            return None
        if check.deleting:
            return ReservationProblem(
                reason=TERMINATING,
                message=f"AdmissionCheck {CHECK} names the controller {check.spec.controller_name!r} and was "
                f"deleted; {', '.join(check.metadata.finalizers)} keeps it as long as a ClusterQueue names "
                "it; then the broker makes its own, and until then no workload waits for reserved capacity",
            )
        return ReservationProblem(
            reason=CONFLICT,
            message=f"AdmissionCheck {CHECK} exists and names the controller {check.spec.controller_name!r}, "
            "so no workload waits for reserved capacity: delete or rename it",
        )

    @property
    def terminating(self) -> ReservationProblem | None:
        """The problem of a deleted check: it stays in use, and is made anew once no queue names it."""
        check = self._current()
        if check is None or not check.deleting:
            return None
        return ReservationProblem(
            reason=TERMINATING,
            message=f"AdmissionCheck {CHECK} was deleted; {', '.join(check.metadata.finalizers)} keeps it "
            "as long as a ClusterQueue names it; it stays in use, and there is nothing to do",
        )

    @property
    def ready_for_queues(self) -> bool:
        """Whether queues may be made: the check is active, or cannot be used at all. Kueue uses a deleted
        check for as long as it exists."""
        check = self._current()
        return self.problem is not None or (check is not None and is_true(check, ACTIVE))

    def run(self) -> Result | None:
        """Raises ApiError."""
        reservations = self._reads.snapshot().reservations.values()
        try:
            self.keep(used=any(map(uses_check, reservations)))
        except ApiError:
            self.failed()
            raise
        return None

    def keep(self, *, used: bool) -> None:
        """`used`: whether a reservation uses the check. It also stays while a queue of the broker names it:
        until then Kueue would only keep it terminating, and block a new one. Raises ApiError."""
        informer = self._reads.checks
        if not informer.served or self.problem is not None:
            return
        check = self._current()
        if not used and not self._named():
            self._remove(check)
            return
        self.error = None
        try:
            check = self._create() if check is None else check
            if not is_true(check, ACTIVE):
                self._activate(check)
        except ApiError as error:
            self.error = error if error.status else None
            raise

    def _create(self) -> AdmissionCheck:
        body: Json = {
            "metadata": {"name": CHECK, "labels": {MANAGED_BY: MANAGER}},
            "spec": {"controllerName": CONTROLLER},
        }
        informer = self._reads.checks
        return informer.cache.written(self._client.create(informer.kind, body))

    def _activate(self, check: AdmissionCheck) -> None:
        conditions = set_conditions(
            check.status.conditions,
            ConditionUpdate(type=ACTIVE, status="True", reason=READY, message=MESSAGE),
            now=self._clock.now(),
            observed_generation=check.metadata.generation,
        )
        active = next(update for update in conditions if update.type == ACTIVE)
        body: Json = {"metadata": {"name": CHECK}, "status": {"conditions": [condition_body(active)]}}
        informer = self._reads.checks
        informer.cache.observe(self._client.apply(informer.kind, body, subresource="status"))

    def _remove(self, check: AdmissionCheck | None) -> None:
        if check is None or check.deleting or check.labels.get(MANAGED_BY) != MANAGER:
            return
        remove(self._client, check, kind=self._reads.checks.kind)

    def _named(self) -> bool:
        queues = self._reads.cluster_queues.cache.list()
        return any(owner_of(queue) is not None and names_check(queue) for queue in queues)

    def _current(self) -> AdmissionCheck | None:
        return self._reads.checks.cache.get(CHECK)


def uses_check(reservation: Reservation) -> bool:
    return not reservation.deleting and ADMISSION.of(reservation) != "Off"


def names_check(queue: ClusterQueue) -> bool:
    """Whether a queue names the broker's check."""
    strategy = queue.spec.admission_checks_strategy
    return strategy is not None and any(check.name == CHECK for check in strategy.admission_checks)
