"""Finds the fields of a manifest that its kind does not have, which decoding ignores.

The API server rejects such a field, so a plan that ignores it would approve another launch than
`kubectl apply` makes. Invariant: no field of Kubernetes or of any version of Karpenter is refused. An
installed Karpenter may be newer than the shipped definitions, so an unknown field is a spelling error only
if it is close to a known field that the object does not have. Status is not checked: nobody writes it by
hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from broker.apis import crds
from broker.apis.meta import Kind
from broker.apis.pod_fields import METADATA, PRESERVE, WORKLOADS, Schema
from broker.text import similar

CLOSE: Final = 0.8  # of difflib's ratio; cpuCFSQuotaPeriod is farther from cpuCFSQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownField:
    """`meant`: the known field that it is probably; empty if none is close."""

    path: str
    meant: str


class UnknownFields:
    """The unknown fields of the documents of files. A field of many objects is one line."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, UnknownField], list[str]] = {}

    def check(self, file: str, document: Mapping[str, Any], kind: Kind | None) -> None:
        """`kind` is the kind of a CRD; pods and workloads need none."""
        metadata = document.get("metadata")
        named = metadata if isinstance(metadata, dict) else {}
        name = str(named.get("name") or named.get("generateName", ""))
        for field in _unknown_fields(document, kind):
            self._objects.setdefault((file, str(document["kind"]), field), []).append(name)

    @property
    def refused(self) -> list[str]:
        """The spelling errors, one line for each field of a kind and a file."""
        return [
            f"{place}: {field.path}: unknown field; did you mean {field.meant}?"
            for place, field in self._places()
            if field.meant
        ]

    @property
    def ignored(self) -> list[str]:
        """The other unknown fields."""
        return [
            f"{place}: {field.path}: unknown field; the plan ignores it"
            for place, field in self._places()
            if not field.meant
        ]

    def _places(self) -> Iterator[tuple[str, UnknownField]]:
        for (file, kind, field), objects in self._objects.items():
            more = f" and {len(objects) - 1} more" if len(objects) > 1 else ""
            yield f"{file}: {kind} {objects[0]}{more}", field


def _unknown_fields(document: Mapping[str, Any], kind: Kind | None) -> list[UnknownField]:
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    schema = WORKLOADS.get((group, str(document["kind"]))) or (_schema(kind) if kind else None)
    return [] if schema is None else [*_walk(document, schema, "")]


@cache
def _schema(kind: Kind) -> Schema | None:
    """The schema of a shipped CRD with the fields of metadata; None if none is shipped."""
    for definition in crds.load(f"{kind.group}_{kind.plural}.yaml"):
        for version in definition["spec"]["versions"]:
            if version["name"] == kind.version:
                properties = version["schema"]["openAPIV3Schema"]["properties"]
                return {"properties": properties | {"metadata": METADATA, "status": {}}}
    return None


def _walk(value: Any, schema: Schema, path: str) -> Iterator[UnknownField]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, schema.get("items") or {}, f"{path}[{number}]")
    if not isinstance(value, dict):
        return
    known, others = schema.get("properties") or {}, schema.get("additionalProperties")
    strict = bool(known) and not others and not schema.get(PRESERVE)
    for key, child in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in known:
            yield from _walk(child, known[key], where)
        elif isinstance(others, Mapping):
            yield from _walk(child, others, where)
        elif strict:
            yield UnknownField(path=where, meant=_meant(str(key), known.keys() - value.keys()))


def _meant(key: str, absent: Iterable[str]) -> str:
    """The absent field that a key is probably; empty if none is close."""
    # A known field and a further word, such as restartPolicyRules, is the name of another field.
    names = {_folded(name): name for name in absent if not _extends(key, name)}
    folded = _folded(key)
    swapped = [name for name in names if sorted(name) == sorted(folded)]
    return names.get(similar(folded, names, ratio=CLOSE) or next(iter(swapped), ""), "")


def _extends(key: str, name: str) -> bool:
    return key.startswith(name) and key[len(name) :][:1].isupper()


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()
