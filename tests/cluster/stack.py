"""A cluster, an account and a broker between them, driven by a test.

The broker is the real one with its real threads; only its waits are short. A test waits for conditions, never
for time.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from broker.apis import names
from broker.apis.core import Event, Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load as load_crds
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import PriorityClass
from broker.apis.meta import Condition, Object, condition, is_true
from broker.app import Broker
from broker.kube.client import Client, Transport
from broker.kube.errors import ApiError, Forbidden, NotFound
from broker.scheduler import Scheduler
from broker.settings import Settings
from local.aws import LocalAws
from local.demo.kubelets import Kubelets
from providers.aws import AwsProvider
from providers.model import InstanceType
from tests.cluster import objects
from tests.cluster.account import CLUSTER, REGION, Account
from tests.cluster.clocks import HastyClock, MovableClock
from tests.cluster.machines import LocalInstances
from tests.cluster.objects import Json
from tests.cluster.taps import Tap

PATIENCE = 240.0  # seconds for a test on a slow, busy machine
POLL = 0.02
KEEP_UP = 0.5  # real seconds without a move of time, for a broker that is due to poll
SETTINGS = Settings(
    cluster_name=CLUSTER,
    cluster_endpoint="https://blue.example",
    region=REGION,
    poll_seconds=1.0,
    orphan_grace_seconds=30.0,
    leader_election=False,
)
# The offering of this Region: enough for every rule, few enough to plan fast.
OFFERED = (
    "m5.large",
    "m5.xlarge",
    "m5.2xlarge",
    "c5.large",
    "c5.xlarge",
    "m7g.large",
    "g5.12xlarge",
    "g6.12xlarge",
    "p5.48xlarge",
)
Kept = TypeVar("Kept", bound=Object)
V = TypeVar("V")


class Provider(AwsProvider):
    """The real provider, in a Region of few types, which a process reads once."""

    known: ClassVar[dict[str, InstanceType]] = {}
    _loading = threading.Lock()

    def on(self, event: str, does: Callable[[], object], *, times: int = -1) -> None:
        """Calls `does` at an event of the SDK's EC2 client, such as before-call.ec2.CreateFleet."""
        left = iter(range(times)) if times >= 0 else itertools.count()

        def then(**_: object) -> None:
            if next(left, None) is not None:
                does()

        self._aws.ec2.meta.events.register(event, then)

    def refresh_prices(self) -> None:
        """Does nothing: moto returns thousands of invented prices, and takes seconds for it."""

    def instance_types(self) -> Mapping[str, InstanceType]:
        with Provider._loading:
            if not Provider.known:
                events = self._aws.ec2.meta.events
                events.register("provide-client-params.ec2.DescribeInstanceTypes", _only_offered)
                Provider.known = dict(super().instance_types())
        return Provider.known


def _only_offered(params: Json, **_: object) -> None:
    params.clear()
    params["InstanceTypes"] = [*OFFERED]


@lru_cache
def _crds() -> Sequence[Json]:
    return load_crds()


@lru_cache
def _type_reader(endpoint: str) -> Provider:
    """Kubelets of all tests of a process read instance types with it; it keeps no other state."""
    return Provider(cluster=CLUSTER, region=REGION, endpoint_url=endpoint)


