"""PodDisruptionBudgets: one of two limits, and a status of counts."""

from __future__ import annotations

import orjson

from local.kube.errors import FieldError, supported
from local.kube.kind import STATUS, VALID, KindRules
from local.kube.kinds.checks import conditions, count_or_percent, label_selector, not_negative
from local.kube.names import path_segment
from local.kube.wire import Obj

_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def _create(obj: Obj) -> None:
    obj["status"] = dict.fromkeys(_COUNTS, 0)


def _validate(obj: Obj) -> list[FieldError]:
    spec, out = obj.get("spec") or {}, list[FieldError]()
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if least is not None and most is not None:
        shown = {
            "MinAvailable": least,
            "Selector": spec.get("selector"),
            "MaxUnavailable": most,
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        why = "minAvailable and maxUnavailable cannot be both set"
        # Shown as the Go struct is written, in the order of its fields.
        out.append(
            FieldError("FieldValueInvalid", "spec", f"Invalid value: {orjson.dumps(shown).decode()}: {why}")
        )
    out += count_or_percent(least, "spec.minAvailable") + count_or_percent(most, "spec.maxUnavailable")
    out += label_selector(spec.get("selector"), "spec.selector")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in ("AlwaysAllow", "IfHealthyBudget"):
        names = ["AlwaysAllow", "IfHealthyBudget"]
        out.append(supported("spec.unhealthyPodEvictionPolicy", policy, names))
    return out


def _validate_status(obj: Obj, _: Obj) -> list[FieldError]:
    status = obj.get("status") or {}
    out = conditions(status.get("conditions") or [], "status.conditions")
    for name in _COUNTS:
        out += not_negative(status.get(name), f"status.{name}")
    return out


RULES = KindRules(
    create=_create,
    validate=_validate,
    validate_status=_validate_status,
    name=path_segment,
    generation=True,
    unconditional=False,
    create_order=(VALID,),
    update_order=(VALID,),
    status_order=(STATUS,),
)
