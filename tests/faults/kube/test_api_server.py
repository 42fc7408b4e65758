"""The API server goes away, fails, forgets or falls silent: the runtime retries seldom, logs the cause and
recovers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import orjson
import pytest

from broker.apis.core import Node
from broker.kube.client import Client, Reply, Request, Stream
from broker.kube.controller import Controller, Result
from broker.kube.errors import Expired, Unavailable
from broker.kube.informer import LISTS, Informer
from broker.kube.queue import WorkQueue
from broker.kube.transports import HttpTransport
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from tests.support.clock import FakeClock
from tests.support.kube_server import Server, Thing, thing
from tests.support.scripted_http import Web, begin_stream, chunk, respond
from tests.unit.kube.test_transports import kubeconfig

MINUTES = 10


class World:
    """An embedded cluster, a client of it, and a clock."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.client = Client(InProcessTransport(self.cluster))
        self.clock = FakeClock()

    def informer(self) -> Informer[Node]:
        return Informer(self.client, Node, clock=self.clock)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def nodes(world: World) -> Iterator[Informer[Node]]:
    world.client.create(Node.KIND, {"metadata": {"name": "before"}})
    informer = world.informer()
    informer.start()
    world.clock.until(lambda: informer.synced)
    yield informer
    informer.stop()


def names(informer: Informer[Node]) -> set[str]:
    return {node.name for node in informer.cache.list()}


def pass_time(clock: FakeClock, minutes: float) -> None:
    """Lets time go by; a woken thread works before it goes on."""
    end = clock.monotonic() + minutes * 60
    clock.until(lambda: clock.monotonic() >= end, step=0.5)


def test_dropped_watches_lose_nothing(world: World, nodes: Informer[Node]) -> None:
    for n in range(5):
        world.cluster.faults.drop_watches()
        world.client.create(Node.KIND, {"metadata": {"name": f"n{n}"}})
        world.clock.until(lambda n=n: f"n{n}" in names(nodes), step=0.5)  # type: ignore[misc]
    assert names(nodes) == {"before", "n0", "n1", "n2", "n3", "n4"}


def test_a_history_that_is_gone_is_listed_again(world: World, nodes: Informer[Node]) -> None:
    lists = LISTS.labels("nodes")._value.get()
    world.cluster.faults.fail(verb="watch", code=410, reason="Expired", times=3)
    world.cluster.faults.drop_watches()
    world.client.create(Node.KIND, {"metadata": {"name": "after"}})
    world.clock.until(lambda: "after" in names(nodes), step=0.5)
    assert LISTS.labels("nodes")._value.get() - lists <= 4


@pytest.mark.parametrize("code", [500, 429, 410, 403])
def test_server_that_refuses_every_watch_gets_a_bounded_number_of_requests(code: int) -> None:
    """In ten minutes: about ten tries up to the longest back-off, then two a minute or more seldom."""
    server, clock = Server(), FakeClock()
    server.put(thing("a"))
    watches = 0

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(server, name)

        def stream(self, *args: object, **kwargs: object) -> object:
            nonlocal watches
            watches += 1
            raise (
                Expired(410, "Expired", "") if code == 410 else Unavailable(code, "Refused", "no watch today")
            )

    informer = Informer(Client(Refusing()), Thing, clock=clock, random=lambda: 0.5)  # type: ignore[arg-type]
    informer.start()
    clock.until(lambda: informer.synced)
    pass_time(clock, MINUTES)
    informer.stop()
    assert 10 <= watches <= 10 + 4 * MINUTES
    assert server.count(watch=False) <= watches
    assert [obj.name for obj in informer.cache.list()] == ["a"]  # the known objects are still known


