"""The gang of a pod by each mark."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Pod
from broker.placement.gangs import (
    ALONE,
    NATIVE,
    PLUGINS,
    GroupRef,
    GroupSize,
    PodGang,
    gang_of,
    is_member,
    waits_for_pods,
)

SIZES = {
    GroupRef(NATIVE, "ns", "g"): GroupSize(size=3),
    GroupRef(NATIVE, "ns", "basic"): GroupSize(alone=True),
    GroupRef(NATIVE, "ns", "none"): GroupSize(absent=True),
    GroupRef(NATIVE, "ns", "w", "part"): GroupSize(size=2),
    GroupRef(PLUGINS, "ns", "g"): GroupSize(size=4),
}
COUNT = "kueue.x-k8s.io/pod-group-total-count"


def pod(*, phase: str = "", **parts: Any) -> Pod:
    spec = parts.pop("spec", {})
    body = {"metadata": {"name": "p", "namespace": "ns", **parts}, "spec": spec, "status": {"phase": phase}}
    return Pod.decode(body)


@pytest.mark.covers("FLT-42")
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, ALONE),
        ({"spec": {"schedulingGroup": {"podGroupName": "g"}}}, PodGang(name="ns/g", size=3)),
        ({"spec": {"schedulingGroup": {"podGroupName": "basic"}}}, ALONE),
        ({"spec": {"schedulingGroup": {"podGroupName": "none"}}}, PodGang(name="ns/none", absent=True)),
        (
            {"spec": {"workloadRef": {"name": "w", "podGroup": "part", "podGroupReplicaKey": "1"}}},
            PodGang(name="ns/w/part/1", size=2),
        ),
        ({"spec": {"workloadRef": {"name": "w", "podGroup": "part"}}}, PodGang(name="ns/w/part", size=2)),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, PodGang(name="ns/g", size=4)),
        (
            {"labels": {"kueue.x-k8s.io/pod-group-name": "k"}, "annotations": {COUNT: "5"}},
            PodGang(name="ns/k", size=5),
        ),
        ({"labels": {"jobset.sigs.k8s.io/jobset-name": "j"}}, PodGang(name="ns/j")),
        (
            {
                "annotations": {"capacity-broker.io/gang": "own"},
                "spec": {"schedulingGroup": {"podGroupName": "g"}},
            },
            PodGang(name="ns/own"),
        ),
    ],
)
def test_the_first_mark_of_a_pod_is_its_gang(parts: dict[str, Any], expected: PodGang) -> None:
    assert gang_of(pod(**parts), lambda group: SIZES.get(group, GroupSize())) == expected


@pytest.mark.covers("FLT-42")
def test_a_pod_that_succeeded_counts_to_its_gang_and_one_that_failed_does_not() -> None:
    phases = ("", "Pending", "Running", "Succeeded", "Failed")
    assert [is_member(pod(phase=phase)) for phase in phases] == [True, True, True, True, False]
    assert not is_member(pod(deletionTimestamp="2026-11-01T00:00:00Z"))


@pytest.mark.covers("FLT-42")
def test_a_gang_waits_for_its_pods_and_for_its_group() -> None:
    assert "1 of 2 pods" in waits_for_pods(PodGang(name="ns/g", size=2), 1, 1)
    assert waits_for_pods(PodGang(name="ns/g", size=2), 2, 2) == ""
    assert "1 of 2 pods are ready" in waits_for_pods(PodGang(name="ns/g", size=2), 3, 1)
    assert waits_for_pods(PodGang(name="ns/g"), 1, 0) == ""
    assert "once the group exists" in waits_for_pods(PodGang(name="ns/g", absent=True), 9, 9)


@pytest.mark.covers("FLT-42")
@pytest.mark.parametrize(
    ("name", "size"),
    [("capacity-broker.io/gang", "capacity-broker.io/gang-size"), ("kueue.x-k8s.io/pod-group-name", COUNT)],
)
@pytest.mark.parametrize("text", ["three", "-1", "2.5", "1e9"])
def test_a_gang_whose_size_cannot_be_read_waits_with_the_field_as_its_reason(
    name: str, size: str, text: str
) -> None:
    gang = gang_of(pod(annotations={name: "g", size: text}), lambda _: GroupSize())
    why = waits_for_pods(gang, 9, 9)
    assert f"metadata.annotations[{size}] is {text!r}" in why and "write how many pods" in why
