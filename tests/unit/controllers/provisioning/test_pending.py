"""Pods that get a machine, and those that must not."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Pod
from broker.controllers.provisioning.pending import provisionable

Json = dict[str, Any]
WAITS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "u"}


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("metadata", "spec", "status", "gets_machine"),
    [
        ({}, {}, {}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/kept"]}, {}, {}, False),
        ({}, {"nodeName": "n"}, {}, False),
        ({}, {}, {"phase": "Succeeded"}, False),
        ({}, {}, {"phase": "Failed"}, False),
        ({}, {}, {"conditions": []}, False),  # the scheduler has not tried yet
        ({}, {}, {"conditions": [{**WAITS, "reason": "SchedulingGated"}]}, False),
        ({"ownerReferences": [DAEMON_SET]}, {}, {}, False),
        ({"ownerReferences": [{**DAEMON_SET, "apiVersion": "v1", "kind": "Node"}]}, {}, {}, False),
        ({"ownerReferences": [{**DAEMON_SET, "kind": "ReplicaSet"}]}, {}, {}, True),
    ],
)
def test_only_a_pod_that_waits_for_room_gets_a_machine(
    metadata: Json, spec: Json, status: Json, gets_machine: bool
) -> None:
    pod = Pod.decode(
        {
            "metadata": {"name": "p", "namespace": "default", **metadata},
            "spec": spec,
            "status": {"phase": "Pending", "conditions": [WAITS], **status},
        }
    )
    assert provisionable(pod) is gets_machine
