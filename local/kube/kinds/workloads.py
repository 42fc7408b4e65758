"""Kinds that make pods from a template: their defaults, and the few fields that all of them require.

Rule: k8s.io/kubernetes/pkg/apis/apps/v1 and batch/v1 (defaults), pkg/apis/apps/validation, batch/validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from local.kube.errors import FieldError, problem, supported
from local.kube.kind import KindRules
from local.kube.kinds.checks import label_selector, not_negative
from local.kube.kinds.pod_checks import spec_problems
from local.kube.kinds.pod_defaults import spec_defaults
from local.kube.selectors import matches
from local.kube.wire import Obj

_JOB_PREFIX = "batch.kubernetes.io/"
_UID_LABEL, _NAME_LABEL = f"{_JOB_PREFIX}controller-uid", f"{_JOB_PREFIX}job-name"
_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_QUARTER = "25%"
# Defaults of each kind's spec; a dict inside is merged into the existing dict.
_DEPLOYMENT: Obj = {
    "replicas": 1,
    "strategy": {"type": "RollingUpdate"},
    "revisionHistoryLimit": 10,
    "progressDeadlineSeconds": 600,
}
_STATEFULSET: Obj = {
    "podManagementPolicy": "OrderedReady",
    "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    "replicas": 1,
    "revisionHistoryLimit": 10,
}
_DAEMONSET: Obj = {"updateStrategy": {"type": "RollingUpdate"}, "revisionHistoryLimit": 10}
_JOB: Obj = {
    "parallelism": 1,
    "completionMode": "NonIndexed",
    "suspend": False,
    "manualSelector": False,
}
_CRONJOB: Obj = {
    "concurrencyPolicy": "Allow",
    "suspend": False,
    "successfulJobsHistoryLimit": 3,
    "failedJobsHistoryLimit": 1,
}


def fill(target: Obj, values: Obj) -> None:
    """Sets absent fields, and empty ones where Go cannot distinguish the two."""
    for name, value in values.items():
        if isinstance(value, dict):
            target[name] = dict(target.get(name) or {})
            fill(target[name], value)
        elif target.get(name) in (None, ""):
            target[name] = value


def _template(spec: Obj) -> Obj:
    template: Obj = spec.setdefault("template", {"metadata": {}, "spec": {}})
    if template.get("spec") is None:
        template["spec"] = {}
    spec_defaults(template["spec"])
    return template


def _deployment(obj: Obj) -> None:
    spec = obj["spec"]
    _template(spec)
    fill(spec, _DEPLOYMENT)
    if spec["strategy"]["type"] == "RollingUpdate":
        fill(spec["strategy"], {"rollingUpdate": {"maxUnavailable": _QUARTER, "maxSurge": _QUARTER}})


def _replicas(obj: Obj) -> None:
    _template(obj["spec"])
    fill(obj["spec"], {"replicas": 1})


def _statefulset(obj: Obj) -> None:
    spec = obj["spec"]
    _template(spec)
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and strategy.get("rollingUpdate") is not None:
        fill(strategy["rollingUpdate"], {"partition": 0})
    fill(spec, _STATEFULSET)


def _daemonset(obj: Obj) -> None:
    spec = obj["spec"]
    _template(spec)
    fill(spec, _DAEMONSET)
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        fill(spec["updateStrategy"], {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
    _note_generation(obj, 1)


def _note_generation(obj: Obj, count: int) -> None:
    """Daemon sets count the changes of their template in an annotation."""
    meta: Obj = obj["metadata"]
    meta["annotations"] = {**(meta.get("annotations") or {}), _TEMPLATE_GENERATION: str(count)}


def _changed_daemons(obj: Obj, old: Obj) -> None:
    before = int((old["metadata"].get("annotations") or {}).get(_TEMPLATE_GENERATION, "1"))
    _note_generation(obj, before + (obj["spec"]["template"] != old["spec"]["template"]))


def _job(obj: Obj) -> None:
    spec = obj["spec"]
    labels = _job_spec(spec).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = labels  # the very same ones: see _new_job


def _job_spec(spec: Obj) -> Obj:
    """Fills up a job's spec; the metadata of its template."""
    template = _template(spec)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = 6 if spec.get("backoffLimitPerIndex") is None else 2**31 - 1
    fill(spec, _JOB)
    failing = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    fill(spec, {"podReplacementPolicy": failing})
    meta: Obj = template.get("metadata") or {}
    return meta


def _new_job(obj: Obj) -> None:
    """A job finds its pods by its uid, which is not known before its creation."""
    obj["status"] = {}
    spec, meta = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    inner: Obj = spec["template"].setdefault("metadata", {})
    labels: Obj = inner.setdefault("labels", {})
    # A job that has its template's labels by default shares them, and so gets these too.
    for key, value in ((_NAME_LABEL, meta.get("name", "")), (_UID_LABEL, meta["uid"])):
        labels.setdefault(key, value)
        labels.setdefault(key.removeprefix(_JOB_PREFIX), value)
    if not meta.get("labels"):
        meta["labels"] = dict(labels)
    selector = dict(spec.get("selector") or {})
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _UID_LABEL: meta["uid"]}
    spec["selector"] = selector


def _cronjob(obj: Obj) -> None:
    fill(obj["spec"], _CRONJOB)
    template = obj["spec"].setdefault("jobTemplate", {"metadata": {}, "spec": {}})
    _template(template.setdefault("spec", {}))


