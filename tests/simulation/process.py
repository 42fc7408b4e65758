"""One process of the broker; the scheduler takes its every step in the scheduler's own thread.

Invariant: the work of its threads is here one step each: an informer that gets its next events, a loop that
runs once, a worker that takes one key, the recorder that writes, the Lease that is renewed. Between two
steps of a process nothing of it happens. A killed process is dropped as it is, with its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.apiserver.store import Compacted
from broker.app import LEASE, Broker
from broker.kube.client import Client
from broker.kube.controller import Controller
from broker.kube.errors import ApiError
from broker.kube.informer import Informer
from broker.kube.lease import NotLeading
from broker.kube.panics import guarded
from broker.kube.singleton import Singleton
from broker.kube.tenure import Candidate
from providers.aws.listings import ListOperation
from tests.cluster.stack import Provider
from tests.simulation.chance import SimulatedClock
from tests.simulation.wire import Killed, Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_SECONDS, RENEW_SECONDS = 90.0, 20.0
LOOK_AGAIN, ABSENT = 5.0, 60.0  # after a list that failed, and for a kind that is not served
NEVER = float("inf")


class Step(NamedTuple):
    name: str
    take: Callable[[], None]
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


class Process:
    """A replica: it leads, or contends for the Lease. `steps` are those that it could take now."""

    def __init__(self, world: World, name: str, *, skew: float = 0.0) -> None:
        self.world, self.name = world, name
        self.clock = SimulatedClock(world.time, skew=skew)
        self.alive = True
        self.frozen_until = 0.0
        self.broker: Broker | None = None
        self._provider: Provider | None = None
        self._client = Client(Wire(world.cluster, world.gate, name, events=world.events_a_watch))
        self._candidate: Candidate | None = None
        if world.settings.leader_election:
            self._candidate = Candidate(
                self._client, LEASE, world.settings.namespace, name, self.clock, duration=LEASE_SECONDS
            )
        self._lease_due = 0.0
        self._term = 0
        self._waits: dict[int, Waits] = {}
        self._synced: set[int] = set()  # loops that may run, as they then may for good
        if self._candidate is None:
            self._lead()

    # ---- its life

    @property
    def leading(self) -> bool:
        return self._candidate is None or self._candidate.leading

    def _guard(self) -> None:
        if not self.leading:
            raise NotLeading(0, "NotLeading", "the Lease is not held: not writing")

    def _lead(self) -> None:
        self._term += 1
        self._provider = Provider(
            cluster=self.world.settings.cluster_name,
            region=self.world.settings.region,
            endpoint_url=self.world.server.endpoint,
            clock=self.clock,
        )
        client = self._client if self._candidate is None else self._client.replace(guard=self._guard)
        self.broker = Broker(client, self._provider, self.world.settings, clock=self.clock, threads=Inline())
        self._waits, self._synced = {}, set()

    def _resign(self) -> None:
        self._term += 1
        if self.broker is not None:
            self.broker.launcher.close()
            self.broker = None
        if self._provider is not None:
            for listing in vars(self._provider).values():
                if isinstance(listing, ListOperation):
                    event = f"before-parse.ec2.{vars(listing)['_operation']}"
                    vars(self._provider)["_aws"].ec2.meta.events.unregister(event, listing._cut)
            self._provider = None

    def die(self) -> None:
        self.alive = False
        self._resign()

    def release(self) -> None:
        """Gives the Lease back, as a process does at its end."""
        if self._candidate is not None and self.leading:
            with self.world.gate.process_acts(self.name):
                try:
                    self._candidate.release()
                except ApiError:
                    return

    # ---- its steps

    def take(self, step: Step) -> None:
        """Takes one step; the process may be killed by it."""
        if step.term != self._term:
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
        found = [*self._lease_steps()]
        if self.broker is not None:
            found += self._informer_steps(self.broker)
            found += self._loop_steps(self.broker)
            if vars(self.broker.recorder)["_unwritten"] and self._recorder_due(self.broker):
                found.append(Step("events", self._flush, self._term))
        return found

    def due(self) -> float:
        """When it could take its next step, if nothing happens before; on its monotonic clock."""
        if not self.alive:
            return NEVER
        times = [waits.due for waits in self._waits.values()]
        if self._candidate is not None:
            times.append(self._lease_due)
        if self.broker is not None:
            times += [time for loop in self.broker.loops if (time := _next_key(loop)) is not None]
            times += [said.due for said in vars(self.broker.recorder)["_unwritten"].values()]
        now = self.clock.monotonic()
        return max(self.frozen_until, min((time for time in times if time > now), default=NEVER))

    def _of(self, part: object) -> Waits:
        return self._waits.setdefault(id(part), Waits())

    def _lease_steps(self) -> Iterator[Step]:
        if self._candidate is None:
            return
        if not self.leading and self.broker is not None:
            yield Step("lost the lease", self._resign, self._term)
        elif self.clock.monotonic() >= self._lease_due:
            yield Step("lease", self._lease, self._term)

    def _lease(self) -> None:
        assert self._candidate is not None
        self._lease_due = self.clock.monotonic() + RENEW_SECONDS
        try:
            if self.leading:
                self._candidate.renew()
            elif self._candidate.contend():
                self._resign()
                self._lead()
        except ApiError:
            return

    def _informer_steps(self, broker: Broker) -> Iterator[Step]:
        now = self.clock.monotonic()
        for informer in broker.informers:
            if now >= self._of(informer).due and self._behind(informer):
                kind: Any = vars(informer)["_kind"]
                follow = partial(self._follow, informer)
                yield Step(f"watch {kind.plural}", follow, self._term)

    def _behind(self, informer: Informer[Any]) -> bool:
        kind, revision = vars(informer)["_kind"], vars(informer)["_revision"]
        if not revision:
            return True
        collection = self.world.cluster.state.store.collection(f"{kind.plural}.{kind.group}")
        if vars(informer)["_field_selector"] and self._of(informer).seen == collection.end:
            return False  # none of the events since then matches
        try:
            return collection.position_after(int(revision)) < collection.end
        except Compacted:
            return True

    def _follow(self, informer: Informer[Any]) -> None:
        wait, kind = 0.0, vars(informer)["_kind"]
        if vars(informer)["_revision"]:
            collection = self.world.cluster.state.store.collection(f"{kind.plural}.{kind.group}")
            self._of(informer).seen = collection.end
        with guarded("informer") as guard:
            wait = informer.follow()
        failed = bool(guard.error or informer.error or informer.missing)
        again = ABSENT if informer.missing else max(wait, LOOK_AGAIN)
        self._of(informer).due = self.clock.monotonic() + again if failed else 0.0

    def _loop_steps(self, broker: Broker) -> Iterator[Step]:
        now = self.clock.monotonic()
        for loop in broker.loops:
            if id(loop) not in self._synced:
                if not loop.synced:
                    continue
                self._synced.add(id(loop))
            if isinstance(loop, Controller):
                if len(loop.queue):
                    yield Step(loop.name, partial(_key, loop), self._term)
            elif now >= self._run_at(loop):
                yield Step(loop.name, partial(self._run, loop), self._term)

    def _run_at(self, loop: Singleton[Any]) -> float:
        """When the loop runs next: at once with an item, but not before its back-off is over."""
        if id(loop) not in self._waits:
            self._waits[id(loop)] = Waits(due=NEVER if vars(loop)["_every"] is None else 0.0)
        waits = self._waits[id(loop)]
        return 0.0 if len(loop.batcher) and not waits.failed else waits.due

    def _run(self, loop: Singleton[Any]) -> None:
        waits = self._of(loop)
        if waits.failed:
            loop.batcher.add(*waits.items)
        items = loop.batcher.take(0.0)
        waits.failed, after = loop.once(items)
        waits.items = items if waits.failed else ()
        waits.due = NEVER if after is None else self.clock.monotonic() + after

    def _recorder_due(self, broker: Broker) -> bool:
        now = self.clock.monotonic()
        return any(said.due <= now for said in vars(broker.recorder)["_unwritten"].values())

    def _flush(self) -> None:
        assert self.broker is not None
        self.broker.recorder.flush()


def _key(loop: Controller[Any]) -> None:
    loop.step()


def _next_key(loop: Singleton[Any] | Controller[Any]) -> float | None:
    heap = vars(loop.queue)["_heap"] if isinstance(loop, Controller) else ()
    return heap[0][0] if heap else None
