"""A leader that is cut off, held up, paused or robbed stops before another starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from broker.kube.client import Client, Reply, Request
from broker.kube.lease import Elector, LeaseLost, NotLeading
from broker.kube.tenure import LEASE
from tests.support.clock import FakeClock
from tests.support.kube_server import NO_ANSWER, Server, Thing, thing

DURATION = 15.0
STEP = 0.25
# Threads that wait on the clock: of one that leads (its work, renewals, watchdog), and of one that does not.
LEADS, STANDS_BY = 3, 1


class Wire:
    """One process's way to the server: cut, or holding requests until let go."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cut = False
        self.requests = 0
        self.hold = threading.Event()
        self.hold.set()

    def request(self, request: Request, *, timeout: float) -> Reply:
        self.requests += 1
        self.hold.wait(300)
        if self.cut:
            raise NO_ANSWER
        return self.server.request(request, timeout=timeout)

    def stream(self, request: Request, *, timeout: float) -> object:
        raise AssertionError("a lease is not watched")


class Process:
    """An elector in its thread; notes when it led, on the clock that all share."""

    def __init__(self, name: str, server: Server, clock: FakeClock) -> None:
        self.clock = clock
        self.wire = Wire(server)
        self.client = Client(self.wire)  # type: ignore[arg-type]
        self.elector = Elector(self.client, "broker", "default", name, clock, duration=DURATION)
        self.terms: list[list[float]] = []
        self.lost: LeaseLost | None = None
        self.thread = threading.Thread(target=self.elector.run, args=(self.lead,), daemon=True)
        self.thread.start()

    def lead(self, lost: LeaseLost) -> None:
        self.lost = lost
        self.terms.append([self.clock.monotonic()])
        self.clock.wait(lost)
        self.terms[-1].append(self.clock.monotonic())

    @property
    def leads(self) -> bool:
        return bool(self.terms) and len(self.terms[-1]) == 1

    def stop(self) -> None:
        self.wire.hold.set()
        self.elector.stop()
        self.thread.join(120)
        assert not self.thread.is_alive()


class Pair:
    """A leader, and a standby that has seen it renew."""

    def __init__(self) -> None:
        self.clock, self.server = FakeClock(), Server()
        self.leader = Process("one", self.server, self.clock)
        self.clock.until(lambda: self.leader.leads)
        self.standby = Process("two", self.server, self.clock)
        self.run(10, threads=LEADS + STANDS_BY)
        assert self.leader.leads
        assert not self.standby.terms

    def run(self, seconds: float, *, threads: int) -> None:
        """Each step when so many threads have done the work of the step before."""
        end = self.clock.monotonic() + seconds
        self.until(lambda: self.clock.monotonic() >= end, threads=threads)

    def until(self, done: Callable[[], bool], *, threads: int) -> None:
        self.clock.threads(threads)
        while not done():
            self.clock.advance(STEP)
            self.clock.threads(threads)


@pytest.fixture
def pair() -> Iterator[Pair]:
    new_pair = Pair()
    yield new_pair
    new_pair.leader.stop()
    new_pair.standby.stop()


def hand_over(pair: Pair) -> None:
    """The standby takes over, and not before the leader had stopped."""
    requests_before = pair.standby.wire.requests
    pair.clock.until(lambda: not pair.leader.elector.leading, step=STEP)
    assert not pair.standby.terms
    pair.clock.until(lambda: not pair.leader.leads)  # it learns of it at that very time
    pair.clock.until(lambda: pair.standby.leads, step=STEP)
    assert pair.leader.terms[0][1] < pair.standby.terms[0][0]
    # It reads every two seconds or so, as often as fits into the Lease's duration: less often if slow.
    assert pair.standby.wire.requests - requests_before <= DURATION


def test_cut_off_from_the_api_server(pair: Pair) -> None:
    pair.leader.wire.cut = True
    hand_over(pair)


def test_every_request_hangs(pair: Pair) -> None:
    pair.leader.wire.hold.clear()
    began = pair.clock.monotonic()
    pair.clock.until(lambda: not pair.leader.elector.leading, step=STEP)
    pair.clock.until(lambda: pair.leader.lost is not None and pair.leader.lost.is_set())
    assert pair.clock.monotonic() - began <= DURATION * 2 / 3
    pair.leader.wire.hold.set()
    pair.leader.wire.cut = True
    hand_over(pair)


def test_api_server_is_gone_for_both_and_comes_back(pair: Pair) -> None:
    pair.leader.wire.cut = pair.standby.wire.cut = True
    pair.clock.until(lambda: not pair.leader.elector.leading, step=STEP)
    pair.clock.until(lambda: not pair.leader.leads)
    pair.run(60, threads=2 * STANDS_BY)
    assert not pair.leader.leads
    assert not pair.standby.leads
    pair.leader.wire.cut = pair.standby.wire.cut = False
    pair.until(lambda: pair.leader.leads or pair.standby.leads, threads=2 * STANDS_BY)
    pair.run(30, threads=LEADS + STANDS_BY)
    assert pair.leader.leads + pair.standby.leads == 1


def test_paused_and_woken_it_knows_at_once_that_it_may_not_act(pair: Pair) -> None:
    """None of its threads has run yet when the first line of its work does."""
    assert pair.leader.lost is not None
    client = pair.leader.client.replace(guard=pair.leader.lost.guard)
    client.create(Thing.KIND, thing("before"))
    pair.clock.jump(60)  # no thread is woken: the process was stopped, another may have led long since
    assert pair.leader.lost.is_set()
    assert not pair.leader.elector.leading
    with pytest.raises(NotLeading):
        client.create(Thing.KIND, thing("after"))
    with pytest.raises(NotLeading):
        client.delete(Thing.KIND, "before", namespace="default")
    assert [path.rpartition("/")[2] for path in pair.server.objects if "/things/" in path] == ["before"]


def test_paused_while_another_took_over_it_stands_by(pair: Pair) -> None:
    pair.leader.wire.cut = True
    hand_over(pair)
    pair.leader.wire.cut = False
    pair.run(60, threads=LEADS + STANDS_BY)
    assert pair.standby.leads
    assert not pair.leader.leads


def test_deleted_lease_is_created_again_by_one(pair: Pair) -> None:
    def lease_exists() -> bool:
        return any("/leases/" in path for path in pair.server.objects)

    pair.server.remove("broker", "default", LEASE)
    pair.clock.until(lambda: lease_exists() and pair.leader.leads + pair.standby.leads == 1, step=STEP)
    pair.run(30, threads=LEADS + STANDS_BY)
    assert lease_exists() and pair.leader.leads + pair.standby.leads == 1