def _controller(obj: Obj) -> None:
    """A ReplicationController takes a missing selector and missing labels from its template."""
    spec: Obj = obj["spec"]
    fill(spec, {"replicas": 1})
    if not spec.get("template"):
        return
    labels = (_template(spec).get("metadata") or {}).get("labels")
    if labels:
        spec["selector"] = spec.get("selector") or dict(labels)
        obj["metadata"]["labels"] = obj["metadata"].get("labels") or dict(labels)


def _pod_template(obj: Obj) -> None:
    _template(obj)


def _begins(*counts: str) -> Callable[[Obj], None]:
    """A new object has an empty status, but for the counts that are always written."""

    def create(obj: Obj) -> None:
        obj["status"] = dict.fromkeys(counts, 0)

    return create


def _restarts(*allowed: str) -> Callable[[Obj], list[FieldError]]:
    def validate(obj: Obj) -> list[FieldError]:
        spec = obj.get("spec") or {}
        return _selector(spec) + template_problems(spec.get("template") or {}, "spec.template", allowed)

    return validate


def _selector(spec: Obj) -> list[FieldError]:
    selector = spec.get("selector")
    if selector is None:
        out = [problem("required", "spec.selector")]
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        why = "empty selector is invalid for deployment"
        return [problem("invalid", "spec.selector", why, selector)]
    elif out := label_selector(selector, "spec.selector"):
        return out
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if selector is None or not matches(selector, labels):
        why = "`selector` does not match template `labels`"
        out.append(problem("invalid", "spec.template.metadata.labels", why, labels))
    return out + not_negative(spec.get("replicas"), "spec.replicas")


def template_problems(template: Obj, path: str, allowed: tuple[str, ...]) -> list[FieldError]:
    spec = template.get("spec") or {}
    errors = [replace(error, field=f"{path}.{error.field}") for error in spec_problems(spec)]
    policy = spec.get("restartPolicy", "")
    if policy not in allowed and not any(error.field.endswith(".restartPolicy") for error in errors):
        errors.append(supported(f"{path}.spec.restartPolicy", policy, allowed))
    return errors


def _valid_job(obj: Obj) -> list[FieldError]:
    spec, out = obj.get("spec") or {}, list[FieldError]()
    for name in ("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"):
        out += not_negative(spec.get(name), f"spec.{name}")
    template = spec.get("template") or {}
    template_errors = template_problems(template, "spec.template", ("OnFailure", "Never", "Always"))
    if (template.get("spec") or {}).get("restartPolicy") == "Always":
        why = 'valid values: "OnFailure", "Never"'
        template_errors.append(problem("required", "spec.template.spec.restartPolicy", why))
    return out + template_errors


def _fixed(*names: str) -> Callable[[Obj, Obj], list[FieldError]]:
    """Fields of the spec that stay as they were."""

    def validate(obj: Obj, old: Obj) -> list[FieldError]:
        now, was = obj.get("spec") or {}, old.get("spec") or {}
        changed = (name for name in names if now.get(name) != was.get(name))
        return [problem("invalid", f"spec.{name}", "field is immutable", now.get(name)) for name in changed]

    return validate


_STATEFUL_FREE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def _same_set(obj: Obj, old: Obj) -> list[FieldError]:
    now, was = (
        {name: value for name, value in (side.get("spec") or {}).items() if name not in _STATEFUL_FREE}
        for side in (obj, old)
    )
    if now == was:
        return []
    listed = ", ".join(f"'{name}'" for name in _STATEFUL_FREE[:-1])
    why = f"updates to statefulset spec for fields other than {listed} and 'minReadySeconds' are forbidden"
    return [problem("forbidden", "spec", why)]


def _with_template(default: Callable[[Obj], None], **more: Any) -> KindRules:
    rules = {"create": _begins(), "generation": True, "validate": _restarts("Always"), **more}
    return KindRules(default=default, **rules)


RULES: dict[str, KindRules] = {
    "deployments.apps": _with_template(
        _deployment, validate_update=_fixed("selector"), status_ignores=("labels",)
    ),
    "replicasets.apps": _with_template(
        _replicas,
        create=_begins("replicas"),
        validate_update=_fixed("selector"),
        selectable={"status.replicas": "status.replicas"},
    ),
    "statefulsets.apps": _with_template(
        _statefulset, create=_begins("replicas", "availableReplicas"), validate_update=_same_set
    ),
    "daemonsets.apps": _with_template(
        _daemonset,
        create=_begins(
            "currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"
        ),
        update=_changed_daemons,
        validate_update=_fixed("selector"),
    ),
    "replicationcontrollers.": KindRules(
        default=_controller,
        create=_begins("replicas"),
        generation=True,
        orphans=True,
        selectable={"status.replicas": "status.replicas"},
    ),
    "podtemplates.": KindRules(default=_pod_template, generation=True, returns_deleted=True),
    "jobs.batch": KindRules(
        default=_job,
        create=_new_job,
        generation=True,
        orphans=True,
        validate=_valid_job,
        validate_update=_fixed("completions", "selector", "completionMode"),
        selectable={"status.successful": "status.succeeded"},
    ),
    "cronjobs.batch": KindRules(default=_cronjob, create=_begins(), generation=True),
}
