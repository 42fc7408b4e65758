"""The process clock and the test clock keep the same promises."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from broker.kube.clock import Clock, SystemClock
from tests.support.clock import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_waiting_ends_by_time_or_by_the_signal(clock: Clock) -> None:
    event, condition = threading.Event(), threading.Condition()
    assert not clock.wait(event, 0)
    assert not clock.wait(event, -5)
    with condition:
        assert not clock.wait(condition, 0)
    event.set()
    assert clock.wait(event, 1e12)
    assert clock.wait(event)
    clock.sleep(0)
    assert clock.now().utcoffset() == timedelta(0)
    assert clock.monotonic() <= clock.monotonic()


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_another_thread_ends_the_wait(clock: Clock) -> None:
    event, condition = threading.Event(), threading.Condition()
    went = []

    def wait() -> None:
        went.append(clock.wait(event, 60))
        with condition:
            went.append(True)
            condition.notify()
            went.append(clock.wait(condition, 60))

    thread = threading.Thread(target=wait)
    thread.start()
    with condition:
        event.set()
        while len(went) < 2:
            clock.wait(condition, 60)
        condition.notify()
    thread.join(60)
    assert went == [True, True, True]


def test_fake_time_moves_only_by_advance() -> None:
    clock = FakeClock()
    then, at = clock.now(), clock.monotonic()
    assert clock.advance(0.1) == 0
    for _ in range(9):
        clock.advance(0.1)
    assert (clock.now() - then, clock.monotonic() - at) == (timedelta(seconds=1), 1.0)


def test_advance_wakes_due_sleepers_and_a_jump_wakes_none() -> None:
    clock = FakeClock()
    woken: list[str] = []

    def sleep(name: str, seconds: float) -> None:
        clock.sleep(seconds)
        woken.append(name)

    threads = [threading.Thread(target=sleep, args=args) for args in (("short", 5), ("long", 50))]
    for thread in threads:
        thread.start()
    clock.threads(2)
    clock.jump(5)
    assert woken == []
    assert clock.advance(0) == 1
    threads[0].join(60)
    assert woken == ["short"]
    clock.threads(1, within=45)
    assert clock.advance(45) == 1
    threads[1].join(60)


def test_a_condition_that_is_never_met_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.clock.PATIENCE", 0.01)
    clock = FakeClock()
    with pytest.raises(AssertionError, match="not met in time"):
        clock.until(lambda: False)
    with pytest.raises(AssertionError, match="fewer than 1 threads"):
        clock.threads(1)
    with pytest.raises(AssertionError, match="this clock was neither moved"):
        clock.sleep(1)
