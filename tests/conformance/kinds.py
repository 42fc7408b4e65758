"""The kinds of random requests: a valid object of each, and small changes to it, valid and invalid.

A change is a partial object: it serves as merge patch, strategic patch, applied configuration, edit
before a PUT and source of JSON patches, so every patch type meets every rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.conformance.definitions import GROUP

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    kind: str
    api_version: str
    collection: str
    make: Callable[[Random], Object]
    changes: tuple[Object, ...]
    status_changes: tuple[Object, ...] = ()
    subresources: tuple[str, ...] = ()
    strategic: bool = True
    field_selectors: tuple[str, ...] = ()
    last: Object = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)  # api version → collection, of other versions

    def object(self, random: Random, name: str) -> Object:
        content = self.make(random)
        meta = content.pop("metadata", {})
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"name": name, **meta},
            **content,
        }


LABELS: tuple[Object, ...] = (
    {"app": "x"},
    {"app": "y", "tier": "a"},
    {"app": "x", "tier": "b"},
    {},
)

# Changes of metadata that every kind takes.
METADATA: tuple[Object, ...] = (
    {"metadata": {"labels": {"app": "x"}}},
    {"metadata": {"labels": {"app": "y", "tier": "b"}}},
    {"metadata": {"labels": {"app": None}}},
    {"metadata": {"labels": None}},
    {"metadata": {"annotations": {"note": "one"}}},
    {"metadata": {"annotations": {"note": "two", "other": ""}}},
    {"metadata": {"annotations": None}},
    {"metadata": {"finalizers": ["test.io/hold"]}},
    {"metadata": {"finalizers": ["test.io/hold", "test.io/more"]}},
    {"metadata": {"finalizers": []}},
    {"metadata": {"finalizers": None}},
    {"metadata": {"finalizers": ["bare"]}},
    {"metadata": {"labels": {"app": "not a label!"}}},
    {"metadata": {"labels": {"-bad/key-": "x"}}},
    {"metadata": {"annotations": {"bad key": "x"}}},
    {"metadata": {"name": "other"}},
    {"metadata": {"generation": 77}},
    {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}},
    {"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}},
    {
        "metadata": {
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": "n",
                    "uid": "11111111-1111-1111-1111-111111111112",
                }
            ]
        }
    },
    {"metadata": {"ownerReferences": [{"kind": "Node", "name": "n"}]}},
    {"metadata": {"ownerReferences": None}},
)

WIDGET_CHANGES: tuple[Object, ...] = (
    {"spec": {"size": 3}},
    {"spec": {"size": 7, "color": "green"}},
    {"spec": {"size": -1}},
    {"spec": {"size": 11, "color": "mauve"}},
    {"spec": {"size": "big"}},
    {"spec": {"size": 1.5}},
    {"spec": {"size": None}},
    {"spec": {"color": "blue"}},
    {"spec": {"color": None}},
    {"spec": {"code": "abc"}},
    {"spec": {"code": "ABC"}},
    {"spec": {"code": "toolongcode"}},
    {"spec": {"replicas": 5}},
    {"spec": {"ratio": 1}},
    {"spec": {"ratio": 2.5}},
    {"spec": {"port": 80}},
    {"spec": {"port": "http"}},
    {"spec": {"port": True}},
    {"spec": {"since": "2020-01-02T03:04:05Z"}},
    {"spec": {"since": "yesterday"}},
    {"spec": {"note": "hello"}},
    {"spec": {"note": None}},
    {"spec": {"fixed": "one"}},
    {"spec": {"fixed": "two"}},
    {"spec": {"low": 2, "high": 4}},
    {"spec": {"low": 5}},
    {"spec": {"high": 1}},
    {"spec": {"tags": ["a", "b"]}},
    {"spec": {"tags": ["b", "c"]}},
    {"spec": {"tags": ["a", "a"]}},
    {"spec": {"tags": ["a", "b", "c", "d", "e"]}},
    {"spec": {"words": ["one", "two"]}},
    {"spec": {"words": ["two"]}},
    {"spec": {"words": []}},
    {"spec": {"parts": [{"name": "p1"}]}},
    {"spec": {"parts": [{"name": "p2", "count": 4}, {"name": "p1", "count": 2}]}},
    {"spec": {"parts": [{"name": "p1", "labels": {"k": "v"}}]}},
    {"spec": {"parts": [{"name": "p1"}, {"name": "p1"}]}},
    {"spec": {"parts": [{"count": 1}]}},
    {"spec": {"parts": None}},
    {"spec": {"parts": "none"}},
    {"spec": {"ports": [{"port": 80}]}},
    {"spec": {"ports": [{"port": 80, "protocol": "UDP", "name": "u"}, {"port": 80, "name": "t"}]}},
    {"spec": {"limits": {"cpu": "1"}}},
    {"spec": {"limits": {"cpu": "2", "memory": "1Gi"}}},
    {"spec": {"limits": {"cpu": 2}}},
    {"spec": {"limits": {"cpu": None}}},
    {"spec": {"atom": {"a": "1"}}},
    {"spec": {"atom": {"b": "2"}}},
    {"spec": {"nested": {"depth": 9}}},
    {"spec": {"nested": {"free": {"any": [1, {"thing": True}]}}}},
    {"spec": {"nested": {"free": {"other": "x"}, "inner": {}}}},
    {"spec": {"nested": {"inner": {"on": False, "lost": 1}}}},
    {"spec": {"nested": None}},
    {"spec": {"unknown": 1}},
    {"unknown": {"x": 1}, "spec": {"size": 4}},
    {"spec": None},
    {"spec": []},
    {"status": {"phase": "Ready"}},
)

STATUS_CHANGES: tuple[Object, ...] = (
    {"status": {"phase": "Ready"}},
    {"status": {"phase": "Pending", "replicas": 2, "selector": "app=x"}},
    {"status": {"phase": "Nonsense"}},
    {"status": {"replicas": "many"}},
    {"status": {"unknown": 1, "replicas": 1}},
    {"status": {"observedGeneration": 2}},
    {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R"}]}},
    {
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "Unknown"}]
        }
    },
    {"status": {"conditions": [{"type": "Ready"}]}},
    {"status": {"conditions": None}},
    {"status": None},
    {"status": {"phase": "Ready"}, "spec": {"size": 8}},
    {"status": {"phase": "Failed"}, "metadata": {"labels": {"app": "x"}, "annotations": {"note": "status"}}},
    {"metadata": {"finalizers": ["test.io/hold"]}, "status": {"phase": "Failed"}},
)


def _widget(random: Random) -> Object:
    spec: Object = {"size": random.randint(0, 5)}
    for change in random.sample(WIDGET_CHANGES, random.choice((0, 0, 1, 2))):
        if isinstance(change.get("spec"), dict):
            spec |= change["spec"]
    return {"metadata": {"labels": random.choice(LABELS)}, "spec": spec}


def _gizmo(random: Random) -> Object:
    out: Object = {"metadata": {"labels": random.choice(LABELS)}, "spec": {"a": random.randint(0, 3)}}
    return out | ({"status": {"phase": "Free"}} if random.random() < 0.3 else {})


GIZMO_CHANGES: tuple[Object, ...] = (
    {"spec": {"a": 5}},
    {"spec": {"a": None, "b": {"c": [1, 2]}}},
    {"spec": {"list": [{"x": 1}, {"x": 2}]}},
    {"spec": {"list": None}},
    {"spec": None},
    {"spec": "text"},
    {"status": {"phase": "Free"}},
    {"status": {"phase": None, "n": 1}},
    {"extra": {"deep": {"deeper": [{}]}}},
    {"extra": None},
)

WIDGETS = Kind(
    kind="Widget",
    api_version=f"{GROUP}/v1",
    collection=f"/apis/{GROUP}/v1/namespaces/default/widgets",
    make=_widget,
    changes=WIDGET_CHANGES + METADATA,
    status_changes=STATUS_CHANGES,
    subresources=("status", "scale"),
    strategic=False,
    field_selectors=("spec.color=red", "metadata.name!=a", "metadata.namespace=default"),
    last={"spec": {"size": 1}},
    also={f"{GROUP}/v1beta1": f"/apis/{GROUP}/v1beta1/namespaces/default/widgets"},
)

GIZMOS = Kind(
    kind="Gizmo",
    api_version=f"{GROUP}/v1",
    collection=f"/apis/{GROUP}/v1/gizmos",
    make=_gizmo,
    changes=GIZMO_CHANGES + METADATA,
    strategic=False,
    field_selectors=("metadata.name!=a",),
)
