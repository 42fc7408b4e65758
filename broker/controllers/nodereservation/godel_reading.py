"""Reads Gödel's annotations: whether the room of a pod is kept, for how long, and for which pods.

A pod's own annotation precedes that of its Deployment. The Deployment is found by owner references, and for
pods without them by the label `name`. Source: Gödel, pkg/util/pod/util.go.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from broker.apis import godel
from broker.apis.core import Pod
from broker.kube.cache import Cache
from broker.placement.holds import Consumption, Hold
from broker.placement.holds_match import IndexMatcher
from broker.placement.quantities import pod_requests
from broker.text import LONGEST_SCALAR

SCHEDULER: Final = "godel-scheduler"


class GodelAnnotations:
    """`ttl`: seconds if neither the pod nor its Deployment sets them."""

    def __init__(
        self,
        deployments: Cache[godel.GodelDeployment],
        replica_sets: Cache[godel.GodelReplicaSet],
        *,
        ttl: int,
    ) -> None:
        self._deployments, self._replica_sets, self._ttl = deployments, replica_sets, ttl

    def keeps_room(self, pod: Pod) -> bool:
        """Whether the room of the pod is kept when it is deleted."""
        if pod.spec.scheduler_name != SCHEDULER:
            return False
        if pod.annotations.get(godel.RESERVATION) == "true":
            return True
        deployment = self._deployments.get(self.deployment(pod), pod.namespace)
        return deployment is not None and deployment.annotations.get(godel.RESERVATION) == "true"

    def may_leave_room(self, pod: Pod) -> bool:
        """Whether a reservation may keep the room of the pod, which is gone."""
        return godel.FINALIZER in pod.metadata.finalizers or self.keeps_room(pod)

    def left_hold(self, pod: Pod) -> Hold:
        """The hold that the pod leaves behind, before its reservation exists."""
        return Hold(
            id=pod.uid,
            name=pod.key,
            node=pod.spec.node_name,
            amount=pod_requests(pod.spec),
            matcher=IndexMatcher(pod.namespace, self.index(pod)),
            consumption=Consumption.WHOLE,
        )

    def ttl(self, pod: Pod) -> int:
        """Seconds, at most `LONGEST_TTL`. A value that is no positive number counts as none."""
        deployment = self._deployments.get(self.deployment(pod), pod.namespace)
        texts = (item.annotations.get(godel.TTL, "") for item in (pod, deployment) if item is not None)
        values = (_seconds(text) for text in texts if text.isascii() and text.isdigit())
        return min(next(filter(None, values), self._ttl), godel.LONGEST_TTL)

    def index(self, pod: Pod) -> str:
        """The index under which a kept room and its back pods meet; empty for pods of other schedulers."""
        if pod.spec.scheduler_name != SCHEDULER:
            return ""
        return pod.annotations.get(godel.INDEX) or self.deployment(pod) or pod.name

    def deployment(self, pod: Pod) -> str:
        for owner in pod.metadata.owner_references:
            replica_set = self._replica_sets.get(owner.name, pod.namespace)
            if owner.kind == "ReplicaSet" and replica_set is not None:
                for above in replica_set.metadata.owner_references:
                    if above.kind == "Deployment":
                        return above.name
        return pod.labels.get(godel.DEPLOYMENT, "")


def _seconds(digits: str) -> int:
    """Python reads no number of several thousand digits."""
    return int(digits) if len(digits) <= LONGEST_SCALAR else godel.LONGEST_TTL


def godel_holds(
    reservations: Iterable[godel.GodelReservation], present: Container[str], ttl: int
) -> Iterable[Hold]:
    """The holds of reservations. The room of a pod that is still there, by UID, is the pod's own."""
    for reservation in reservations:
        spec, meta = reservation.spec, reservation.metadata
        if not spec.node_name or reservation.deleting or spec.template is None:
            continue
        if meta.annotations.get(godel.PLACEHOLDER_UID) in present:
            continue
        yield Hold(
            id=meta.uid,
            name=reservation.key,
            node=spec.node_name,
            amount=pod_requests(spec.template.spec),
            matcher=IndexMatcher(meta.namespace, meta.annotations.get(godel.INDEX, "")),
            consumption=Consumption.WHOLE,
            deadline=None
            if meta.creation_timestamp is None
            else meta.creation_timestamp + reservation.lives(ttl),
        )
