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
from broker.controllers.annotations import reporter
from broker.controllers.annotations.reporter import DRAWING, AnnotationReporter, user_annotations
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.events import Recorder
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock

KNOWN = [ReservationKey("ml", "gpus"), ReservationKey("", "pool")]


@pytest.mark.parametrize(
    ("kind", "key", "message"),
    [
        ("CapacityReservation", "reservation-polcy", "write capacity-broker.io/reservation-policy if that"),
        ("ClusterCapacityReservation", "deletionpolicy", "write capacity-broker.io/deletion-policy if that"),
        ("CapacityReservation", "draws-from", "it is read on NodeClaim and NodePool and Namespace"),
        ("DedicatedAICluster", "nodeclass", "write capacity-broker.io/node-class if that is meant"),
        ("EC2NodeClass", "capacity-reservation-specs", "write capacity-broker.io/capacity-reservation-spec"),
        ("NodeClaim", "draw-from", "write capacity-broker.io/draws-from if that is meant"),
        ("NodePool", "gang-sise", "write capacity-broker.io/gang-size if that is meant"),
        ("Namespace", "zzz", "the keys of a Namespace are capacity-broker.io/draws-from"),
        ("CapacityReservation", "tenant", "write capacity-broker.io/tenancy if that is meant"),
        ("CapacityReservation", "end-time", "write capacity-broker.io/end-date if that is meant"),
        ("CapacityReservation", "reservation-id", "write capacity-broker.io/reservation-ids if that is"),
        ("CapacityReservation", "permission", "a CapacityReservation are capacity-broker.io/admission, "),
        ("CapacityReservation", "policy", "the keys of a CapacityReservation are "),
        ("CapacityReservation", "node-pool", "the keys of a CapacityReservation are "),
        ("NodeClaim", "port", "the keys of a NodeClaim are "),
        # Annotations that the broker itself writes are not for users.
        ("CapacityReservation", "release", "the keys of a CapacityReservation are "),
        ("NodeClaim", "attempt", "the keys of a NodeClaim are "),
        ("NodeClaim", "moves", "the keys of a NodeClaim are "),
        ("NodeClaim", "replacement", "the keys of a NodeClaim are "),
    ],
)
def test_an_unknown_annotation_is_reported_with_the_nearest_name(kind: str, key: str, message: str) -> None:
    (problem,) = misspelt(kind, {f"capacity-broker.io/{key}": "x", "example.com/mine": "y"})
    assert problem.message.startswith(f"annotation capacity-broker.io/{key} means nothing on a {kind}: ")
    assert message in problem.message
    assert not any(f"{names.BROKER}/{own}" in problem.message for own in ("buying", "attempts"))


def test_every_known_annotation_is_valid_on_its_kind() -> None:
    for kind, known in names.ANNOTATIONS.items():
        assert misspelt(kind, dict.fromkeys(known, "")) == ()


class ReporterBench:
    """The reporter over caches of one object each; `events` gives its events by reason."""

    def __init__(self, *objs: Object, known: list[ReservationKey] | None = None, kueue: bool = False) -> None:
        self.client = Client(InProcessTransport(Cluster()))
        self.recorder = Recorder(self.client, "test", FakeClock())
        self.known = KNOWN if known is None else known
        self.caches: dict[str, Cache[Any]] = {kind: Cache(type(obj)) for kind, obj in _by_kind(objs).items()}
        self.reporter = AnnotationReporter(
            self.caches, self.rights, kueue=lambda: kueue, recorder=self.recorder
        )
        for obj in objs:
            self.see(obj)

    def rights(self) -> DrawRights:
        """All reservations but the cluster-wide one list every namespace."""
        listed = CapacityReservation.decode({"metadata": {"annotations": {names.ALLOWED_NAMESPACES: "*"}}})
        reservations = {
            reserved: listed if reserved.namespace else CapacityReservation() for reserved in self.known
        }
        namespaces = self.caches[Namespace.KIND.kind].list() if Namespace.KIND.kind in self.caches else ()
        return DrawRights(reservations, namespaces)

    def see(self, obj: Object) -> None:
        self.caches[obj.KIND.kind].observe({"apiVersion": obj.KIND.api_version, **obj.wire()})
        self.reporter.run([(obj.KIND.kind, obj.key)])

    def events(self) -> dict[str, tuple[str, int]]:
        self.recorder.flush()
        events = [Event.decode(raw) for raw in self.client.list(Event.KIND)[0]]
        assert {event.type for event in events} <= {"Warning"}
        return {event.reason: (event.message, event.count) for event in events}


def _by_kind(objs: tuple[Object, ...]) -> dict[str, Object]:
    return {obj.KIND.kind: obj for obj in objs}


def obj_of(model: type[Object], annotations: dict[str, str], version: int = 1, **more: Any) -> Any:
    namespace = {"namespace": "default"} if model.KIND.namespaced else {}
    meta = {"name": "it", "uid": "u-1", "resourceVersion": str(version), "annotations": annotations}
    return model.decode({"metadata": {**meta, **namespace, **more.pop("meta", {})}, **more})


@pytest.mark.parametrize(
    "model", [CapacityReservation, ClusterCapacityReservation, DedicatedAICluster, EC2NodeClass, NodeClaim]
)
def test_each_kind_gets_a_single_warning(model: type[Object]) -> None:
    bench = ReporterBench(obj_of(model, {"capacity-broker.io/mispelt": "x"}))
    bench.see(obj_of(model, {"capacity-broker.io/mispelt": "x", "example.com/a": "b"}, 2))
    ((reason, (message, count)),) = bench.events().items()
    assert (reason, count) == ("UnknownAnnotation", 1)
    assert "annotation capacity-broker.io/mispelt means nothing" in message


