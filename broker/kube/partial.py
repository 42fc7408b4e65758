"""The readable part of an object that is left out: enough to report it and to keep its dependents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from broker.apis.meta import Kind, Object, instance_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialObject:
    """The object's identity, why it is left out, and its annotations, as far as each can be read.

    `provider_id`: of a claim from its status, of a Node from its spec; empty if it cannot be read. `decoded`:
    it could be decoded, and a guard left it out.
    """

    kind: Kind
    name: str
    error: str
    namespace: str = ""
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""
    decoded: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def instance_id(self) -> str:
        """Of a claim or a Node."""
        return instance_of(self.provider_id)

    @classmethod
    def of_raw(cls, kind: Kind, raw: Mapping[str, Any], error: str) -> Self:
        """Reads an object as the API server sent it, which may hold anything anywhere."""
        meta = raw["metadata"]
        parts = [part for part in (raw.get("status"), raw.get("spec")) if isinstance(part, dict)]
        annotations = meta.get("annotations")
        return cls(
            kind=kind,
            name=str(meta["name"]),
            namespace=_text(meta.get("namespace")),
            uid=_text(meta.get("uid")),
            annotations=_texts(annotations) if isinstance(annotations, dict) else {},
            provider_id=_first(part.get("providerID") for part in parts),
            error=error,
        )

    @classmethod
    def of_object(cls, obj: Object, error: str) -> Self:
        """Keeps what identifies an object that was decoded."""
        meta = obj.metadata
        return cls(
            kind=obj.KIND,
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            annotations=meta.annotations,
            provider_id=_first(
                getattr(obj.__dict__.get(part), "provider_id", "") for part in ("status", "spec")
            ),
            error=error,
            decoded=True,
        )


def _first(values: Iterable[object]) -> str:
    return next(filter(None, map(_text, values)), "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: Mapping[Any, Any]) -> dict[str, str]:
    return {key: value for key, value in values.items() if isinstance(key, str) and isinstance(value, str)}
