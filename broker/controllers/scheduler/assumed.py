"""Placements that were made and that the caches do not show yet.

Invariant: an assumption ends when the cache shows the placement or when the object is gone, never by time. A
cache may be behind for as long as the API server is, and a lost watch begins with a list. Words as in
kube-scheduler's cache, which keeps its assumptions without limit too: assume, forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from broker.apis.core import Pod
from broker.apis.koordinator import KoordinatorReservation
from broker.placement.holds import HoldOwner
from broker.placement.holds_ledger import HoldLink
from broker.placement.model import PodInfo
from broker.placement.reading import pod_info


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """A pod with an accepted bind, and as filters read it there. `hold` is empty without one."""

    pod: Pod
    node: str
    hold: str
    info: PodInfo

    @classmethod
    def of(cls, pod: Pod, node: str, hold: str) -> AssumedPod:
        return cls(pod, node, hold, replace(pod_info(pod), node_name=node))

    @property
    def bound(self) -> Pod:
        """The pod as the API server has it once the bind is done."""
        spec = self.pod.spec.model_copy(update={"node_name": self.node})
        return self.pod.model_copy(update={"spec": spec})

    @property
    def link(self) -> HoldLink | None:
        """The hold that the pod takes from."""
        owner = HoldOwner(self.pod.uid, self.info.requests)
        return HoldLink(self.hold, self.node, owner) if self.hold else None


class AssumedPlacements:
    """Used by one thread, that of the scheduler."""

    def __init__(self) -> None:
        self._pods: dict[str, AssumedPod] = {}
        self._reservations: dict[str, KoordinatorReservation] = {}

    def assume_pod(self, pod: Pod, node: str, hold: str) -> AssumedPod:
        self._pods[pod.uid] = assumed = AssumedPod.of(pod, node, hold)
        return assumed

    def assume_reservation(self, reservation: KoordinatorReservation) -> None:
        """`reservation` as the API server returned it, with its node."""
        self._reservations[reservation.uid] = reservation

    def confirm(
        self, pod: Callable[[str], Pod | None], reservations: Mapping[str, KoordinatorReservation]
    ) -> list[Pod]:
        """Ends the assumptions that the caches show, and those of objects that are gone: returns these pods.

        `pod` finds a pod by key, as the run sees it; `reservations` are by uid.
        """
        gone: list[Pod] = []
        for uid, assumed in [*self._pods.items()]:
            cached = pod(assumed.pod.key)
            if cached is None or cached.uid != uid:
                gone.append(self._pods.pop(uid).pod)
            elif cached.spec.node_name:
                del self._pods[uid]
        for uid in [*self._reservations]:
            kept = reservations.get(uid)
            if kept is None or kept.status.node_name:
                del self._reservations[uid]
        return gone

    @property
    def pods(self) -> Mapping[str, AssumedPod]:
        return self._pods

    @property
    def reservations(self) -> Iterator[KoordinatorReservation]:
        return iter(self._reservations.values())

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods or uid in self._reservations
