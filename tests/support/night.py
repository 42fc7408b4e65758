"""The night: six pools short, five claims and three pods waiting, one broken node; for commands and the page.

`objects` are those of the cluster, `situation` is what commands read of them; `night_page` serves the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.capacity.shortages import Scope, Shortage, Shortages
from broker.commands.crds.install import install
from broker.commands.explain.reading import read
from broker.controllers.launch.published import PublishedShortages
from broker.kube.client import Client
from broker.oncall.journal import dump
from broker.oncall.situation import Situation
from broker.text import decode_time, format_time
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.aws.prices import PRICES
from providers.errors import ErrorClass
from providers.model import CapacityType
from tests.unit.webpage.world import NOW

P5, G6 = "p5.48xlarge", "g6.12xlarge"
FULL, SPARE, WEB = "cr-0f1e2d3c4b5a69788", "cr-1a2b3c4d5e6f70811", "cr-2b3c4d5e6f7081122"
CLAIMS: Final = ("train-x7k2p", "train-b4n8q", "train-m2c6d", "train-h9w3t", "serve-z5r7v")
PODS: Final = ("ml/etl-0", "ml/etl-1", "web/preview-6c9d4")
ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
ICE: Final = "InsufficientInstanceCapacity"
NO_ROOM: Final = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you requested ({zone})."
)


class Object(NamedTuple):
    model: Any
    body: dict[str, Any]
    status: Mapping[str, Any] = MappingProxyType({})


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def condition(type_: str, status: str, reason: str, message: str, minutes: float) -> dict[str, Any]:
    at = format_time(ago(minutes))
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def pool(kind: CapacityType, zone: str, type_: str = P5, reservation: str = "") -> Pool:
    return Pool(capacity_type=kind, instance_type=type_, zone=zone, reservation=reservation)


def shortages() -> list[Shortage]:
    """Six pools: one type in three zones, a full reservation, spot in one zone, and the account's limit."""
    scopes = [
        (
            Scope("pool", f"on-demand:{P5}:{zone}"),
            ErrorClass.CAPACITY,
            ICE,
            NO_ROOM.format(type=P5, zone=zone),
        )
        for zone in ZONES
    ]
    scopes += [
        (
            Scope("reservation", FULL),
            ErrorClass.RESERVATION_FULL,
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity.",
        ),
        (
            Scope("pool", f"spot:{P5}:us-east-1b"),
            ErrorClass.CAPACITY,
            ICE,
            "There is no Spot capacity available that matches your request.",
        ),
        (
            Scope("quota", "on-demand:g"),
            ErrorClass.QUOTA,
            "VcpuLimitExceeded",
            "You have requested more vCPU capacity than your current vCPU limit of 384 allows.",
        ),
    ]
    return [
        Shortage(
            scope=scope,
            class_=class_,
            code=code,
            message=message,
            since=ago(42 - 3 * n),
            last=ago(3),
            until=NOW + timedelta(minutes=3 + n),
            step=2,
        )
        for n, (scope, class_, code, message) in enumerate(scopes)
    ]


def attempts(name: str) -> list[Attempt]:
    """Each claim of training was refused by every pool that it may take."""
    if name.startswith("serve"):
        given = [(pool("on-demand", "us-east-1c", G6), ErrorClass.QUOTA, "VcpuLimitExceeded")]
    else:
        given = [
            (
                pool("reserved", "us-east-1a", P5, FULL),
                ErrorClass.RESERVATION_FULL,
                "ReservationCapacityExceeded",
            ),
            *((pool("on-demand", zone), ErrorClass.CAPACITY, ICE) for zone in ZONES),
            (pool("spot", "us-east-1b"), ErrorClass.CAPACITY, ICE),
        ]
    message_of = {shortage.code: shortage.message for shortage in shortages()}
    number = CLAIMS.index(name)
    return [
        Attempt(
            claim=name,
            node_class=name.partition("-")[0],
            node_pool=name.partition("-")[0],
            pool=tried,
            outcome=Outcome.REFUSED,
            at=ago(3) - timedelta(seconds=number + step),
            code=code,
            class_=class_,
            message=NO_ROOM.format(type=P5, zone=tried.zone) if code == ICE else message_of[code],
            request_id=f"0f9a{number}{step}c1-7d3b-4e21-9c55-8a7be1d20c4f",
            next_step="tries its pools again in 3 min",
        )
        for step, (tried, class_, code) in enumerate(given)
    ]


