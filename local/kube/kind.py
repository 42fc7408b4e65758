"""Rules of kinds on writes: a table of plain functions, most of which do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from local.kube.errors import ErrorSubject, FieldError
from local.kube.names import Check, dns_subdomain
from local.kube.selectors import path_reader
from local.kube.shape import Shape
from local.kube.wire import Obj

Reader = Callable[[Obj], str]

# The checks of a kind, in its order: problems are reported in that order.
META = "meta"  # names, labels and the like, as on creation
FIXED = "fixed"  # metadata that an update may not change
VALID = "valid"  # KindRules.validate
NEW = "new"  # KindRules.validate_new
CHANGED = "changed"  # KindRules.validate_update
STATUS = "status"  # KindRules.validate_status


def nothing(*_: Obj) -> None:
    """A kind without a rule here."""


def no_warning(_: Obj, __: Obj | None) -> list[str]:
    """A kind that warns of nothing."""
    return []


def no_problem(*_: Obj) -> list[FieldError]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """The rules of one kind. Functions get objects of their own, which they may change in place."""

    default: Callable[[Obj], None] = nothing
    create: Callable[[Obj], None] = nothing  # before the first write
    update: Callable[[Obj, Obj], None] = nothing  # (new, old) before a write to the object itself
    update_status: Callable[[Obj, Obj], None] = nothing
    validate: Callable[[Obj], list[FieldError]] = no_problem
    validate_new: Callable[[Obj, Obj], list[FieldError]] = no_problem
    validate_update: Callable[[Obj, Obj], list[FieldError]] = no_problem
    validate_status: Callable[[Obj, Obj], list[FieldError]] = no_problem
    name: Check = dns_subdomain
    core: bool = False  # finalizers need a domain
    create_order: tuple[str, ...] = (META, VALID, NEW)
    update_order: tuple[str, ...] = (FIXED, VALID, CHANGED)
    status_order: tuple[str, ...] = (FIXED, STATUS)
    warnings: Callable[[Obj, Obj | None], list[str]] = no_warning
    generation: bool = False  # counts changes of the desired state
    uncounted: tuple[str, ...] = ("metadata",)  # fields (beside the status) that do not change the generation
    unconditional: bool = True  # a PUT may come without resourceVersion
    create_on_update: bool = False  # a PUT of nothing creates it
    returns_deleted: bool = False  # a DELETE answers with the object
    orphans: bool = False  # dependents outlive the object, unless the DELETE sets another policy
    selectable: Mapping[str, str | Reader] = field(default_factory=dict)  # further field selectors
    status_ignores: tuple[str, ...] = ()  # metadata that a status write does not touch


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedKind:
    """A served kind: how it is built, and its rules."""

    shape: Shape
    rules: KindRules
    subject: Callable[[Obj], ErrorSubject]  # the names of a refused object in errors
    status: bool  # status is written through its own subresource only
    decode: Callable[[Obj, list[str]], Obj]  # drops unknown fields into the list; a fresh object
    validate: Callable[[Obj, Obj | None, str], list[FieldError]]  # (new, old, subresource)
    tidy: Callable[[Obj], None] = nothing  # drops nulls without a meaning
    readers: Mapping[str, Reader]
    ignored: Mapping[str, Obj]  # subresource → fields that writing through it does not manage


def ignored(rules: KindRules, *, status: bool) -> dict[str, Obj]:
    """Writes to an object leave its status alone, and writes to its status the rest."""
    if not status:
        return {}
    aside: Obj = {"f:spec": {}}
    if rules.status_ignores:
        aside["f:metadata"] = {f"f:{name}": {} for name in rules.status_ignores}
    return {"": {"f:status": {}}, "status": aside}


COMMON_FIELDS = {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace"}


def readers(rules: KindRules, *, namespaced: bool) -> dict[str, Reader]:
    paths: dict[str, str | Reader] = {**COMMON_FIELDS, **rules.selectable}
    if not namespaced:
        paths.pop("metadata.namespace", None)
    return {name: path_reader(path) if isinstance(path, str) else path for name, path in paths.items()}


def with_condition(status: Obj, now: str, condition: Obj, *, probe: bool = True) -> Obj:
    """The status with one condition set; when it changed is kept while its status stays the same."""
    conditions = list(status.get("conditions") or ())
    kind = condition["type"]
    at = next((i for i, entry in enumerate(conditions) if entry.get("type") == kind), len(conditions))
    before = conditions[at] if at < len(conditions) else {}
    since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else now
    times: Obj = (
        {"lastProbeTime": None, "lastTransitionTime": since} if probe else {"lastTransitionTime": since}
    )
    conditions[at : at + 1] = [{**times, **condition}]
    return {**status, "conditions": conditions}
