"""A list and a watch that keep up with a server that drops, refuses and forgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from structlog.testing import capture_logs

from broker.kube.errors import ApiError, TooManyRequests, Unavailable
from broker.kube.informer import REFUSALS, Informer
from broker.kube.metrics import REGISTRY
from tests.support.clock import FakeClock
from tests.support.kube_server import GONE, NO_ANSWER, Json, Server, Thing, sizes, status, thing


def informer(server: Server, clock: FakeClock, **options: Any) -> Informer[Thing]:
    return Informer(server.client, Thing, clock=clock, random=lambda: 1.0, **options)


@pytest.fixture
def followed(server: Server, clock: FakeClock) -> Iterator[Informer[Thing]]:
    """An informer that watches an empty server."""
    things = informer(server, clock)
    things.start()
    clock.until(lambda: things.synced)
    clock.until(lambda: len(server.streams) == 1)
    yield things
    things.stop()


class Gadget(Thing):
    KIND = replace(Thing.KIND, kind="Gadget", plural="gadgets")  # no other test has a cache of it


def test_the_oldest_cache_of_a_kind_that_follows_is_measured(clock: FakeClock) -> None:
    """The broker and the scheduler follow the same kinds in one process."""
    served = [Server(), Server()]
    broker, scheduler = (Informer(server.client, Gadget, clock=clock) for server in served)

    def age() -> float | None:
        labels = {"kind": Gadget.KIND.resource}
        return REGISTRY.get_sample_value("capacity_broker_kube_cache_staleness_seconds", labels)

    needed = threading.Event()
    scheduler.needed = needed.is_set
    broker.start()
    clock.until(lambda: bool(served[0].streams))
    scheduler.start()
    clock.advance(20)
    assert age() == broker.staleness() == 20  # it has no age before it is needed
    needed.set()
    clock.until(lambda: bool(served[1].streams))
    assert scheduler.staleness() < 20 <= broker.staleness()
    assert age() == broker.staleness()
    broker.stop()
    assert age() == scheduler.staleness()
    scheduler.stop()
    assert age() is None


def test_an_informer_lists_then_watches(server: Server, clock: FakeClock) -> None:
    server.put(thing("a", size=1))
    things = informer(server, clock)
    assert not things.synced
    things.start()
    clock.until(lambda: things.synced)
    assert sizes(things) == {"a": 1}
    server.put(thing("b", size=2))
    server.put(thing("a", size=3))
    server.remove("b")
    clock.until(lambda: sizes(things) == {"a": 3})
    things.stop()
    watch = server.requests[-1].query
    assert watch["allowWatchBookmarks"] == "true"
    assert server.streams == []


def test_a_big_collection_comes_in_pages(clock: FakeClock) -> None:
    server = Server(page=3)
    for n in range(8):
        server.put(thing(f"t{n}", size=n))
    things = informer(server, clock, field_selector="a=b")
    server.patient = False
    things.follow()
    assert len(things.cache) == 8
    lists = [r.query for r in server.requests if "watch" not in r.query]
    assert [("limit" in q, "continue" in q) for q in lists] == [(True, False), (True, True), (True, True)]
    assert {q["fieldSelector"] for q in lists} == {"a=b"}


def test_a_list_that_expires_between_two_pages_is_read_in_one_request(clock: FakeClock) -> None:
    server = Server(page=2)
    for n in range(5):
        server.put(thing(f"t{n}"))
    server.faults.extend([lambda request: None, lambda request: status(410, "Expired")])
    server.patient = False
    things = informer(server, clock)
    things.follow()
    assert len(things.cache) == 5
    assert "limit" not in server.requests[2].query


def test_a_watch_continues_at_its_last_version(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    server.put(thing("a", size=1))
    clock.until(lambda: sizes(followed) == {"a": 1})
    server.drop()
    server.put(thing("b", size=2))
    clock.until(lambda: sizes(followed) == {"a": 1, "b": 2}, step=0.1)
    assert server.count(watch=False) == 1
    assert server.requests[-1].query["resourceVersion"] == "101"


def test_a_bookmark_advances_the_version_of_the_watch(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    server.send_event("BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": "100500"}})
    server.drop()
    clock.until(lambda: server.count(watch=True) == 2, step=0.1)
    assert server.requests[-1].query["resourceVersion"] == "100500"


def test_after_an_expired_version_only_differences_are_delivered(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    server.put(thing("a", size=1))
    server.put(thing("b", size=2))
    clock.until(lambda: len(followed.cache) == 2)
    changes: list[str] = []
    followed.cache.on_change(lambda old, new: changes.append(f"{old and old.name} → {new and new.name}"))
    changes.clear()
    server.drop()
    server.remove("a")
    server.put(thing("c"))
    server.compact()
    clock.until(lambda: "c" in sizes(followed), step=0.1)
    assert changes == ["a → None", "None → c"]
    assert server.count(watch=False) == 2


@pytest.mark.covers("FLT-70")
def test_an_expired_version_is_listed_at_once(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    """A second watch from the same version would expire too."""
    server.put(thing("a", size=1))
    clock.until(lambda: sizes(followed) == {"a": 1})
    server.drop()
    server.remove("a")
    server.compact()
    clock.until(lambda: not sizes(followed), step=0.1)
    expired = [request for request in server.requests if request.query.get("resourceVersion") == "101"]
    assert len(expired) == 1


def test_a_version_that_the_server_keeps_refusing_is_listed_again(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    """A server that answers 500 instead of 410 does not block the cache forever."""
    server.broken_streams.extend([Unavailable(500, "InternalError", "no such revision")] * 3)
    server.drop()
    clock.until(lambda: len(server.streams) == 1 and not server.broken_streams, step=0.5)
    assert (server.count(watch=False), server.count(watch=True)) == (2, 5)


@pytest.mark.covers("FLT-70")
def test_refusals_before_an_event_do_not_count_any_more(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    for size in (1, 2, 3):
        server.broken_streams.extend([Unavailable(500, "InternalError", "busy")] * (REFUSALS - 1))
        server.drop()
        clock.until(lambda: len(server.streams) == 1 and not server.broken_streams, step=0.5)
        server.put(thing("a", size=size))

        def shown(size: int = size) -> bool:
            return sizes(followed) == {"a": size}

        clock.until(shown)
    assert server.count(watch=False) == 1


@pytest.mark.covers("FLT-70")
def test_an_event_that_meets_a_bug_is_not_waited_for_again(
    followed: Informer[Thing], server: Server, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list shows what the event would have told."""

    def panic(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(followed.cache, "apply", panic)
    server.put(thing("a", size=1))
    clock.until(lambda: sizes(followed) == {"a": 1}, step=0.5)


def test_a_server_without_a_response_causes_no_new_list(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    busy = TooManyRequests(429, "TooManyRequests", "")
    server.broken_streams.extend([NO_ANSWER, busy] * 5)
    server.drop()
    clock.until(lambda: len(server.streams) == 1 and not server.broken_streams, step=0.5)
    assert server.count(watch=False) == 1


def test_an_own_write_is_cached_before_its_event(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    created = server.client.create(Thing.KIND, thing("a", size=1))
    followed.cache.observe(created)
    assert sizes(followed) == {"a": 1}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NO_ANSWER, "no answer"),
        (Unavailable(500, "InternalError", "etcd has no leader"), "etcd has no leader"),
        (ApiError(403, "Forbidden", "things is forbidden"), "things is forbidden"),
    ],
)
def test_a_refusing_server_is_retried_with_backoff_and_its_reason_is_shown(
    server: Server, clock: FakeClock, error: ApiError, reason: str
) -> None:
    server.fail(error, times=1000)
    things = informer(server, clock)
    things.start()
    at: list[float] = []
    while len(server.requests) < 13:
        before = len(server.requests)
        clock.threads(1)  # it has sent its request, and waits
        while len(server.requests) == before:
            clock.advance(1)
            clock.threads(1)
        at.append(clock.monotonic())
    waits = [round(b - a) for a, b in pairwise(at)]
    assert waits[-5:] == [13, 26, 30, 30, 30]
    assert not things.synced
    assert reason in things.error
    assert things.staleness() >= 100
    server.faults.clear()
    clock.until(lambda: things.synced, step=1)
    things.stop()
    assert things.error == ""


