"""Repeated failures leave no objects behind that only the garbage collector would find.

A pass holds thousands of objects. A pass that fails each time would leave them all to a collector that seldom
runs (its thresholds are high).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from broker.kube.controller import attempt
from broker.kube.errors import Forbidden
from broker.kube.for_each import for_each
from broker.kube.panics import guarded
from broker.kube.writers import MANY, WriterPool
from providers.aws.clients import repeated
from providers.errors import ErrorClass, ProviderError
from tests.support.clock import FakeClock


class Much:
    """The objects of a pass."""


@pytest.fixture
def writers() -> Iterator[WriterPool]:
    writer_pool = WriterPool("test")
    yield writer_pool
    writer_pool.close()


def refused(_item: object) -> None:
    raise Forbidden(403, "Forbidden", "no")


def call_ec2() -> None:
    def refuses() -> None:
        raise ProviderError("InternalError", "no", class_=ErrorClass.TRANSIENT)

    repeated(refuses, sleep=lambda _: None)


@pytest.mark.parametrize("many", [1, MANY])
def test_a_refused_write(writers: WriterPool, many: int) -> None:
    left(lambda: writers.each(refused, range(many)))


def test_a_write_of_a_batch(writers: WriterPool) -> None:
    left(lambda: writers.each(lambda n: refused(n) if n == 3 else None, range(MANY)))


def test_an_object_of_several() -> None:
    left(lambda: for_each(range(3), refused))


def test_a_call_whose_retries_fail() -> None:
    left(call_ec2)


def test_an_abandoned_response() -> None:
    gc.disable()
    try:
        ref = weakref.ref(repeated(Much, sleep=lambda _: None))
        assert ref() is None
    finally:
        gc.enable()


def test_a_panic_of_a_reconcile() -> None:
    def has_a_bug(ref: list[weakref.ref[Much]]) -> None:
        much = Much()
        ref.append(weakref.ref(much))
        raise ZeroDivisionError(much)

    ref: list[weakref.ref[Much]] = []
    gc.disable()
    try:
        outcome = attempt("test", lambda: has_a_bug(ref), clock=FakeClock(), expected=())
        assert outcome.failed
        assert ref[0]() is None
    finally:
        gc.enable()


def test_a_guarded_panic_is_logged_as_text() -> None:
    with guarded("test") as guard:
        raise ZeroDivisionError("by nothing")
    assert guard.error == "by nothing"
    with guarded("test") as guard:
        raise KeyboardInterruptAlike
    assert guard.error == "KeyboardInterruptAlike"


class KeyboardInterruptAlike(Exception):
    """An exception without a message."""


def left(fails: Callable[[], object]) -> None:
    """Fails if the object of the caller of `fails` still exists after the failure."""

    def works(ref: list[weakref.ref[Much]]) -> None:
        much = Much()
        ref.append(weakref.ref(much))
        fails()

    ref: list[weakref.ref[Much]] = []
    gc.disable()
    try:
        with pytest.raises((Forbidden, ProviderError)) as caught:
            works(ref)
        del caught
        assert ref[0]() is None
    finally:
        gc.enable()
