"""Writes the scheduler's decisions: the bind of a pod with the annotation of its hold, a reservation's node.

Invariant: a pod carries the annotation only if it takes from the hold. The API server writes it together with
the node, by the Binding, so that no failure leaves one without the other. A placement without an answer is
read back before the next decision, since it may have been carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import orjson

from broker.apis import godel
from broker.apis import koordinator as koord
from broker.apis.core import POD_SCHEDULED, UNSCHEDULABLE, Pod
from broker.apis.meta import Json
from broker.apis.units import written
from broker.controllers.nodereservation.conditions import (
    current_owners,
    placed_conditions,
    unplaced_conditions,
)
from broker.controllers.nominations import write_nomination
from broker.controllers.pod_metadata import patch_metadata
from broker.kube.client import DRY_RUN
from broker.kube.conditions import changed
from broker.kube.conflicts import after_conflicts
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError, Conflict, Forbidden, NotFound, Unavailable
from broker.kube.refusals import ask_first
from broker.oncall.pod_reports import FAILED
from broker.placement.holds import Consumption, Hold
from broker.text import format_time

P = TypeVar("P", Pod, koord.KoordinatorReservation)
# Causes that another node does not cure. Karpenter, the cluster autoscaler and the broker buy for the reason
# Unschedulable only (karpenter pkg/utils/pod/scheduling.go, FailedToSchedule).
QUOTA_EXCEEDED: Final = "QuotaExceeded"
RESERVATION_REQUIRED: Final = "ReservationRequired"


class OutcomeUnknown(Unavailable):
    """A placement may have been carried out: neither its answer nor the object can be read now."""


class PlacementWriter:
    """All writes of the scheduler. Each method raises ApiError."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock

    def bind(self, pod: Pod, node: str, hold: Hold | None) -> None:
        """Raises OutcomeUnknown if the pod may have the node."""
        try:
            self._post(pod, node, hold)
        except ApiError as error:
            if self.bound_to(pod, error) != node:
                raise
        self._recorder.event(pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node}")

    def try_bind(self, pod: Pod, node: str, hold: Hold | None) -> None:
        """Asks the API server whether it would bind the pod now. Raises ApiError if not."""
        ask_first(lambda: self._post(pod, node, hold, dry_run=True))

    def reserve(
        self,
        reservation: koord.KoordinatorReservation,
        node: str,
        room: Mapping[str, int],
        owners: Sequence[Pod] = (),
    ) -> koord.KoordinatorReservation:
        """Gives a reservation its node; returns it as the API server has it then.

        `owners`: running pods that give it their room, annotated first, and freed if the write fails. Raises
        OutcomeUnknown if the reservation may have the node.
        """
        annotation = orjson.dumps({"name": reservation.name, "uid": reservation.uid}).decode()
        try:
            for pod in owners:
                self._annotate(pod, annotation)
            return after_conflicts(
                lambda newest: self._place(newest, node, room, owners),
                reservation,
                partial(self._still_waiting, reservation),
            )
        except ApiError as error:
            now = self.present(reservation, error)
            if now is not None and now.status.node_name:
                return now
            for pod in owners:
                self._release(pod, annotation)
            raise

    def _still_waiting(
        self, reservation: koord.KoordinatorReservation
    ) -> koord.KoordinatorReservation | None:
        """The reservation as it is now, if no more than its status changed: its own pods would take its room
        before another try.
        """
        now = self.present(reservation)
        if now is None or now.deleting or now.status.node_name or now.spec != reservation.spec:
            return None
        same = (now.labels, now.annotations) == (reservation.labels, reservation.annotations)
        return now if same else None

    def _place(
        self,
        reservation: koord.KoordinatorReservation,
        node: str,
        room: Mapping[str, int],
        owners: Sequence[Pod],
    ) -> koord.KoordinatorReservation:
        now = self._clock.now()
        status: Json = {
            "phase": koord.AVAILABLE,
            "nodeName": node,
            "allocatable": {name: written(name, amount) for name, amount in room.items()},
            "conditions": placed_conditions(reservation.status.conditions, now),
        }
        if owners:
            status["currentOwners"] = current_owners(owners)
        reply = self._write(reservation, status)
        self._recorder.event(
            reservation, "Normal", "Scheduled", f"Successfully assigned {reservation.name} to {node}"
        )
        return koord.KoordinatorReservation.decode(reply)

    def reject(self, pod: Pod, message: str, reason: str) -> None:
        """Reports why no node can have the pod. An unchanged reason is not written again.

        With the reason Unschedulable, a new node may help the pod.
        """
        old = pod.scheduled
        if old is not None and (old.status, old.reason, old.message) == ("False", reason, message):
            return
        same = old is not None and old.status == "False" and old.last_transition_time is not None
        since = old.last_transition_time if same and old else None
        condition = {
            "type": POD_SCHEDULED,
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": format_time(since or self._clock.now()),
        }
        self._client.patch(
            Pod.KIND,
            pod.name,
            {"status": {"conditions": [condition]}},
            namespace=pod.namespace,
            type="strategic",
            subresource="status",
        )
        self._recorder.event(pod, "Warning", FAILED, message)

    def nominate(self, pod: Pod, node: str) -> None:
        """Shows the node that becomes free for the pod; none: then the pod may get a new one."""
        if pod.status.nominated_node_name != node:
            write_nomination(self._client, pod, node or None)

    def preempted(self, victims: Sequence[Pod], *, by: Pod, node: str) -> None:
        """Reports the evicted pods in kube-scheduler's words.

        The text has no name of another namespace. Source: pkg/scheduler/framework/preemption/executor.go.
        """
        for victim in victims:
            text = f"Preempted by pod {by.uid} on node {node}"
            self._recorder.event(victim, "Normal", "Preempted", text)

    def blocked(self, pod: Pod, victims: Sequence[Pod], why: str) -> None:
        """Reports pods that cannot be evicted for the pod."""
        names = ", ".join(victim.key for victim in victims)
        text = f"{names} cannot be evicted now: {why.rstrip('.')}; other pods are tried"
        self._recorder.event(pod, "Warning", "PreemptionBlocked", text)

    def reject_reservation(
        self, reservation: koord.KoordinatorReservation, message: str, reason: str = UNSCHEDULABLE
    ) -> None:
        now = self._clock.now()
        conditions = unplaced_conditions(reservation.status.conditions, message, now, reason)
        status = {"phase": koord.PENDING, "conditions": conditions}
        if changed(reservation.status.wire(), status):
            try:
                self._write(reservation, status)
            except Conflict:
                return  # its change begins another try: its own pods would take its node during a backoff
            self._recorder.event(reservation, "Warning", FAILED, message)

    def _write(self, reservation: koord.KoordinatorReservation, status: Json) -> Json:
        meta = {"uid": reservation.uid, "resourceVersion": reservation.metadata.resource_version}
        body = {"metadata": meta, "status": status}
        return self._client.patch(
            koord.KoordinatorReservation.KIND, reservation.name, body, subresource="status"
        )

    def _post(self, pod: Pod, node: str, hold: Hold | None, *, dry_run: bool = False) -> None:
        """The Binding's annotations are added to the pod's: it removes none, so that an empty one ends it."""
        allocated = {key: text for key, text in allocation(hold).items() if text or pod.annotations.get(key)}
        meta: Json = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta | ({"annotations": allocated} if allocated else {}),
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = Pod.KIND.path(namespace=pod.namespace, name=pod.name, subresource="binding")
        self._client.raw("POST", path, DRY_RUN if dry_run else None, body=body)

    def _annotate(self, pod: Pod, annotation: str) -> None:
        """Writes a running pod's reservation. Raises Conflict if the pod has changed since it was read."""
        version = pod.metadata.resource_version
        meta = {"uid": pod.uid, "resourceVersion": version, "annotations": {koord.ALLOCATED: annotation}}
        patch_metadata(self._client, pod, meta)

    def _release(self, pod: Pod, annotation: str) -> None:
        """Removes the annotation of a reservation that did not get its node."""
        try:
            now = Pod.decode(self._client.get(Pod.KIND, pod.name, namespace=pod.namespace))
            if now.uid == pod.uid and now.annotations.get(koord.ALLOCATED) == annotation:
                patch_metadata(self._client, pod, {"uid": pod.uid, "annotations": {koord.ALLOCATED: None}})
        except NotFound:
            return

    def bound_to(self, pod: Pod, error: ApiError | None = None) -> str:
        """The node that the pod has now; none if it is gone.

        Raises OutcomeUnknown from `error` if the pod cannot be read now, and ApiError.
        """
        now = self.present(pod, error)
        return now.spec.node_name if now is not None else ""

    def present(self, placed: P, error: ApiError | None = None) -> P | None:
        """The pod or reservation as it is now; None if it is gone. Raises as `bound_to`."""
        try:
            body = self._client.get(placed.KIND, placed.name, namespace=placed.metadata.namespace)
        except NotFound:
            return None
        except Forbidden:
            raise  # it will not be readable soon either: the others go on
        except ApiError as unread:
            text = f"the result of a placement is unknown: {unread.message}"
            raise OutcomeUnknown(unread.status, unread.reason, text) from error
        now = type(placed).decode(body)
        return now if now.uid == placed.uid else None


def allocation(hold: Hold | None) -> dict[str, str]:
    """The annotations of a pod that takes from the hold, or from none. An empty one means none."""
    none = dict.fromkeys((koord.ALLOCATED, godel.MATCHED_PLACEHOLDER, godel.MATCHED_UID), "")
    if hold is None:
        return none
    if hold.consumption is Consumption.WHOLE:
        matched = f"{hold.name}-placeholder"
        return {**none, godel.MATCHED_PLACEHOLDER: matched, godel.MATCHED_UID: hold.id}
    return {**none, koord.ALLOCATED: orjson.dumps({"name": hold.name, "uid": hold.id}).decode()}
