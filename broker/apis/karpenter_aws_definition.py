"""The cluster's definition (CRD) of EC2NodeClass: whether it has `capacityReservationSpec`, and the patch
for it.

Invariant: the patch adds that one property, to every version that is served or stored, and nothing else.
`spec.versions` is an atomic list, so the patch is a JSON patch that tests each position that it writes
to. If the definition changed in the meantime, the patch is rejected as a whole
(https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy, RFC 6902).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from broker.apis import crds, names
from broker.apis.meta import Json, Kind, Model, Object

NAME = f"ec2nodeclasses.{names.KARPENTER_AWS}"
PROPERTY = "capacityReservationSpec"
# A status field that only the broker's own definition has.
OWN = "capacityReservationMisfits"
PLACE = ("schema", "openAPIV3Schema", "properties", "spec", "properties")


class DefinitionSpec(Model):
    """The versions without decoding, since a schema is free-form."""

    versions: tuple[Json, ...] = ()


class CustomResourceDefinition(Object):
    """The fields of a definition that the broker reads."""

    KIND: ClassVar[Kind] = crds.KIND

    spec: DefinitionSpec = DefinitionSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDefinition:
    """The state of the property in one generation of the definition.

    `identity` changes with every change of the definition. `own`: the broker installed it, so
    Karpenter's chart does not manage it. `missing` and `outdated` are versions without the property,
    and with a different one.
    """

    identity: str
    own: bool
    versions: tuple[str, ...]
    missing: tuple[str, ...]
    outdated: tuple[str, ...]

    @property
    def serves(self) -> bool:
        """Whether the field is kept in every version that an object may be written in."""
        return bool(self.versions) and not self.missing


def definition(raw: Mapping[str, Any]) -> StoredDefinition:
    properties = [(version["name"], _properties(version).get(PROPERTY)) for _, version in _used(raw)]
    meta = raw.get("metadata", {})
    return StoredDefinition(
        identity=f"{meta.get('uid', '')}/{meta.get('generation', 0)}",
        own=any(OWN in _properties(version, "status") for _, version in _used(raw)),
        versions=tuple(name for name, _ in properties),
        missing=tuple(name for name, schema in properties if schema is None),
        outdated=tuple(name for name, schema in properties if schema not in (None, property_schema())),
    )


def patch(raw: Mapping[str, Any]) -> list[Json]:
    """The JSON patch that gives every version the property; empty if nothing is missing."""
    changes: list[Json] = []
    for index, version in _used(raw):
        present = _properties(version).get(PROPERTY)
        if present == property_schema():
            continue
        at = f"/spec/versions/{index}"
        place = "/".join((at, *PLACE, PROPERTY))
        changes.append({"op": "test", "path": f"{at}/name", "value": version["name"]})
        if present is not None:
            changes.append({"op": "test", "path": place, "value": present})
        changes.append({"op": "add", "path": place, "value": property_schema()})
    if not changes:
        return []
    # Without a test of the version, a property added in the meantime would be replaced unseen.
    seen = {"op": "test", "path": "/metadata/resourceVersion", "value": raw["metadata"]["resourceVersion"]}
    return [seen, *changes]


@lru_cache
def property_schema() -> Json:
    """The property's schema in the broker's own definition."""
    [own] = crds.load(f"{names.KARPENTER_AWS}_ec2nodeclasses.yaml")
    schema: Json = _properties(own["spec"]["versions"][0])[PROPERTY]
    return schema


def _used(raw: Mapping[str, Any]) -> Iterator[tuple[int, Json]]:
    """The served or stored versions, with their positions in the list."""
    for index, version in enumerate(raw.get("spec", {}).get("versions", ())):
        if version.get("served") or version.get("storage"):
            yield index, version


def _properties(version: Mapping[str, Any], field: str = "spec") -> Json:
    schema = version.get("schema", {}).get("openAPIV3Schema", {})
    properties: Json = schema.get("properties", {}).get(field, {}).get("properties", {})
    return properties
