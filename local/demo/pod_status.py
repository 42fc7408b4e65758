"""The status of a running pod, as a kubelet writes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from broker.kube.conditions import timestamp

_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
Json = dict[str, Any]


def running(pod: Json, address: str, at: datetime) -> Json:
    """The status of a pod that runs since `at`."""
    now = timestamp(at)
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    known = [c for c in pod.get("status", {}).get("conditions", ()) if c["type"] not in _CONDITIONS]
    own = [{"type": type_, "status": "True", "lastTransitionTime": now} for type_ in _CONDITIONS]
    return {
        "phase": "Running",
        "conditions": [*known, *own],
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "containerStatuses": containers,
    }
