"""One process of the broker; the scheduler takes its every step in the scheduler's own thread.

Invariant: the work of its threads is here one step each: an informer that gets its next events, a loop that
runs once, a worker that takes one key, the recorder that writes, the Lease that is renewed. Between two
steps of a process nothing of it happens. A killed process is dropped as it is, with its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.apis.meta import Kind
from broker.app import LEASE, Broker
from broker.kube.client import Client
from broker.kube.controller import Controller
from broker.kube.errors import ApiError
from broker.kube.informer import Informer
from broker.kube.lease import NotLeading
from broker.kube.panics import guarded
from broker.kube.singleton import Singleton
from broker.kube.tenure import Candidate
from broker.scheduler import SCHEDULER_LEASE, Scheduler
from local.kube.store import Compacted
from providers.aws.listings import ListOperation
from tests.cluster.stack import Provider
from tests.simulation.chance import SimulatedClock
from tests.simulation.wire import Killed, Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_SECONDS, RENEW_SECONDS = 90.0, 20.0
LOOK_AGAIN, ABSENT = 5.0, 60.0  # after a list that failed, and for a kind that is not served
NEVER = float("inf")
Part = Broker | Scheduler


class Step(NamedTuple):
    name: str
    take: Callable[[], object]
    tenure: Tenure
    term: int  # of leadership: a step of another term is not taken


class Inline(Executor):
    """Runs each function at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  as a pool's thread hands it over; a kill goes on up
            future.set_exception(error)
        return future


@dataclass
class Waits:
    """The time of a part's next step, and its state."""

    due: float = 0.0
    items: Sequence[Any] = ()
    failed: bool = False
    seen: int = -1  # events of the collection when a selecting informer last looked


class Tenure:
    """One part of a process under its Lease: it leads, or contends for the Lease. Without one it leads."""

    def __init__(self, process: Process, lease: str, build: Callable[[Client], Part]) -> None:
        self._process, self._build = process, build
        self._clock = process.clock
        world, client = process.world, process.client
        self.candidate: Candidate | None = None
        if world.settings.leader_election:
            self.candidate = Candidate(
                client, lease, world.settings.namespace, process.name, self._clock, duration=LEASE_SECONDS
            )
        self.lease_due = 0.0
        self.term = 0
        self.part: Part | None = None
        self.waits: dict[int, Waits] = {}
        self.synced: set[int] = set()  # loops that may run, as they then may for good
        if self.candidate is None:
            self._lead()

    @property
    def leading(self) -> bool:
        return self.candidate is None or self.candidate.leading

    def _guard(self) -> None:
        if not self.leading:
            raise NotLeading(0, "NotLeading", "the Lease is not held: not writing")

    def _lead(self) -> None:
        self.term += 1
        client = self._process.client
        self.part = self._build(client if self.candidate is None else client.replace(guard=self._guard))
        self.waits, self.synced = {}, set()

    def resign(self) -> None:
        self.term += 1
        if isinstance(self.part, Broker):
            self._process.forget(self.part)
        self.part = None

    def release(self) -> None:
        """Gives the Lease back, as a process does at its end."""
        if self.candidate is not None and self.leading:
            try:
                self.candidate.release()
            except ApiError:
                return

    # ---- its steps

    def steps(self) -> Iterator[Step]:
        yield from self._lease_steps()
        if self.part is None:
            return
        yield from self._informer_steps(self.part)
        yield from self._loop_steps(self.part)
        if self._recorder_due(self.part):
            yield self._step("events", self.part.recorder.flush)

    def due(self) -> list[float]:
        times = [waits.due for waits in self.waits.values()]
        if self.candidate is not None:
            times.append(self.lease_due)
        if self.part is not None:
            times += [time for loop in self.part.loops if (time := _next_key(loop)) is not None]
            times += [event.due for event in vars(self.part.recorder)["_unwritten"].values()]
        return times

    def _step(self, name: str, take: Callable[[], object]) -> Step:
        return Step(name, take, self, self.term)

    def _of(self, part: object) -> Waits:
        return self.waits.setdefault(id(part), Waits())

    def _lease_steps(self) -> Iterator[Step]:
        if self.candidate is None:
            return
        if not self.leading and self.part is not None:
            yield self._step("lost the lease", self.resign)
        elif self._clock.monotonic() >= self.lease_due:
            yield self._step("lease", self._lease)

    def _lease(self) -> None:
        assert self.candidate is not None
        self.lease_due = self._clock.monotonic() + RENEW_SECONDS
        try:
            if self.leading:
                self.candidate.renew()
            elif self.candidate.contend():
                self.resign()
                self._lead()
        except ApiError:
            return

    def _informer_steps(self, part: Part) -> Iterator[Step]:
        now = self._clock.monotonic()
        for informer in part.informers:
            kind: Any = vars(informer)["_kind"]
            late = vars(informer)["_revision"] and self._process.world.gate.late_by(kind.plural)
            if not late and now >= self._of(informer).due and self._behind(informer):
                yield self._step(f"watch {kind.plural}", partial(self._follow, informer))

    def _behind(self, informer: Informer[Any]) -> bool:
        kind, revision = vars(informer)["_kind"], vars(informer)["_revision"]
        if not revision:
            return True
        collection = self._process.world.cluster.state.store.collection(f"{kind.plural}.{kind.group}")
        if vars(informer)["_field_selector"] and self._of(informer).seen == collection.end:
            return False  # none of the events since then matches
        try:
            return collection.position_after(int(revision)) < collection.end
        except Compacted:
            return True

    def _follow(self, informer: Informer[Any]) -> None:
        wait, kind = 0.0, vars(informer)["_kind"]
        if vars(informer)["_revision"]:
            collection = self._process.world.cluster.state.store.collection(f"{kind.plural}.{kind.group}")
            self._of(informer).seen = collection.end
        with guarded("informer") as guard:
            wait = informer.follow()
        failed = bool(guard.error or informer.error or informer.missing)
        again = ABSENT if informer.missing else max(wait, LOOK_AGAIN)
        self._of(informer).due = self._clock.monotonic() + again if failed else 0.0

    def _loop_steps(self, part: Part) -> Iterator[Step]:
        now = self._clock.monotonic()
        for loop in part.loops:
            if id(loop) not in self.synced:
                if not loop.synced:
                    continue
                self.synced.add(id(loop))
            if isinstance(loop, Controller):
                if len(loop.queue):
                    yield self._step(loop.name, loop.step)
            elif now >= self._run_at(loop):
                yield self._step(loop.name, partial(self._run, loop))

    def _run_at(self, loop: Singleton[Any]) -> float:
        """When the loop runs next: at once with an item, but not before its back-off is over."""
        if id(loop) not in self.waits:
            self.waits[id(loop)] = Waits(due=NEVER if vars(loop)["_every"] is None else 0.0)
        waits = self.waits[id(loop)]
        return 0.0 if len(loop.batcher) and not waits.failed else waits.due

    def _run(self, loop: Singleton[Any]) -> None:
        waits = self._of(loop)
        if waits.failed:
            loop.batcher.add(*waits.items)
        items = loop.batcher.take(0.0)
        waits.failed, after = loop.once(items)
        waits.items = items if waits.failed else ()
        waits.due = NEVER if after is None else self._clock.monotonic() + after

    def _recorder_due(self, part: Part) -> bool:
        now = self._clock.monotonic()
        return any(event.due <= now for event in vars(part.recorder)["_unwritten"].values())


