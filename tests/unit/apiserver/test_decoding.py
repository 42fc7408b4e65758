"""Objects are read as strictly as Go structs: types, unknown and repeated fields, and empty values."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.decode import Mismatch, decode
from local.kube.duplicates import duplicates
from local.kube.shape import builtin

Obj = dict[str, Any]


def read(kind: str, obj: Obj, *, group: str = "", version: str = "v1") -> tuple[Obj, list[str]]:
    shape = builtin(group, version, kind)
    assert shape is not None
    unknown: list[str] = []
    return decode(obj, shape, unknown=unknown), unknown


def test_unknown_fields_are_dropped_and_reported() -> None:
    out, unknown = read("Pod", {"spec": {"containers": [{"name": "a", "frob": 1}], "x": 2}, "y": {}})
    assert "frob" not in out["spec"]["containers"][0]
    assert unknown == [
        'unknown field "spec.containers[0].frob"',
        'unknown field "spec.x"',
        'unknown field "y"',
    ]


def test_a_decoded_object_is_a_deep_copy() -> None:
    given_obj: Obj = {"metadata": {"labels": {"a": "b"}}, "data": {"k": "v"}}
    out, _ = read("ConfigMap", given_obj)
    out["metadata"]["labels"]["a"] = "changed"
    out["data"]["k"] = "changed"
    assert given_obj == {"metadata": {"labels": {"a": "b"}}, "data": {"k": "v"}}


def test_empty_and_null_fields_are_left_out() -> None:
    out, _ = read("ConfigMap", {"metadata": {"labels": {}, "annotations": None}, "data": {}})
    assert "data" not in out
    assert not {"labels", "annotations"} & set(out["metadata"])


def test_a_pointer_keeps_its_zero() -> None:
    out, _ = read("Deployment", {"spec": {"replicas": 0, "paused": False}}, group="apps")
    assert out["spec"]["replicas"] == 0
    assert "paused" not in out["spec"]


def test_values_get_their_canonical_form() -> None:
    limits = {"cpu": "1000m", "memory": "1024Mi"}
    pod = {"spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]}}
    out, _ = read("Pod", pod)
    assert out["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}


def test_a_number_is_read_as_a_quantity() -> None:
    out, _ = read("ResourceQuota", {"spec": {"hard": {"cpu": 2}}})
    assert out["spec"]["hard"] == {"cpu": "2"}


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (
            {"spec": {"containers": {}}},
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type "
            "[]v1.Container",
        ),
        (
            {"spec": {"nodeName": 5}},
            "json: cannot unmarshal number into Go struct field PodSpec.spec.nodeName of type string",
        ),
        (
            {"spec": {"priority": "high"}},
            "json: cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            {"metadata": {"labels": {"a": 1}}},
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            {"spec": {"containers": [{"name": "a", "ports": 5}]}},
            "json: cannot unmarshal number into Go struct field Container.spec.containers.ports of type "
            "[]v1.ContainerPort",
        ),
        (
            {"spec": {"hostNetwork": "yes"}},
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_named(obj: Obj, message: str) -> None:
    with pytest.raises(Mismatch) as wrong:
        read("Pod", obj)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("quantity", "message"),
    [("1x", "quantities must match the regular expression"), ("", "empty quantity"), (True, "quantities")],
)
def test_a_wrong_quantity_is_named(quantity: Any, message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        read("ResourceQuota", {"spec": {"hard": {"cpu": quantity}}})


def test_a_wrong_time_is_named() -> None:
    with pytest.raises(Mismatch, match='parsing time "soon"'):
        read("Pod", {"metadata": {"creationTimestamp": "soon"}})


def test_secret_data_must_be_base64() -> None:
    assert read("Secret", {"data": {"a": "Yg=="}})[0]["data"] == {"a": "Yg=="}
    with pytest.raises(Mismatch, match="illegal base64 data at input byte 0"):
        read("Secret", {"data": {"a": "!!"}})


@pytest.mark.parametrize("value", [80, "http", "25%"])
def test_an_int_or_string_is_either(value: Any) -> None:
    budget = {"spec": {"minAvailable": value}}
    assert read("PodDisruptionBudget", budget, group="policy")[0]["spec"]["minAvailable"] == value


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('{"a": 1}', []),
        ('{"a": 1, "a": 2}', ['duplicate field "a"']),
        ('{"a": {"b": 1, "b": 1}}', ['duplicate field "a.b"']),
        ('{"l": [{"x": 1}, {"x": 1, "x": 2}]}', ['duplicate field "l[1].x"']),
        ('{"a": "\\":", "b": "\\":"}', []),
        ('{"a":1,"a":1,"a":1}', ['duplicate field "a"'] * 2),
    ],
)
def test_repeated_fields_are_reported(text: str, reported: list[str]) -> None:
    assert duplicates(text.encode(), orjson.loads(text)) == reported


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(value=json_values)
def test_a_document_without_duplicates_has_no_report(value: Any) -> None:
    assert duplicates(orjson.dumps(value, option=orjson.OPT_INDENT_2), value) == []


@given(obj=st.dictionaries(st.sampled_from(["metadata", "data", "binaryData", "immutable"]), json_values))
def test_any_json_is_refused_or_decoding_is_idempotent(obj: Obj) -> None:
    try:
        once, _ = read("ConfigMap", obj)
    except Mismatch:
        return
    twice, unknown = read("ConfigMap", once)
    assert (twice, unknown) == (once, [])


@pytest.mark.parametrize("seconds", [1e300, -1e300, 2**63, 2**64 - 1])
def test_an_integer_of_more_than_64_bits_is_refused(seconds: float) -> None:
    with pytest.raises(Mismatch, match="cannot unmarshal number"):
        read("Pod", {"spec": {"terminationGracePeriodSeconds": seconds}})