def test_a_missing_optional_kind_is_logged_once_and_followed_once_it_exists(
    server: Server, clock: FakeClock
) -> None:
    server.fail(404, times=1000)
    things = informer(server, clock)
    things.optional = True
    with capture_logs() as logs:
        waits = [things.follow() for _ in range(12)]
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [("info", "not installed")]
    assert things.missing
    assert waits == sorted(waits)
    assert (waits[0] < 1, waits[-1]) == (True, 60)
    server.faults.clear()
    server.patient = False
    things.follow()
    assert things.synced
    assert not things.missing


def test_retry_after_delays_the_next_request(server: Server, clock: FakeClock) -> None:
    server.fail(TooManyRequests(429, "TooManyRequests", "busy", {"retryAfterSeconds": 20}))
    things = informer(server, clock)
    things.start()
    clock.until(lambda: len(server.requests) == 1)
    clock.threads(1, within=20)
    clock.advance(19)
    clock.threads(1, within=1)
    assert len(server.requests) == 1
    clock.advance(1)
    clock.until(lambda: things.synced)
    things.stop()


def test_an_undecodable_object_does_not_stop_the_others(
    followed: Informer[Thing], server: Server, clock: FakeClock
) -> None:
    server.put(thing("bad", size="huge"))
    server.put(thing("good", size=1))
    clock.until(lambda: sizes(followed) == {"good": 1})
    assert list(followed.cache.broken) == ["default/bad"]


