"""Checks of single fields that several kinds share, in the API server's words.

Rule: k8s.io/apimachinery/pkg/apis/meta/v1/validation, k8s.io/kubernetes/pkg/apis/{core,apps}/validation.
"""

from __future__ import annotations

import re
from typing import Any

from local.kube.errors import FieldError, problem, supported
from local.kube.names import STANDARD_FINALIZERS, label_value, labels, qualified
from local.kube.quantity import amount
from local.kube.wire import Obj

MAX_INT32 = 2**31 - 1
_PERCENT = re.compile(r"[0-9]+%")
_CONDITION_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_WHOLE = ("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps")


def finalizers(meta: Obj) -> list[FieldError]:
    """Kinds of the core group require a domain in finalizers."""
    why = "name is neither a standard finalizer name nor is it fully qualified"
    return [
        problem("invalid", f"metadata.finalizers[{at}]", why, name)
        for at, name in enumerate(meta.get("finalizers") or ())
        if "/" not in name and name not in STANDARD_FINALIZERS
    ]


def label_name(name: str, path: str) -> list[FieldError]:
    return [problem("invalid", path, why, name) for why in qualified(name)]


def not_negative(value: int | None, path: str) -> list[FieldError]:
    if value is None or value >= 0:
        return []
    return [problem("invalid", path, "must be greater than or equal to 0", value)]


def count_or_percent(value: int | str | None, path: str) -> list[FieldError]:
    if value is None:
        return []
    if isinstance(value, int):
        return not_negative(value, path)
    if not _PERCENT.fullmatch(value):
        why = (
            "a valid percent string must be a numeric string followed by an ending '%' "
            "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
        )
        return [problem("invalid", path, why, value)]
    if int(value[:-1]) > 100:
        return [problem("invalid", path, "must not be greater than 100%", value)]
    return []


def label_selector(selector: Obj | None, path: str) -> list[FieldError]:
    if not selector:
        return []
    out = labels(selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for at, requirement in enumerate(selector.get("matchExpressions") or ()):
        out += _requirement(requirement, f"{path}.matchExpressions[{at}]")
    return out


def _requirement(requirement: Obj, path: str) -> list[FieldError]:
    operator, values, out = (
        requirement.get("operator", ""),
        requirement.get("values") or [],
        list[FieldError](),
    )
    if operator in ("In", "NotIn"):
        if not values:
            why = "must be specified when `operator` is 'In' or 'NotIn'"
            out.append(problem("required", f"{path}.values", why))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            out.append(problem("forbidden", f"{path}.values", why))
    else:
        out.append(problem("invalid", f"{path}.operator", "not a valid selector operator", operator))
    out += label_name(requirement.get("key", ""), f"{path}.key")
    for at, value in enumerate(values):
        out += [problem("invalid", f"{path}.values[{at}]", why, value) for why in label_value(value)]
    return out


def conditions(given: list[Obj], path: str) -> list[FieldError]:
    """Conditions of the common shape (metav1.Condition)."""
    out, seen = list[FieldError](), set[str]()
    for at, condition in enumerate(given):
        place, kind, reason = f"{path}[{at}]", condition.get("type", ""), condition.get("reason", "")
        if kind in seen:
            out.append(problem("duplicate", f"{place}.type", "", kind))
        seen.add(kind)
        out += label_name(kind, f"{place}.type")
        if condition.get("status") not in ("True", "False", "Unknown"):
            out.append(
                supported(f"{place}.status", condition.get("status", ""), ["False", "True", "Unknown"])
            )
        if not condition.get("lastTransitionTime"):
            out.append(problem("required", f"{place}.lastTransitionTime"))
        if not reason:
            out.append(problem("required", f"{place}.reason"))
        elif not _CONDITION_REASON.fullmatch(reason):
            why = (
                "a condition reason must start with alphabetic character, optionally followed by a string of "
                "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' "
                "(e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', "
                f"regex used for validation is '{_CONDITION_REASON.pattern}')"
            )
            out.append(problem("invalid", f"{place}.reason", why, reason))
    return out


def resource_value(name: str, quantity: Any, path: str) -> list[FieldError]:
    value = amount(str(quantity))
    if value is None:
        return []  # decoding has refused malformed quantities
    if value < 0:
        return [problem("invalid", path, "must be greater than or equal to 0", str(quantity))]
    if (name in _WHOLE or ("/" in name and _extended(name))) and value != value.to_integral_value():
        return [problem("invalid", path, "must be an integer", str(quantity))]
    return []


def _extended(name: str) -> bool:
    """`vendor.com/gpu`, of which there are only whole ones."""
    return "kubernetes.io/" not in name and not name.startswith("requests.")


def taint_effect(effect: str, path: str) -> list[FieldError]:
    effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
    return [] if effect in effects else [supported(path, effect, effects)]
