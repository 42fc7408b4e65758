"""The columns of kinds that make pods.

Rule: k8s.io/kubernetes/pkg/printers/internalversion.
"""

from __future__ import annotations

from typing import Any

from local.kube.columns.base import Table, age_of, containers, pairs, parts, selector
from local.kube.durations import age, span
from local.kube.wire import Obj

_WORKLOAD = "Containers+, Images+, Selector+"


def _deployment(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    counts = [status.get("updatedReplicas", 0), status.get("availableReplicas", 0)]
    return [name, ready, *counts, age_of(obj, now), *containers(spec), selector(spec.get("selector"))]


def _controller(obj: Obj, now: float) -> list[Any]:
    *cells, _ = _replicaset(obj, now)
    return [*cells, pairs((obj.get("spec") or {}).get("selector"))]


def _pod_template(obj: Obj, now: float) -> list[Any]:
    labels = ((obj.get("template") or {}).get("metadata") or {}).get("labels")
    return [obj["metadata"]["name"], *containers(obj), pairs(labels)]


def _cronjob(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    suspended, last = str(spec.get("suspend", "<unset>")), status.get("lastScheduleTime")
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    return [
        name,
        spec.get("schedule", ""),
        spec.get("timeZone") or "<none>",
        suspended,
        len(status.get("active") or ()),
        age(last, now) if last else "<none>",
        age_of(obj, now),
        *containers(job),
        selector(job["selector"]) if job.get("selector") else "<none>",
    ]


def _replicaset(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name, *counts, age_of(obj, now), *containers(spec), selector(spec.get("selector")) or "<none>"]


def _statefulset(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [name, ready, age_of(obj, now), *containers(spec)]


_DAEMONS = (
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
)


def _daemonset(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    nodes = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector")
    counts = [status.get(part, 0) for part in _DAEMONS]
    wide = [*containers(spec), selector(spec.get("selector")) or "<none>"]
    return [name, *counts, pairs(nodes), age_of(obj, now), *wide]


_JOB_STATES = (
    ("Complete", "Complete"),
    ("Failed", "Failed"),
    ("", "Terminating"),
    ("Suspended", "Suspended"),
    ("FailureTarget", "FailureTarget"),
    ("SuccessCriteriaMet", "SuccessCriteriaMet"),
)


def _job(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    true = {
        condition["type"] for condition in status.get("conditions") or () if condition.get("status") == "True"
    }
    if obj["metadata"].get("deletionTimestamp"):
        true.add("")
    state = next((text for kind, text in _JOB_STATES if kind in true), "Running")
    done, parallel = status.get("succeeded", 0), spec.get("parallelism") or 0
    completions = str(spec["completions"]) if spec.get("completions") is not None else "1"
    if spec.get("completions") is None and parallel > 1:
        completions += f" of {parallel}"
    took = span(status.get("startTime"), status.get("completionTime"), now)
    wide = [*containers(spec), selector(spec.get("selector")) or "<none>"]
    return [name, state, f"{done}/{completions}", took, age_of(obj, now), *wide]


def _budget(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    limits = [str(spec.get(part, "N/A")) for part in ("minAvailable", "maxUnavailable")]
    return [name, *limits, status.get("disruptionsAllowed", 0), age_of(obj, now)]


TABLE: Table = {
    "deployments.apps": (f"Name, Ready, Up-to-date, Available, Age, {_WORKLOAD}", _deployment),
    "replicasets.apps": (
        f"Name, Desired:integer, Current:integer, Ready:integer, Age, {_WORKLOAD}",
        _replicaset,
    ),
    "replicationcontrollers.": (
        f"Name, Desired:integer, Current:integer, Ready:integer, Age, {_WORKLOAD}",
        _controller,
    ),
    "podtemplates.": ("Name, Containers, Images, Pod Labels", _pod_template),
    "cronjobs.batch": (
        f"Name, Schedule, Timezone, Suspend:boolean, Active:integer, Last Schedule, Age, {_WORKLOAD}",
        _cronjob,
    ),
    "statefulsets.apps": ("Name, Ready, Age, Containers+, Images+", _statefulset),
    "daemonsets.apps": (
        "Name, Desired:integer, Current:integer, Ready:integer, Up-to-date:integer, Available:integer, "
        f"Node Selector, Age, {_WORKLOAD}",
        _daemonset,
    ),
    "jobs.batch": (f"Name, Status, Completions, Duration, Age, {_WORKLOAD}", _job),
    "poddisruptionbudgets.policy": (
        "Name, Min Available, Max Unavailable, Allowed Disruptions:integer, Age",
        _budget,
    ),
}