def objects() -> Iterator[Object]:
    for name in ("train", "serve"):
        yield _node_class(name)
        ready = condition("Ready", "True", "Ready", "", 9000)
        yield Object(
            NodePool, {"metadata": {"name": name}, "spec": _pool_spec(name)}, {"conditions": [ready]}
        )
    for n, name in enumerate(CLAIMS):
        yield _waiting(name, minutes=41 - n)
    yield _reservation()
    for id_, type_, zone, total, free in (
        (FULL, P5, "us-east-1a", 4, 0),
        (SPARE, P5, "us-east-1b", 2, 0),
        (WEB, G6, "us-east-1c", 6, 2),
    ):
        yield mirror(id_, type_, zone, total, free)
        for n in range(total - free):
            yield from running(f"{zone[-1]}{n}", type_, zone, id_, broken=(id_, n) == (FULL, 2))
    yield from (pod_object(key, n) for n, key in enumerate(PODS))


def _node_class(name: str) -> Object:
    spec = {
        "amiFamily": "Custom",
        "amiSelectorTerms": [{"id": "ami-0123456789abcdef0"}],
        "subnetSelectorTerms": [{"id": "subnet-0123456789abcdef0"}],
        "securityGroupSelectorTerms": [{"id": "sg-0123456789abcdef0"}],
        "role": "node",
    }
    ready = condition("Launchable", "True", "Resolved", f"images and subnets of {name}", 9000)
    return Object(EC2NodeClass, {"metadata": {"name": name}, "spec": spec}, {"conditions": [ready]})


def _pool_spec(name: str) -> dict[str, Any]:
    class_ = {"group": names.BROKER, "kind": "EC2NodeClass", "name": name}
    types = [P5] if name == "train" else [G6]
    requirements = [{"key": names.INSTANCE_TYPE, "operator": "In", "values": types}]
    weight = 10 if name == "train" else 5
    return {"weight": weight, "template": {"spec": {"nodeClassRef": class_, "requirements": requirements}}}


def _claim_spec(class_: str, type_: str) -> dict[str, Any]:
    return {
        "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": class_},
        "requirements": [
            {"key": names.INSTANCE_TYPE, "operator": "In", "values": [type_]},
            {"key": names.CAPACITY_TYPE, "operator": "In", "values": ["reserved", "on-demand", "spot"]},
        ],
    }


def _waiting(name: str, *, minutes: float) -> Object:
    class_ = name.partition("-")[0]
    why = ("AllPoolsShort", f"reserved, on-demand and spot {P5} are short in all zones of the class")
    if class_ == "serve":
        why = ("QuotaExceeded", "the account's on-demand limit of G instances is reached")
    metadata = {
        "name": name,
        "labels": {names.NODEPOOL: class_},
        "annotations": {names.ATTEMPTS: dump(attempts(name))},
        "creationTimestamp": format_time(ago(minutes)),
    }
    status = {"conditions": [condition("Launched", "False", *why, minutes=minutes - 1)]}
    body = {"metadata": metadata, "spec": _claim_spec(class_, P5 if class_ == "train" else G6)}
    return Object(NodeClaim, body, status)


def _reservation() -> Object:
    quota = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "48"}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
    body = {
        "metadata": {"name": "gpus", "namespace": "ml"},
        "spec": {"resourceGroups": groups, "cohort": "research"},
    }
    clouds = [
        {"id": id_, "state": "active", "total": total, "available": 0}
        for id_, total in ((FULL, 4), (SPARE, 2))
    ]
    summary = {"gpuTotal": 48, "gpuAllocated": 48, "gpuBorrowed": 0, "gpuAllocatable": 0}
    status = {"capacityReservationLifecycleState": "Active", "cloudReservations": clouds, "summary": summary}
    return Object(CapacityReservation, body, status)


