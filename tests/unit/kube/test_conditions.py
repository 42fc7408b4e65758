"""Conditions, finalizers and owners: the writes, and when nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.meta import Condition, ConditionUpdate
from broker.kube.conditions import (
    add_finalizer,
    changed,
    condition_body,
    owner_reference,
    remove_condition,
    remove_finalizer,
    set_conditions,
)
from broker.text import format_time
from local.kube.patches import merge
from tests.support.kube_server import Thing, thing

THEN = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 13, 0, 0, 250_000, tzinfo=UTC)
READY = Condition(
    type="Ready", status="True", reason="Ok", message="fine", last_transition_time=THEN, observed_generation=1
)
LIVE = Condition(type="Live", status="True", last_transition_time=THEN)


def test_the_transition_time_moves_only_with_the_status() -> None:
    (same, other) = set_conditions(
        (READY, LIVE),
        ConditionUpdate(type="Ready", status="True", reason="Better", message="even finer"),
        now=NOW,
        observed_generation=2,
    )
    assert (same.last_transition_time, same.reason, same.observed_generation) == (THEN, "Better", 2)
    assert other is LIVE
    (turned, _) = set_conditions(
        (READY, LIVE), ConditionUpdate(type="Ready", status="False", reason="Gone"), now=NOW
    )
    assert turned.last_transition_time == NOW.replace(microsecond=0)


def test_the_transition_time_is_that_of_an_update_which_has_one() -> None:
    since = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
    update = ConditionUpdate(type="Ready", status="True", reason="Ok", message="fine", since=since)
    (ready,) = set_conditions((READY,), update, now=NOW, observed_generation=1)
    assert ready.last_transition_time == since
    assert set_conditions((ready,), update, now=NOW, observed_generation=1) == (ready,)
    unknown = ConditionUpdate(type="Ready", status="True", reason="Ok", message="fine")
    assert set_conditions((ready,), unknown, now=NOW, observed_generation=1) == (ready,)
    (new,) = set_conditions((), update, now=NOW)
    assert new.last_transition_time == since


def test_a_new_condition_is_appended_and_a_condition_can_be_removed() -> None:
    conditions = set_conditions(
        (READY,), ConditionUpdate(type="Launched", status="Unknown", reason="Waiting"), now=NOW
    )
    assert [c.type for c in conditions] == ["Ready", "Launched"]
    assert remove_condition(conditions, "Ready") == conditions[1:]


def test_a_condition_is_sent_with_every_required_field_and_whole_seconds() -> None:
    assert condition_body(READY) == {
        "type": "Ready",
        "status": "True",
        "reason": "Ok",
        "message": "fine",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
        "observedGeneration": 1,
    }
    assert condition_body(Condition(type="A")) == {
        "type": "A",
        "status": "Unknown",
        "reason": "",
        "message": "",
    }


def test_times_are_written_in_utc() -> None:
    assert format_time(THEN) == "2026-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (None, {}, False),
        (None, {"a": 1}, True),
        ({"a": 1, "theirs": 2}, {"a": 1}, False),
        ({"a": {"b": 1, "theirs": 2}}, {"a": {"b": 1}}, False),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, True),
        ({"a": [1, 2]}, {"a": [1]}, True),
        ({"a": [{"b": 1, "theirs": 0}]}, {"a": [{"b": 1}]}, False),
        ({}, {"a": [], "b": None, "c": {}}, False),
        ({"a": [1]}, {"a": []}, True),
        ({"a": {"b": 1}}, {"a": {}}, True),
        ({"a": 0}, {"a": None}, True),
        ({}, {"a": 0}, True),
        ({}, {"a": False}, True),
        ({"a": 1}, {"a": {"b": 1}}, True),
    ],
)
def test_only_a_different_field_of_the_new_object_is_a_change(old: Any, new: Any, differs: bool) -> None:
    assert changed(old, new) is differs


values = st.recursive(
    st.one_of(st.integers(0, 3), st.booleans(), st.text(max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abc"), values), st.dictionaries(st.sampled_from("abc"), values))
def test_a_merged_object_has_no_change_left(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert not changed(merge(old, new), new)
    assert changed(old, new) or merge(old, new) == old


def test_a_finalizer_is_added_and_removed_at_the_read_version() -> None:
    meta = {"finalizers": ["other"], "resourceVersion": "7"}
    obj = Thing.decode(thing("a", metadata=meta))
    body = add_finalizer(obj, "ours")
    assert body == {"metadata": {"finalizers": ["other", "ours"], "resourceVersion": "7"}}
    assert remove_finalizer(obj, "ours") is None
    finalized = Thing.decode(merge(thing("a", metadata=meta), body))
    assert add_finalizer(finalized, "ours") is None
    assert remove_finalizer(finalized, "ours") == {
        "metadata": {"finalizers": ["other"], "resourceVersion": "7"}
    }


def test_an_owner_reference_has_the_uid() -> None:
    owner = Thing.decode(thing("a", metadata={"uid": "u"}))
    assert owner_reference(owner) == {
        "apiVersion": "test.io/v1",
        "kind": "Thing",
        "name": "a",
        "uid": "u",
        "controller": True,
        "blockOwnerDeletion": True,
    }
