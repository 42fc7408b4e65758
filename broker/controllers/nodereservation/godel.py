"""The life of Gödel reservations: made when a pod is deleted, matched by a back pod, deleted at their end.

Bound pods with a room to keep carry a finalizer. So no deletion is missed while the broker is down,
and the room stays the pod's until its reservation is there. Source: Gödel, pkg/controller/reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from broker.apis import godel
from broker.apis.core import Node, Pod
from broker.apis.godel import GodelReservation
from broker.apis.meta import Json, ObjectMeta
from broker.controllers.nodereservation.godel_reading import NOT_KEPT, GodelAnnotations
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.controllers.pod_metadata import patch_metadata
from broker.kube.cache import Cache
from broker.kube.conditions import add_finalizer, remove_finalizer
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import AlreadyExists, NotFound
from broker.kube.removal import remove

TOPIC: Final = "kept-room"  # of events about a pod's request to keep its room
_FIELDS: Final = (
    "schedulerName",
    "priority",
    "priorityClassName",
    "nodeSelector",
    "hostNetwork",
    "affinity",
    "tolerations",
    "initContainers",
    "containers",
    "overhead",
    "resources",
)


class GodelPodController:
    """Turns deleted pods into reservations."""

    def __init__(
        self,
        context: ControllerContext,
        pods: Cache[Pod],
        annotations: GodelAnnotations,
        *,
        served: Callable[[], bool],
    ) -> None:
        self._client, self._recorder = context.client, context.recorder
        self._pods, self._annotations, self._served = pods, annotations, served

    def reconcile(self, key: str) -> None:
        pod = self._pods.find(key)
        if pod is None or not pod.spec.node_name:
            return
        has_finalizer = godel.FINALIZER in pod.metadata.finalizers
        keeps_room = self._served() and self._annotations.keeps_room(pod)
        if not pod.deleting:
            problem = self._annotations.problem(pod) if self._served() and not pod.ended else None
            if problem is not None:
                self._recorder.event(pod, "Warning", *problem, topic=TOPIC)
            else:
                self._recorder.ended(pod, TOPIC)
            keeps_room = keeps_room and not pod.ended  # a pod that completes gives its room back
            self._patch(pod, add_finalizer(pod, godel.FINALIZER) if keeps_room else None)
            if has_finalizer and not keeps_room:
                self._patch(pod, remove_finalizer(pod, godel.FINALIZER))
            return
        if has_finalizer:
            if keeps_room:
                self._keep(pod)
            self._patch(pod, remove_finalizer(pod, godel.FINALIZER))

    def _keep(self, pod: Pod) -> None:
        """Creates the pod's reservation. One of an earlier pod of this name is replaced."""
        spec = pod.spec.wire()
        body: Json = {
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "labels": dict(pod.labels),  # other pods' anti-affinity is about them
                "annotations": {
                    godel.INDEX: self._annotations.index(pod),
                    godel.PLACEHOLDER_UID: pod.uid,
                },
            },
            "spec": {
                "nodename": pod.spec.node_name,
                "ttl": self._annotations.ttl(pod),
                "template": {"spec": {name: spec[name] for name in _FIELDS if name in spec}},
            },
        }
        try:
            self._client.create(GodelReservation.KIND, body)
        except AlreadyExists:
            old = GodelReservation.decode(
                self._client.get(GodelReservation.KIND, pod.name, namespace=pod.namespace)
            )
            if old.annotations.get(godel.PLACEHOLDER_UID) == pod.uid:
                return
            self._client.delete(GodelReservation.KIND, pod.name, namespace=pod.namespace, uid=old.uid)
            self._client.create(GodelReservation.KIND, body)

    def _patch(self, pod: Pod, body: Json | None) -> None:
        if body is not None:
            try:
                patch_metadata(self._client, pod, body["metadata"])
            except NotFound:
                return


class GodelReservationController:
    """Shows a reservation's phase, and deletes it once it is matched, out of time or without its node."""

    def __init__(
        self,
        context: ControllerContext,
        reservations: Cache[GodelReservation],
        nodes: Cache[Node],
        *,
        owners: Callable[[str], Sequence[Pod]],
        rules: RoomRules,
    ) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._reservations, self._nodes = reservations, nodes
        self._owners, self._rules = owners, rules

    def reconcile(self, key: str) -> Result | None:
        reservation = self._reservations.find(key)
        if reservation is None or reservation.deleting:
            return None
        # A pod's annotation names the reservation, so that another namespace could name it too.
        named = (pod for pod in self._owners(reservation.uid) if pod.namespace == reservation.namespace)
        owner = next((pod for pod in named if pod.spec.node_name), None)
        if owner is not None:
            reference = {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid}
            self._show(reservation, {"phase": godel.MATCHED, "currentOwners": reference})
            remove(self._client, reservation)
            return None
        if self._lacks_node(reservation):
            self._refuse(reservation, f"node {reservation.spec.node_name} is gone")
            return None
        if refusal := self._rules.refused(self._beside(reservation)).get(reservation.uid):
            self._refuse(reservation, refusal)
            return None
        created = reservation.metadata.creation_timestamp or self._clock.now()
        ends = created + timedelta(seconds=self._rules.bounds.seconds(reservation.spec.ttl or 0))
        remaining = (ends - self._clock.now()).total_seconds()
        if remaining <= 0:
            remove(self._client, reservation)
            return None
        if not reservation.status.phase:
            self._show(reservation, {"phase": godel.RESERVED})
        return Result(remaining)

    def _beside(self, reservation: GodelReservation) -> list[GodelReservation]:
        """The reservations that share the namespace's limits, this one too."""
        return [
            item
            for item in self._reservations.list()
            if item.namespace == reservation.namespace and not self._lacks_node(item)
        ]

    def _lacks_node(self, reservation: GodelReservation) -> bool:
        return bool(reservation.spec.node_name) and self._nodes.lacks(reservation.spec.node_name)

    def _refuse(self, reservation: GodelReservation, refusal: str) -> None:
        """Reports it on the pod that had the room too: its owner looks there."""
        message = f"the room is not kept: {refusal}"
        uid = reservation.annotations.get(godel.PLACEHOLDER_UID, "")
        pod = Pod(metadata=ObjectMeta(name=reservation.name, namespace=reservation.namespace, uid=uid))
        for about in (reservation, pod) if uid else (reservation,):
            self._recorder.event(about, "Warning", NOT_KEPT, message)
        remove(self._client, reservation)

    def _show(self, reservation: GodelReservation, status: Json) -> None:
        name, namespace = reservation.name, reservation.namespace
        body = {"metadata": {"uid": reservation.uid}, "status": status}
        try:
            self._client.patch(GodelReservation.KIND, name, body, namespace=namespace, subresource="status")
        except NotFound:
            return
