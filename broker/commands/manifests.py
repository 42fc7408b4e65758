"""Reads manifests from files, folders or standard input.

Each problem names the file, the document and the error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass, EC2NodeClassV1Beta1
from broker.apis.kueue import Cohort, Namespace, ResourceFlavor
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.commands.unknown_fields import UnknownFields

MODELS: tuple[type[Object], ...] = (
    EC2NodeClass,
    EC2NodeClassV1Beta1,
    NodeClaim,
    NodePool,
    CapacityReservation,
    ClusterCapacityReservation,
    DedicatedAICluster,
    DedicatedAIClusterProfile,
    ResourceFlavor,
    Cohort,
    Namespace,
)
PLACEHOLDER = re.compile(r"\$\{\w+\}")
KINDS = {(m.KIND.api_version, m.KIND.kind): m for m in MODELS}


class BadManifest(Exception):
    """Documents that cannot be read; each problem has the place and the reason."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def read(
    paths: Iterable[str], *, fill: Callable[[str], str] = str, warn: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Every object, in order; `-` is standard input, a folder its .yaml, .yml and .json files.

    A List, as `kubectl get -o yaml` writes it, stands for its items.
    `warn` gets a line for each unknown field that is close to no known one. Raises BadManifest naming the
    file.
    """
    documents: list[dict[str, Any]] = []
    unfilled: list[str] = []
    unknown = UnknownFields()
    for name, text in _texts(paths):
        try:
            documents_ = [d for d in yaml.safe_load_all(fill(text)) if d]
        except yaml.YAMLError as error:
            raise BadManifest(f"{name}: not YAML: {error}") from error
        for place, document in _items(documents_):
            if not isinstance(document, dict) or not document.get("kind"):
                raise BadManifest(f"{name}, {place}: no Kubernetes object (kind is missing)")
            documents.append(document)
            model = KINDS.get((document.get("apiVersion", ""), document["kind"]))
            unknown.check(name, document, model.KIND if model else None)
            if model:
                unfilled += [f"{name}: {field} is {value}" for field, value in _placeholders(document)]
    if unfilled:
        raise BadManifest(
            f"{'; '.join(unfilled)}: replace each by its value, or set it in the environment and "
            "pipe the file through envsubst and read it with -f -"
        )
    if unknown.refused:
        raise BadManifest(*unknown.refused)
    for line in unknown.ignored:
        warn(line)
    return documents


def _items(documents: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The objects with their places in the file: each document, or the items of one that is a List."""
    for number, document in enumerate(documents, 1):
        if isinstance(document, dict) and document.get("kind") == "List":
            for index, item in enumerate(document.get("items") or ()):
                yield f"document {number}, items[{index}]", item
        else:
            yield f"document {number}", document


def _placeholders(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Values that are nothing but `${NAME}`; one within a text, such as user data, is the text's own."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _placeholders(child, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _placeholders(child, f"{field}[{number}]")
    elif isinstance(value, str) and PLACEHOLDER.fullmatch(value.strip()):
        yield field, value.strip()


def decode(document: dict[str, Any]) -> Object | None:
    """The typed object; None for a kind that the broker does not read. Raises BadManifest."""
    model = KINDS.get((document.get("apiVersion", ""), document["kind"]))
    if model is None:
        return None
    if not (document.get("metadata") or {}).get("name"):
        raise BadManifest(f"{document['kind']}: metadata.name is missing: give it a name")
    try:
        return model.decode(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        name = document.get("metadata", {}).get("name", "")
        raise BadManifest(
            f"{document['kind']} {name}: {where}: {first['msg']}, got {first['input']!r}"
        ) from error


def _texts(paths: Iterable[str]) -> Iterable[tuple[str, str]]:
    for path in paths:
        if path == "-":
            yield "standard input", _text("standard input", sys.stdin.buffer.read())
            continue
        place = Path(path)
        files = (
            sorted(f for f in place.iterdir() if f.suffix in (".yaml", ".yml", ".json"))
            if (place.is_dir())
            else [place]
        )
        for file in files:
            try:
                content = file.read_bytes()
            except OSError as error:
                raise BadManifest(f"{file}: {error.strerror}") from error
            yield str(file), _text(str(file), content)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadManifest(f"{name}: not UTF-8 text (byte {error.start + 1}): save it as UTF-8") from error
