"""Reads Gödel's annotations: whether the room of a pod is kept, for how long, and for which pods.

A pod's own annotation precedes that of its Deployment. The Deployment is found by owner references, and for
pods without them by the label `name`. Source: Gödel, pkg/util/pod/util.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.apis import godel
from broker.apis.core import Pod
from broker.controllers.nodereservation.reads import GODEL
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.kube.cache import Cache
from broker.placement.holds import Consumption, Hold
from broker.placement.holds_match import IndexMatcher
from broker.placement.quantities import spec_requests
from broker.placement.reading import pod_info
from broker.text import LONGEST_SCALAR

# Reasons of events.
NOT_KEPT: Final = "RoomNotKept"
BOUNDED: Final = "RoomBounded"


class GodelAnnotations:
    """Decides by the annotations of pods and Deployments, within the rules of the namespace."""

    def __init__(
        self,
        deployments: Cache[godel.GodelDeployment],
        replica_sets: Cache[godel.GodelReplicaSet],
        *,
        rules: RoomRules,
    ) -> None:
        self._deployments, self._replica_sets, self._rules = deployments, replica_sets, rules

    def keeps_room(self, pod: Pod) -> bool:
        """Whether the room of the pod is kept when it is deleted."""
        return self.requests_room(pod) and not self._rules.refusal(pod.namespace)

    def requests_room(self, pod: Pod) -> bool:
        """Whether the pod or its Deployment has the annotation, allowed or not."""
        if pod.spec.scheduler_name != GODEL:
            return False
        deployment = self._deployments.get(self.deployment(pod), pod.namespace)
        return any(_requested(item.annotations) for item in (pod, deployment) if item is not None)

    def problem(self, pod: Pod) -> tuple[str, str] | None:
        """Reason and message of an annotation that is refused or bounded; None if it has full effect."""
        if not self.requests_room(pod):
            return None
        if refusal := self._rules.refusal(pod.namespace):
            return NOT_KEPT, f"annotation {godel.RESERVATION} has no effect: {refusal}"
        requested, seconds = self._requested_ttl(pod), self.ttl(pod)
        if requested <= seconds:
            return None
        asked = f"{requested} s" if requested < godel.LONGEST_TTL else "its time"
        return BOUNDED, (
            f"the room is kept for {seconds} s and not for {asked}: the operator bounds it "
            "(--longest-reservation-ttl)"
        )

    def may_leave_room(self, pod: Pod) -> bool:
        """Whether a reservation may keep the room of the pod, which is gone."""
        return godel.FINALIZER in pod.metadata.finalizers or self.keeps_room(pod)

    def left_hold(self, pod: Pod) -> Hold:
        """The hold that the pod leaves behind, before its reservation exists."""
        return Hold(
            id=pod.uid,
            name=pod.key,
            node=pod.spec.node_name,
            amount=spec_requests(pod.spec),
            matcher=IndexMatcher(pod.namespace, self.index(pod)),
            consumption=Consumption.WHOLE,
            template=pod_info(pod),
        )

    def ttl(self, pod: Pod) -> int:
        """Seconds, within the operator's bound."""
        return self._rules.bounds.seconds(self._requested_ttl(pod))

    def _requested_ttl(self, pod: Pod) -> int:
        """Seconds; 0 without a value. A value that is no positive number counts as none."""
        deployment = self._deployments.get(self.deployment(pod), pod.namespace)
        texts = (item.annotations.get(godel.TTL, "") for item in (pod, deployment) if item is not None)
        values = (_seconds(text) for text in texts if text.isascii() and text.isdigit())
        return next(filter(None, values), 0)

    def index(self, pod: Pod) -> str:
        """The index under which a kept room and its back pods meet; empty for pods of other schedulers."""
        if pod.spec.scheduler_name != GODEL:
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


def _requested(annotations: Mapping[str, str]) -> bool:
    return any(annotations.get(key) == "true" for key in (godel.RESERVATION, godel.OLDER_RESERVATION))


def _seconds(digits: str) -> int:
    """Python reads no number of several thousand digits."""
    return min(int(digits), godel.LONGEST_TTL) if len(digits) <= LONGEST_SCALAR else godel.LONGEST_TTL
