"""A broker without threads, in a world that outlives it: killed at one call, and started again.

Every call of a process to EC2 and to Kubernetes passes its Gate, which counts them and kills the process at
one: before it is sent, or after it was done and before the answer is seen. From then on nothing that the
process does arrives. All steps are taken in the caller's thread and time moves only when something waits, so
the same point is the same point each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import boto3
import pytest

from broker.apis.core import ConfigMap
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.app import Broker
from broker.controllers.launch.calls import RECORDS
from broker.kube.client import READS, Client, Reply, Request, Stream, Transport
from broker.kube.clock import Signal
from broker.kube.controller import Controller
from broker.kube.errors import NotFound, Unavailable
from broker.kube.identity import NAMESPACE
from broker.kube.informer import Informer
from broker.kube.singleton import Singleton
from local.aws import LocalAws
from local.aws.control import Control
from local.in_process import InProcessTransport
from providers.aws import clients
from providers.model import Odcr
from tests.cluster import objects
from tests.cluster.account import A, Account
from tests.cluster.machines import moto_instances
from tests.cluster.stack import SETTINGS, Provider
from tests.support.definitions import defined

# The calls of a launch and an end; the others only read.
LOOPS = ("inventory", "nodeclass", "launch", "nodeclaim", "terminations")
LONGEST_STEP = 15.0
ENDED = ("shutting-down", "terminated")
AWS_READS = ("Describe", "Get", "List")


class Killed(BaseException):
    """The process is no more: no handler of its own may go on from here."""


class Point(NamedTuple):
    """Where a process is killed: at its n-th call, before or after that is done."""

    call: int
    when: Literal["before", "after"]


@dataclass
class Gate:
    """The calls of one process, in order, from `armed` on; and its end."""

    kill: Point | None = None
    armed: bool = False
    calls: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of the calls
    clock: Callable[[], float] = lambda: 0.0
    dead: bool = False
    away: bool = False  # the API server is not reached
    hooks: dict[str, list[Callable[[], object]]] = field(default_factory=dict)

    def at(self, call: str, *does: Callable[[], object]) -> None:
        """The next calls that begin so are each preceded by one of these."""
        self.hooks.setdefault(call, []).extend(does)

    def before(self, call: str) -> None:
        if self.dead:
            raise Killed(call)
        due = next((self.hooks[begin] for begin in self.hooks if call.startswith(begin)), [])
        if due:
            due.pop(0)()
        if self.armed:
            self.calls.append(call)
            self.times.append(self.clock())
            self._reached(Point(len(self.calls) - 1, "before"))

    def after(self) -> None:
        if self.armed:
            self._reached(Point(len(self.calls) - 1, "after"))

    def _reached(self, point: Point) -> None:
        if point == self.kill:
            self.dead = True
            raise Killed(f"{point.when} {self.calls[point.call]}")

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """The watch's events are no call of the broker's."""
        armed, self.armed = self.armed, False
        yield
        self.armed = armed and not self.dead


def points(gate: Gate) -> list[Point]:
    """The first and the last moment of each world that a process may leave behind: between them, only time
    passes.

    Its memory dies with it, and a read leaves no trace: before one call is before every other of the same
    moment, up to the next change.
    """
    points_: list[Point] = []
    first = last = Point(0, "before")
    for number, call in enumerate(gate.calls):
        last = Point(number, "before")
        if not reads(call):
            points_ += _moments(gate, first, last)
            first = last = Point(number, "after")
    return points_ + _moments(gate, first, last)


def _moments(gate: Gate, first: Point, last: Point) -> list[Point]:
    return [first] if gate.times[first.call] == gate.times[last.call] else [first, last]


def reads(call: str) -> bool:
    return call.startswith(AWS_READS) or call.partition(" ")[0] in READS


class Wire:
    """A process's way to the API server."""

    def __init__(self, inner: Transport, gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    def request(self, request: Request, *, timeout: float) -> Reply:
        self._gate.before(f"{request.method} {request.path}")
        if self._gate.away:
            raise Unavailable(0, "Away", "the API server is away, as ordered by the test")
        reply = self._inner.request(request, timeout=timeout)
        self._gate.after()
        return reply

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise AssertionError(f"nothing is watched here: {request.path}, {timeout}")


class StepClock:
    """Every wait is over at once; EC2's clock follows with `World.tick`."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.skew = timedelta()  # how far the broker's wall clock is ahead of EC2's
        self.began = datetime.now(UTC)

    def now(self) -> datetime:
        return self.began + timedelta(seconds=self.ahead) + self.skew

    def monotonic(self) -> float:
        return 1000.0 + self.ahead

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        if isinstance(signal, threading.Event) and signal.is_set():
            return True
        assert timeout is not None, "a process of one thread would never be woken"
        self.sleep(timeout)
        return False

    def sleep(self, seconds: float) -> None:
        self.ahead += max(seconds, 0.0)


class Session:
    """boto3's, with one client a service for all processes: making one takes longer than a call."""

    gate = Gate()

    def __init__(self, **given: Any) -> None:
        self._given = given

    def client(self, service: str, *, region_name: str, endpoint_url: str, config: Any) -> Any:
        key = (service, region_name, endpoint_url)
        if key not in _clients:
            new_client: Any = boto3.Session(**self._given).client(  # type: ignore[call-overload]
                service, region_name=region_name, endpoint_url=endpoint_url, config=config
            )
            new_client.meta.events.register("before-call", lambda model, **_: Session.gate.before(model.name))
            new_client.meta.events.register("after-call", lambda **_: Session.gate.after())
            _clients[key] = new_client
        return _clients[key]


_clients: dict[tuple[str, ...], Any] = {}
_core = cache(clients._core)


def share_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """One session and its clients for all processes."""
    monkeypatch.setattr(clients, "boto3", SimpleNamespace(Session=Session))
    monkeypatch.setattr(clients, "_core", _core)


class World:
    """A cluster and an account; `start` begins a process, which may be killed."""

    def __init__(self, server: LocalAws, number: int) -> None:
        self.server, self.control = server, Control()
        self.settings = replace(SETTINGS, cluster_name=f"walk-{number}", poll_seconds=30.0)
        self.clock = StepClock()
        self.control.freeze(self.clock.now())
        self._told = self.lag = 0.0
        self.hidden = 0.0  # for how long EC2 shows nothing at all of a new reservation
        self.aws = account(server)
        self.cluster = defined()
        self.transport = InProcessTransport(self.cluster)
        self.client = Client(self.transport, field_manager="test")
        self.process: Process | None = None

    def late(self, seconds: float) -> None:
        """EC2 describes things as they were so long ago; `instances` sees them as they are."""
        self.lag = seconds
        self.control.lag(seconds)

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes; EC2's clock comes up to the broker's."""
        self.clock.sleep(seconds)
        self.control.advance(self.clock.ahead - self._told)
        self._told = self.clock.ahead

    # ---- acts of a user

    def node_class(self, name: str = "gpu", *, zones: tuple[str, ...] = (A,), **spec: str) -> str:
        body = objects.node_class(
            name,
            image=self.aws.image,
            subnets=[self.aws.subnets[zone] for zone in zones],
            security_group=self.aws.security_group,
            spec=objects.reservation_spec(**spec),
        )
        self.client.create(EC2NodeClass.KIND, body)
        return name

    def claim(self, name: str, **more: Any) -> str:
        more = {"node_class": "gpu", "types": ("m5.large",), "capacity": (objects.RESERVED,)} | more
        self.client.create(NodeClaim.KIND, objects.claim(name, **more))
        return name

    def claims(self, count: int, **more: Any) -> list[str]:
        return [self.claim(f"c-{n}", **more) for n in range(count)]

    def delete(self, name: str) -> None:
        self.client.delete(NodeClaim.KIND, name)

    # ---- visible state

    def all_claims(self) -> list[NodeClaim]:
        return [NodeClaim.decode(item) for item in self.client.list(NodeClaim.KIND)[0]]

    def instances(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """EC2's own list of this cluster's instances, as they are now."""
        listed: list[dict[str, Any]] = [
            {"InstanceId": instance.id, "State": {"Name": instance.state}}
            | ({"CapacityReservationId": reservation} if reservation else {})
            for instance in moto_instances(self.settings.cluster_name)
            for reservation in (instance.capacity_reservation_id,)
        ]
        return [i for i in listed if ended or i["State"]["Name"] not in ENDED]

    # ---- processes

    def start(self, gate: Gate | None = None) -> Process:
        """A new process, which knows nothing but the contents of Kubernetes and EC2."""
        if self.process is not None:
            self.process.bury()
        self.process = Process(self, gate or Gate())
        return self.process


_accounts: dict[str, Account] = {}


def account(server: LocalAws, *, fresh: bool = False) -> Account:
    """The network and role of the account since it was last emptied."""
    if fresh or server.endpoint not in _accounts:
        server.reset()
        _accounts[server.endpoint] = Account(server)
    return _accounts[server.endpoint]


class _Behind(Provider):
    """Hides reservations that EC2 does not show yet in this world."""

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(**options)
        self._world = world

    def reservations(self) -> Sequence[Odcr]:
        shown = self._world.clock.now() - timedelta(seconds=self._world.hidden)
        odcrs = super().reservations()
        if not self._world.hidden:
            return odcrs
        return [odcr for odcr in odcrs if odcr.created is not None and odcr.created <= shown]


class Process:
    """One broker; `turn` does the work of its threads once."""

    def __init__(self, world: World, gate: Gate, guard: Callable[[], None] | None = None) -> None:
        self.world, self.gate = world, gate
        Session.gate = gate
        provider = _Behind(
            world,
            cluster=world.settings.cluster_name,
            region=world.settings.region,
            endpoint_url=world.server.endpoint,
            clock=world.clock,
        )
        with gate.unseen():
            provider.instance_types()
        client = Client(Wire(world.transport, gate), guard=guard)
        self.broker = Broker(client, provider, world.settings, clock=world.clock)
        loops: dict[str, Any] = {loop.name: loop for loop in self.broker.loops}
        self._loops: list[Singleton[str] | Controller[str]] = [loops[name] for name in LOOPS]
        self._informers: list[Informer[Any]] = [*self.broker.informers]
        self._read: dict[Informer[Any], int] = {}
        self._due = dict.fromkeys(LOOPS, 0.0)
        self.deaf = False  # its watches bring nothing
        self._delivered = -1

    def turn(self) -> None:
        """Brings every cache up to date, then runs every loop that is due."""
        Session.gate = self.gate
        self.world.tick()
        for loop in self._loops:
            self._deliver_events()
            if isinstance(loop, Controller):
                for _ in range(len(loop.queue)):
                    loop.step()
            else:
                self._once(loop)
        self.world.tick()

    def _deliver_events(self) -> None:
        """The events of the watches since the last time."""
        revision = self.world.cluster.state.store.revision
        if self.deaf or self.gate.away or revision == self._delivered:
            return
        self._delivered = revision
        with self.gate.unseen():
            for informer in [*self._informers]:
                kind = vars(informer)["_kind"]
                resource = f"{kind.plural}.{kind.group}"  # as the store spells it, core kinds as well
                # The number of changes of the kind so far: without one a list has nothing new.
                changes = self.world.cluster.state.store.collection(resource).end
                if self._read.get(informer) == changes:
                    continue
                self._read[informer] = changes
                try:
                    informer.read()
                except NotFound:  # a kind that is not installed, and never will be
                    self._informers.remove(informer)

    def _once(self, loop: Singleton[str]) -> None:
        items = loop.batcher.take(0.0)
        if items or self.world.clock.monotonic() >= self._due[loop.name]:
            again = loop.step(items)
            after = float("inf") if again is None else again
            self._due[loop.name] = self.world.clock.monotonic() + after

    def run(self, seconds: float) -> None:
        """Goes on for so much of the world's time."""
        end = self.world.clock.monotonic() + seconds
        self.until(lambda: self.world.clock.monotonic() >= end, "the time", seconds=2 * seconds + 60)

    def until(self, done: Callable[[], bool], goal: str, *, seconds: float = 900.0) -> None:
        """Turns until it is so, for at most so much of the world's time."""
        end = self.world.clock.monotonic() + seconds
        while not done():
            if self.world.clock.monotonic() >= end:
                raise AssertionError(f"never came: {goal}")
            self.turn()
            if not done():
                soonest = min(self._due[loop.name] for loop in self._loops if isinstance(loop, Singleton))
                left = soonest - self.world.clock.monotonic()
                self.world.tick(min(max(left, 1.0), LONGEST_STEP))

    def bury(self) -> None:
        """Its helper threads end; whatever they would still send goes nowhere."""
        self.gate.dead = True
        self.broker.launcher.close()


def records(world: World) -> dict[str, str]:
    """The recorded calls to EC2, by launch id."""
    records_: dict[str, str] = {}
    for name in RECORDS:
        with suppress(NotFound):
            stored = world.client.get(ConfigMap.KIND, name, namespace=NAMESPACE)
            records_ |= ConfigMap.decode(stored).data
    return records_


def held(claims: list[NodeClaim]) -> dict[str, str]:
    """Instance by claim, of the claims that have one."""
    return {claim.name: claim.instance_id for claim in claims if claim.status.provider_id}
