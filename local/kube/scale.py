"""The scale subresource: the desired replicas, as an autoscaling/v1 Scale of the object behind it.

Rule: k8s.io/apiextensions-apiserver/pkg/registry/customresource/etcd.go (ScaleREST) and, for the
manager of the number of replicas, k8s.io/apimachinery/pkg/util/managedfields/scalehandler.go.
"""

from __future__ import annotations

from typing import Any

from local.kube.apply.fields import Fields, difference
from local.kube.apply.managers import Managed, ManagedFieldsEntry, Manager, read, write
from local.kube.columns import selector
from local.kube.errors import StatusError, bad_request, invalid, not_found, problem
from local.kube.incoming import read_object
from local.kube.jsonpath import dig
from local.kube.managing import managed
from local.kube.options import ApiCall
from local.kube.patching import Change, patching
from local.kube.resources import Resource
from local.kube.state import ApiState
from local.kube.wire import Obj, Response, reply
from local.kube.writes import check_name, set_namespace, store_change

_SCALE = "autoscaling/v1"
_IN_SCALE: Fields = {"f:spec": {"f:replicas": {}}}
_NEVER_SET = -(2**31)
_REPLICAS = ".spec.replicas"


def paths(resource: Resource) -> tuple[str, str, str]:
    """The paths of the desired replicas, the present replicas and the selector of a custom resource."""
    if resource.custom is None:
        return _REPLICAS, ".status.replicas", ""
    scale = resource.custom.scale or {}
    return scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or ""


def answer(state: ApiState, call: ApiCall) -> Response:
    target, resource = call.target, call.target.resource
    if target.verb != "get":
        changed, _ = store_change(state, call, _changing(state, call), create=False)
        return reply(scale_of(resource, changed))
    obj = state.get(resource.storage, target.namespace if resource.namespaced else "", target.name)
    if obj is None:
        raise not_found(resource.subject, target.name)
    if resource.custom and dig(obj, paths(resource)[0]) is None:
        message = f'Internal error occurred: the spec replicas field "{paths(resource)[0]}" does not exist'
        causes = [{"message": message.partition(": ")[2]}]
        raise StatusError(500, "InternalError", message, details={"causes": causes})
    return reply(scale_of(resource, obj))


def scale_of(resource: Resource, obj: Obj) -> Obj:
    replicas_path, present_path, selector_path = paths(resource)
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    replicas = dig(obj, replicas_path) or 0
    status: Obj = {"replicas": dig(obj, present_path) or 0}
    text = dig(obj, selector_path) if selector_path else None
    if not resource.custom:
        raw = dig(obj, ".spec.selector")
        text = selector(raw if raw and resource.plural != "replicationcontrollers" else {"matchLabels": raw})
    if text:
        status["selector"] = text
    return {
        "kind": "Scale",
        "apiVersion": _SCALE,
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def _changing(state: ApiState, call: ApiCall) -> Change:
    """The change of the object behind the scale that the request's change of the scale amounts to."""
    call.check("UpdateOptions" if call.target.verb == "update" else "PatchOptions")
    inner = _put(state, call) if call.target.verb == "update" else patching(state, call)
    resource, (replicas_path, *_) = call.target.resource, paths(call.target.resource)

    def change(live: Obj | None) -> Obj:
        assert live is not None
        before = scale_of(resource, live)
        if dig(live, replicas_path) is None:
            before["spec"] = {"replicas": _NEVER_SET}
        owners = read(live["metadata"])
        write(before["metadata"], _to_scale(owners, replicas_path))
        after = inner(before)
        check_name(after["metadata"], call.target.name)
        set_namespace(call, after["metadata"])
        replicas = (after.get("spec") or {}).get("replicas", 0)
        if replicas == _NEVER_SET:
            raise bad_request(f'the spec replicas field "{replicas_path}" cannot be empty')
        if resource.custom is None and replicas < 0:
            wrong = problem("invalid", "spec.replicas", "must be greater than or equal to 0", replicas)
            raise invalid(call.resource.subject, call.target.name, [wrong])
        out = _with(live, replicas_path.lstrip(".").split("."), replicas)
        meta = dict(out["metadata"])
        write(meta, _to_parent(owners, read(after["metadata"]), replicas_path, resource.api_version))
        version = after["metadata"].get("resourceVersion")
        meta["resourceVersion"] = version or meta["resourceVersion"]
        return {**out, "metadata": meta}

    return change


def _put(state: ApiState, call: ApiCall) -> Change:
    obj = read_object(call)
    return lambda live: managed(state, call, live, obj)


def _with(obj: Obj, path: list[str], value: int) -> Obj:
    """A copy along the path with the value at its end."""
    head, *rest = path
    return {**obj, head: _with(obj.get(head) or {}, rest, value) if rest else value}


def _has(fields: Fields, path: str) -> bool:
    node: Any = fields
    for part in path.strip(".").split("."):
        node = node.get(f"f:{part}") if isinstance(node, dict) else None
    return node is not None


def _at(path: str) -> Fields:
    out: Fields = {}
    for part in reversed(path.strip(".").split(".")):
        out = {f"f:{part}": out}
    return out


def _to_scale(owners: Managed, path: str) -> Managed:
    out: Managed = {}
    for entry in owners.values():
        if _has(entry.fields, path):
            manager = entry.manager
            in_scale = Manager(manager.name, manager.operation, _SCALE, manager.subresource)
            out[in_scale.key] = ManagedFieldsEntry(in_scale, _IN_SCALE, entry.time)
    return out


def _to_parent(owners: Managed, scale: Managed, path: str, version: str) -> Managed:
    """The managers of the object, with the replicas given to the manager that the scale names."""
    left, out = dict(scale), Managed()
    for key, entry in owners.items():
        manager = entry.manager
        in_scale = Manager(manager.name, manager.operation, _SCALE, manager.subresource).key
        if not _has(entry.fields, path) or left.pop(in_scale, None) is not None:
            out[key] = entry
        elif rest := difference(entry.fields, _at(path)):
            out[key] = ManagedFieldsEntry(manager, rest, entry.time)
    for entry in left.values():
        if not _has(entry.fields, "spec.replicas"):
            continue  # a scale of nothing has no field to own
        manager = Manager(entry.manager.name, entry.manager.operation, version, entry.manager.subresource)
        # A new entry has no time: the real server looks for it among the old ones.
        out[manager.key] = ManagedFieldsEntry(manager, _at(path), None)
    return out
