"""The custom resources of the conformance tests: every schema feature that the embedded server must
support.

`widgets` is namespaced, in two versions, with status and scale subresources, defaults, list types and
CEL; `gizmos` is cluster-scoped, without subresources, with free fields, so that status is a field like
any other.
"""

from typing import Any

GROUP = "conformance.capacity-broker.io"

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 10},
        "replicas": {"type": "integer", "format": "int32", "default": 1},
        "color": {"type": "string", "enum": ["red", "green", "blue"], "default": "red"},
        "code": {"type": "string", "pattern": "^[a-z]{2,4}$", "maxLength": 8},
        "ratio": {"type": "number"},
        "port": {"x-kubernetes-int-or-string": True},
        "since": {"type": "string", "format": "date-time"},
        "note": {"type": "string", "nullable": True, "default": "none"},
        "fixed": {
            "type": "string",
            "maxLength": 20,
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed cannot change"}],
        },
        "low": {"type": "integer"},
        "high": {"type": "integer"},
        "tags": {
            "type": "array",
            "maxItems": 4,
            "items": {"type": "string"},
            "x-kubernetes-list-type": "set",
        },
        "words": {"type": "array", "items": {"type": "string"}},
        "parts": {
            "type": "array",
            "maxItems": 8,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "count": {"type": "integer", "default": 1},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
        },
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {
                "type": "object",
                "required": ["port"],
                "properties": {
                    "port": {"type": "integer"},
                    "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"},
                },
            },
        },
        "limits": {"type": "object", "additionalProperties": {"type": "string"}},
        "atom": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        },
        "nested": {
            "type": "object",
            "default": {},
            "properties": {
                "depth": {"type": "integer", "default": 3},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "inner": {"type": "object", "properties": {"on": {"type": "boolean", "default": True}}},
            },
        },
    },
    "x-kubernetes-validations": [
        {
            "rule": "!has(self.low) || !has(self.high) || self.low <= self.high",
            "message": "low must not be above high",
        },
        {
            "rule": "!(has(self.code) && self.color == 'blue')",
            "messageExpression": "'code ' + self.code + ' is not for blue'",
            "reason": "FieldValueForbidden",
            "fieldPath": ".code",
        },
    ],
}

STATUS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "phase": {"type": "string", "enum": ["Pending", "Ready", "Failed"]},
        "replicas": {"type": "integer", "format": "int32"},
        "selector": {"type": "string"},
        "observedGeneration": {"type": "integer", "format": "int64"},
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status"],
                "properties": {
                    "type": {"type": "string"},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string"},
                    "message": {"type": "string"},
                },
            },
        },
    },
}


def _widget_version(name: str, *, storage: bool) -> dict[str, Any]:
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "how big"},
            {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
            {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
            {"name": "Parts", "type": "string", "jsonPath": ".spec.parts[*].name", "priority": 1},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "required": ["spec"],
                "properties": {"spec": SPEC, "status": STATUS},
            }
        },
    }


WIDGETS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "plural": "widgets",
            "singular": "widget",
            "kind": "Widget",
            "listKind": "WidgetList",
            "shortNames": ["wd"],
            "categories": ["conformance"],
        },
        "versions": [_widget_version("v1", storage=True), _widget_version("v1beta1", storage=False)],
    },
}

GIZMOS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"gizmos.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {"plural": "gizmos", "singular": "gizmo", "kind": "Gizmo", "listKind": "GizmoList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                        },
                    }
                },
            }
        ],
    },
}
