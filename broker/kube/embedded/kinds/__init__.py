"""The kinds that are served and what is particular to each."""

from __future__ import annotations

from functools import lru_cache

from .. import decode as decoding
from .. import names
from ..errors import FieldError
from ..resources import Resource
from ..shape import Shape, builtin
from ..wire import Obj
from .base import Kind, Rules, ignored, readers
from .table import RULES

_DEFAULT = Rules()


def kind_of(resource: Resource) -> Kind:
    return resource.custom.kind if resource.custom else _builtin(resource.gvk, resource)


@lru_cache(maxsize=256)
def _builtin(gvk: tuple[str, str, str], resource: Resource) -> Kind:
    shape = builtin(*gvk)
    assert shape is not None, f"no type data for {gvk}: regenerate data/types.json"
    rules = RULES.get(f"{resource.plural}.{resource.group}", _DEFAULT)
    return Kind(
        shape=shape,
        rules=rules,
        status="status" in resource.subresources,
        decode=_decoder(resource, shape),
        validate=_validator(resource, rules),
        readers=readers(rules, namespaced=resource.namespaced),
        ignored=ignored(rules, status="status" in resource.subresources),
    )


def _decoder(resource: Resource, shape: Shape):  # type: ignore[no-untyped-def]
    def decode(obj: Obj, unknown: list[str]) -> Obj:
        return decoding.decode(obj, shape, api_version=resource.version, kind=resource.kind, unknown=unknown)

    return decode


def _validator(resource: Resource, rules: Rules):  # type: ignore[no-untyped-def]
    def validate(obj: Obj, old: Obj | None, subresource: str) -> list[FieldError]:
        meta = obj["metadata"]
        if old is None:
            found = names.metadata(meta, namespaced=resource.namespaced, check=rules.name)
            return found + rules.validate(obj)
        found = names.metadata_update(meta, old["metadata"]) + names.common(
            meta, namespaced=resource.namespaced
        )
        if subresource == "status":
            return found + rules.validate_status(obj, old)
        return found + rules.validate(obj) + rules.validate_update(obj, old)

    return validate