def test_an_object_whose_report_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"capacity-broker.io/mispelt": "x"}
    bench = ReporterBench(obj_of(EC2NodeClass, wrong), obj_of(NodeClaim, wrong))
    find = reporter._findings

    def fails(obj: Object, *args: Any, **more: Any) -> Any:
        if isinstance(obj, EC2NodeClass):
            raise ZeroDivisionError("poison")
        return find(obj, *args, **more)

    monkeypatch.setattr(reporter, "_findings", fails)
    for model in (EC2NodeClass, NodeClaim):
        other = obj_of(model, {"capacity-broker.io/mispelled": "x"}, 2)
        bench.caches[model.KIND.kind].observe({"apiVersion": other.KIND.api_version, **other.wire()})
    bench.reporter.run([(model.KIND.kind, "it") for model in (EC2NodeClass, NodeClaim)])
    bench.events()
    reported = [Event.decode(raw) for raw in bench.client.list(Event.KIND)[0]]
    assert any(e.involved_object.kind == "NodeClaim" and "mispelled" in e.message for e in reported)


def test_a_problem_that_recurs_is_reported_again() -> None:
    wrong = {"capacity-broker.io/mispelt": "x"}
    bench = ReporterBench(obj_of(EC2NodeClass, wrong))
    bench.see(obj_of(EC2NodeClass, {}, 2))
    bench.see(obj_of(EC2NodeClass, wrong, 3))
    assert bench.events()["UnknownAnnotation"][1] == 2


def test_a_claim_of_an_unknown_reservation_gets_the_nearest_name() -> None:
    bench = ReporterBench(obj_of(NodeClaim, {names.DRAWS_FROM: "ml/gpu"}))
    message, _ = bench.events()["ReservationNotFound"]
    assert message == (
        "annotation capacity-broker.io/draws-from is 'ml/gpu': there is no CapacityReservation gpu in "
        "namespace 'ml': write ml/gpus if that is meant, or make it; until then no slot that belongs to a "
        "reservation is for it"
    )


def test_a_claim_is_warned_once_its_reservation_is_gone() -> None:
    bench = ReporterBench(obj_of(NodeClaim, {names.DRAWS_FROM: "ml/gpus"}))
    assert bench.events() == {}
    bench.known = []
    bench.reporter.run([DRAWING])
    assert list(bench.events()) == ["ReservationNotFound"]


def test_claims_of_a_dedicated_cluster_get_no_warning() -> None:
    labels = {"labels": {names.DEDICATED: "prod"}}
    assert ReporterBench(obj_of(NodeClaim, {names.DRAWS_FROM: "gone"}, meta=labels)).events() == {}


def pool(own: dict[str, str], template: dict[str, str]) -> Any:
    return obj_of(NodePool, own, spec={"template": {"metadata": {"annotations": template}, "spec": {}}})


@pytest.mark.parametrize(
    ("node_pool", "reason", "message"),
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
def test_annotations_for_claims_count_in_the_template_of_a_pool(
    node_pool: NodePool, reason: str, message: str
) -> None:
    events = ReporterBench(node_pool).events()
    assert list(events) == ([reason] if reason else [])
    assert all(message in text for text, _ in events.values())
    assert bool(user_annotations(node_pool))


@pytest.mark.parametrize("named", ["pool", "ml/gpus", "gpus"])
def test_a_namespace_draws_from_any_reservation(named: str) -> None:
    assert ReporterBench(obj_of(Namespace, {names.DRAWS_FROM: named})).events() == {}


@pytest.mark.covers("FLT-62")
def test_a_claim_for_pods_that_its_reservation_does_not_serve_is_warned() -> None:
    bench = ReporterBench(obj_of(NodeClaim, {names.DRAWS_FROM: "pool", names.PODS: "ml/a,red/b"}))
    message, _ = bench.events()["ReservationNotAllowed"]
    assert message == (
        "annotation capacity-broker.io/draws-from is 'pool': ClusterCapacityReservation pool does not serve "
        "pods of namespace ml, red: list it in the reservation's annotation "
        "capacity-broker.io/allowed-namespaces, or name a reservation of that namespace; until then no slot "
        "that belongs to a reservation is for it"
    )


@pytest.mark.parametrize(
    ("named", "reasons"),
    [("pool", []), ("ml/gpus", ["NamespaceWithoutQueue"]), ("gpus", ["NamespaceWithoutQueue"])],
)
def test_with_kueue_a_namespace_has_a_queue_of_a_cluster_reservation_only(
    named: str, reasons: list[str]
) -> None:
    bench = ReporterBench(obj_of(Namespace, {names.DRAWS_FROM: named}), kueue=True)
    assert list(bench.events()) == reasons


@pytest.mark.parametrize(
    ("kueue", "without"),
    [
        (False, "; until then no slot that belongs to a reservation is for its pods"),
        (True, "; until then its workloads have no queue, and no slot that belongs to a reservation is for"),
    ],
)
def test_a_namespace_of_an_unknown_reservation_is_warned(kueue: bool, without: str) -> None:
    bench = ReporterBench(obj_of(Namespace, {names.DRAWS_FROM: "gone"}), kueue=kueue)
    message, _ = bench.events()["ReservationNotFound"]
    assert without in message
