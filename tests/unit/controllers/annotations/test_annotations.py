"""Broker annotations without a meaning on their kind, and annotations that name missing reservations."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Event
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.spelling import misspelt
from broker.apiserver import Cluster
from broker.controllers.annotations.reporter import DRAWING, AnnotationReporter, user_annotations
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import FakeClock
from broker.kube.events import Recorder
from broker.kube.transports import InProcessTransport
from broker.quota.usage import Reserved

KNOWN = [Reserved("ml", "gpus"), Reserved("", "pool")]


@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        ("CapacityReservation", "reservation-polcy", "write capacity-broker.io/reservation-policy if that"),
        ("ClusterCapacityReservation", "deletionpolicy", "write capacity-broker.io/deletion-policy if that"),
        ("CapacityReservation", "draws-from", "it is read on NodeClaim and NodePool and Namespace"),
        ("DedicatedAICluster", "nodeclass", "write capacity-broker.io/node-class if that is meant"),
        ("EC2NodeClass", "capacity-reservation-specs", "write capacity-broker.io/capacity-reservation-spec"),
        ("NodeClaim", "draw-from", "write capacity-broker.io/draws-from if that is meant"),
        ("NodePool", "gang-sise", "write capacity-broker.io/gang-size if that is meant"),
        ("Namespace", "zzz", "Namespace knows capacity-broker.io/draws-from"),
        ("CapacityReservation", "tenant", "write capacity-broker.io/tenancy if that is meant"),
        ("CapacityReservation", "end-time", "write capacity-broker.io/end-date if that is meant"),
        ("CapacityReservation", "reservation-id", "write capacity-broker.io/reservation-ids if that is"),
        ("CapacityReservation", "permission", "CapacityReservation knows capacity-broker.io/admission, "),
        ("CapacityReservation", "policy", "CapacityReservation knows "),
        ("CapacityReservation", "node-pool", "CapacityReservation knows "),
        ("NodeClaim", "port", "NodeClaim knows "),
        # Annotations that the broker itself writes are not for users.
        ("CapacityReservation", "release", "CapacityReservation knows "),
        ("NodeClaim", "attempt", "NodeClaim knows "),
    ],
)
def test_an_annotation_that_means_nothing_is_named_with_the_nearest_that_does(
    kind: str, key: str, says: str
) -> None:
    (found,) = misspelt(kind, {f"capacity-broker.io/{key}": "x", "example.com/mine": "y"})
    assert found.message.startswith(f"annotation capacity-broker.io/{key} means nothing on a {kind}: ")
    assert says in found.message
    assert not any(f"{names.BROKER}/{own}" in found.message for own in ("buying", "attempts"))


def test_every_annotation_that_is_known_means_something_on_its_kind() -> None:
    for kind, known in names.ANNOTATIONS.items():
        assert misspelt(kind, dict.fromkeys(known, "")) == ()


class Told:
    """The reporter over caches of one object each; `says` returns its events, by reason."""

    def __init__(self, *there: Object, known: list[Reserved] | None = None) -> None:
        self.client = Client(InProcessTransport(Cluster()))
        self.recorder = Recorder(self.client, "test", FakeClock())
        self.known = KNOWN if known is None else known
        self.caches: dict[str, Cache[Any]] = {kind: Cache(type(one)) for kind, one in _by_kind(there).items()}
        self.teller = AnnotationReporter(self.caches, lambda: self.known, recorder=self.recorder)
        for one in there:
            self.see(one)

    def see(self, one: Object) -> None:
        self.caches[one.KIND.kind].observe({"apiVersion": one.KIND.api_version, **one.wire()})
        self.teller.run([(one.KIND.kind, one.key)])

    def says(self) -> dict[str, tuple[str, int]]:
        self.recorder.flush()
        events = [Event.decode(each) for each in self.client.list(Event.KIND)[0]]
        assert {each.type for each in events} <= {"Warning"}
        return {each.reason: (each.message, each.count) for each in events}


def _by_kind(there: tuple[Object, ...]) -> dict[str, Object]:
    return {one.KIND.kind: one for one in there}


def one(model: type[Object], annotations: dict[str, str], version: int = 1, **more: Any) -> Any:
    namespace = {"namespace": "default"} if model.KIND.namespaced else {}
    meta = {"name": "it", "uid": "u-1", "resourceVersion": str(version), "annotations": annotations}
    return model.decode({"metadata": {**meta, **namespace, **more.pop("meta", {})}, **more})


@pytest.mark.parametrize(
    "model", [CapacityReservation, ClusterCapacityReservation, DedicatedAICluster, EC2NodeClass, NodeClaim]
)
def test_each_kind_is_told_once_by_a_warning(model: type[Object]) -> None:
    told = Told(one(model, {"capacity-broker.io/mispelt": "x"}))
    told.see(one(model, {"capacity-broker.io/mispelt": "x", "example.com/a": "b"}, 2))
    ((reason, (message, count)),) = told.says().items()
    assert (reason, count) == ("UnknownAnnotation", 1)
    assert "annotation capacity-broker.io/mispelt means nothing" in message


def test_what_is_mended_and_broken_again_is_told_again() -> None:
    wrong = {"capacity-broker.io/mispelt": "x"}
    told = Told(one(EC2NodeClass, wrong))
    told.see(one(EC2NodeClass, {}, 2))
    told.see(one(EC2NodeClass, wrong, 3))
    assert told.says()["UnknownAnnotation"][1] == 2


def test_a_claim_that_draws_from_nothing_is_told_the_nearest_name() -> None:
    told = Told(one(NodeClaim, {names.DRAWS_FROM: "ml/gpu"}))
    message, _ = told.says()["ReservationNotFound"]
    assert message == (
        "annotation capacity-broker.io/draws-from is 'ml/gpu': there is no CapacityReservation gpu in "
        "namespace 'ml': write ml/gpus if that is meant, or make it; until then no slot that belongs to a "
        "reservation is for it"
    )


def test_who_draws_is_told_when_the_reservation_goes_and_not_while_it_is_there() -> None:
    told = Told(one(NodeClaim, {names.DRAWS_FROM: "ml/gpus"}))
    assert told.says() == {}
    told.known = []
    told.teller.run([DRAWING])
    assert list(told.says()) == ["ReservationNotFound"]


def test_a_dedicated_clusters_claims_are_told_on_the_cluster() -> None:
    labels = {"labels": {names.DEDICATED: "prod"}}
    assert Told(one(NodeClaim, {names.DRAWS_FROM: "gone"}, meta=labels)).says() == {}


def pool(own: dict[str, str], template: dict[str, str]) -> Any:
    return one(NodePool, own, spec={"template": {"metadata": {"annotations": template}, "spec": {}}})


@pytest.mark.parametrize(
    ("seen", "reason", "says"),
    [
        (pool({}, {names.DRAWS_FROM: "ml/gpus"}), "", ""),
        (pool({}, {names.DRAWS_FROM: "pol"}), "ReservationNotFound", "write pool if that is meant"),
        (
            pool({}, {"capacity-broker.io/drawsfrom": "pool"}),
            "UnknownAnnotation",
            "write capacity-broker.io/dr",
        ),
        (
            pool({names.DRAWS_FROM: "pool"}, {}),
            "UnknownAnnotation",
            "write it in spec.template.metadata.annot",
        ),
        (pool({names.RETURN_TO_RESERVATIONS: "true"}, {}), "", ""),
        (
            pool({}, {names.RETURN_TO_RESERVATIONS: "true"}),
            "UnknownAnnotation",
            "in spec.template.metadata.annotations of a NodePool means nothing: write it in metadata.annot",
        ),
    ],
)
def test_of_a_pool_its_template_decides(seen: NodePool, reason: str, says: str) -> None:
    told = Told(seen).says()
    assert list(told) == ([reason] if reason else [])
    assert all(says in message for message, _ in told.values())
    assert bool(user_annotations(seen))


def test_a_namespace_draws_from_what_has_none() -> None:
    assert Told(one(Namespace, {names.DRAWS_FROM: "pool"})).says() == {}
    message, _ = Told(one(Namespace, {names.DRAWS_FROM: "gpus"})).says()["ReservationNotFound"]
    assert "its workloads have no queue" in message
