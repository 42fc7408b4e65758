"""Workers: expected errors are retried later, bugs are logged, and neither delays other keys."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from urllib3.exceptions import ProtocolError

from broker.kube.controller import RECONCILES, Controller, Result
from broker.kube.errors import Conflict, TooManyRequests, Unavailable
from broker.kube.panics import PANICS
from broker.kube.queue import WorkQueue
from tests.support.clock import FakeClock


class ProviderTrouble(Exception):
    pass


class World:
    """A controller with a reconcile that fails for chosen keys."""

    def __init__(self, *, workers: int = 2) -> None:
        self.clock = FakeClock()
        self.queue: WorkQueue[str] = WorkQueue("test", clock=self.clock, first=1.0, longest=60.0)
        self.fail: dict[str, Exception] = {}
        self.again: dict[str, float] = {}
        self.calls: Counter[str] = Counter()
        self.controller = Controller(
            "test",
            self.reconcile,
            queue=self.queue,
            clock=self.clock,
            workers=workers,
            expected=(ProviderTrouble,),
        )

    def reconcile(self, key: str) -> Result | None:
        self.calls[key] += 1
        if key in self.fail:
            raise self.fail[key]
        return Result(requeue_after=self.again[key]) if key in self.again else None

    def step(self, key: str) -> None:
        self.queue.add(key)
        assert self.controller.step()


def count(result: str) -> float:
    return float(RECONCILES.labels("test", result)._value.get())


@pytest.mark.parametrize(
    "error",
    [
        Unavailable(503, "ServiceUnavailable", "etcd is slow"),
        Conflict(409, "Conflict", "changed"),
        ProviderTrouble("throttled"),
        OSError("no route"),
        ProtocolError("cut off"),
    ],
)
def test_an_expected_failure_backs_off_until_a_success(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    world.fail["a"] = error
    before = count("error")
    world.step("a")
    for wait in (1, 2, 4):
        world.clock.advance(wait - 0.01)
        assert not world.controller.step()
        world.clock.advance(0.01)
        assert world.controller.step()
    assert world.queue.failures("a") == 4
    assert count("error") == before + 4
    assert "Traceback" not in capsys.readouterr().out
    del world.fail["a"]
    world.clock.advance(8)
    assert world.controller.step()
    assert world.queue.failures("a") == 0


def test_a_panic_is_logged_with_its_traceback_counted_and_backs_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World()
    world.fail["a"] = ZeroDivisionError("division by zero")
    bugs, before = PANICS.labels("test")._value.get(), count("panic")
    world.step("a")
    output = capsys.readouterr().out
    assert "ZeroDivisionError" in output
    assert "key=a" in output
    assert (PANICS.labels("test")._value.get(), count("panic")) == (bugs + 1, before + 1)
    world.step("b")
    assert world.calls == {"a": 1, "b": 1}
    world.clock.advance(1)
    assert world.controller.step()
    assert world.calls["a"] == 2


def test_retry_after_of_the_server_is_waited() -> None:
    world = World()
    world.fail["a"] = TooManyRequests(429, "TooManyRequests", "", {"retryAfterSeconds": 9})
    world.step("a")
    world.clock.advance(8.9)
    assert not world.controller.step()
    world.clock.advance(0.1)
    assert world.controller.step()


@pytest.mark.parametrize("rest", [1e-13, 0.0, -1.0])
def test_remainder_of_a_rounding_does_not_run_the_key_at_once(rest: float) -> None:
    world = World()
    world.again["a"] = rest
    world.step("a")
    assert not world.controller.step()
    world.clock.advance(0.001)
    assert world.controller.step()


def test_a_reconcile_may_requeue_its_key() -> None:
    world = World()
    world.again["a"] = 30
    world.step("a")
    world.clock.advance(29)
    assert not world.controller.step()
    world.clock.advance(1)
    assert world.controller.step()


def test_workers_process_keys_in_parallel_and_no_key_twice_at_once() -> None:
    world = World(workers=3)
    meet = threading.Barrier(3)  # only passed if three keys are processed at the same time
    working: set[str] = set()

    def reconcile(key: str) -> None:
        assert key not in working
        working.add(key)
        meet.wait(60)
        working.discard(key)
        world.calls[key] += 1

    controller: Controller[str] = Controller(
        "test", reconcile, queue=world.queue, clock=world.clock, workers=3
    )
    for key in "abc":
        world.queue.add(key)
    controller.start()
    world.clock.until(lambda: sum(world.calls.values()) == 3)
    assert controller.stop()


def test_stopping_waits_for_the_current_key_and_drops_the_rest() -> None:
    world = World()
    entered, leave = threading.Event(), threading.Event()

    def reconcile(key: str) -> None:
        entered.set()
        leave.wait(60)
        world.calls[key] += 1

    controller: Controller[str] = Controller(
        "test", reconcile, queue=world.queue, clock=world.clock, workers=1
    )
    world.queue.add("a")
    world.queue.add("b")
    controller.start()
    assert entered.wait(60)
    assert not controller.stop(timeout=0)
    leave.set()
    assert controller.stop(timeout=None)
    assert world.calls == {"a": 1}
