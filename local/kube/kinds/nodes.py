"""Nodes: taints that are unique, a provider id and pod networks that stay once set."""

from __future__ import annotations

from local.kube.errors import FieldError, problem
from local.kube.kind import CHANGED, FIXED, META, STATUS, VALID, KindRules
from local.kube.kinds.checks import label_name, resource_value, taint_effect
from local.kube.names import label_value
from local.kube.wire import Obj


def _default(obj: Obj) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    first_of(spec, single_key="podCIDR", list_key="podCIDRs")
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def first_of(part: Obj, *, single_key: str, list_key: str, key: str = "") -> None:
    """A field that came to hold a list keeps its old single form, which wins where the two differ."""
    single, several = part.get(single_key), part.get(list_key)
    head = (several[0].get(key) if key else several[0]) if several else None
    if single and single != head:
        part[list_key] = [{key: single} if key else single]
    elif head:
        part[single_key] = head


def _create(obj: Obj) -> None:
    (obj.get("spec") or {}).pop("configSource", None)
    (obj.get("status") or {}).pop("config", None)


def _update(obj: Obj, old: Obj) -> None:
    if not (old.get("spec") or {}).get("configSource"):
        (obj.get("spec") or {}).pop("configSource", None)


def _validate(obj: Obj) -> list[FieldError]:
    return _taints(obj) + _resources(obj)


def _taints(obj: Obj) -> list[FieldError]:
    out, seen = list[FieldError](), set[tuple[str, str]]()
    for at, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        path, key, effect = f"metadata.taints[{at}]", taint.get("key", ""), taint.get("effect", "")
        out += label_name(key, f"{path}.key")
        if wrong := label_value(taint.get("value", "")):
            out.append(problem("invalid", f"{path}.value", ";".join(wrong), taint.get("value", "")))
        out += taint_effect(effect, f"{path}.effect") if effect else [problem("required", f"{path}.effect")]
        if (key, effect) in seen:
            shown = {"key": key, "value": taint.get("value"), "effect": effect}
            shown = {name: value for name, value in shown.items() if value}
            why = "taints must be unique by key and effect pair"
            out.append(problem("duplicate", path, why, shown))
        seen.add((key, effect))
    return out


def _resources(obj: Obj) -> list[FieldError]:
    status, out = obj.get("status") or {}, list[FieldError]()
    for part in ("capacity", "allocatable"):
        for name, quantity in sorted((status.get(part) or {}).items()):
            out += resource_value(name, quantity, f"status.{part}.{name}")
    return out


def _validate_update(obj: Obj, old: Obj) -> list[FieldError]:
    spec, before, out = obj.get("spec") or {}, old.get("spec") or {}, _resources(obj)
    seen: list[Obj] = []
    for at, address in enumerate((obj.get("status") or {}).get("addresses") or ()):
        if address in seen:
            out.append(problem("duplicate", f"status.addresses[{at}]", "", _go(address)))
        seen.append(address)
    for name, field in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if before.get(name) and spec.get(name) != before[name]:
            why = f'node updates may not change {field} except from "" to valid'
            out.append(problem("forbidden", f"spec.{name}", why))
    return out + _taints(obj)


def _go(address: Obj) -> Obj:
    return {"Type": address.get("type", ""), "Address": address.get("address", "")}


def _unschedulable(obj: Obj) -> str:
    return str(bool((obj.get("spec") or {}).get("unschedulable"))).lower()


RULES = KindRules(
    default=_default,
    create=_create,
    update=_update,
    validate=_validate,
    validate_update=_validate_update,
    validate_status=_validate_update,
    core=True,
    update_order=(META, VALID, FIXED, CHANGED),
    status_order=(FIXED, STATUS),
    selectable={"spec.unschedulable": _unschedulable},
)
