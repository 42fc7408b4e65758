"""Shared parts of column tables: the notation of a column, and the cells that many kinds show.

A name ends in `+` if the column is for wide output, and names its type after `:` if that is not string.
Rule: k8s.io/kubernetes/pkg/printers/internalversion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local.kube.durations import age
from local.kube.wire import Obj

Cells = Callable[[Obj, float], list[Any]]
Table = dict[str, tuple[str, Cells]]  # kind → its columns, and how a row of them is read


@dataclass(frozen=True, slots=True)
class Columns:
    definitions: tuple[Obj, ...]
    cells: Cells


def definition(name: str, kind: str = "string", *, form: str = "", text: str = "", priority: int = 0) -> Obj:
    return {"name": name, "type": kind, "format": form, "description": text, "priority": priority}


def parsed(text: str) -> Obj:
    name, kind, form, *_ = [*text.split(":"), "", ""]
    wide = name.endswith("+")
    name = name.removesuffix("+")
    return definition(name, kind or "string", form="name" if name == "Name" else form, priority=int(wide))


def parts(obj: Obj) -> tuple[str, Obj, Obj]:
    return obj["metadata"]["name"], obj.get("spec") or {}, obj.get("status") or {}


def age_of(obj: Obj, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def created(obj: Obj, now: float) -> list[Any]:
    return [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")]


def name_and_age(obj: Obj, now: float) -> list[Any]:
    return [obj["metadata"]["name"], age_of(obj, now)]


def simple(read: Callable[[Obj], Any]) -> Cells:
    """A name, one thing more, and the age."""
    return lambda obj, now: [obj["metadata"]["name"], read(obj), age_of(obj, now)]


def pairs(labels: Obj | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def selector(value: Obj | None) -> str:
    """A LabelSelector as one line of text."""
    value = value or {}
    out = [f"{key}={label}" for key, label in sorted((value.get("matchLabels") or {}).items())]
    for term in value.get("matchExpressions") or ():
        key, values = term["key"], ",".join(term.get("values") or ())
        form = {"In": "{k} in ({v})", "NotIn": "{k} notin ({v})", "Exists": "{k}", "DoesNotExist": "!{k}"}
        out.append(form[term["operator"]].format(k=key, v=values))
    return ",".join(out)


def containers(spec: Obj) -> list[str]:
    listed = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return [
        ",".join(container.get("name", "") for container in listed),
        ",".join(container.get("image", "") for container in listed),
    ]
