"""Events: their content and how often they are written. Recording one never delays the caller."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kube import events as events_module
from broker.kube.clock import FakeClock
from broker.kube.events import AT_ONCE, WRITTEN, Recorder, Reference
from tests.support.kube_server import NO_ANSWER, Json, Server, Thing, thing

CLAIM = Reference(api_version="karpenter.sh/v1", kind="NodeClaim", name="claim-1", uid="u1")


class Desk:
    """A recorder without a thread, and the Events on the server."""

    def __init__(self) -> None:
        self.server, self.clock = Server(), FakeClock()
        ids = iter(range(10**6))
        self.recorder = Recorder(
            self.server.client, "capacity-broker", self.clock, ids=lambda: f"{next(ids):x}"
        )

    def say(self, message: str = "no slot is free", about: Reference = CLAIM, **more: Any) -> None:
        self.recorder.event(about, "Warning", "CapacityShort", message, **more)

    def events(self) -> list[Json]:
        return [obj for path, obj in self.server.objects.items() if "/events/" in path]

    def writes(self) -> list[str]:
        return [request.method for request in self.server.requests]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_an_event_names_what_it_is_about_and_who_says_it(desk: Desk) -> None:
    desk.recorder.event(
        Thing.decode(thing("a", metadata={"uid": "u"})),
        "Normal",
        "Launched",
        "as i-1",
        annotations={"k": "v"},
    )
    assert desk.recorder.flush()
    (event,) = desk.events()
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


def test_the_same_again_is_counted_and_written_every_two_minutes_at_most(desk: Desk) -> None:
    desk.recorder.start()
    desk.say()
    desk.clock.until(lambda: len(desk.server.requests) == 1)
    for _ in range(5):
        desk.clock.advance(10)
        desk.say()
    desk.clock.threads(1, within=70)
    assert desk.writes() == ["POST"]
    desk.clock.advance(70)
    desk.clock.until(lambda: len(desk.server.requests) == 2)
    desk.recorder.stop()
    (event,) = desk.events()
    assert (event["count"], event["firstTimestamp"][11:19], event["lastTimestamp"][11:19]) == (
        6,
        "00:00:00",
        "00:00:50",
    )


def test_what_a_crowd_says_is_written_in_turn(desk: Desk) -> None:
    for n in range(AT_ONCE + 40):
        desk.say(about=Reference(api_version="v1", kind="Pod", name=f"p-{n}", namespace="prod", uid=f"u-{n}"))
    desk.recorder.start()
    desk.clock.until(lambda: len(desk.server.requests) == AT_ONCE)
    desk.clock.threads(1, within=1)
    assert len(desk.server.requests) == AT_ONCE
    desk.clock.advance(0.5)
    desk.clock.until(lambda: len(desk.server.requests) == AT_ONCE + 25)
    desk.recorder.stop()
    assert len(desk.server.requests) == AT_ONCE + 40


def test_another_message_reason_or_object_is_another_event(desk: Desk) -> None:
    desk.say()
    desk.say("all full")
    desk.say(about=Reference(api_version="v1", kind="Pod", name="p", namespace="prod", uid="u2"))
    assert desk.recorder.flush()
    assert [e["metadata"]["namespace"] for e in desk.events()] == ["default", "default", "prod"]


def test_stopping_writes_what_waits(desk: Desk) -> None:
    desk.recorder.start()
    desk.say()
    desk.clock.until(lambda: len(desk.server.requests) == 1)
    desk.say()
    desk.say("last words")
    desk.recorder.stop()
    assert sorted((e["message"], e["count"]) for e in desk.events()) == [
        ("last words", 1),
        ("no slot is free", 2),
    ]


def test_one_object_that_talks_too_much_is_cut_short_and_the_others_are_not(desk: Desk) -> None:
    before = WRITTEN.labels("dropped")._value.get()
    for n in range(30):
        desk.say(f"message {n}")
    other = Reference(api_version="v1", kind="Node", name="n", uid="u9")
    desk.say(about=other)
    assert desk.recorder.flush()
    assert len(desk.events()) == 26
    assert WRITTEN.labels("dropped")._value.get() == before + 5
    desk.clock.advance(600)
    for n in range(30, 40):
        desk.say(f"message {n}")
    assert desk.recorder.flush()
    assert len(desk.events()) == 28  # two tokens came back


def test_an_event_that_the_server_dropped_is_said_anew(desk: Desk) -> None:
    desk.say()
    assert desk.recorder.flush()
    desk.server.objects.clear()
    desk.say()
    assert desk.recorder.flush()
    assert [e["count"] for e in desk.events()] == [2]


def test_after_a_long_silence_the_count_begins_anew(desk: Desk) -> None:
    desk.say()
    assert desk.recorder.flush()
    desk.clock.advance(4000)
    desk.say()
    assert desk.recorder.flush()
    assert [e["count"] for e in desk.events()] == [1, 1]


def test_a_server_without_an_answer_is_tried_again_and_then_given_up(desk: Desk) -> None:
    before = WRITTEN.labels("failed")._value.get()
    desk.server.fail(NO_ANSWER, times=2)
    desk.say()
    desk.recorder.start()
    desk.clock.until(lambda: len(desk.events()) == 1, step=1)
    assert desk.clock.monotonic() >= 1020
    desk.server.fail(NO_ANSWER, times=100)
    desk.say("never heard")
    desk.clock.until(lambda: WRITTEN.labels("failed")._value.get() == before + 1, step=5)
    desk.server.faults.clear()
    desk.recorder.stop()
    assert len(desk.events()) == 1


def test_a_refusal_is_not_tried_again(desk: Desk) -> None:
    desk.server.fail(403)
    desk.say()
    assert desk.recorder.flush()
    assert desk.recorder.flush()
    assert len(desk.server.requests) == 1


def test_no_more_is_remembered_than_fits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "REMEMBERED", 3)
    for n in range(5):
        desk.say(about=Reference(api_version="v1", kind="Pod", name=f"p{n}", namespace="d", uid=f"u{n}"))
    assert desk.recorder.flush()
    assert len(desk.events()) == 3  # the others had no room while the first ones waited
    desk.say(about=Reference(api_version="v1", kind="Pod", name="p9", namespace="d", uid="u9"))
    assert desk.recorder.flush()
    assert len(desk.events()) == 4  # a written event makes room


def test_a_long_message_and_a_long_name_are_cut_to_what_is_allowed(desk: Desk) -> None:
    desk.say("x" * 5000, about=Reference(api_version="v1", kind="Node", name="n" * 250))
    assert desk.recorder.flush()
    (event,) = desk.events()
    assert (len(event["message"]), event["message"][-2:]) == (1024, "x…")
    assert len(event["metadata"]["name"]) <= 253


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0.0, 30.0, 130.0])), max_size=20))
def test_every_word_is_counted_once(said: list[tuple[str, float]]) -> None:
    desk = Desk()
    for message, pause in said:
        desk.say(message)
        desk.clock.advance(pause)
        if pause:
            desk.recorder.flush()
    desk.recorder.flush()
    counts = {e["message"]: e["count"] for e in desk.events()}
    words = [message for message, _ in said]
    assert counts == {word: words.count(word) for word in set(words)}
    for request in desk.server.requests:
        if request.method == "PATCH":
            assert set(orjson.loads(request.body or b"")) == {"count", "lastTimestamp"}
