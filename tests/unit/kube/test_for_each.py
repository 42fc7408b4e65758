"""One object that cannot be written stops no other."""

from __future__ import annotations

import pytest

from broker.kube.errors import Conflict, NotFound, Unavailable
from broker.kube.for_each import for_each
from broker.kube.panics import PANICS

CONFLICT = Conflict(409, "Conflict", "changed")
PANIC, LATER = ZeroDivisionError("poison"), KeyError("also")


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ({}, None),
        ({"a": NotFound(404, "NotFound", "gone")}, None),
        ({"a": CONFLICT}, CONFLICT),
        ({"a": PANIC}, PANIC),
        ({"a": CONFLICT, "b": PANIC}, PANIC),
        ({"a": PANIC, "b": LATER}, PANIC),
    ],
)
def test_each_object_has_its_turn_and_the_first_error_is_raised(
    errors: dict[str, Exception], raised: Exception | None
) -> None:
    turns: list[str] = []

    def write(item: str) -> None:
        turns.append(item)
        if item in errors:
            raise errors[item]

    before = PANICS.labels("for each")._value.get()
    try:
        for_each("abc", write)
    except Exception as error:  # noqa: BLE001 the one that the loop would see
        assert error is raised
    else:
        assert raised is None
    assert turns == ["a", "b", "c"]
    assert PANICS.labels("for each")._value.get() - before == (LATER in errors.values())


def test_an_unavailable_server_ends_the_pass() -> None:
    turns: list[str] = []

    def write(item: str) -> None:
        turns.append(item)
        raise Unavailable(503, "ServiceUnavailable", "later")

    with pytest.raises(Unavailable):
        for_each("abc", write)
    assert turns == ["a"]
