"""The served kinds and the rules of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from local.kube import decode as decoding
from local.kube import names
from local.kube.errors import ErrorSubject, FieldError
from local.kube.kind import (
    CHANGED,
    FIXED,
    META,
    NEW,
    STATUS,
    VALID,
    KindRules,
    ServedKind,
    ignored,
    readers,
)
from local.kube.kinds import checks
from local.kube.kinds.table import RULES
from local.kube.resources import Resource
from local.kube.shape import builtin
from local.kube.wire import Obj

_DEFAULT = KindRules()


def kind_of(resource: Resource) -> ServedKind:
    return resource.custom.kind if resource.custom else _builtin(resource.gvk, resource)


@lru_cache(maxsize=256)
def _builtin(gvk: tuple[str, str, str], resource: Resource) -> ServedKind:
    shape = builtin(*gvk)
    assert shape is not None, f"no type data for {gvk}: regenerate data/types.json"
    rules = RULES.get(f"{resource.plural}.{resource.group}", _DEFAULT)
    # An object that is stored in another group's form has its name there.
    called = ErrorSubject("", resource.plural, resource.kind) if resource.convert else resource.subject
    return ServedKind(
        shape=shape,
        rules=rules,
        subject=lambda _: called,
        status="status" in resource.subresources,
        decode=lambda obj, unknown: decoding.decode(obj, shape, unknown=unknown),
        validate=_validator(resource, rules),
        readers=readers(rules, namespaced=resource.namespaced),
        ignored=ignored(rules, status="status" in resource.subresources),
    )


def _validator(resource: Resource, rules: KindRules) -> Callable[[Obj, Obj | None, str], list[FieldError]]:
    namespaced = resource.namespaced

    def meta(obj: Obj, _: Obj) -> list[FieldError]:
        errors = names.metadata(obj["metadata"], namespaced=namespaced, check=rules.name)
        return errors + checks.finalizers(obj["metadata"]) if rules.core else errors

    def common(obj: Obj, old: Obj) -> list[FieldError]:
        errors = names.common(obj["metadata"], namespaced=namespaced)
        return errors + names.metadata_update(obj["metadata"], old["metadata"])

    def fixed(obj: Obj, old: Obj) -> list[FieldError]:
        errors = names.metadata_update(obj["metadata"], old["metadata"])
        return errors + checks.finalizers(obj["metadata"]) if rules.core else errors

    steps: dict[str, Callable[[Obj, Obj], list[FieldError]]] = {
        META: meta,
        FIXED: fixed,
        VALID: lambda obj, _: rules.validate(obj),
        NEW: rules.validate_new,
        CHANGED: rules.validate_update,
        STATUS: rules.validate_status,
    }

    def validate(obj: Obj, old: Obj | None, subresource: str) -> list[FieldError]:
        if old is None:
            errors = [error for step in rules.create_order for error in steps[step](obj, obj)]
            return errors if errors or META in rules.create_order else meta(obj, obj)
        order = rules.status_order if subresource == "status" else rules.update_order
        # Every update is checked so; kinds that check their own metadata report it a second time.
        return common(obj, old) + [error for step in order for error in steps[step](obj, old)]

    return validate