def test_a_stream_that_breaks_after_each_event_is_no_hot_loop() -> None:
    server, clock = Server(), FakeClock()
    informer = Informer(server.client, Thing, clock=clock, random=lambda: 0.5)
    informer.start()
    clock.until(lambda: informer.synced)
    end = clock.monotonic() + 60

    def poke() -> bool:
        if server.streams:
            server.put(thing("a", size=len(server.requests)))
            server.drop(Unavailable(0, "ProtocolError", "cut off"))
        return clock.monotonic() >= end

    clock.until(poke, step=0.5)
    informer.stop()
    assert server.count(watch=True) <= 20


def test_the_api_server_goes_away_and_comes_back(tmp_path: Path) -> None:
    clock = FakeClock()
    cluster = Cluster()
    server = ApiServer(cluster).start()
    port = int(server.url.rpartition(":")[2])
    client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, server.url)))
    client.create(Node.KIND, {"metadata": {"name": "before"}})
    informer = Informer(client, Node, clock=clock)
    informer.start()
    clock.until(lambda: informer.synced)
    server.stop()
    with pytest.raises(Unavailable, match="no answer"):
        client.get(Node.KIND, "before")
    clock.until(lambda: informer.error.startswith("no answer"), step=1)
    assert names(informer) == {"before"}
    clock.advance(90)
    assert informer.staleness() >= 90
    cluster.create("/api/v1/nodes", {"metadata": {"name": "meanwhile"}})
    with ApiServer(cluster, port=port):
        clock.until(lambda: "meanwhile" in names(informer), step=1)
        assert informer.error == ""
        informer.stop()


def test_a_stream_that_falls_silent_is_noticed_and_taken_up_again(tmp_path: Path) -> None:
    """Half open: the other side is gone, and no packet reports it."""
    clock = FakeClock()
    watches = 0

    def answer(handler: BaseHTTPRequestHandler) -> None:
        nonlocal watches
        if "watch=true" not in handler.path:
            respond(handler, 200, {"metadata": {"resourceVersion": "5"}, "items": []})
            return
        watches += 1
        begin_stream(handler)
        if watches == 1:
            silent.wait(60)
        else:
            node = {"metadata": {"name": "after", "resourceVersion": "6"}}
            chunk(handler, b'{"type":"ADDED","object":%s}\n' % orjson.dumps(node))
            silent.wait(60)

    silent = threading.Event()
    with Web(answer) as web:
        transport = Impatient(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url)))
        informer = Informer(Client(transport), Node, clock=clock)
        informer.start()
        clock.until(lambda: "after" in names(informer), step=0.1)
        assert 150 <= transport.silences[0] <= 210  # the informer's real limit
        silent.set()
        informer.stop()


class Impatient:
    """Tolerates less silence than it is given, so that a test need not wait minutes."""

    def __init__(self, transport: HttpTransport) -> None:
        self.silences: list[float] = []
        self._transport = transport

    def request(self, request: Request, *, timeout: float) -> Reply:
        return self._transport.request(request, timeout=timeout)

    def stream(self, request: Request, *, timeout: float) -> Stream:
        self.silences.append(timeout)
        return self._transport.stream(request, timeout=0.1)


def test_a_reconcile_goes_through_an_outage_of_the_api_server(world: World) -> None:
    """Writes that fail come back until they come through; other keys have their turn meanwhile."""
    queue: WorkQueue[str] = WorkQueue("outage", clock=world.clock)

    def reconcile(key: str) -> Result | None:
        world.client.apply(Node.KIND, {"metadata": {"name": key, "labels": {"done": "yes"}}})
        return None

    controller = Controller("outage", reconcile, queue=queue, clock=world.clock, workers=2)
    world.cluster.faults.fail(verb="patch", code=503, reason="ServiceUnavailable", times=12)
    for key in ("a", "b", "c"):
        queue.add(key)
    controller.start()
    world.clock.until(lambda: len(world.client.list(Node.KIND)[0]) == 3, step=0.5)
    world.clock.until(lambda: not (len(queue) or queue._active))
    assert controller.stop()
    assert [queue.failures(key) for key in ("a", "b", "c")] == [0, 0, 0]
