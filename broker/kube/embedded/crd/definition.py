"""What happens when a CustomResourceDefinition is written: its defaults, its checks, what is served by it.

Rule: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions (defaults, validation) and its status controllers,
which run as part of the write here: a definition is Established when its creation returns.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import FieldError, problem, supported
from ..names import dns_1035_label, dns_subdomain
from ..resources import WATCHABLE, Resource, Sub
from ..state import State
from ..times import stamp
from ..wire import Obj
from . import rules
from .schema import compiled
from .version import CustomVersion

FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_TYPES = ("string", "number", "integer", "boolean", "array", "object")
_CONVERSIONS = ("None", "Webhook")
_VERSION = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


def default(obj: Obj) -> None:
    spec: Obj = obj.get("spec") or {}
    names = spec.get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    if isinstance(spec, dict):
        spec.setdefault("conversion", {"strategy": "None"})


def create(obj: Obj) -> None:
    stored = [v["name"] for v in obj.get("spec", {}).get("versions") or () if v.get("storage")]
    obj["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored or None,
    }


def update(obj: Obj, old: Obj) -> None:
    status = obj.get("status") or {}
    stored = list(status.get("storedVersions") or ())
    for version in obj["spec"].get("versions") or ():
        if version.get("storage") and version["name"] not in stored:
            stored.append(version["name"])
    status["storedVersions"] = stored
    obj["status"] = status


def validate(obj: Obj) -> list[FieldError]:
    spec, out = obj.get("spec") or {}, list[FieldError]()
    names, versions = spec.get("names") or {}, spec.get("versions") or []
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if obj["metadata"].get("name") != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        out.append(problem("invalid", "metadata.name", why, obj["metadata"].get("name", "")))
    group = spec.get("group", "")
    if not group:
        out.append(problem("required", "spec.group"))
    elif found := dns_subdomain(group):
        out += [problem("invalid", "spec.group", why, group) for why in found]
    elif "." not in group:
        out.append(problem("invalid", "spec.group", "should be a domain with at least one dot", group))
    scope = spec.get("scope", "")
    if not scope:
        out.append(problem("required", "spec.scope"))
    elif scope not in ("Cluster", "Namespaced"):
        out.append(supported("spec.scope", scope, ["Cluster", "Namespaced"]))
    storing = [version for version in versions if version.get("storage")]
    if len(storing) != 1:
        why = "must have exactly one version marked as storage version"
        out.append(problem("invalid", "spec.versions", why, versions))
    for i, version in enumerate(versions):
        out += _version(version, f"spec.versions[{i}]")
    for part, required in (("plural", True), ("singular", False), ("kind", True), ("listKind", True)):
        value = names.get(part, "")
        if not value and required:
            out.append(problem("required", f"spec.names.{part}"))
        elif value:
            text = value.lower()
            out += [problem("invalid", f"spec.names.{part}", why, value) for why in dns_1035_label(text)]
    strategy = (spec.get("conversion") or {}).get("strategy", "")
    if strategy not in _CONVERSIONS:
        out.append(supported("spec.conversion.strategy", strategy, _CONVERSIONS))
    if spec.get("preserveUnknownFields"):
        why = "must be false in order to use defaults in the schema"
        out.append(problem("invalid", "spec.preserveUnknownFields", why, True))
    return out


def _version(version: Obj, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    name = version.get("name", "")
    out += [problem("invalid", f"{path}.name", why, name) for why in dns_1035_label(name)]
    root = (version.get("schema") or {}).get("openAPIV3Schema")
    where = f"{path}.schema.openAPIV3Schema"
    if root is None:
        return [*out, problem("required", where, "schemas are required")]
    if root.get("type") != "object":
        what = "must be object at the root"
        bad = problem("invalid", f"{where}.type", what, root["type"]) if root.get("type") else None
        out.append(bad or problem("required", f"{where}.type", what))
    out += _structural(root, where)
    out += rules.broken(root, where)
    return out


def _structural(schema: Any, path: str, *, root: bool = True) -> list[FieldError]:
    """A schema that says the type of everything it names, or that it may be anything."""
    out: list[FieldError] = []
    if not isinstance(schema, dict):
        return out
    kind = schema.get("type", "")
    anything = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if not kind and not anything and not root:
        out.append(problem("required", f"{path}.type", "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        out.append(supported(f"{path}.type", kind, sorted(_TYPES)))
    if schema.get("properties") and schema.get("additionalProperties") not in (None, False):
        why = "additionalProperties and properties are mutual exclusive"
        out.append(problem("forbidden", f"{path}.additionalProperties", why))
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        out.append(problem("forbidden", f"{path}.uniqueItems", why))
    if schema.get("default") is not None:
        out += compiled(schema)(schema["default"], f"{path}.default")
    if isinstance(schema.get("items"), list):
        why = "items must be a schema object and not an array"
        return [*out, problem("forbidden", f"{path}.items", why)]
    if kind == "array" and not schema.get("items"):
        out.append(problem("required", f"{path}.items", "must be specified"))
    listed = schema.get("x-kubernetes-list-type")
    if listed is not None and listed not in ("atomic", "set", "map"):
        out.append(supported(f"{path}.x-kubernetes-list-type", listed, ["atomic", "map", "set"]))
    if listed == "map" and not schema.get("x-kubernetes-list-map-keys"):
        why = "must not be empty if x-kubernetes-list-type is map"
        out.append(problem("required", f"{path}.x-kubernetes-list-map-keys", why))
    out += _map_keys(schema, path) if listed == "map" else []
    for name, inner in (schema.get("properties") or {}).items():
        out += _structural(inner, f"{path}.properties[{name}]", root=False)
    out += _structural(schema.get("items"), f"{path}.items", root=False)
    out += _structural(schema.get("additionalProperties"), f"{path}.additionalProperties", root=False)
    return out


def _map_keys(schema: Obj, path: str) -> list[FieldError]:
    """What tells entries apart has to be in each of them."""
    out: list[FieldError] = []
    items = schema.get("items") or {}
    known = items.get("properties") or {}
    for i, key in enumerate(schema.get("x-kubernetes-list-map-keys") or ()):
        where = f"{path}.x-kubernetes-list-map-keys[{i}]"
        if key not in known:
            out.append(problem("invalid", where, "entries must all be names of item properties", key))
        elif key not in (items.get("required") or ()) and known[key].get("default") is None:
            why = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required "
                "property"
            )
            out.append(problem("required", f"{path}.items.properties[{key}].default", why))
    return out


def resources(crd: Obj) -> list[Resource]:
    """What a definition serves, a resource a version."""
    spec = crd["spec"]
    names, out = spec["names"], list[Resource]()
    for version in spec["versions"]:
        if version.get("served"):
            out.append(_resource(spec, names, version))
    return out


def _resource(spec: Obj, names: Obj, version: Obj) -> Resource:
    sub = version.get("subresources") or {}
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    custom = CustomVersion(
        group=spec["group"],
        name=version["name"],
        plural=names["plural"],
        kind_name=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        schema=schema,
        status="status" in sub,
        scale=sub.get("scale"),
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        selectable=tuple(one["jsonPath"] for one in version.get("selectableFields") or ()),
    )
    verbs = ("get", "patch", "update")
    subs = {}
    if "status" in sub:
        subs["status"] = Sub(names["kind"], verbs, spec["group"], version["name"])
    if sub.get("scale"):
        subs["scale"] = Sub("Scale", verbs, "autoscaling", "v1")
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        verbs=WATCHABLE,
        singular=names.get("singular", ""),
        short=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=subs,
        list_kind=names.get("listKind") or names["kind"] + "List",
        custom=custom,
        stored=f"{spec['group']}/{next(v['name'] for v in spec['versions'] if v.get('storage'))}",
    )


def written(state: State, resource: Resource, new: Obj | None, old: Obj | None) -> None:
    """After each write of a definition: serves what it says, establishes it, cleans up when it goes."""
    if new is None:
        assert old is not None
        state.registry.replace(old["spec"]["group"], old["spec"]["names"]["plural"], [])
        return
    group, plural = new["spec"]["group"], new["spec"]["names"]["plural"]
    key = ("", new["metadata"]["name"])
    if new["metadata"].get("deletionTimestamp"):
        _clean(state, resource, new)
        return
    if old is None or old["spec"] != new["spec"]:
        state.registry.replace(group, plural, resources(new))
    status = _status(state, new)
    finalizers = list(new["metadata"].get("finalizers") or ())
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    meta = {**new["metadata"], "finalizers": finalizers}
    settled = {**new, "metadata": meta, "status": status}
    if settled != new:
        state.store.put(resource.storage, key, settled, bare=True)


def _status(state: State, crd: Obj) -> Obj:
    status = dict(crd.get("status") or {})
    names = {key: value for key, value in crd["spec"]["names"].items() if value}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    for kind, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        if conditions.get(kind, {}).get("status") != "True":
            conditions[kind] = {
                "type": kind,
                "status": "True",
                "lastTransitionTime": stamp(state.clock()),
                "reason": reason,
                "message": message,
            }
    return {**status, "conditions": list(conditions.values()), "acceptedNames": names}


def _clean(state: State, resource: Resource, crd: Obj) -> None:
    """Deletes every object of a definition that goes; those with finalizers hold it up."""
    from ..deletes import delete
    from ..options import DeleteOptions

    if FINALIZER not in (crd["metadata"].get("finalizers") or ()):
        return
    served = resources(crd)
    storage = f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    for key in list(state.store.collection(storage).items):
        delete(state, served[0] if served else resource, key, DeleteOptions())
    if state.store.collection(storage).items:
        return
    key = ("", crd["metadata"]["name"])
    finalizers = [one for one in crd["metadata"]["finalizers"] if one != FINALIZER]
    meta = {k: v for k, v in crd["metadata"].items() if k != "finalizers"}
    if finalizers:
        left = {**crd, "metadata": {**meta, "finalizers": finalizers}}
        state.store.put(resource.storage, key, left, bare=True)
        return
    state.store.put(resource.storage, key, {**crd, "metadata": meta}, bare=True)
    state.delete(resource, key)
