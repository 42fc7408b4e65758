"""The finalizer and the label that the broker adds to objects of users."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import crds, names
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.controllers.owned_metadata import OwnedMetadata
from broker.kube.cache import Cache
from broker.kube.client import Client
from local.in_process import InProcessTransport
from local.kube import Cluster

LABEL, FINALIZER = names.COHORT_LABEL, names.RESERVED_FINALIZER
Reservation = CapacityReservation | ClusterCapacityReservation


class World:
    """One reservation, made by a user."""

    def __init__(self, kind: type[Reservation], labels: dict[str, str] | None = None) -> None:
        transport = InProcessTransport(Cluster())
        self.kind = kind
        self.user = Client(transport, field_manager="user")
        self.metadata = OwnedMetadata(Client(transport), LABEL)
        for body in crds.load():
            self.user.create(crds.KIND, body)
        self.namespace = "default" if kind.KIND.namespaced else None
        namespace = {"namespace": self.namespace} if self.namespace else {}
        flavor = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}
        group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}
        raw: dict[str, Any] = {
            "metadata": {"name": "team", "labels": labels or {}, **namespace},
            "spec": {"cohort": "ai", "resourceGroups": [group]},
        }
        self.user.create(kind.KIND, raw)

    def read(self) -> Reservation:
        return self.kind.decode(self.user.get(self.kind.KIND, "team", namespace=self.namespace))

    def user_sets(self, value: str | None) -> None:
        body = {"metadata": {"labels": {LABEL: value}}}
        self.user.patch(self.kind.KIND, "team", body, namespace=self.namespace)

    def apply(self, value: str) -> bool:
        """Applies once; returns whether the broker wrote."""
        before = self.read()
        return self.metadata.apply(Cache(self.kind), before, value) is not before


@pytest.mark.parametrize("kind", [CapacityReservation, ClusterCapacityReservation])
def test_finalizer_and_label_are_written_once(kind: type[Reservation]) -> None:
    world = World(kind)
    assert world.apply("ai") and not world.apply("ai")
    assert (world.read().labels, world.read().metadata.finalizers) == ({LABEL: "ai"}, (FINALIZER,))
    assert world.apply("other") and world.read().labels == {LABEL: "other"}
    assert world.apply("") and world.read().labels == {}
    assert world.read().metadata.finalizers == (FINALIZER,) and not world.apply("")


def test_a_label_of_a_user_stays_and_is_not_tried_again_until_it_changes() -> None:
    world = World(CapacityReservation, {LABEL: "of-a-user", "team": "x"})
    assert world.apply("ai")
    assert world.read().labels == {LABEL: "of-a-user", "team": "x"}
    assert world.read().metadata.finalizers == (FINALIZER,)
    assert not world.apply("ai")
    world.user_sets("of-a-user-too")
    assert world.apply("ai") and not world.apply("ai")
    assert world.read().labels[LABEL] == "of-a-user-too"
    world.user_sets(None)
    assert world.apply("ai") and world.read().labels[LABEL] == "ai"


def test_a_forgotten_object_is_tried_again() -> None:
    world = World(CapacityReservation, {LABEL: "of-a-user"})
    assert world.apply("ai")
    world.metadata.forget({world.read().uid})
    assert not world.apply("ai")
    world.metadata.forget(())
    assert world.apply("ai") and world.read().labels == {LABEL: "of-a-user"}


def test_a_deleted_object_is_not_written() -> None:
    world = World(CapacityReservation)
    assert world.apply("ai")
    world.user.delete(CapacityReservation.KIND, "team", namespace="default")
    assert world.read().deleting and not world.apply("other")
