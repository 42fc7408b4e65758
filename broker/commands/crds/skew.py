"""`capacity-broker crds check`: the definitions of a cluster beside those of this version of the broker.

Invariant: nothing is written. A field that only the cluster has is ignored. A field that the cluster lacks is
dropped by the API server at each write, so its user or the broker cannot store it
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from broker.apis import names
from broker.apis.crds import KIND, load
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.text import abridged

COLUMNS: Final = {"name": "NAME", "state": "STATE", "version": "MADE BY", "detail": "DETAIL"}
VERSION: Final = f"{names.BROKER}/version"
# Without these kinds the broker does not act at all; each other missing kind turns off its own feature.
NEEDED: Final = frozenset(
    (f"nodeclaims.{names.KARPENTER}", f"nodepools.{names.KARPENTER}", f"ec2nodeclasses.{names.KARPENTER_AWS}")
)
BAD: Final = frozenset(("missing", "older"))
SHOWN = 4

Schema = Mapping[str, Any]


def check(client: Client) -> list[dict[str, Any]]:
    """One row for each definition. Raises ApiError."""
    return [_row(client, crd) for crd in load()]


def acceptable(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all needed kinds exist, and every existing kind has all fields."""
    return not any(row["state"] in BAD for row in rows)


def _row(client: Client, expected: Schema) -> dict[str, Any]:
    name = str(expected["metadata"]["name"])
    try:
        installed = client.get(KIND, name)
    except NotFound:
        needed = name in NEEDED
        detail = "nothing runs without it" if needed else "the broker runs without this kind"
        return {"name": name, "state": "missing" if needed else "absent", "version": "", "detail": detail}
    version = str(installed["metadata"].get("annotations", {}).get(VERSION, ""))
    lacking, more = differences(expected, installed)
    state = "older" if lacking else "newer" if more else "same"
    detail = f"drops {abridged(lacking, SHOWN)}" if lacking else ""
    return {"name": name, "state": state, "version": version, "detail": detail}


def differences(expected: Schema, installed: Schema) -> tuple[list[str], list[str]]:
    """The fields that the cluster's definition lacks, and those that only it has, with their versions.

    A version that the broker does not use is ignored. A version that the cluster does not serve counts as one
    lacking field.
    """
    lacking: list[str] = []
    more: list[str] = []
    served = {version["name"]: version for version in installed["spec"]["versions"] if version.get("served")}
    [storage] = [version for version in expected["spec"]["versions"] if version["storage"]]
    if storage["name"] not in served:
        return [f"version {storage['name']}"], more
    expected_paths, installed_paths = (
        set(paths(_root(version))) for version in (storage, served[storage["name"]])
    )
    open_ = {path for path in installed_paths if path.endswith("*")}
    lacking += sorted(path for path in expected_paths - installed_paths if not _within(path, open_))
    more += sorted(path for path in installed_paths - expected_paths if not path.endswith("*"))
    return _topmost(lacking), _topmost(more)


def paths(schema: Schema, at: str = "") -> Iterator[str]:
    """The path of every field; `*` stands for any field below a place that keeps unknown fields."""
    for name, child in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        yield path
        yield from paths(child, path)
    for name in ("items", "additionalProperties"):
        if isinstance(child := schema.get(name), Mapping):
            yield from paths(child, f"{at}[]" if name == "items" else f"{at}.{{}}")
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{at}.*" if at else "*"


def _root(version: Schema) -> Schema:
    schema: Schema = version.get("schema", {}).get("openAPIV3Schema", {})
    fields = {
        name: child for name, child in schema.get("properties", {}).items() if name in ("spec", "status")
    }
    return {**schema, "properties": fields}


def _within(path: str, open_: Iterable[str]) -> bool:
    return path.endswith("*") or any(path.startswith(prefix[:-1]) for prefix in open_)


def _topmost(paths_: list[str]) -> list[str]:
    """Without the fields of a field that is in the list itself."""
    return [
        path
        for path in paths_
        if not any(path.startswith((f"{top}.", f"{top}[")) for top in paths_ if top != path)
    ]
