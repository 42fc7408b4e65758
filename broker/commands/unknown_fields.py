"""Finds the fields of a manifest that its kind does not have, which decoding ignores.

The API server rejects such a field, so a plan that ignores it would approve another launch than
`kubectl apply` makes. Pods and workloads have the fields of Kubernetes' own client. Invariant: no field of
Kubernetes or of any version of Karpenter is refused. An installed one may be newer than the client and the
shipped definitions, so an unknown field is a spelling error only if it is close to a known field that the
object does not have. Status is not checked: nobody writes it by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kubernetes import client

from broker.apis import crds
from broker.apis.meta import Kind
from broker.text import abridged, similar

Schema = Mapping[str, Any]
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
# By group and kind: the client's type. Of a JobSet only the Jobs are described: its own fields are those of
# its version.
WORKLOADS: Final[Mapping[tuple[str, str], str]] = {
    ("", "Pod"): "V1Pod",
    ("apps", "Deployment"): "V1Deployment",
    ("apps", "ReplicaSet"): "V1ReplicaSet",
    ("apps", "StatefulSet"): "V1StatefulSet",
    ("apps", "DaemonSet"): "V1DaemonSet",
    ("batch", "Job"): "V1Job",
    ("batch", "CronJob"): "V1CronJob",
    ("jobset.x-k8s.io", "JobSet"): "",
}
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
            yield f"{file}: {kind} {abridged(objects, 1)}", field


def _unknown_fields(document: Mapping[str, Any], kind: Kind | None) -> list[UnknownField]:
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    workload = group, str(document["kind"])
    schema = workload_schema(*workload) if workload in WORKLOADS else _schema(kind) if kind else None
    return [] if schema is None else [*_walk(document, schema, "")]


def workload_schema(group: str, kind: str) -> Schema:
    """The schema of a pod, or of a workload that makes pods."""
    type_ = WORKLOADS[group, kind]
    if type_:
        return _without_status(schema_of(type_)["properties"])
    job = {"items": {"properties": {"template": schema_of("V1JobTemplateSpec")}, PRESERVE: True}}
    spec = {"properties": {"replicatedJobs": job}, PRESERVE: True}
    return _without_status({**schema_of("V1Pod")["properties"], "spec": spec})


@cache
def schema_of(type_: str) -> Schema:
    """The schema of a type by its name in the client, such as `List[V1Container]`; empty for other types."""
    if type_.startswith("List["):
        return {"items": schema_of(type_.removeprefix("List[").removesuffix("]"))}
    fields = getattr(getattr(client, type_, None), "openapi_types", {})
    names = getattr(client, type_).attribute_map if fields else {}
    return {"properties": {names[field]: schema_of(inner) for field, inner in fields.items()}}


@cache
def _schema(kind: Kind) -> Schema | None:
    """The schema of a shipped CRD with the fields of metadata; None if none is shipped."""
    for definition in crds.load(f"{kind.group}_{kind.plural}.yaml"):
        for version in definition["spec"]["versions"]:
            if version["name"] == kind.version:
                properties = version["schema"]["openAPIV3Schema"]["properties"]
                return _without_status(properties | {"metadata": schema_of("V1ObjectMeta")})
    return None


def _without_status(properties: Schema) -> Schema:
    return {"properties": {**properties, "status": {}}}


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