class Process:
    """A replica with its parts: the broker, the scheduler, or both. `steps` are those that it could take now.

    `scheduler` is the option of that name.
    """

    def __init__(self, world: World, name: str, *, skew: float = 0.0, scheduler: str = "on") -> None:
        self.world, self.name, self.scheduler = world, name, scheduler
        self.clock = SimulatedClock(world.time, skew=skew)
        self.alive = True
        self.frozen_until = 0.0
        self._provider: Provider | None = None
        self.client = Client(Wire(world.cluster, world.gate, name, events=world.events_a_watch))
        self._broker = None if scheduler == "only" else Tenure(self, LEASE, self._new_broker)
        self._scheduler = None if scheduler == "off" else Tenure(self, SCHEDULER_LEASE, self._new_scheduler)

    @property
    def tenures(self) -> list[Tenure]:
        return [tenure for tenure in (self._broker, self._scheduler) if tenure is not None]

    @property
    def leads(self) -> bool:
        """Whether its broker acts."""
        return self._broker is not None and self._broker.part is not None and self._broker.leading

    @property
    def schedules(self) -> bool:
        """Whether its scheduler acts."""
        return self._scheduler is not None and self._scheduler.part is not None and self._scheduler.leading

    # ---- its life

    def _new_broker(self, client: Client) -> Broker:
        self._provider = Provider(
            cluster=self.world.settings.cluster_name,
            region=self.world.settings.region,
            endpoint_url=self.world.server.endpoint,
            clock=self.clock,
        )
        return Broker(client, self._provider, self.world.settings, clock=self.clock, threads=Inline())

    def _new_scheduler(self, client: Client) -> Scheduler:
        return Scheduler(client, self.world.settings, clock=self.clock)

    def forget(self, broker: Broker) -> None:
        """Ends the remains of a term of the broker in the libraries."""
        broker.launcher.close()
        if self._provider is not None:
            meta = vars(self._provider)["_aws"].ec2.meta
            for listing in vars(self._provider).values():
                if isinstance(listing, ListOperation):
                    operation = meta.method_to_api_mapping[vars(listing)["_method"]]
                    meta.events.unregister(f"before-parse.ec2.{operation}", listing._cut)
            self._provider = None

    def die(self) -> None:
        self.alive = False
        for tenure in self.tenures:
            tenure.resign()

    def revisions(self, kind: Kind) -> list[int]:
        """The places in the history of a kind up to which its broker has read."""
        part = self._broker.part if self._broker is not None else None
        informers = part.informers if part is not None else ()
        return [
            int(vars(informer)["_revision"] or 0) for informer in informers if vars(informer)["_kind"] == kind
        ]

    def release(self) -> None:
        """Gives its Leases back, as a process does at its end; it may be killed in between."""
        with self.world.gate.process_acts(self.name), suppress(Killed):
            for tenure in self.tenures:
                tenure.release()

    # ---- its steps

    def take(self, step: Step) -> None:
        """Takes one step; the process may be killed by it."""
        if step.term != step.tenure.term:
            return
        self.world.gate.trace(f"{self.name} {step.name}")
        try:
            with self.world.gate.process_acts(self.name):
                step.take()
        except Killed:
            self.world.gate.trace(f"{self.name} killed")
            self.die()

    def steps(self) -> list[Step]:
        if not self.alive or self.clock.monotonic() < self.frozen_until:
            return []
        return [step for tenure in self.tenures for step in tenure.steps()]

    def due(self) -> float:
        """When it could take its next step, if nothing happens before; on its monotonic clock."""
        if not self.alive:
            return NEVER
        times = [time for tenure in self.tenures for time in tenure.due()]
        now = self.clock.monotonic()
        return max(self.frozen_until, min((time for time in times if time > now), default=NEVER))


def _next_key(loop: Singleton[Any] | Controller[Any]) -> float | None:
    heap = vars(loop.queue)["_heap"] if isinstance(loop, Controller) else ()
    return heap[0][0] if heap else None
