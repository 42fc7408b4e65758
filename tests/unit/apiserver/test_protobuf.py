"""The protobuf that kubectl sends is read field by field; anything else is a clear refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube import Cluster, StatusError
from local.kube.protobuf import MAGIC, decode

from .objects import send


def number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(at: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return number(at << 3) + number(value)
    raw = value.encode() if isinstance(value, str) else value
    return number(at << 3 | 2) + number(len(raw)) + raw


def envelope(api_version: str, kind: str, message: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, message)


def entry(key: str, value: bytes | str) -> bytes:
    return field(1, key) + field(2, value)


def test_a_config_map_as_kubectl_sends_it() -> None:
    meta = field(1, "cfg") + field(3, "ns") + field(11, entry("app", "x"))
    raw = envelope(
        "v1", "ConfigMap", field(1, meta) + field(2, entry("a", "b")) + field(3, entry("c", b"\1"))
    )
    assert decode(raw) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cfg", "namespace": "ns", "labels": {"app": "x"}},
        "data": {"a": "b"},
        "binaryData": {"c": "AQ=="},
    }


def test_lists_numbers_pointers_and_quantities() -> None:
    port = field(1, "http") + field(3, 8080) + field(4, "TCP")
    limits = entry("cpu", field(1, "500m"))
    container = field(1, "c") + field(2, "img") + field(6, port) + field(8, field(1, limits))
    raw = envelope("v1", "Pod", field(2, field(2, container) + field(4, 0) + field(11, 0)))
    pod = decode(raw)
    assert pod["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "img",
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "500m"}},
            }
        ],
        # A pointer to zero is present; a false without a pointer is absent.
        "terminationGracePeriodSeconds": 0,
    }


def test_times_and_negative_numbers() -> None:
    meta = field(8, field(1, 1_700_000_000)) + field(7, (1 << 64) - 1)
    meta_decoded = decode(envelope("v1", "ConfigMap", field(1, meta)))["metadata"]
    assert meta_decoded == {"creationTimestamp": "2023-11-14T22:13:20Z", "generation": -1}


def test_a_budget_may_be_a_count_or_a_percentage() -> None:
    share, count = field(1, 1) + field(3, "50%"), field(1, 0) + field(2, 2)
    for raw, shown in ((share, "50%"), (count, 2)):
        budget = decode(envelope("policy/v1", "PodDisruptionBudget", field(2, field(1, raw))))
        assert budget["spec"] == {"minAvailable": shown}


def test_kubectl_create_namespace_in_protobuf(cluster: Cluster) -> None:
    body = envelope("v1", "Namespace", field(1, field(1, "demo")))
    response = send(
        cluster, "POST", "/api/v1/namespaces", body, Content_Type="application/vnd.kubernetes.protobuf"
    )
    assert response.status == 201
    assert cluster.get("/api/v1/namespaces/demo")["status"]["phase"] == "Active"


@pytest.mark.parametrize(
    ("raw", "code", "message"),
    [
        (b"{}", 400, "does not begin with the prefix"),
        (MAGIC, 400, "no protobuf"),
        (envelope("v1", "ConfigMap", b"\x0a\xff"), 400, "no protobuf"),
        (envelope("v1", "ConfigMap", b"\x0b\0"), 400, "unexpected wire type 3"),
        (envelope("example.com/v1", "Widget", b""), 415, "send JSON"),
    ],
)
def test_malformed_protobuf_is_refused(raw: bytes, code: int, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        decode(raw)
    assert refused.value.code == code
    assert message in refused.value.message


def test_an_out_of_range_time_is_refused() -> None:
    with pytest.raises(StatusError, match="no protobuf"):
        decode(envelope("v1", "ConfigMap", field(1, field(8, field(1, 1 << 62)))))


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    try:
        decode(envelope("v1", "Pod", raw))
    except StatusError as error:
        assert error.code == 400
