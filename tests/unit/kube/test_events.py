"""Events: their content and how often they are written. Recording one never delays the caller."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kube import events as events_module
from broker.kube.events import AT_ONCE, WRITTEN, Recorder, Reference
from tests.support.clock import FakeClock
from tests.support.kube_server import NO_ANSWER, Json, Server, Thing, thing

CLAIM = Reference(api_version="karpenter.sh/v1", kind="NodeClaim", name="claim-1", uid="u1")


class EventBench:
    """A recorder without a thread, and the Events on the server."""

    def __init__(self) -> None:
        self.server, self.clock = Server(), FakeClock()
        ids = iter(range(10**6))
        self.recorder = Recorder(
            self.server.client, "capacity-broker", self.clock, ids=lambda: f"{next(ids):x}"
        )

    def record(self, message: str = "no slot is free", about: Reference = CLAIM, **more: Any) -> None:
        self.recorder.event(about, "Warning", "CapacityShort", message, **more)

    def events(self) -> list[Json]:
        return [obj for path, obj in self.server.objects.items() if "/events/" in path]

    def writes(self) -> list[str]:
        return [request.method for request in self.server.requests]


@pytest.fixture
def bench() -> EventBench:
    return EventBench()


def test_an_event_names_its_object_and_its_reporter(bench: EventBench) -> None:
    bench.recorder.event(
        Thing.decode(thing("a", metadata={"uid": "u"})),
        "Normal",
        "Launched",
        "as i-1",
        annotations={"k": "v"},
    )
    assert bench.recorder.flush()
    (event,) = bench.events()
    del event["metadata"]["resourceVersion"], event["metadata"]["uid"]
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.0", "namespace": "default", "annotations": {"k": "v"}},
        "involvedObject": {
            "apiVersion": "test.io/v1",
            "kind": "Thing",
            "name": "a",
            "namespace": "default",
            "uid": "u",
        },
        "type": "Normal",
        "reason": "Launched",
        "message": "as i-1",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "capacity-broker"},
        "reportingComponent": "capacity-broker",
        "reportingInstance": "capacity-broker",
    }


def test_an_event_that_comes_back_is_counted_and_written_at_most_every_two_minutes(bench: EventBench) -> None:
    bench.record("a slot is free")
    bench.record()
    bench.recorder.start()
    bench.clock.until(lambda: len(bench.server.requests) == 2)
    for _ in range(5):
        bench.clock.advance(10)
        bench.record("a slot is free")
        bench.record()
    bench.clock.threads(1, within=70)
    assert bench.writes() == ["POST", "POST"]
    bench.clock.advance(70)
    bench.clock.until(lambda: len(bench.server.requests) == 4)
    bench.recorder.stop()
    assert {
        (event["count"], event["firstTimestamp"][11:19], event["lastTimestamp"][11:19])
        for event in bench.events()
    } == {(6, "00:00:00", "00:00:50")}


@pytest.mark.covers("FLT-66")
def test_a_steady_event_is_written_once_however_long_it_lasts(bench: EventBench) -> None:
    for _ in range(1000):
        bench.record(topic="slots")
        bench.record("its other half", topic="other")
        assert bench.recorder.flush()
        bench.clock.advance(60)
    assert bench.writes() == ["POST", "POST"]
    bench.record("all full", topic="slots")
    bench.record(topic="slots")
    assert bench.recorder.flush()
    assert bench.writes() == ["POST", "POST", "POST", "PATCH"]


@pytest.mark.covers("FLT-66")
def test_a_state_that_ended_and_recurs_is_counted_again(bench: EventBench) -> None:
    for _ in range(3):
        bench.record(topic="slots")
        bench.record(topic="slots")
        bench.recorder.ended(CLAIM, "other")
        assert bench.recorder.flush()
        bench.recorder.ended(CLAIM, "slots")
    assert [event["count"] for event in bench.events()] == [3]


def test_each_occurrence_is_counted(bench: EventBench) -> None:
    bench.record()
    bench.record()
    assert bench.recorder.flush()
    assert [event["count"] for event in bench.events()] == [2]


def test_a_burst_of_events_is_written_at_a_bounded_rate(bench: EventBench) -> None:
    for n in range(AT_ONCE + 40):
        bench.record(
            about=Reference(api_version="v1", kind="Pod", name=f"p-{n}", namespace="prod", uid=f"u-{n}")
        )
    bench.recorder.start()
    bench.clock.until(lambda: len(bench.server.requests) == AT_ONCE)
    bench.clock.threads(1, within=1)
    assert len(bench.server.requests) == AT_ONCE
    bench.clock.advance(0.5)
    bench.clock.until(lambda: len(bench.server.requests) == AT_ONCE + 25)
    bench.recorder.stop()
    assert len(bench.server.requests) == AT_ONCE + 40


def test_another_message_reason_or_object_is_another_event(bench: EventBench) -> None:
    bench.record()
    bench.record("all full")
    bench.record(about=Reference(api_version="v1", kind="Pod", name="p", namespace="prod", uid="u2"))
    assert bench.recorder.flush()
    assert [e["metadata"]["namespace"] for e in bench.events()] == ["default", "default", "prod"]


def test_stopping_writes_waiting_events(bench: EventBench) -> None:
    bench.recorder.start()
    bench.record()
    bench.clock.until(lambda: len(bench.server.requests) == 1)
    bench.record("last words")
    bench.record()
    bench.recorder.stop()
    assert sorted((e["message"], e["count"]) for e in bench.events()) == [
        ("last words", 1),
        ("no slot is free", 2),
    ]


def test_too_many_events_of_one_object_are_dropped(bench: EventBench) -> None:
    before = WRITTEN.labels("dropped")._value.get()
    for n in range(30):
        bench.record(f"message {n}")
    other = Reference(api_version="v1", kind="Node", name="n", uid="u9")
    bench.record(about=other)
    assert bench.recorder.flush()
    assert len(bench.events()) == 26
    assert WRITTEN.labels("dropped")._value.get() == before + 5
    bench.clock.advance(600)
    for n in range(30, 40):
        bench.record(f"message {n}")
    assert bench.recorder.flush()
    assert len(bench.events()) == 28  # two tokens came back


def test_an_event_that_the_server_deleted_is_written_again(bench: EventBench) -> None:
    bench.record()
    assert bench.recorder.flush()
    bench.server.objects.clear()
    bench.record("all full")
    bench.record()
    assert bench.recorder.flush()
    assert sorted(e["count"] for e in bench.events()) == [1, 2]


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("topic", ["", "slots"], ids=["occurrence", "state"])
def test_after_a_long_pause_the_count_restarts(bench: EventBench, topic: str) -> None:
    bench.record(topic=topic)
    assert bench.recorder.flush()
    bench.clock.advance(4000)
    bench.record(topic=topic)
    assert bench.recorder.flush()
    assert [e["count"] for e in bench.events()] == [1, 1]


def test_an_event_without_a_response_is_retried_and_then_dropped(bench: EventBench) -> None:
    before = WRITTEN.labels("failed")._value.get()
    bench.server.fail(NO_ANSWER, times=2)
    bench.record()
    bench.recorder.start()
    bench.clock.until(lambda: len(bench.events()) == 1, step=1)
    assert bench.clock.monotonic() >= 1020
    bench.server.fail(NO_ANSWER, times=100)
    bench.record("never written")
    bench.clock.until(lambda: WRITTEN.labels("failed")._value.get() == before + 1, step=5)
    bench.server.faults.clear()
    bench.recorder.stop()
    assert len(bench.events()) == 1


def test_a_refused_event_is_not_retried(bench: EventBench) -> None:
    bench.server.fail(403)
    bench.record()
    assert bench.recorder.flush()
    assert bench.recorder.flush()
    assert len(bench.server.requests) == 1


def test_the_number_of_remembered_events_is_bounded(
    bench: EventBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "REMEMBERED", 3)
    for n in range(5):
        bench.record(about=Reference(api_version="v1", kind="Pod", name=f"p{n}", namespace="d", uid=f"u{n}"))
    assert bench.recorder.flush()
    assert len(bench.events()) == 3  # the others had no room while the first ones waited
    bench.record(about=Reference(api_version="v1", kind="Pod", name="p9", namespace="d", uid="u9"))
    assert bench.recorder.flush()
    assert len(bench.events()) == 4  # a written event makes room


@pytest.mark.covers("FLT-70")
def test_states_of_objects_that_are_gone_take_no_memory_for_ever(
    bench: EventBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "REMEMBERED", 3)
    for n in range(10):
        bench.record(about=Reference(api_version="v1", kind="Pod", name=f"p{n}", uid=f"u{n}"), topic="slots")
        assert bench.recorder.flush()
    assert len(bench.events()) == 10
    assert len(bench.recorder._states) == 3


def test_long_messages_and_names_are_cut_to_the_limit(bench: EventBench) -> None:
    bench.record("x" * 5000, about=Reference(api_version="v1", kind="Node", name="n" * 250))
    assert bench.recorder.flush()
    (event,) = bench.events()
    assert (len(event["message"]), event["message"][-2:]) == (1024, "x…")
    assert len(event["metadata"]["name"]) <= 253


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0.0, 30.0, 130.0])), max_size=20))
def test_every_change_of_the_message_is_counted_once(messages: list[tuple[str, float]]) -> None:
    bench = EventBench()
    for message, pause in messages:
        bench.record(message, topic="slots")
        bench.clock.advance(pause)
        if pause:
            bench.recorder.flush()
    bench.recorder.flush()
    counts = {e["message"]: e["count"] for e in bench.events()}
    words = [message for message, _ in groupby(message for message, _ in messages)]
    assert counts == {word: words.count(word) for word in set(words)}
    for request in bench.server.requests:
        if request.method == "PATCH":
            assert set(orjson.loads(request.body or b"")) == {"count", "lastTimestamp"}
