"""CRD markers for a field beyond its Python type: descriptions, limits, and CEL rules.

Models decode leniently: an invalid object that is in the API server must still reach the broker, to be
reported. These markers hold the strict half, and only the CRD generator reads them. Rules keep to the CEL
of every evaluator (no Kubernetes extension functions) and guard each optional field with `has`. They
apply to bounded lists and strings, since the API server refuses rules with a high worst-case cost:
https://kubernetes.io/docs/reference/using-api/cel/#resource-use-by-cel-functions
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SchemaRule:
    """A CEL rule and its error message: the fields, and the fix."""

    rule: str
    message: str

    def wire(self) -> dict[str, str]:
        return {"message": self.message, "rule": self.rule}


@dataclass(frozen=True, slots=True)
class Crd:
    """A marker for `Annotated`. `keywords` are OpenAPI's own names (`maxItems`, `pattern`, `default`)."""

    doc: str = ""
    required: bool = False
    rules: tuple[SchemaRule, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


def crd(doc: str = "", *rules: SchemaRule, required: bool = False, map_key: str = "", **keywords: Any) -> Crd:
    """`x_kubernetes_list_type="atomic"` becomes `x-kubernetes-list-type: atomic`.

    `map_key`: the field that is unique in a list, so that server-side apply merges its items.
    """
    if map_key:
        keywords |= {"x_kubernetes_list_type": "map", "x_kubernetes_list_map_keys": [map_key]}
    named = {key.replace("_", "-") if key.startswith("x_") else key: value for key, value in keywords.items()}
    return Crd(doc=doc, required=required, rules=rules, keywords=named)
