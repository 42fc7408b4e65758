"""The status of a running pod, as a kubelet writes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from broker.text import format_time

_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
Json = dict[str, Any]


def running(pod: Json, address: str, at: datetime) -> Json:
    """The status of a pod that runs since `at`."""
    now = format_time(at)
    up, done = {"running": {"startedAt": now}}, {"terminated": {"exitCode": 0, "reason": "Completed"}}
    containers = [_container(container, up) for container in pod["spec"]["containers"]]
    # An init container with this policy is a sidecar, which runs on.
    inits = [
        _container(container, up if container.get("restartPolicy") == "Always" else done)
        for container in pod["spec"].get("initContainers", ())
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
        **({"initContainerStatuses": inits} if inits else {}),
    }


def _container(container: Json, state: Json) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": True,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
    }
