"""Names, labels and metadata: the permitted values, and the errors for others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube import Cluster, StatusError, names
from local.kube.ids import Ids

from .objects import CONFIGMAPS, configmap

Obj = dict[str, Any]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (names.dns_label, ["a", "a-b", "1", "a" * 63], ["", "A", "a.b", "-a", "a-", "a" * 64]),
        (names.dns_subdomain, ["a", "a.b", "1.2-3"], ["", "A", ".a", "a..b", "a" * 254]),
        (names.dns_1035_label, ["a", "a1"], ["1a", "a.b", ""]),
        (names.path_segment, ["system:node", "A b"], [".", "..", "a/b", "a%b"]),
        (
            names.qualified,
            ["a", "A_b.c", "example.com/a"],
            ["", "/a", "a/", "a/b/c", "-a", "EXAMPLE/a", "a" * 64],
        ),
        (names.label_value, ["", "a", "A_b.c-1"], ["-a", "a b", "a" * 64]),
    ],
)
def test_names_and_labels_are_validated(check: names.Check, good: list[str], bad: list[str]) -> None:
    assert [word for word in good if check(word)] == []
    assert [word for word in bad if not check(word)] == []


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"name": "A"}, 'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of'),
        (
            {"name": "a", "labels": {"-": "x"}},
            'metadata.labels: Invalid value: "-": name part must consist of',
        ),
        (
            {"name": "a", "labels": {"a": "b c"}},
            'metadata.labels: Invalid value: "b c": a valid label must be',
        ),
        ({"name": "a", "annotations": {"b c": ""}}, 'metadata.annotations: Invalid value: "b c"'),
        (
            {"name": "a", "annotations": {"b": "x" * 262145}},
            "metadata.annotations: Too long: may not be more",
        ),
        ({"name": "a", "generateName": "B"}, 'metadata.generateName: Invalid value: "B"'),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "", "name": "x", "uid": "u"}]},
            'metadata.ownerReferences.kind: Invalid value: "": must not be empty',
        ),
        (
            {
                "name": "a",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": True}
                    for name in "xy"
                ],
            },
            "Only one reference can have Controller set to true",
        ),
    ],
)
def test_invalid_metadata_is_refused(cluster: Cluster, meta: Obj, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        cluster.create(CONFIGMAPS, {"metadata": meta})
    assert refused.value.code == 422
    assert message in refused.value.message


def test_server_fields_are_immutable(cluster: Cluster) -> None:
    created = cluster.create(CONFIGMAPS, configmap("c"))
    changed = cluster.patch(f"{CONFIGMAPS}/c", {"metadata": {"creationTimestamp": "2000-01-01T00:00:00Z"}})
    assert changed["metadata"] == created["metadata"]
    with pytest.raises(StatusError, match="uid"):
        cluster.patch(f"{CONFIGMAPS}/c", {"metadata": {"uid": "other"}})


def test_generated_names_and_ids_follow_the_seed() -> None:
    first, second = Ids(7), Ids(7)
    assert [first.name("pod-"), first.uid()] == [second.name("pod-"), second.uid()]


def test_a_long_prefix_is_cut() -> None:
    assert len(Ids().name("x" * 100)) == 63


@given(prefix=st.from_regex(r"[a-z]([-a-z0-9]{0,60}[a-z0-9])?-", fullmatch=True), seed=st.integers(0, 99))
def test_a_generated_name_is_valid(prefix: str, seed: int) -> None:
    assert names.dns_subdomain(Ids(seed).name(prefix)) == []
