"""Merge patches and JSON patches, as RFC 7396 and RFC 6902 have them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.errors import StatusError
from local.kube.patches import json_patch, merge


# The examples of RFC 7396, appendix A.
@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch(document: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(document)
    assert merge(document, patch) == result
    assert document == before


@pytest.mark.parametrize(
    ("document", "operation", "result"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"op": "add", "path": "/a", "value": 2}, {"a": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
        ({"a": [1]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2]}),
        ({"a": [1, 2]}, {"op": "add", "path": "/a/-1", "value": 3}, {"a": [1, 2, 3]}),
        ({"a": {"b": 1}}, {"op": "remove", "path": "/a/b"}, {"a": {}}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": 1}, {"op": "replace", "path": "/a", "value": None}, {"a": None}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": 1}, {"a": 1}),
        ({"a": 1}, {"op": "test", "path": "/b"}, {"a": 1}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/c"}, {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": 1, "c~d": 2}, {"op": "remove", "path": "/a~1b"}, {"c~d": 2}),
        ({"a/b": 1, "c~d": 2}, {"op": "remove", "path": "/c~0d"}, {"a/b": 1}),
    ],
)
def test_a_json_patch(document: Any, operation: dict[str, Any], result: Any) -> None:
    before = copy.deepcopy(document)
    assert json_patch(document, [operation]) == result
    assert document == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/b"},
        {"op": "remove", "path": "/l/9"},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/l/x", "value": 1},
        {"op": "test", "path": "/a", "value": True},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "move", "from": "/b", "path": "/c"},
        {"op": "frob", "path": "/a"},
        {"op": "add", "value": 1},
    ],
)
def test_an_operation_that_does_not_apply_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as refused:
        json_patch({"a": 1, "l": [1]}, [operation])
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")


def test_a_patch_that_is_too_long_is_refused() -> None:
    with pytest.raises(StatusError, match="allowed maximum operations in a JSON patch is 10000, got 10001"):
        json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)


leaves = st.integers(0, 3) | st.booleans() | st.text("xy", max_size=1)
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner)
)
objects = st.dictionaries(st.sampled_from("abc"), documents)


def between(old: Any, new: Any) -> Any:
    """The merge patch that makes `new` of `old`."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    out: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old or old[key] != value or type(old[key]) is not type(value):
            out[key] = between(old.get(key), value)
    return out


@given(old=objects, new=objects)
def test_a_merge_patch_between_two_objects_gives_the_second(old: Any, new: Any) -> None:
    assert merge(old, between(old, new)) == new


@given(old=objects, patch=objects)
def test_merging_is_idempotent(old: Any, patch: Any) -> None:
    once = merge(old, patch)
    assert merge(once, patch) == once
