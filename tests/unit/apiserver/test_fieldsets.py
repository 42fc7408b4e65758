"""Sets of fields behave as sets, and show themselves as managedFields do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.apply.compare import compare, fields_of
from local.kube.apply.fields import Fields, difference, intersection, paths, union
from local.kube.shape import Shape, builtin

Path = tuple[str, ...]
paths_given = st.frozensets(
    st.lists(st.sampled_from(["f:a", "f:b", "f:c"]), min_size=1, max_size=3).map(tuple)
)


def field_tree(members: frozenset[Path]) -> Fields:
    out: Fields = {}
    for member in members:
        node = out
        for step in member:
            node = node.setdefault(step, {})
    # A member with members below it is marked; a node that is only on the way is not.
    return _marked(out, members, ())


def _marked(node: Fields, members: frozenset[Path], path: Path) -> Fields:
    out = {step: _marked(inner, members, (*path, step)) for step, inner in node.items()}
    return {".": {}, **out} if out and path in members else out


def members_of(fields: Fields, path: Path = ()) -> frozenset[Path]:
    out = {path} if path and (not fields or "." in fields) else set()
    for step, inner in fields.items():
        if step != ".":
            out |= members_of(inner, (*path, step))
    return frozenset(out)


@given(paths_given)
def test_a_set_is_read_back(members: frozenset[Path]) -> None:
    assert members_of(field_tree(members)) == members


@given(paths_given, paths_given)
def test_operations_are_those_of_sets(left: frozenset[Path], right: frozenset[Path]) -> None:
    assert members_of(union(field_tree(left), field_tree(right))) == left | right
    assert members_of(difference(field_tree(left), field_tree(right))) == left - right
    assert members_of(intersection(field_tree(left), field_tree(right))) == left & right


@given(paths_given, paths_given)
def test_recursive_difference_takes_lower_fields_too(left: frozenset[Path], right: frozenset[Path]) -> None:
    kept = {path for path in left if not any(path[: len(other)] == other for other in right)}
    assert members_of(difference(field_tree(left), field_tree(right), below=True)) == kept


def test_members_are_shown_as_errors_name_them() -> None:
    fields: Fields = {
        "f:spec": {"f:list": {'k:{"name":"a"}': {".": {}, "f:x": {}}}, "f:set": {'v:"one"': {}}}
    }
    assert list(paths(fields)) == ['.spec.list[name="a"]', '.spec.list[name="a"].x', '.spec.set[="one"]']


def shape_of(kind: str, group: str = "") -> Shape:
    shape = builtin(group, "v1", kind)
    assert shape is not None
    return shape


def test_an_object_has_a_field_for_every_leaf_and_entry() -> None:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert fields_of(pod, shape_of("Pod")) == {
        "f:metadata": {"f:labels": {"f:a": {}}},
        "f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:image": {}, "f:name": {}}}},
    }


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ({"data": {"a": "1"}}, {"data": {"a": "2"}}, {".data.a"}),
        ({"data": {"a": "1"}}, {"data": {"a": "1"}}, set()),
        ({"data": {"a": "1"}}, {"data": {"a": "1", "b": "2"}}, {".data.b"}),
        ({"data": {"a": "1", "b": "2"}}, {"data": {"a": "1"}}, {".data.b"}),
    ],
)
def test_comparison_finds_the_differences(old: Any, new: Any, changed: set[str]) -> None:
    comparison = compare(old, new, shape_of("ConfigMap"))
    assert {*paths(comparison.added), *paths(comparison.modified), *paths(comparison.removed)} == changed


values = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)


@given(old=values, new=values)
def test_added_fields_are_removed_in_the_reverse_comparison(old: dict[str, str], new: dict[str, str]) -> None:
    shape = shape_of("ConfigMap")
    forth, back = compare({"data": old}, {"data": new}, shape), compare({"data": new}, {"data": old}, shape)
    assert (forth.added, forth.removed, forth.modified) == (back.removed, back.added, back.modified)
