"""A cluster of nodes for room on nodes: the real scheduler and controllers, without EC2.

Nodes are made by hand. `step` does the work of the kubelets: a bound pod runs. A test waits for conditions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import yaml

from broker.apis import names
from broker.apis.core import Event, Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.godel import GodelDeployment, GodelReplicaSet, GodelReservation
from broker.apis.koordinator import KoordinatorReservation, KoordinatorReservationStatus
from broker.apis.kueue import Namespace
from broker.apis.meta import Kind, Object
from broker.apis.nos import CAPACITY, CompositeElasticQuota, ElasticQuota, ElasticQuotaStatus
from broker.controllers.provisioning.pending import provisionable
from broker.kube.client import Client, Transport
from broker.kube.conditions import owner_reference
from broker.kube.errors import AlreadyExists, NotFound
from broker.scheduler import Scheduler
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.cluster.clocks import MovableClock
from tests.cluster.taps import Tap
from tests.support.definitions import defined, group_definition
from tests.support.fault_cases import case_text

Json = dict[str, Any]
V = TypeVar("V")
O = TypeVar("O", bound=Object)  # noqa: E741
PATIENCE, POLL = 60.0, 0.01
KOORDINATOR = "scheduling.koordinator.sh_reservations.yaml"
GODEL = "scheduling.godel.kubewharf.io_reservations.yaml"
NOS = ("nos.nebuly.com_elasticquotas.yaml", "nos.nebuly.com_compositeelasticquotas.yaml")
SEED_ROOM = {"cpu": "7800m", "memory": "28625036Ki", "pods": "110"}


class Rooms:
    """One test's cluster. `client` is the test's own; the controllers' client goes through `tap`."""

    def __init__(
        self,
        *,
        crds: tuple[str, ...] = (KOORDINATOR, *NOS, GODEL),
        through: Callable[[Transport], Transport] = lambda transport: transport,
        server: Transport | None = None,
        kept: str = "true",
    ) -> None:
        """`through` stands between the controllers and the API server: `server`, or an embedded one.

        `kept`: what the namespace `default` may keep of its deleted pods' room.
        """
        self.clock = MovableClock()
        new_cluster = partial(defined, *crds) if crds else Cluster
        self.cluster = new_cluster(clock=lambda: self.clock.now().timestamp())
        embedded = InProcessTransport(self.cluster)
        transport = embedded if server is None else server
        self.client = Client(transport, field_manager="test")
        self.tap = Tap(through(transport))
        self.scheduler: Scheduler | None = None
        self.settings = Settings()
        for definition in load(*crds) if crds and server is not None else ():
            self.client.create(CRD, definition)
        if kept:
            self.grant(kept)

    # ---- the broker's life

    def start(self, **settings: Any) -> None:
        """Starts the controllers; those before must be stopped."""
        assert self.scheduler is None
        self.settings = replace(self.settings, **settings)
        self.scheduler = Scheduler(Client(self.tap), self.settings, clock=self.clock)
        self.scheduler.start()

    def stop(self) -> None:
        if self.scheduler is not None:
            self.scheduler.stop()
            self.scheduler = None

    # ---- an administrator's and a user's writes

    def grant(self, kept: str | None, namespace: str = "default") -> None:
        """What a namespace may keep of its deleted pods' room; None: nothing any more."""
        meta = {"name": namespace, "annotations": {names.KEPT_ROOM: kept}}
        try:
            self.client.patch(Namespace.KIND, namespace, {"metadata": meta})
        except NotFound:
            self.client.create(Namespace.KIND, {"metadata": meta})

    def node(
        self,
        name: str = "node-0",
        *,
        room: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": spec,
        }
        self.client.create(Node.KIND, body)
        status = {"allocatable": {**SEED_ROOM, **(room or {})}}
        self.client.patch(Node.KIND, name, {"status": status}, subresource="status")

    def pod(
        self,
        name: str,
        *,
        cpu: str = "",
        memory: str = "",
        namespace: str = "default",
        scheduler: str = "koord-scheduler",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        controller: str = "",
        **spec: Any,
    ) -> str:
        requests = {key: text for key, text in (("cpu", cpu), ("memory", memory)) if text}
        requests |= spec.pop("requests", {})
        meta: Json = {"name": name, "namespace": namespace}
        if controller:
            owner = self.get(GodelReplicaSet, f"{controller}-1", namespace)
            meta["ownerReferences"] = [owner_reference(owner)]
        meta |= {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
        limits = {name: text for name, text in requests.items() if "/" in name}
        resources = {"requests": requests, "limits": limits}
        container = {"name": "main", "image": "pause", "resources": resources}
        body = {"schedulerName": scheduler, "containers": [container], **spec}
        self.client.create(Pod.KIND, {"metadata": meta, "spec": body})
        return name

    def reservation(
        self,
        name: str = "reservation-demo",
        *,
        cpu: str = "500m",
        memory: str = "800Mi",
        owners: Any = ({"labelSelector": {"matchLabels": {"app": "demo"}}},),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        template: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> str:
        resources = {"requests": {"cpu": cpu, "memory": memory}}
        pod = {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "pause", "resources": resources}],
            **(template or {}),
        }
        body = {
            "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
            "spec": {"template": {"spec": pod}, "owners": list(owners), **spec},
        }
        self.client.create(KoordinatorReservation.KIND, body)
        return name

    def quota(
        self,
        namespace: str,
        *,
        name: str = "quota",
        min: Mapping[str, str | int],  # noqa: A002
        max: Mapping[str, str | int] | None = None,  # noqa: A002
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """An ElasticQuota, or with namespaces a composite, with its namespaces.

        A scheduler that runs knows it then: a pod that comes next could be placed without it.
        """
        for name_ in {namespace, *namespaces}:
            with suppress(AlreadyExists):
                self.client.create(Namespace.KIND, {"metadata": {"name": name_}})
        spec: Json = {"min": dict(min)} | ({} if max is None else {"max": dict(max)})
        kind = CompositeElasticQuota.KIND if namespaces else ElasticQuota.KIND
        spec |= {"namespaces": [*namespaces]} if namespaces else {}
        self.client.create(kind, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
        if self.scheduler is not None:
            reads = self.scheduler.reads
            known = (reads.composites if namespaces else reads.quotas).cache
            self.until(lambda: not known.lacks(f"{namespace}/{name}"), "the scheduler knows of the quota")

    def define(self, kind: Kind, version: str = "") -> None:
        """A kind of pods' groups, as an API server of this version has it."""
        self.client.create(CRD, group_definition(kind, version))

    def deployment(self, name: str, **annotations: str) -> None:
        """A Deployment with a ReplicaSet, without their controllers: `pod(controller=name)` is of it."""
        labels = {"name": name}
        pod = {"containers": [{"name": "main", "image": "pause"}]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        meta: Json = {"name": name, "namespace": "default", "annotations": annotations}
        created = self.client.create(GodelDeployment.KIND, {"metadata": meta, "spec": spec})
        owner = owner_reference(GodelDeployment.decode(created))
        meta = {"name": f"{name}-1", "namespace": "default", "ownerReferences": [owner]}
        self.client.create(GodelReplicaSet.KIND, {"metadata": meta, "spec": spec})

    def case(self, name: str, *files: str) -> None:
        """Applies files of a case in tests/cases/faults."""
        for file in files:
            self.apply(case_text(name, file))

    def apply(self, text: str) -> None:
        """`kubectl create -f` of manifests."""
        for body in yaml.safe_load_all(text):
            group, _, version = body["apiVersion"].rpartition("/")
            kind = Kind(
                group=group,
                version=version,
                kind=body["kind"],
                plural=f"{body['kind'].lower()}s",
                namespaced=body["kind"] not in ("Reservation", "Node", "Namespace"),
            )
            if kind.namespaced:
                body["metadata"].setdefault("namespace", "default")
            self.client.create(kind, body)

    def ran(self, *names: str, namespace: str = "default", phase: str = "Running") -> None:
        """The kubelet's report about pods."""
        for name in names:
            status = {"status": {"phase": phase}}
            self.client.patch(Pod.KIND, name, status, namespace=namespace, subresource="status")

    def started(self, *names: str, namespace: str) -> None:
        """Waits until the pods are bound; then they run."""
        self.until_bound(*names, namespace=namespace)
        self.ran(*names, namespace=namespace)

    def end_evicted(self) -> None:
        """The kubelets end the pods that are being deleted."""
        for raw in self.client.list(Pod.KIND)[0]:
            meta = raw["metadata"]
            if "deletionTimestamp" in meta:
                self.delete_pod(meta["name"], meta["namespace"])

    def evicted(self) -> list[str]:
        """The pods that are being deleted."""
        return [
            raw["metadata"]["name"]
            for raw in self.client.list(Pod.KIND)[0]
            if "deletionTimestamp" in raw["metadata"]
        ]

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        self.client.delete(Pod.KIND, name, namespace=namespace, grace_period=0)

    # ---- a user's view

    def get(self, model: type[O], name: str, namespace: str | None = None) -> O:
        return model.decode(self.client.get(model.KIND, name, namespace=namespace))

    def status(self, name: str = "reservation-demo") -> KoordinatorReservationStatus:
        return self.get(KoordinatorReservation, name).status

    def quota_status(
        self, namespace: str, name: str = "quota", *, composite: bool = False
    ) -> ElasticQuotaStatus:
        model: Any = CompositeElasticQuota if composite else ElasticQuota
        status: ElasticQuotaStatus = self.get(model, name, namespace).status
        return status

    def until_used(self, namespace: str, used: Mapping[str, str], *, composite: bool = False) -> None:
        def same() -> bool:
            return self.quota_status(namespace, composite=composite).used == used

        self.until(same, f"used of {namespace}: {used}")

    def labels(self, *names: str, namespace: str) -> list[str]:
        return [self.get(Pod, name, namespace).labels.get(CAPACITY, "") for name in names]

    def kept(self, namespace: str = "default") -> list[GodelReservation]:
        """The Gödel reservations of a namespace."""
        items, _ = self.client.list(GodelReservation.KIND, namespace=namespace)
        return [GodelReservation.decode(item) for item in items]

    def until_kept(self, *names: str) -> list[GodelReservation]:
        self.until(lambda: {item.name for item in self.kept()} == set(names), f"kept {names}")
        return self.kept()

    def node_of(self, name: str, namespace: str = "default") -> str:
        return self.get(Pod, name, namespace).spec.node_name

    def annotations(self, name: str, namespace: str = "default") -> Mapping[str, str]:
        return self.get(Pod, name, namespace).annotations

    def gone(self, model: type[Object], name: str, namespace: str | None = None) -> bool:
        try:
            self.client.get(model.KIND, name, namespace=namespace)
        except NotFound:
            return True
        return False

    def messages(self, name: str, reason: str = "FailedScheduling") -> list[str]:
        """The texts of the events about an object."""
        events = (Event.decode(raw) for raw in self.client.list(Event.KIND)[0])
        return [e.message for e in events if e.involved_object.name == name and e.reason == reason]

    # ---- waiting

    def until(self, happened: Callable[[], V], goal: str) -> V:
        deadline = time.monotonic() + PATIENCE
        while not (result := happened()):
            if time.monotonic() > deadline:
                raise AssertionError(f"never came: {goal}\n{self.picture()}")
            time.sleep(POLL)
        return result

    def until_phase(self, phase: str, name: str = "reservation-demo") -> KoordinatorReservationStatus:
        self.until(lambda: self.status(name).phase == phase, f"{name} {phase}")
        return self.status(name)

    def until_bound(self, *names: str, namespace: str = "default") -> list[str]:
        """The nodes of the pods, once each has one."""
        return [
            self.until(lambda n=name: self.node_of(n, namespace), f"pod {name} bound")  # type: ignore[misc]
            for name in names
        ]

    def until_rejected(self, name: str, containing: str = "", namespace: str = "default") -> str:
        """The reason why a pod waits, as its condition has it."""

        def reason() -> str:
            conditions = self.get(Pod, name, namespace).status.conditions
            texts = [
                item.message for item in conditions if item.type == "PodScheduled" and item.status == "False"
            ]
            return next((text for text in texts if containing in text), "")

        return self.until(reason, f"pod {name} rejected: {containing}")

    def waiting_for(self, name: str, namespace: str = "default") -> str:
        """The reason in the condition of a pod that waits; none if a machine would be made for it."""
        pod = self.get(Pod, name, namespace)
        return "" if provisionable(pod) else next(c.reason for c in pod.status.conditions)

    def picture(self) -> str:
        lines = []
        for kind in (Node.KIND, Pod.KIND, KoordinatorReservation.KIND):
            for item in self.client.list(kind)[0]:
                node, status = item.get("spec", {}).get("nodeName", ""), item.get("status", {})
                lines.append(f"{kind.kind} {item['metadata']['name']} {node} {status}")
        events = (Event.decode(raw) for raw in self.client.list(Event.KIND)[0])
        lines += [f"{event.involved_object.name} {event.reason}: {event.message}" for event in events]
        return "\n".join(lines)


@contextmanager
def rooms(**more: Any) -> Iterator[Rooms]:
    rooms_ = Rooms(**more)
    try:
        yield rooms_
    finally:
        rooms_.stop()
