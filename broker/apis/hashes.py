"""Hashes of the fields that decide how an instance is set up, for drift.

A claim carries the hashes that its pool and its class had when it was made. If the hash of the pool or class
differs later, the claim has drifted. The fields are Karpenter's (pkg/apis/v1/nodepool.go; its AWS provider,
pkg/apis/v1/ec2nodeclass.go). Fields that the instance itself shows are left out and compared directly:
requirements, AMIs, subnets and reservations. Order does not count, nor does a field with its default.

Invariant: hashes are compared only if their versions are equal. The version is the broker's own, so a hash
that Karpenter wrote is never compared with one of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Model

VERSION: Final = "capacity-broker-v1"
MOST_HASHES: Final = 1_000  # computed hashes that are kept
# The instance shows these by itself, or they do not change it.
_SHOWN_BY_INSTANCE: Final = frozenset(
    {
        "ami_selector_terms",
        "subnet_selector_terms",
        "security_group_selector_terms",
        "capacity_reservation_selector_terms",
        "capacity_reservation_spec",
    }
)
# By the id of the hashed object, which is frozen; kept with it, so that no other object gets its id.
_HASHES: Final[dict[int, tuple[Model, str]]] = {}


def pool_stamp(pool: NodePool) -> dict[str, str]:
    """The annotations of a claim that is made from the pool's present template."""
    return {names.NODEPOOL_HASH: pool_hash(pool), names.NODEPOOL_HASH_VERSION: VERSION}


def pool_hash(pool: NodePool) -> str:
    """The hash of the pool's template without its requirements."""
    return _hash(pool.spec.template, frozenset({"requirements"}))


def class_stamp(node_class: EC2NodeClass) -> dict[str, str]:
    """The annotations of a claim that is launched from the present class."""
    return {names.NODECLASS_HASH: class_hash(node_class), names.NODECLASS_HASH_VERSION: VERSION}


def class_hash(node_class: EC2NodeClass) -> str:
    """The hash of the class's static fields."""
    return _hash(node_class.spec, _SHOWN_BY_INSTANCE)


def _hash(model: Model, but: frozenset[str]) -> str:
    """Computed once for each object, since thousands of claims have the same pool and class."""
    known = _HASHES.get(id(model))
    if known is not None and known[0] is model:
        return known[1]
    if len(_HASHES) >= MOST_HASHES:
        _HASHES.clear()
    computed = hashlib.sha256(_text(_fields(model, but=but))).hexdigest()[:16]
    _HASHES[id(model)] = (model, computed)
    return computed


def _fields(value: Any, *, but: frozenset[str] = frozenset()) -> Any:
    """The value as JSON: defaults are left out, and lists are sorted."""
    if isinstance(value, Model):
        fields: dict[str, Any] = {}
        for name, field in type(value).model_fields.items():
            item = getattr(value, name)
            if name not in but and item != field.get_default(call_default_factory=True):
                fields[name] = _fields(item, but=but)
        fields |= {name: _fields(item) for name, item in (value.model_extra or {}).items()}
        return {name: item for name, item in fields.items() if item not in ({}, [], None, "")}
    if isinstance(value, Mapping):
        return {str(key): _fields(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return sorted((_fields(item) for item in value), key=_text)
    return value


def _text(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str)