class Stack:
    """One test's world. `client` is the test's own; the broker's client goes through `tap`."""

    def __init__(self, server: LocalAws, transport: Transport, *, lag: float = 0.0) -> None:
        """`lag`: how many seconds late EC2's describe calls show things to the broker."""
        self._lag = lag
        self.server = server
        self.control = server.control
        self.clock = MovableClock()
        self.client = Client(transport, field_manager="test")
        self.tap = Tap(transport)
        self._install_crds()
        self.aws = Account(server)
        self.settings = SETTINGS
        self.broker: Broker | None = None
        self.scheduler: Scheduler | None = None
        self.current: Provider | None = None
        self.kubelets = self._kubelets()
        self._kubelets_started = False
        self._canaries = 0
        self._polls, self._unpolled = 0, 0.0
        self._before_launch: Callable[[], object] | None = None

    # ---- the broker's life

    def provider(self) -> Provider:
        return Provider(
            cluster=CLUSTER, region=REGION, endpoint_url=self.server.endpoint, clock=HastyClock(self.clock)
        )

    def start(self, *, kubelets: bool = True, **settings: Any) -> Broker:
        """Starts a broker; the one before must be stopped. It knows only the state in Kubernetes and EC2."""
        if self.broker is not None:
            raise AssertionError("stop the broker that runs first")
        self.settings = replace(self.settings, **settings)
        first = self.current is None
        self.current = self.provider()
        self.current.instance_types()
        if self._before_launch is not None:
            self.current.on("before-call.ec2.CreateFleet", self._before_launch, times=1)
            self._before_launch = None
        if self._lag:
            self.wait_for_ec2()
        if self._lag and first:
            self.control.lag(self._lag)  # later the test sets it
        self.broker = Broker(Client(self.tap), self.current, self.settings, clock=self.clock)
        self.broker.start()
        if kubelets and not self._kubelets_started:
            self._kubelets_started = True
            self.kubelets.start()
        return self.broker

    def start_scheduler(self) -> Scheduler:
        """Starts a scheduler beside the broker, under the same settings."""
        self.scheduler = Scheduler(Client(self.tap), self.settings, clock=self.clock)
        self.scheduler.start()
        return self.scheduler

    def stop(self) -> None:
        if self.scheduler is not None:
            self.scheduler.stop()
            self.scheduler = None
        if self.broker is not None:
            self.broker.stop()
            self.broker = None

    def close(self) -> None:
        self.tap.heal()
        self.control.clear_faults()
        self.stop()
        if self._kubelets_started:
            self.kubelets.stop()
            self._kubelets_started = False

    def _kubelets(self) -> Kubelets:
        machines = LocalInstances(_type_reader(self.server.endpoint).instance_types)
        return Kubelets(self.client, machines, clock=self.clock, every=0.1)

    def kubelets_again(self) -> None:
        """After `kubelets.stop()`: machines join again."""
        self.kubelets = self._kubelets()
        self.kubelets.start()
        self._kubelets_started = True

    def advance(self, seconds: float) -> None:
        """Moves the broker's time and EC2's."""
        self.control.advance(seconds)
        self.clock.advance(seconds)

    def wait_for_ec2(self) -> None:
        """With --lag, moves time on until EC2 shows all actions so far."""
        if self._lag:
            self.advance(2 * self._lag)

    def after_launch(self, does: Callable[[], object]) -> None:
        """Calls `does` after each launch of EC2, before the broker gets the result."""
        assert self.current is not None
        self.current.on("after-call.ec2.CreateFleet", does)

    def before_launch(self, does: Callable[[], object]) -> None:
        """Calls `does` once, before the first launch of the next started broker reaches EC2."""
        self._before_launch = does

    # ---- a user's writes

    def node_class(
        self,
        name: str = "gpu",
        *,
        id_: str = "",
        group: str = "",
        preference: str = "",
        zones: tuple[str, ...] = (),
        **more: Any,
    ) -> str:
        subnets = [subnet for zone, subnet in self.aws.subnets.items() if not zones or zone in zones]
        more.setdefault("spec", objects.reservation_spec(id_=id_, group=group, preference=preference))
        body = objects.node_class(
            name,
            image=more.pop("image", self.aws.image),
            subnets=subnets,
            security_group=self.aws.security_group,
            **more,
        )
        self.client.create(EC2NodeClass.KIND, body)
        return name

    def claim(
        self,
        name: str = "c-0",
        *,
        node_class: str = "gpu",
        types: tuple[str, ...] = ("m5.large",),
        capacity: tuple[str, ...] = (objects.RESERVED,),
        **more: Any,
    ) -> str:
        body = objects.claim(name, node_class=node_class, types=types, capacity=capacity, **more)
        self.client.create(NodeClaim.KIND, body)
        return name

    def claims(self, *numbered: int, **more: Any) -> list[str]:
        """Equal claims `c-0`, `c-1`, ..., created at one moment from the broker's point of view."""
        first, last = numbered if len(numbered) == 2 else (0, numbered[0])
        return [self.claim(f"c-{n}", **more) for n in range(first, last)]

    def node_pool(self, name: str = "gpu", *, node_class: str = "gpu") -> str:
        self.client.create(NodePool.KIND, objects.node_pool(name, node_class=node_class))
        return name

    def pod(self, name: str, **more: Any) -> Pod:
        """A pod in `default`; on a node it runs."""
        created = self.client.create(Pod.KIND, objects.pod(name, **more))
        if more.get("node"):
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            created = self.client.patch(
                Pod.KIND, name, {"status": status}, namespace="default", subresource="status"
            )
        return Pod.decode(created)

    def priority_class(self, name: str, value: int) -> None:
        """Returns when pods may name it: a real API server refuses them until its cache has the class."""
        self.client.create(PriorityClass.KIND, {"metadata": {"name": name}, "value": value})
        body = objects.pod("probe", priorityClassName=name)

        def admitted() -> bool:
            try:
                self.client.raw("POST", "/api/v1/namespaces/default/pods", {"dryRun": "All"}, body)
            except Forbidden:
                return False
            return True

        self.until(admitted, f"pods of priority {name} are admitted")

    def budget(self, name: str, *, app: str, allowed: int = 0) -> None:
        body = objects.budget(name, app=app, allowed=allowed)
        created = self.client.create(objects.PDB, body)
        # The controller that computes this status does not run here.
        status = {
            "observedGeneration": created["metadata"].get("generation", 1),
            "disruptionsAllowed": allowed,
            "currentHealthy": 1,
            "desiredHealthy": 1 - allowed,
            "expectedPods": 1,
        }
        self.client.patch(objects.PDB, name, {"status": status}, namespace="default", subresource="status")

    def edit(self, model: type[Object], name: str, body: Json, *, subresource: str | None = None) -> None:
        """A manual merge patch."""
        self.client.patch(model.KIND, name, body, subresource=subresource)

    def delete(self, model: type[Object], name: str, *, namespace: str | None = None) -> None:
        self.client.delete(model.KIND, name, namespace=namespace)

    # ---- a user's view

    def get(self, model: type[Kept], name: str, *, namespace: str | None = None) -> Kept:
        return model.decode(self.client.get(model.KIND, name, namespace=namespace))

    def find(self, model: type[Kept], name: str, *, namespace: str | None = None) -> Kept | None:
        try:
            return self.get(model, name, namespace=namespace)
        except NotFound:
            return None

    def all(self, model: type[Kept]) -> list[Kept]:
        return [model.decode(item) for item in self.client.list(model.KIND)[0]]

    def condition(self, model: type[Object], name: str, type_: str) -> Condition | None:
        object_: Any = self.find(model, name)
        return condition(object_.status.conditions, type_) if object_ is not None else None

    def claim_condition(self, name: str, type_: str = names.LAUNCHED) -> Condition | None:
        return self.condition(NodeClaim, name, type_)

    def class_condition(self, type_: str, name: str = "gpu") -> Condition | None:
        return self.condition(EC2NodeClass, name, type_)

    def events(self, name: str, *, kind: str = "NodeClaim") -> list[Event]:
        return [
            event
            for event in self.all(Event)
            if event.involved_object.name == name and event.involved_object.kind == kind
        ]

    def instance(self, name: str) -> Json:
        """EC2's description of the claim's instance."""
        return self.aws.instance(self.get(NodeClaim, name).instance_id)

    def reservation_of(self, name: str) -> str:
        """The reservation that EC2 counts the claim's instance in; empty for none."""
        return str(self.instance(name).get("CapacityReservationId", ""))

    def calls(self, action: str) -> int:
        return self.control.calls().get(action, 0)

    # ---- waiting

    def until(self, happened: Callable[[], V], goal: str, *, step: float = 0.0) -> V:
        """Returns the result of `happened` as soon as it is true; between two calls, time moves on by
        `step`.

        Time does not outrun a broker on a slow machine; otherwise minutes would pass before it acts.
        """
        deadline = time.monotonic() + PATIENCE
        while not (result := happened()):
            if time.monotonic() > deadline:
                raise AssertionError(f"never came: {goal}\n{self.picture()}")
            if step:
                self._keep_up(step)
                self.advance(step)
            time.sleep(POLL)
        return result

    def _keep_up(self, step: float) -> None:
        """Returns when the broker has polled since a poll was last due, and has the replies to its requests,
        or after a while."""
        if self.broker is None:
            return
        late = time.monotonic() + KEEP_UP
        while self.tap.under_way and time.monotonic() < late:
            time.sleep(POLL)
        self._unpolled += step
        if self._unpolled <= self.settings.poll_seconds:
            return
        while self.calls("DescribeCapacityReservations") == self._polls and time.monotonic() < late:
            time.sleep(POLL)
        self._polls, self._unpolled = self.calls("DescribeCapacityReservations"), step

    def until_launched(self, *claims: str) -> None:
        for name in claims:
            self.until(lambda n=name: self.is_true(n, names.LAUNCHED), f"{name} launched")  # type: ignore[misc]

    def until_ready(self, *claims: str) -> None:
        for name in claims:
            self.until(lambda n=name: self.is_true(n, names.READY), f"{name} ready")  # type: ignore[misc]

    def until_shown(self, *claims: str, as_: str = "") -> None:
        """With --lag, waits until EC2 has shown the placement of the instances; without, claims show it at
        once."""

        def shown(name: str) -> bool:
            capacity_type = self.get(NodeClaim, name).labels.get(names.CAPACITY_TYPE, "")
            return capacity_type == as_ if as_ else bool(capacity_type)

        for name in claims if self._lag else ():
            self.until(lambda n=name: shown(n), f"{name} shows its placement", step=1.0)  # type: ignore[misc]

    def until_waiting(self, name: str, reason: str = "") -> Condition:
        """The claim's Launched condition, once it is Unknown (for this reason)."""

        def waits() -> Condition | None:
            condition = self.claim_condition(name)
            good = condition and condition.status == "Unknown" and (not reason or condition.reason == reason)
            return condition if good else None

        waiting = self.until(waits, f"{name} waits for {reason or 'a reason'}")
        assert waiting is not None
        return waiting

    def until_class(self, type_: str, status: str, *, name: str = "gpu", reason: str = "") -> Condition:
        def reached() -> Condition | None:
            current = self.class_condition(type_, name)
            good = current and current.status == status and (not reason or current.reason == reason)
            return current if good else None

        reached_condition = self.until(reached, f"class {name}: {type_}={status} {reason}")
        assert reached_condition is not None
        return reached_condition

    def until_gone(self, model: type[Object], name: str) -> None:
        self.until(lambda: self.find(model, name) is None, f"{model.KIND.kind} {name} gone")

    def until_event(self, name: str, reason: str, *, kind: str = "NodeClaim", text: str = "") -> Event:
        def published() -> Event | None:
            events = (e for e in self.events(name, kind=kind) if e.reason == reason)
            return next((e for e in events if text in e.message), None)

        event = self.until(published, f"event {reason} on {kind} {name}")
        assert event is not None
        return event

    def passes(self, count: int = 2) -> None:
        """Returns when the broker has processed every claim anew."""
        for _ in range(count):
            self._canaries += 1
            name = self.claim(f"canary-{self._canaries}", node_class="nowhere")
            self.until_waiting(name, "NodeClassNotFound")
            self.delete(NodeClaim, name)

    def polls(self, count: int = 1) -> None:
        """Returns when the broker has described the reservations this many times."""
        before = self.calls("DescribeCapacityReservations")
        self.until(lambda: self.calls("DescribeCapacityReservations") >= before + count, "a poll")

    def is_true(self, name: str, type_: str) -> bool:
        claim = self.find(NodeClaim, name)
        return claim is not None and is_true(claim, type_)

    # ---- when it goes wrong

    def picture(self) -> str:
        lines = []
        for model in (NodeClaim, EC2NodeClass, NodePool, Node):
            for raw in self.client.list(model.KIND)[0]:
                try:
                    object_ = model.decode(raw)
                except ValidationError as error:
                    lines.append(f"{model.KIND.kind} {raw['metadata']['name']}: {error}")
                    continue
                status: Any = getattr(object_, "status", None)
                lines.append(f"{model.KIND.kind} {object_.name} {'deleting' if object_.deleting else ''}")
                lines += [
                    f"    {c.type}={c.status} {c.reason}: {c.message}"
                    for c in getattr(status, "conditions", ())
                ]
        lines += [
            f"Event {e.involved_object.kind}/{e.involved_object.name} {e.reason}: {e.message}"
            for e in self.all(Event)
        ]
        lines += [
            f"EC2 {i['InstanceId']} {i['InstanceType']} {i['Placement']['AvailabilityZone']} "
            f"{i['State']['Name']} {i.get('CapacityReservationId', '-')}"
            for i in self.aws.instances(own_only=False)
        ]
        lines += [
            f"EC2 {r['CapacityReservationId']} {r['InstanceType']} {r['AvailabilityZone']} {r['State']} "
            f"{r['AvailableInstanceCount']}/{r['TotalInstanceCount']}"
            for r in self.aws.ec2.describe_capacity_reservations()["CapacityReservations"]
        ]
        lines.append(f"calls {json.dumps(self.control.calls())}")
        return "\n".join(lines)

    def _install_crds(self) -> None:
        installed = {crd["metadata"]["name"] for crd in self.client.list(CRD)[0]}
        for crd in _crds():
            if crd["metadata"]["name"] not in installed:
                self.client.create(CRD, crd)
        for model in (EC2NodeClass, NodeClaim, NodePool):
            self.until(lambda m=model: self._served(m), f"{model.KIND.plural} served")  # type: ignore[misc]

    def _served(self, model: type[Object]) -> bool:
        try:
            self.client.list(model.KIND)
        except ApiError:
            return False
        return True
