"""Pods and disruption: those that need another node, and those that keep theirs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.policy import PodDisruptionBudget
from broker.placement.disruption_pods import blocker, reschedulable

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAEMON = {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "1"}]}}
SET = {"metadata": {"ownerReferences": [{"kind": "StatefulSet", "name": "s", "uid": "1"}]}}
GOING = {"metadata": {"deletionTimestamp": "2026-11-22T11:00:00Z"}}
STATIC = {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}
ENDED = {"status": {"phase": "Succeeded"}}
DEVICES = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}}
DEVICE_WORDS = "in spec.resourceClaims, which no other node is known to have"
DRAIN_TOLERANT = {"spec": {"tolerations": [{"key": names.DISRUPTED_TAINT, "operator": "Exists"}]}}


def pod(*parts: dict[str, Any], note: str = "", started: str = "2026-11-22T11:30:00Z") -> Pod:
    body: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "web"}},
        "status": {"phase": "Running", "startTime": started},
        "spec": {},
    }
    for part in parts:
        for key, value in part.items():
            body[key] = {**body[key], **value}
    if note:
        body["metadata"]["annotations"] = {names.DO_NOT_DISRUPT: note}
    return Pod.decode(body)


def budget(
    allowed: int, *, namespace: str = "default", app: str = "web", policy: str = "", name: str = ""
) -> Any:
    return PodDisruptionBudget.decode(
        {
            "metadata": {"name": name or f"b-{app}", "namespace": namespace},
            "spec": {"selector": {"matchLabels": {"app": app}}, "unhealthyPodEvictionPolicy": policy},
            "status": {"disruptionsAllowed": allowed},
        }
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pod(), True),
        (pod(DAEMON), False),
        (pod(STATIC), False),
        (pod(ENDED), False),
        (pod(GOING), False),
        (pod({"metadata": {**SET["metadata"], **GOING["metadata"], "name": "p"}}), True),
    ],
)
def test_pods_that_need_another_node(given: Pod, expected: bool) -> None:
    assert reschedulable(given) is expected


@pytest.mark.parametrize(
    ("given", "budgets", "expected"),
    [
        (pod(), [], ""),
        (pod(), [budget(1)], ""),
        (pod(), [budget(0)], "Pdb prevents pod evictions (PodDisruptionBudget=default/b-web)"),
        (pod(), [budget(0, namespace="other")], ""),
        (pod(), [budget(0, app="db")], ""),
        *(
            (
                pod({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}}),
                [budget(1, policy="AlwaysAllow"), budget(1, name="two", policy="AlwaysAllow")],
                "Pdb prevents pod evictions (PodDisruptionBudget=default/b-web, default/two)",
            )
            for ready in ("True", "False")
        ),
        (pod(DRAIN_TOLERANT), [budget(0)], ""),
        (pod(STATIC), [budget(0)], ""),
        (pod(ENDED), [budget(0)], ""),
        (
            pod({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}),
            [budget(0, policy="AlwaysAllow")],
            "",
        ),
        (pod(note="true"), [], f'Pod has "{names.DO_NOT_DISRUPT}" annotation (Pod=default/p)'),
        (pod(note="1h"), [], f'Pod has "{names.DO_NOT_DISRUPT}" annotation (Pod=default/p)'),
        (pod(note="10m"), [], ""),
        (pod(note="false"), [], ""),
        (pod(ENDED, note="true"), [], ""),
        (pod(DEVICES), [], f"Pod asks for devices {DEVICE_WORDS} (Pod=default/p)"),
        (pod(DEVICES, DAEMON), [], ""),
        (pod(DEVICES, ENDED), [], ""),
    ],
)
def test_pods_that_keep_their_node(given: Pod, budgets: list[PodDisruptionBudget], expected: str) -> None:
    assert blocker([given], budgets, NOW) == expected
