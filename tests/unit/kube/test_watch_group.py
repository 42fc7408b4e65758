"""Informers of one collection in a process share one list and one watch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from broker.kube.client import Reply, Request
from broker.kube.informer import Informer
from tests.support.clock import FakeClock
from tests.support.kube_server import GONE, NO_ANSWER, Server, Thing, sizes, thing


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """Stops what a test leaves running."""
    with ExitStack() as stack:
        yield stack


class Following:
    """Starts informers of one server, as the broker and the scheduler do, and waits until they have all."""

    def __init__(self, server: Server, clock: FakeClock, ends: ExitStack) -> None:
        self._server, self._clock, self._ends = server, clock, ends

    def __call__(self, **options: Any) -> Informer[Thing]:
        things = Informer(self._server.client.replace(timeout=4), Thing, clock=self._clock, **options)
        self._ends.callback(things.stop)
        things.start()
        self._clock.until(lambda: things.synced)
        self._clock.until(lambda: bool(self._server.streams))
        return things


@pytest.fixture
def following(server: Server, clock: FakeClock, ends: ExitStack) -> Following:
    return Following(server, clock, ends)


def test_the_second_informer_begins_with_what_the_first_has_and_sends_no_request(
    server: Server, clock: FakeClock, following: Following
) -> None:
    server.put(thing("a", size=1))
    first = following()
    server.put(thing("b", size=2))
    clock.until(lambda: len(first.cache) == 2)
    requests = len(server.requests)
    second = following(indexes={"size": lambda item: [str(item.size)]})
    added: list[str] = []
    second.on_change(lambda old, new: added.append(new.name) if new and not old else None)
    assert sizes(second) == {"a": 1, "b": 2} and added == ["a", "b"]
    assert [item.name for item in second.cache.by("size", "2")] == ["b"]
    server.put(thing("a", size=3))
    server.remove("b")
    clock.until(lambda: sizes(first) == sizes(second) == {"a": 3})
    assert second.cache.by("size", "2") == []
    assert len(server.requests) == requests
    assert first.cache.get("a", "default") is second.cache.get("a", "default")  # decoded once


def test_an_informer_that_joins_before_the_first_list_gets_it_too(
    server: Server, clock: FakeClock, ends: ExitStack
) -> None:
    server.put(thing("a", size=1))
    server.fail(NO_ANSWER, times=2)
    informers = [Informer(server.client, Thing, clock=clock) for _ in range(2)]
    for things in informers:
        ends.callback(things.stop)
        things.start()
    clock.until(lambda: all("no answer" in things.error for things in informers))
    clock.until(lambda: all(things.synced for things in informers), step=1)
    assert [sizes(things) for things in informers] == [{"a": 1}] * 2
    assert [things.error for things in informers] == ["", ""]
    assert server.count(watch=False) == 3


@pytest.mark.parametrize("ended", [0, 1])
def test_when_one_stops_the_other_goes_on_without_a_list(
    ended: int, server: Server, clock: FakeClock, following: Following
) -> None:
    server.put(thing("a", size=1))
    informers = [following(), following()]
    lists = server.count(watch=False)
    informers[ended].stop()
    kept = informers[1 - ended]
    clock.until(lambda: bool(server.streams))
    server.put(thing("a", size=2))
    clock.until(lambda: sizes(kept) == {"a": 2})
    assert sizes(informers[ended]) == {"a": 1}
    assert server.count(watch=False) == lists


def test_events_between_the_end_of_one_watch_and_the_next_are_not_lost(
    server: Server, clock: FakeClock, following: Following
) -> None:
    first, second = following(), following()
    for number in range(20):
        server.put(thing("a", size=number))
        if number == 10:
            first.stop()
    clock.until(lambda: sizes(second) == {"a": 19})


def test_both_know_when_the_api_server_does_not_answer(
    server: Server, clock: FakeClock, following: Following
) -> None:
    first, second = following(), following()
    server.put(thing("a"))
    server.compact()
    server.fail(NO_ANSWER, times=1000)
    server.broken_streams.extend([NO_ANSWER] * 1000)
    server.drop()
    clock.until(lambda: "no answer" in first.error and first.error == second.error, step=0.1)
    server.faults.clear()
    server.broken_streams.clear()
    clock.until(lambda: first.error == second.error == "", step=1)
    clock.until(lambda: len(first.cache) == len(second.cache) == 1)
    assert first.staleness() == second.staleness()


def test_a_write_that_only_one_of_them_made_reaches_the_other(
    server: Server, clock: FakeClock, following: Following
) -> None:
    first, second = following(), following()
    server.put(thing("a", size=1))
    clock.until(lambda: len(first.cache) == len(second.cache) == 1)
    for writer, size in ((first, 2), (second, 3)):
        path = Thing.KIND.path(namespace="default", name="a")
        written = server.client.raw("PATCH", path, None, {"size": size})
        writer.cache.observe(written)
        assert sizes(writer) == {"a": size}
        clock.until(lambda: sizes(first) == sizes(second))


def test_an_object_that_one_of_them_leaves_out_stays_with_the_other(
    server: Server, clock: FakeClock, following: Following
) -> None:
    first = following()
    server.put(thing("a", size=1))
    server.put(thing("bad", size="many"))
    clock.until(lambda: len(first.cache) == 1 and bool(first.cache.broken))
    good = first.cache.get("a", "default")
    assert good is not None
    assert first.cache.leave_out(good, "poison")
    second = following()
    assert sizes(first) == {} and [*first.cache.broken] == ["default/bad", "default/a"]
    assert sizes(second) == {"a": 1} and [*second.cache.broken] == ["default/bad"]
    server.put(thing("bad", size=2))
    clock.until(lambda: sizes(second) == {"a": 1, "bad": 2})
    assert sizes(first) == {"bad": 2}


def test_an_object_that_only_an_index_fails_on_is_with_the_others(
    server: Server, clock: FakeClock, following: Following
) -> None:
    def index(item: Thing) -> list[str]:
        return [str(1 // item.size)]

    first = following(indexes={"share": index})
    server.put(thing("a", size=0))
    clock.until(lambda: bool(first.cache.broken))
    second = following()
    assert sizes(first) == {} and sizes(second) == {"a": 0}
    assert [*second.cache.broken] == []


def test_an_object_that_the_first_has_deleted_does_not_come_back_with_the_second(
    server: Server, clock: FakeClock, following: Following
) -> None:
    first = following()
    seen = server.put(thing("a", size=1))
    clock.until(lambda: len(first.cache) == 1)
    ended = {**seen["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "900"}
    first.cache.observe({**seen, "metadata": ended})
    second = following()
    server.send_event("MODIFIED", {**seen, "metadata": {**seen["metadata"], "resourceVersion": "899"}})
    server.put(thing("b", size=2))
    clock.until(lambda: "b" in sizes(first) and "b" in sizes(second))
    assert sizes(first) == sizes(second) == {"b": 2}


def test_a_panic_of_the_first_is_an_error_of_both(
    server: Server, clock: FakeClock, following: Following
) -> None:
    def fail(request: Request) -> Reply:
        raise RuntimeError("a bug")

    first, second = following(), following()
    server.faults.extend([fail] * 1000)
    server.put(thing("a", size=1))
    server.broken_streams.append(GONE)  # so they list again
    server.drop()
    clock.until(lambda: "a bug" in first.error and first.error == second.error, step=0.1)
    server.faults.clear()
    clock.until(lambda: first.error == second.error == "", step=1)
    clock.until(lambda: sizes(first) == sizes(second) == {"a": 1})


def test_other_selectors_or_another_server_are_another_collection(
    server: Server, clock: FakeClock, following: Following, ends: ExitStack
) -> None:
    following()
    following(field_selector="a=b")
    assert len(server.streams) == 2
    other = Server()
    Following(other, clock, ends)()
    assert (len(server.streams), len(other.streams)) == (2, 1)
