"""Label selectors as text and as objects, field selectors, and the errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.errors import StatusError
from local.kube.selectors import fields, labels, matches, path_reader


def selects(text: str, have: dict[str, str]) -> bool:
    return labels(text)({"metadata": {"labels": have}})


@pytest.mark.parametrize(
    ("text", "have", "expected"),
    [
        ("", {}, True),
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "1"}, True),
        ("a=1", {}, False),
        ("a!=1", {"a": "1"}, False),
        ("a!=1", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("!a", {}, True),
        ("a=", {"a": ""}, True),
        ("a in (1,2)", {"a": "2"}, True),
        ("a in (1, 2)", {"a": "3"}, False),
        ("a in (1)", {}, False),
        ("a notin (1)", {}, True),
        ("a notin (1,2)", {"a": "2"}, False),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "5"}, False),
        ("a<5", {"a": "4"}, True),
        ("a>5", {"a": "x"}, False),
        ("a=1,b", {"a": "1"}, False),
        ("a=1,b", {"a": "1", "b": "x"}, True),
        (" a = 1 , b = 2 ", {"a": "1", "b": "2"}, True),
        ("example.com/a in (x)", {"example.com/a": "x"}, True),
        ("in in (in)", {"in": "in"}, True),
    ],
)
def test_labels_are_selected(text: str, have: dict[str, str], expected: bool) -> None:
    assert selects(text, have) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
    ],
)
def test_a_wrong_label_selector_is_a_bad_request(text: str, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        labels(text)
    assert refused.value.code == 400
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("selector", "have", "expected"),
    [
        (None, {"a": "1"}, False),
        ({}, {}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "2"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {"a": "1"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
    ],
)
def test_a_selector_object(selector: Any, have: dict[str, str], expected: bool) -> None:
    assert matches(selector, have) is expected


KNOWN = {"metadata.name": path_reader("metadata.name"), "spec.ready": path_reader("spec.ready")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metadata.name=x", True),
        ("metadata.name==x", True),
        ("metadata.name!=x", False),
        ("metadata.name=x,spec.ready=true", True),
        ("spec.ready=false", False),
        ("spec.ready!=", True),
    ],
)
def test_fields_are_selected(text: str, expected: bool) -> None:
    chosen = fields(text, KNOWN, "no {name}")
    assert chosen is not None
    assert chosen({"metadata": {"name": "x"}, "spec": {"ready": True}}) is expected


def test_a_value_may_hold_an_escaped_comma() -> None:
    chosen = fields(r"metadata.name=a\,b", KNOWN, "")
    assert chosen is not None
    assert chosen({"metadata": {"name": "a,b"}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metadata.name", "can't understand 'metadata.name'"),
        ("spec.other=1", "no spec.other"),
        ("metadata.name=a=b", "unescaped character"),
    ],
)
def test_a_wrong_field_selector_is_a_bad_request(text: str, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        fields(text, KNOWN, "no {name}")


def test_empty_field_selector_matches_everything() -> None:
    assert fields("", KNOWN, "") is None


words = st.text("abc", min_size=1, max_size=2)


@given(key=words, value=words, have=st.dictionaries(words, words, max_size=3))
def test_not_equal_is_the_opposite_of_equal(key: str, value: str, have: dict[str, str]) -> None:
    assert selects(f"{key}={value}", have) is not selects(f"{key}!={value}", have)


@given(text=st.text("ab=!(),<> in", max_size=12))
def test_any_text_selects_or_is_refused(text: str) -> None:
    try:
        labels(text)({"metadata": {}})
    except StatusError as error:
        assert error.code == 400
