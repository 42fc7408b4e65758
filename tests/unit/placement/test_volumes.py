"""VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import storage as api
from broker.placement.filters import Fits, fits
from broker.placement.message import message
from broker.placement.model import PodInfo
from broker.placement.storage import Storage
from tests.unit.placement.builders import ZONE, node, pod, texts, world

Json = dict[str, Any]
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
DRIVER = "ebs.csi.aws.com"
NODES = [node("a", labels={ZONE: "a"}), node("b", labels={ZONE: "b"}), node("bare")]


def claim(name: str = "c", volume: str = "", *, bound: bool = True, phase: str = "", **spec: Any) -> Json:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if volume and bound else {}
    annotations |= spec.pop("annotations", {})
    meta = {"name": name, "namespace": "default", "annotations": annotations, **spec.pop("metadata", {})}
    return {"metadata": meta, "spec": {"volumeName": volume, **spec}, "status": {"phase": phase}}


def volume(name: str = "v", labels: Json | None = None, zones: list[str] | None = None) -> Json:
    spec: Json = {"csi": {"driver": DRIVER, "volumeHandle": name}}
    if zones:
        expression = {"key": ZONE, "operator": "In", "values": zones}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def storage_class(name: str = "late", provisioner: str = DRIVER, zones: list[str] | None = None) -> Json:
    mode = "Immediate" if name == "soon" else "WaitForFirstConsumer"
    rest: Json = {}
    if zones:
        rest["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **rest}


def stored(
    *claims: Json,
    volumes: tuple[Json, ...] = (),
    classes: tuple[Json, ...] = (),
    limits: dict[str, int | None] | None = None,
) -> Storage:
    nodes = [
        {"metadata": {"name": name}, "spec": {"drivers": [{"name": DRIVER, "allocatable": {"count": count}}]}}
        for name, count in (limits or {}).items()
    ]
    return Storage.of(
        claims=map(api.PersistentVolumeClaim.decode, claims),
        volumes=map(api.PersistentVolume.decode, volumes),
        classes=map(api.StorageClass.decode, classes),
        nodes=map(api.CsiNode.decode, nodes),
    )


def using(*names: str, name: str = "p", on: str = "", **spec: Any) -> PodInfo:
    volumes = [{"name": item, "persistentVolumeClaim": {"claimName": item}} for item in names]
    return pod(name, on=on, volumes=volumes, **spec)


def outcome(storage: Storage, candidate: PodInfo | None = None, *pods: PodInfo) -> Fits:
    return fits(candidate or using("c"), world(NODES, pods, storage=storage))


@pytest.mark.parametrize(
    ("storage", "text"),
    [
        (stored(), 'persistentvolumeclaim "c" not found'),
        (
            stored(claim(phase="Lost", volume="v")),
            'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"',
        ),
        (
            stored(claim(metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"})),
            'persistentvolumeclaim "c" is being deleted',
        ),
        (stored(claim()), "pod has unbound immediate PersistentVolumeClaims"),
        (stored(claim(storageClassName="late")), "pod has unbound immediate PersistentVolumeClaims"),
        (
            stored(claim(storageClassName="soon"), classes=(storage_class("soon"),)),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        # The name of a volume without the mark of a complete binding.
        (
            stored(
                claim(volume="v", bound=False, storageClassName="late"),
                volumes=(volume(),),
                classes=(storage_class(),),
            ),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (stored(claim(volume="v")), 'persistentvolume "v" not found'),
    ],
)
def test_pod_with_an_unusable_claim_fits_nowhere(storage: Storage, text: str) -> None:
    assert message(outcome(storage)) == f"0/3 nodes are available: {text}."


def test_bound_claim_keeps_the_pod_on_nodes_that_can_use_its_volume() -> None:
    result = outcome(stored(claim(volume="v"), volumes=(volume(zones=["a"]),)))
    assert result.nodes == ("a",)
    assert texts(result, "b") == ["node(s) didn't match PersistentVolume's node affinity"]


@pytest.mark.parametrize(
    ("labels", "fitting"),
    [
        ({ZONE: "a"}, ("a", "bare")),
        ({ZONE: "a__b"}, ("a", "b", "bare")),
        ({BETA_ZONE: "b"}, ("b", "bare")),
        ({ZONE: "a", BETA_ZONE: "b"}, ("bare",)),
        ({ZONE: "a__"}, ("a", "b", "bare")),
        ({"topology.kubernetes.io/region": "r"}, ("bare",)),
    ],
)
def test_zone_labels_of_a_volume_bind_nodes_that_have_such_labels(
    labels: Json, fitting: tuple[str, ...]
) -> None:
    result = outcome(stored(claim(volume="v"), volumes=(volume(labels=labels),)))
    assert result.nodes == fitting
    assert all(texts(result, name) == ["node(s) had no available volume zone"] for name in result.reasons)


@pytest.mark.parametrize(
    ("item", "annotations", "fitting"),
    [
        (storage_class(), {}, ("a", "b", "bare")),
        (storage_class(zones=["a", "c"]), {}, ("a",)),
        (storage_class(provisioner="kubernetes.io/no-provisioner"), {}, ()),
        (storage_class(), {"volume.kubernetes.io/selected-node": "b"}, ("b",)),
    ],
)
def test_waiting_claim_needs_a_node_where_its_class_provisions(
    item: Json, annotations: Json, fitting: tuple[str, ...]
) -> None:
    result = outcome(stored(claim(storageClassName="late", annotations=annotations), classes=(item,)))
    assert result.nodes == fitting
    rejected = ["node(s) didn't find available persistent volumes to bind"]
    assert all(texts(result, name) == rejected for name in result.reasons)


def test_class_of_the_beta_annotation_comes_first() -> None:
    old = claim(storageClassName="soon", annotations={"volume.beta.kubernetes.io/storage-class": "late"})
    assert outcome(stored(old, classes=(storage_class(), storage_class("soon")))).nodes == ("a", "b", "bare")


def test_ephemeral_volume_waits_for_its_claim_and_needs_to_own_it() -> None:
    own = pod(volumes=[{"name": "own", "ephemeral": {}}])
    assert message(outcome(stored(), own)) == (
        "0/3 nodes are available: waiting for ephemeral volume controller to create the "
        'persistentvolumeclaim "p-own".'
    )
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    owned = claim("p-own", storageClassName="late", metadata={"ownerReferences": [owner]})
    assert outcome(stored(owned, classes=(storage_class(),)), own).nodes == ("a", "b", "bare")
    other = claim("p-own", storageClassName="late")
    assert "was not created for pod default/p" in message(outcome(stored(other), own))


def test_claim_for_one_pod_is_refused_to_a_second() -> None:
    single = stored(
        claim(storageClassName="late", accessModes=["ReadWriteOncePod"]), classes=(storage_class(),)
    )
    assert outcome(single).nodes == ("a", "b", "bare")
    result = outcome(single, using("c"), using("c", name="other", on="a"))
    assert result.nodes == ()
    assert "ReadWriteOncePod access mode already in-use by another pod" in texts(result, "b")[0]


def disk(kind: str, read_only: bool = False, **rest: Any) -> Json:
    ids: dict[str, Json] = {
        "gcePersistentDisk": {"pdName": "d"},
        "awsElasticBlockStore": {"volumeID": "d"},
        "iscsi": {"iqn": "d"},
        "rbd": {"monitors": ["m"], "image": "d"},
    }
    return {"name": "v", kind: {**ids[kind], "readOnly": read_only, **rest}}


@pytest.mark.parametrize(
    ("own", "other", "conflict"),
    [
        (disk("gcePersistentDisk"), disk("gcePersistentDisk"), True),
        (disk("gcePersistentDisk"), disk("gcePersistentDisk", True), True),
        (disk("gcePersistentDisk", True), disk("gcePersistentDisk", True), False),
        (disk("gcePersistentDisk"), disk("gcePersistentDisk", pdName="e"), False),
        (disk("awsElasticBlockStore", True), disk("awsElasticBlockStore", True), True),
        (disk("awsElasticBlockStore"), disk("gcePersistentDisk"), False),
        (disk("iscsi"), disk("iscsi", True), True),
        (disk("iscsi", True), disk("iscsi", True), False),
        (disk("rbd"), disk("rbd"), True),
        (disk("rbd"), disk("rbd", monitors=["n"]), False),
        (disk("rbd"), disk("rbd", pool="p"), False),
        (disk("rbd", True), disk("rbd", True), False),
    ],
)
def test_disk_that_both_pods_name_conflicts_on_the_node(own: Json, other: Json, conflict: bool) -> None:
    result = outcome(stored(), pod(volumes=[own]), pod("other", on="a", volumes=[other]))
    assert texts(result, "a") == (["node(s) had no available disk"] if conflict else [])
    assert "b" in result.nodes


@pytest.mark.parametrize(
    ("limits", "fits_on_a"), [({}, True), ({"a": None}, True), ({"a": 2}, True), ({"a": 1}, False)]
)
def test_driver_attaches_no_more_volumes_than_its_limit(
    limits: dict[str, int | None], fits_on_a: bool
) -> None:
    """A pod with volume v1 is on node a, and the new pod has a volume of its own."""
    storage = stored(
        claim("c", "v"),
        claim("c1", "v1"),
        volumes=(volume("v"), volume("v1")),
        limits=limits,
    )
    result = outcome(storage, using("c"), using("c1", name="other", on="a"))
    assert texts(result, "a") == ([] if fits_on_a else ["node(s) exceed max volume count"])


def test_volume_of_two_pods_is_attached_once() -> None:
    storage = stored(claim("c", "v"), volumes=(volume("v"),), limits={"a": 1})
    assert "a" in outcome(storage, using("c"), using("c", name="other", on="a")).nodes


def test_waiting_claim_counts_against_the_limit_of_its_class() -> None:
    storage = stored(claim(storageClassName="late"), classes=(storage_class(),), limits={"a": 0})
    assert texts(outcome(storage), "a") == ["node(s) exceed max volume count"]
