"""A pod's state in three words: the count of ready containers, the phase or reason, the restarts.

Rule: k8s.io/kubernetes/pkg/printers/internalversion (printPod).
"""

from __future__ import annotations

from collections.abc import Iterable

from local.kube.durations import human
from local.kube.times import parse
from local.kube.wire import Obj

_TERMINAL = ("Succeeded", "Failed")


def summary(pod: Obj, now: float) -> tuple[str, str, str]:
    """(ready, status, restarts) as the table shows them."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    inits, mains = status.get("initContainerStatuses") or (), status.get("containerStatuses") or ()
    reason = status.get("reason") or status.get("phase", "")
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    waiting = _initializing(inits, sidecars, len(spec.get("initContainers") or ()))
    ready = sum(1 for c in inits if c["name"] in sidecars and c.get("started") and c.get("ready"))
    counted: Iterable[Obj] = inits
    if not waiting or conditions.get("Initialized", {}).get("status") == "True":
        running = [c for c in mains if c.get("ready") and "running" in (c.get("state") or {})]
        ready += len(running)
        reason = _main(mains, reason, bool(running), conditions)
        counted = [c for c in inits if c["name"] in sidecars] + list(mains)
    else:
        reason = waiting
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            reason = "Unknown"
        elif status.get("phase") not in _TERMINAL:
            reason = "Terminating"
    total = len(spec.get("containers") or ()) + len(sidecars)
    return f"{ready}/{total}", reason, _restarts(counted, now)


def _initializing(inits: Iterable[Obj], sidecars: set[str], total: int) -> str:
    """The wait reason of the first unfinished init container; empty if all are done."""
    for i, container in enumerate(inits):
        state = container.get("state") or {}
        ended = state.get("terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if container["name"] in sidecars and container.get("started"):
            continue
        if ended is not None:
            return "Init:" + (ended.get("reason") or _ended(ended))
        waiting = (state.get("waiting") or {}).get("reason", "")
        return f"Init:{waiting}" if waiting not in ("", "PodInitializing") else f"Init:{i}/{total}"
    return ""


def _ended(state: Obj) -> str:
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _main(mains: Iterable[Obj], reason: str, running: bool, conditions: dict[str, Obj]) -> str:
    failed = ""
    for container in reversed(list(mains)):
        state = container.get("state") or {}
        ended = state.get("terminated")
        if waiting := (state.get("waiting") or {}).get("reason"):
            reason = waiting
        elif ended is not None:
            reason = ended.get("reason") or _ended(ended)
            failed = reason if ended.get("exitCode") else failed
    if reason != "Completed":
        return reason
    if running and conditions.get("Ready", {}).get("status") == "True":
        return "Running"
    return failed or ("NotReady" if running else reason)


def _restarts(containers: Iterable[Obj], now: float) -> str:
    counted = list(containers)
    total = sum(container.get("restartCount", 0) for container in counted)
    ends = [((c.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for c in counted]
    last = max((at for end in ends if end and (at := parse(end))), default=None)
    return f"{total} ({human(now - last.timestamp())} ago)" if total and last else str(total)
