"""Caches that a test fills, a client and a recorder that record their calls, EC2's last descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind, Object
from broker.controllers.claim_caches import BY_INSTANCE, ClaimCaches, by_instance
from broker.controllers.instances import InstanceView
from broker.controllers.inventory import InventoryCache
from broker.controllers.odcr.endings import EndingController
from broker.controllers.odcr.instance_labels import InstanceLabelController
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError
from providers.model import BlockExtension, Instance, Odcr
from tests.support.clock import FakeClock

Json = dict[str, Any]
T = TypeVar("T", bound=Object)


@dataclass
class Ec2:
    """A provider that returns the test's objects, and counts calls."""

    clock: FakeClock
    odcrs: list[Odcr] = field(default_factory=list)
    listed: list[Instance] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def extensions(self, odcr_ids: object) -> Sequence[BlockExtension]:
        return ()

    def reservations(self) -> Sequence[Odcr]:
        self.calls.append("reservations")
        return [*self.odcrs]

    def instances(self, ids: object = None) -> Sequence[Instance]:
        self.calls.append("instances")
        return [*self.listed]


class Api:
    """A client over the caches: merge patches of labels, deletes, and requested refusals."""

    def __init__(self, caches: Mapping[str, Cache[Any]]) -> None:
        self._caches = caches
        self.objects: dict[tuple[str, str], Json] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.refusals: dict[str, ApiError] = {}  # by name
        self._version = 1

    def put(self, kind: Kind, raw: Json) -> None:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind.plural, raw["metadata"]["name"]] = raw
        cache = self._caches[kind.plural]
        cache.replace([r for (plural, _), r in self.objects.items() if plural == kind.plural], self._version)

    def patch(self, kind: Kind, name: str, body: Json, **_: Any) -> Json:
        self._meet("patch", kind, name)
        raw = self.objects[kind.plural, name]
        assert body["metadata"]["resourceVersion"] == raw["metadata"]["resourceVersion"]
        labels = raw["metadata"]["labels"] | body["metadata"]["labels"]
        metadata = raw["metadata"] | {"labels": {k: v for k, v in labels.items() if v is not None}}
        self.put(kind, {**raw, "metadata": metadata})
        return self.objects[kind.plural, name]

    def apply(self, kind: Kind, body: Json, *, subresource: str) -> Json:
        assert subresource == "status"
        name = body["metadata"]["name"]
        self._meet("apply", kind, name)
        raw = self.objects[kind.plural, name]
        self.put(kind, {**raw, "status": raw.get("status", {}) | body["status"]})
        return self.objects[kind.plural, name]

    def delete(self, kind: Kind, name: str, *, uid: str, **_: object) -> Json:
        self._meet("delete", kind, name)
        raw = self.objects[kind.plural, name]
        assert raw["metadata"]["uid"] == uid
        self.put(kind, {**raw, "metadata": raw["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        return {}

    def _meet(self, verb: str, kind: Kind, name: str) -> None:
        if refusal := self.refusals.get(name):
            raise refusal
        self.writes.append((verb, kind.plural, name))


class RecordedEvents:
    """A recorder."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []  # name, reason, message

    def event(self, obj: Object, type: str, reason: str, message: str, **_: Any) -> None:  # noqa: A002
        self.events.append((obj.name, reason, message))

    def of(self, reason: str) -> list[str]:
        return [name for name, event_reason, _ in self.events if event_reason == reason]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ec2, self.recorded = Ec2(self.clock), RecordedEvents()
        self.claims = Cache(NodeClaim)
        self.classes = Cache(EC2NodeClass)
        self.pools = Cache(NodePool)
        self.nodes = Cache(Node, indexes={BY_INSTANCE: by_instance})
        self.api = Api(
            {
                "nodeclaims": self.claims,
                "nodes": self.nodes,
                "ec2nodeclasses": self.classes,
                "nodepools": self.pools,
            }
        )
        provider: Any = self.ec2
        client: Any = self.api
        recorder: Any = self.recorded
        self.inventory = InventoryCache(provider, clock=self.clock, groups=lambda: ())
        self.view = InstanceView(provider, clock=self.clock, grace=timedelta(seconds=30), check=lambda: None)
        self.relisted = 0
        self.users: dict[str, list[str]] = {}
        caches = ClaimCaches(
            claims=self.claims, nodes=self.nodes, pods=Cache(Pod), pools=self.pools, owns=self._owns
        )
        self.labeller = InstanceLabelController(
            ControllerContext(client=client, recorder=recorder, clock=self.clock),
            caches,
            self.inventory,
            self.view,
            relist=self._relist,
        )
        self.endings = EndingController(
            client,
            caches,
            self.classes,
            self.inventory,
            clock=self.clock,
            recorder=recorder,
            users=lambda: self.users,
        )

    def _owns(self, claim: NodeClaim) -> bool:
        return claim.spec.node_class_ref.group == names.BROKER

    def _relist(self) -> None:
        self.relisted += 1

    # ---- the objects

    def claim(
        self,
        name: str,
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        launched_into: str = "",
        node: bool = True,
        group: str = names.BROKER,
    ) -> None:
        annotations = {names.LAUNCHED_INTO: launched_into} if launched_into else {}
        provider_id = f"aws:///us-east-1a/i-{name}"
        self.api.put(
            NodeClaim.KIND,
            {
                "metadata": {
                    "name": name,
                    "uid": f"uid-{name}",
                    "labels": dict(labels),
                    "annotations": annotations,
                },
                "spec": {"nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "gpu"}},
                "status": {"providerID": provider_id},
            },
        )
        if node:
            marked = {**labels, names.REGISTERED: "true"}
            self.api.put(
                Node.KIND,
                {
                    "metadata": {"name": f"node-{name}", "uid": f"uid-node-{name}", "labels": marked},
                    "spec": {"providerID": provider_id},
                },
            )

    def node_class(self, name: str) -> None:
        self.api.put(EC2NodeClass.KIND, {"metadata": {"name": name, "uid": f"uid-{name}", "labels": {}}})

    def described(self, *odcrs: Odcr) -> None:
        self.ec2.odcrs = [*odcrs]
        self.clock.advance(1)
        self.inventory.refresh()

    def listed(self, *instances: Instance) -> None:
        self.ec2.listed = [*instances]
        self.clock.advance(1)
        self.view.doubt()
        self.view.refresh()

    # ---- the results

    def labels(self, cache: Cache[T], name: str) -> dict[str, str]:
        obj = cache.get(name)
        assert obj is not None
        keys = (names.CAPACITY_TYPE, *names.RESERVATION_LABELS)
        return {key: obj.labels[key] for key in keys if key in obj.labels}


def instance(claim: str, reservation: str = "", **more: Any) -> Instance:
    return Instance(
        id=f"i-{claim}",
        instance_type="m5.xlarge",
        zone="us-east-1a",
        reservation_id=reservation,
        **{"state": "running", **more},
    )


def inside(odcr: str) -> dict[str, str]:
    return {
        names.CAPACITY_TYPE: "reserved",
        names.RESERVATION_ID: odcr,
        names.RESERVATION_TYPE: "default",
        names.RESERVATION_INTERRUPTIBLE: "false",
    }


OUTSIDE = {names.CAPACITY_TYPE: "on-demand"}