def test_stopping_ends_an_idle_stream(followed: Informer[Thing], server: Server) -> None:
    followed.stop()
    assert not followed._thread.is_alive()  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="started before"):
        followed.start()


def test_an_informer_that_was_never_started_stops() -> None:
    informer(Server(), FakeClock()).stop()


class Following(RuleBasedStateMachine):
    """Rounds of an informer between any changes and faults; without further faults it equals the server."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(page=2)
        self.server.patient = False
        self.things = informer(self.server, FakeClock())
        self.answers: list[Json] = []

    @rule(name=st.sampled_from("abcde"), size=st.one_of(st.integers(0, 3), st.just("huge")))
    def put(self, name: str, size: int | str) -> None:
        self.answers.append(self.server.put(thing(name, size=size)))

    @rule(name=st.sampled_from("abcde"))
    def remove(self, name: str) -> None:
        if any(path.endswith(f"/{name}") for path in self.server.objects):
            self.server.remove(name)

    @rule()
    def compact(self) -> None:
        self.server.compact()

    @rule(error=st.sampled_from([500, 429, NO_ANSWER, 403]))
    def refuse(self, error: ApiError | int) -> None:
        self.server.fail(error)

    @rule()
    def expire_a_page(self) -> None:
        self.server.faults.extend([lambda request: None, lambda request: status(410, "Expired")])

    @rule(error=st.sampled_from([NO_ANSWER, GONE, Unavailable(500, "InternalError", "")]))
    def break_a_watch(self, error: ApiError) -> None:
        self.server.broken_streams.append(error)

    @rule()
    def observe(self) -> None:
        if self.answers:
            self.things.cache.observe(self.answers.pop(0))

    @rule()
    def follow(self) -> None:
        self.things.follow()

    def teardown(self) -> None:
        self.server.faults.clear()
        self.server.broken_streams.clear()
        for _ in range(2):  # the first may find that it must list again
            self.things.follow()
        while self.answers:
            self.things.cache.observe(self.answers.pop())
        stored = {path.rpartition("/")[2]: obj["size"] for path, obj in self.server.objects.items()}
        assert sizes(self.things) == {name: size for name, size in stored.items() if size != "huge"}
        assert {key.rpartition("/")[2] for key in self.things.cache.broken} == {
            name for name, size in stored.items() if size == "huge"
        }
        assert self.things.error == ""


TestFollowing = Following.TestCase
