"""Refusals by a definition's schema and their texts; formats, pruning, defaults and list types."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.crd import lists, schema, structural
from local.kube.crd.formats import CHECKS

Obj = dict[str, Any]


def problems_of(rules: Obj, value: Any) -> list[str]:
    return [str(problem) for problem in schema.compiled(rules)(value, "spec.x")]


@pytest.mark.parametrize(
    ("rules", "value", "message"),
    [
        ({"type": "string"}, 5, 'Invalid value: "integer": spec.x in body must be of type string: "integer"'),
        (
            {"type": "integer"},
            "a",
            'Invalid value: "string": spec.x in body must be of type integer: "string"',
        ),
        (
            {"type": "integer"},
            1.5,
            'Invalid value: "number": spec.x in body must be of type integer: "number"',
        ),
        ({"type": "boolean"}, None, 'Invalid value: "null": spec.x in body must be of type boolean: "null"'),
        ({"type": "object"}, [], 'Invalid value: "array": spec.x in body must be of type object: "array"'),
        (
            {"type": "integer", "minimum": 1},
            0,
            "Invalid value: 0: spec.x in body should be greater than or equal to 1",
        ),
        (
            {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            0,
            "Invalid value: 0: spec.x in body should be greater than 0",
        ),
        (
            {"type": "integer", "maximum": 3},
            4,
            "Invalid value: 4: spec.x in body should be less than or equal to 3",
        ),
        (
            {"type": "integer", "multipleOf": 2},
            3,
            "Invalid value: 3: spec.x in body should be a multiple of 2",
        ),
        (
            {"type": "string", "minLength": 2},
            "a",
            'Invalid value: "a": spec.x in body should be at least 2 chars long',
        ),
        ({"type": "string", "maxLength": 1}, "ab", "Too long: may not be more than 1 byte"),
        (
            {"type": "string", "pattern": "^a+$"},
            "b",
            "Invalid value: \"b\": spec.x in body should match '^a+$'",
        ),
        ({"type": "string", "enum": ["a", "b"]}, "c", 'Unsupported value: "c": supported values: "a", "b"'),
        (
            {"type": "array", "items": {}, "minItems": 1},
            [],
            "Invalid value: 0: spec.x in body should have at least 1 items",
        ),
        ({"type": "array", "items": {}, "maxItems": 1}, [1, 2], "Too many: 2: must have at most 1 item"),
        ({"type": "object", "required": ["a"]}, {}, "Required value"),
        (
            {"type": "string", "format": "date-time"},
            "soon",
            'Invalid value: "soon": spec.x in body must be of type date-time: "soon"',
        ),
    ],
)
def test_invalid_value_is_reported(rules: Obj, value: Any, message: str) -> None:
    assert message in problems_of(rules, value)[0]


@pytest.mark.parametrize(
    ("rules", "value"),
    [
        ({"x-kubernetes-int-or-string": True}, "25%"),
        ({"x-kubernetes-int-or-string": True}, 5),
        ({"type": "string", "nullable": True}, None),
        ({"x-kubernetes-preserve-unknown-fields": True}, {"any": [1, "x"]}),
        ({"type": "number"}, 3),
        ({"type": "string", "format": "frob"}, "anything"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x"),
        ({"not": {"type": "integer"}}, "x"),
    ],
)
def test_a_valid_value_is_accepted(rules: Obj, value: Any) -> None:
    assert problems_of(rules, value) == []


@pytest.mark.parametrize(
    ("rules", "value", "word"),
    [
        ({"anyOf": [{"minimum": 5}, {"minimum": 7}]}, 3, "anyOf"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "oneOf"),
        ({"allOf": [{"minimum": 5}]}, 3, "allOf"),
        ({"not": {"minimum": 1}}, 3, "must not validate the schema (not)"),
    ],
)
def test_combined_schemas_are_checked(rules: Obj, value: Any, word: str) -> None:
    assert any(word in problem for problem in problems_of({"type": "integer", **rules}, value))


def test_nested_problems_name_their_path() -> None:
    rules = {"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}}}
    assert problems_of(rules, {"l": [1, "a"]})[0].startswith("spec.x.l[1]: ")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("datetime", "2023-11-14T22:13:20Z", "2023-11-14"),
        ("date", "2023-11-14", "14.11.2023"),
        ("duration", "1h30m", "soon"),
        ("ipv4", "10.0.0.1", "::1"),
        ("ipv6", "::1", "10.0.0.1"),
        ("cidr", "10.0.0.0/8", "10.0.0.0"),
        ("mac", "00:00:5e:00:53:01", "00:00"),
        ("email", "a@b.c", "a"),
        ("hostname", "a.example.com", "-a"),
        ("uri", "https://example.com", "example"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        ("byte", "YQ==", "!"),
    ],
)
def test_formats(name: str, good: str, bad: str) -> None:
    assert CHECKS[name](good)
    assert not CHECKS[name](bad)


FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
ROOT: Obj = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "known": {"type": "string"},
                "count": {"type": "integer", "default": 3},
                "free": {**FREE, "properties": {"typed": {"type": "object", "properties": {"a": {}}}}},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "list": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}},
                },
                "deep": {
                    "type": "object",
                    "default": {},
                    "properties": {"x": {"type": "string", "default": "y"}},
                },
            },
        }
    },
}


def test_unknown_fields_are_pruned_unless_preserved() -> None:
    obj: Obj = {
        "apiVersion": "example.com/v1",
        "metadata": {"name": "w"},
        "other": 1,
        "spec": {
            "known": "k",
            "unknown": 1,
            "free": {"x": 1, "typed": {"a": 1, "b": 2}},
            "map": {"any": "v"},
            "list": [{"n": 1, "m": 2}],
        },
    }
    unknown: list[str] = []
    structural.prune(obj, ROOT, unknown)
    assert unknown == ["other", "spec.free.typed.b", "spec.list[0].m", "spec.unknown"]
    assert obj["spec"] == {
        "known": "k",
        "free": {"x": 1, "typed": {"a": 1}},
        "map": {"any": "v"},
        "list": [{"n": 1}],
    }
    assert obj["metadata"] == {"name": "w"}


def test_defaults_fill_missing_fields_recursively() -> None:
    obj: Obj = {"spec": {"list": [{}, {"n": 5}], "count": None}}
    structural.default(obj, ROOT)
    assert obj["spec"] == {"list": [{"n": 1}, {"n": 5}], "count": 3, "deep": {"x": "y"}}


def test_a_null_without_a_default_is_dropped() -> None:
    obj: Obj = {"spec": {"known": None, "count": None}}
    structural.drop_nulls(obj, ROOT)
    assert obj["spec"] == {"count": None}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["spec", "known", "count", "free", "map", "list", "n", "deep", "x"]), inner
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["spec", "kind", "zzz"]), json_values))
def test_pruning_and_defaulting_are_idempotent(obj: Obj) -> None:
    once = copy.deepcopy(obj)
    structural.prune(once, ROOT, [])
    structural.default(once, ROOT)
    twice, unknown = copy.deepcopy(once), list[str]()
    structural.prune(twice, ROOT, unknown)
    structural.default(twice, ROOT)
    assert (twice, unknown) == (once, [])


def listed(kind: str, **more: Any) -> Obj:
    items = {"type": "object"} if kind == "map" else {"type": "string"}
    inner = {"type": "array", "x-kubernetes-list-type": kind, "items": items, **more}
    return {"type": "object", "properties": {"l": inner}}


def test_a_set_has_no_value_twice() -> None:
    (problem,) = lists.check({"l": ["a", "b", "a"]}, listed("set"))
    assert str(problem) == 'l[2]: Duplicate value: "a"'
    assert lists.check({"l": ["a", "b"]}, listed("set")) == []


def test_a_keyed_list_has_no_key_twice() -> None:
    keyed = listed("map", **{"x-kubernetes-list-map-keys": ["k"]})
    (problem,) = lists.check({"l": [{"k": 1, "v": 1}, {"k": 1, "v": 2}]}, keyed)
    assert str(problem) == 'l[1]: Duplicate value: {"k":1}'
    assert lists.check({"l": [{"k": 1}, {"k": 2}]}, keyed) == []


def test_an_atomic_list_may_repeat() -> None:
    assert lists.check({"l": ["a", "a"]}, listed("atomic")) == []
