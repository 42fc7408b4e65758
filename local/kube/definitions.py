"""Serves the resources of a CustomResourceDefinition, from its first write to its end.

Rule: k8s.io/apiextensions-apiserver/pkg/controller (establish, status, finalizer), which run as part of the
write here: a definition is Established when its creation returns.
"""

from __future__ import annotations

from local.kube.crd.version import CustomVersion
from local.kube.deletes import delete
from local.kube.options import DeleteOptions
from local.kube.resources import WATCHABLE, Resource, Sub
from local.kube.state import ApiState
from local.kube.store import Item, encode
from local.kube.times import stamp
from local.kube.wire import Obj

STORAGE = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


def resources(crd: Obj) -> list[Resource]:
    """The resources of a definition, one for each version."""
    spec = crd["spec"]
    names, out = spec["names"], list[Resource]()
    for version in spec["versions"]:
        if version.get("served"):
            out.append(_resource(spec, names, version))
    return out


def copy(old: ApiState, new: ApiState) -> None:
    """Serves the definitions of another server in a new one: their schemas are checked and compiled once."""
    with old.store.lock:
        new.store.begin_with(old.store.collection(STORAGE), old.store.revision)
        for resource in old.registry.all():
            if resource.custom is not None:
                new.registry.add(resource)


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
        selectable=tuple(field["jsonPath"] for field in version.get("selectableFields") or ()),
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


def written(state: ApiState, resource: Resource, new: Obj | None, old: Obj | None) -> None:
    """After each write of a definition: serves it, establishes it, cleans up when it goes."""
    if new is None:
        assert old is not None
        _serve(state, old["spec"], [])
        return
    key = ("", new["metadata"]["name"])
    if new["metadata"].get("deletionTimestamp"):
        _clean(state, resource, new)
        return
    if old is None or old["spec"] != new["spec"]:
        _serve(state, new["spec"], resources(new))
        _reread(state, new)
    status = _status(state, new)
    finalizers = list(new["metadata"].get("finalizers") or ())
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    meta = {**new["metadata"], "finalizers": finalizers}
    updated = {**new, "metadata": meta, "status": status}
    if updated != new:
        state.store.put(resource.storage, key, updated, bare=True)


def _serve(state: ApiState, spec: Obj, versions: list[Resource]) -> None:
    """Serves these versions; watches end, as the real server makes its storage of the kind anew."""
    group, plural = spec["group"], spec["names"]["plural"]
    state.registry.replace(group, plural, versions)
    state.store.collection(f"{plural}.{group}").end_watches()


def _reread(state: ApiState, crd: Obj) -> None:
    """Shows stored objects as the new schema has them: pruned and with its defaults, at the same version."""
    stored = next(v for v in crd["spec"]["versions"] if v.get("storage"))
    resource = _resource(crd["spec"], crd["spec"]["names"], stored)
    assert resource.custom is not None
    kind, items = resource.custom.kind, state.store.collection(resource.storage).items
    for key, item in items.items():
        obj = kind.decode(item.obj, [])
        kind.rules.default(obj)
        if obj != item.obj:
            items[key] = Item(obj, encode(obj, bare=False), item.revision)


def _status(state: ApiState, crd: Obj) -> Obj:
    status = dict(crd.get("status") or {})
    names = {key: value for key, value in crd["spec"]["names"].items() if value}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
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


def _clean(state: ApiState, resource: Resource, crd: Obj) -> None:
    """Deletes every object of a definition that goes; those with finalizers hold it up."""
    if FINALIZER not in (crd["metadata"].get("finalizers") or ()):
        return
    served = resources(crd)
    storage = f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    for key in list(state.store.collection(storage).items):
        delete(state, served[0] if served else resource, key, DeleteOptions())
    if state.store.collection(storage).items:
        return
    key = ("", crd["metadata"]["name"])
    finalizers = [finalizer for finalizer in crd["metadata"]["finalizers"] if finalizer != FINALIZER]
    meta = {k: v for k, v in crd["metadata"].items() if k != "finalizers"}
    if finalizers:
        left = {**crd, "metadata": {**meta, "finalizers": finalizers}}
        state.store.put(resource.storage, key, left, bare=True)
        return
    state.store.put(resource.storage, key, {**crd, "metadata": meta}, bare=True)
    state.delete(resource, key)