def mirror(id_: str, type_: str, zone: str, total: int, free: int) -> Object:
    price = PRICES["us-east-1"].get(type_, 0.0)
    status = {
        "type": type_,
        "zone": zone,
        "total": total,
        "available": free,
        "state": "active",
        "nodeClasses": ["train" if type_ == P5 else "serve"],
        "idleCostPerHour": f"{free * price:.2f}",
    }
    return Object(OnDemandCapacityReservation, {"metadata": {"name": id_}}, status)


def running(place: str, type_: str, zone: str, id_: str, *, broken: bool) -> Iterator[Object]:
    """A claim in a slot, and its node."""
    class_ = "train" if type_ == P5 else "serve"
    name, node = f"{class_}-run-{place}", f"ip-10-0-{place}.ec2.internal"
    instance = f"aws:///{zone}/i-0a1b2c3d4e5f6{place}"
    labels = {
        names.NODEPOOL: class_,
        names.CAPACITY_TYPE: "reserved",
        names.RESERVATION_ID: id_,
        names.INSTANCE_TYPE: type_,
        names.ZONE: zone,
    }
    ready = condition(names.INITIALIZED_CONDITION, "True", "Initialized", "", 2000)
    metadata = {"name": name, "labels": labels, "creationTimestamp": format_time(ago(2000))}
    annotations = {names.DRAWS_FROM: "ml/gpus"} if type_ == P5 else {}
    yield Object(
        NodeClaim,
        {"metadata": {**metadata, "annotations": annotations}, "spec": _claim_spec(class_, type_)},
        {"providerID": instance, "nodeName": node, "conditions": [ready]},
    )
    gpu = condition("AcceleratedHardwareReady", "False", "NvidiaXID48Error", "GPU 3 is lost", 6)
    conditions = [gpu] if broken else []
    body = {"metadata": {**metadata, "name": node}, "spec": {"providerID": instance}}
    yield Object(Node, body, {"conditions": conditions, "nodeInfo": {"bootID": f"b-{place}"}})


def pod_object(key: str, number: int) -> Object:
    namespace, _, name = key.partition("/")
    unschedulable = condition(
        "PodScheduled",
        "False",
        "Unschedulable",
        "0/10 nodes are available: 10 Insufficient nvidia.com/gpu.",
        20,
    )
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etl", "uid": "u", "controller": True}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "creationTimestamp": format_time(ago(21 - number)),
    }
    if name.startswith("etl"):
        metadata["ownerReferences"] = [owner]
    resources = {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "8"}}
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    of_preview = {"nodeSelector": {"team": "preview"}}
    spec |= {"nodeSelector": {names.INSTANCE_TYPE: P5}} if name.startswith("etl") else of_preview
    return Object(
        Pod, {"metadata": metadata, "spec": spec}, {"phase": "Pending", "conditions": [unschedulable]}
    )


def cluster() -> Cluster:
    """A cluster with the objects and the published shortages."""
    at = NOW.timestamp()
    world = Cluster(clock=lambda: at)
    client = Client(InProcessTransport(world))
    install(client)
    for namespace in ("ml", "web"):
        client.create(Namespace.KIND, {"metadata": {"name": namespace}})
    for model, body, status in objects():
        metadata = body["metadata"]
        at = decode_time(metadata.get("creationTimestamp", format_time(NOW))).timestamp()
        client.create(model.KIND, body)
        if status:
            client.patch(
                model.KIND,
                metadata["name"],
                {"status": dict(status)},
                namespace=metadata.get("namespace"),
                subresource="status",
            )
    remembered = Shortages({shortage.scope: shortage for shortage in shortages()})
    PublishedShortages(client).publish(remembered, {}, NOW)
    return world


def situation(of: Cluster) -> Situation:
    return read(Client(InProcessTransport(of)), NOW)
