"""One served version of a custom resource: its schema turned into the functions that writes use.

Rule: k8s.io/apiextensions-apiserver/pkg/registry/customresource (strategy.go, validator.go).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from local.kube import decode as decoding
from local.kube import names
from local.kube.crd import lists, rules, schema, structural
from local.kube.errors import ErrorSubject, FieldError, go_text, problem
from local.kube.kind import KindRules, ServedKind, readers
from local.kube.shape import Shape, custom
from local.kube.wire import Obj

_BLOCKING = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)
_SKIPPED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, eq=False)
class CustomVersion:
    """A version of a definition: its content, and the functions made from it when first used."""

    group: str
    name: str
    plural: str
    kind_name: str
    namespaced: bool
    schema: Obj
    status: bool
    scale: Obj | None
    columns: tuple[Obj, ...]
    selectable: tuple[str, ...]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.name}"

    @cached_property
    def shape(self) -> Shape:
        return custom(self.schema)

    @cached_property
    def kind(self) -> ServedKind:
        kind_rules = KindRules(
            default=self._default,
            create=self._create,
            generation=True,
            unconditional=False,
            warnings=_finalizer_warnings,
            selectable={path.lstrip("."): path for path in self.selectable},
        )
        return ServedKind(
            shape=self.shape,
            rules=kind_rules,
            subject=self._subject,
            status=self.status,
            decode=self.decode,
            validate=self.validate,
            tidy=self._tidy,
            readers=readers(kind_rules, namespaced=self.namespaced),
            ignored={"": {"f:status": {}}, "status": {"f:metadata": {}, "f:spec": {}}} if self.status else {},
        )

    def decode(self, raw: Obj, unknown: list[str]) -> Obj:
        meta, unknown_metadata = raw.get("metadata"), list[str]()
        obj: Obj = decoding.copied({**raw, "metadata": None} if meta is not None else raw)
        if meta is not None:
            obj["metadata"] = decoding.metadata(meta, unknown_metadata)
        unknown += unknown_metadata
        dropped: list[str] = []
        structural.prune(obj, self.schema, dropped)
        unknown += [f'unknown field "{path}"' for path in dropped]
        return obj

    def _tidy(self, obj: Obj) -> None:
        structural.drop_nulls(obj, self._root)

    def _subject(self, obj: Obj) -> ErrorSubject:
        return ErrorSubject(self.group, self.plural, obj.get("kind") or self.kind_name)

    @cached_property
    def _root(self) -> Obj:
        """The schema without the fields that every object has."""
        properties = {k: v for k, v in (self.schema.get("properties") or {}).items() if k not in _IMPLIED}
        return {**self.schema, "properties": properties}

    def _default(self, obj: Obj) -> None:
        structural.default(obj, self._root)

    def _create(self, obj: Obj) -> None:
        if self.status:
            obj.pop("status", None)

    @cached_property
    def _check(self) -> Callable[[Any, str], list[FieldError]]:
        return schema.compiled(self.schema)

    @cached_property
    def _check_status(self) -> Callable[[Any, str], list[FieldError]]:
        return schema.compiled((self.schema.get("properties") or {}).get("status") or {})

    @cached_property
    def _rules(self) -> rules.CelRuleNode | None:
        return rules.compiled(self.schema)

    def validate(self, obj: Obj, old: Obj | None, subresource: str) -> list[FieldError]:
        meta, errors = obj["metadata"], list[FieldError]()
        if obj.get("kind") != self.kind_name:
            return [problem("invalid", "kind", f"must be {self.kind_name}", obj.get("kind"))]
        if old is None:
            errors += names.metadata(meta, namespaced=self.namespaced, check=names.dns_subdomain)
        else:
            # Every update is checked so, and custom resources check the second part themselves again.
            repeated_errors = names.metadata_update(meta, old["metadata"])
            errors += names.common(meta, namespaced=self.namespaced) + repeated_errors + repeated_errors
        if subresource == "status":
            if "status" in obj:
                below = self._check_status(obj["status"], "")
                errors += [replace(error, field=_under("status", error.field)) for error in below]
        else:
            errors += self._ratcheted(obj, old)
        errors += self._scale(obj, status_only=subresource == "status")
        repeated = lists.check(obj, self._root)
        if repeated and (old is None or not lists.check(old, self._root)):
            errors += repeated
        if self._rules is None:
            return errors
        if any(error.reason in _BLOCKING for error in errors):
            return [*errors, FieldError("FieldValueInvalid", "<nil>", _SKIPPED)]
        return errors + rules.check(self._rules, obj, old)

    def _ratcheted(self, obj: Obj, old: Obj | None) -> list[FieldError]:
        """Schema problems; an update is not refused for fields that it does not change."""
        errors = self._check(obj, "")
        if old is None or not errors:
            return errors
        before = set(self._check(old, ""))
        return [error for error in errors if error not in before or not _same_at(obj, old, error.field)]

    def _scale(self, obj: Obj, *, status_only: bool) -> list[FieldError]:
        out: list[FieldError] = []
        for part in ("specReplicasPath", "statusReplicasPath"):
            path = (self.scale or {}).get(part, "")
            if not path or (status_only and part == "specReplicasPath"):
                continue
            parent, value = _dig(obj, path)
            if value is None:
                continue
            if parent or isinstance(value, bool) or not isinstance(value, int):
                expected = "map[string]interface{}" if parent else "int64"
                kind = _GO_TYPES.get(type(value), "nil")
                why = f"{path} accessor error: {go_text(value)} is of the type {kind}, expected {expected}"
                out.append(problem("invalid", path, why, 0))
            elif value < 0:
                out.append(problem("invalid", path, "should be a non-negative integer", value))
            elif value > _MAX_INT32:
                out.append(problem("invalid", path, f"should be less than or equal to {_MAX_INT32}", value))
        return out


def _under(prefix: str, path: str) -> str:
    return prefix if path in ("", "<nil>") else f"{prefix}.{path}"


_IMPLIED = ("apiVersion", "kind", "metadata")


_GO_TYPES: dict[type, str] = {
    str: "string",
    bool: "bool",
    int: "int64",
    float: "float64",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def _dig(obj: Any, path: str) -> tuple[bool, Any]:
    """The value at a path, or the value that blocks the path (True)."""
    for part in path.strip(".").split("."):
        if obj is not None and not isinstance(obj, dict):
            return True, obj
        obj = obj.get(part) if obj else None
    return False, obj


def _same_at(new: Any, old: Any, path: str) -> bool:
    """Whether a place reads the same in both; a place within a plain list has no counterpart."""
    for part in path.split("."):
        if "[" in part:
            part = part.partition("[")[0]
            new, old = (side.get(part) if isinstance(side, dict) else None for side in (new, old))
            return bool(new == old)
        new, old = (side.get(part) if isinstance(side, dict) else None for side in (new, old))
    return bool(new == old)


def _finalizer_warnings(obj: Obj, old: Obj | None) -> list[str]:
    """New finalizers should have a domain."""
    before = set((old or {}).get("metadata", {}).get("finalizers") or ())
    out: list[str] = []
    for name in sorted(set(obj["metadata"].get("finalizers") or ()) - before):
        head = f'metadata.finalizers: "{name}": '
        out += [head + why for why in names.qualified(name)]
        if "/" not in name and name not in names.STANDARD_FINALIZERS:
            path = " including a path (/)" if "." in name else ""
            out.append(
                f"{head}prefer a domain-qualified finalizer name{path} "
                "to avoid accidental conflicts with other finalizer writers"
            )
    return out
