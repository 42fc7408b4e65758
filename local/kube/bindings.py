"""POST pods/NAME/binding: how a scheduler gives a pod its node, once.

Rule: k8s.io/kubernetes/pkg/registry/core/pod/storage/storage.go (BindingREST).
"""

from __future__ import annotations

from typing import Any

from local.kube.decode import decode
from local.kube.errors import ErrorSubject, StatusError, bad_request, conflict, not_found
from local.kube.incoming import body
from local.kube.kind import with_condition
from local.kube.options import ApiCall
from local.kube.route import route
from local.kube.shape import builtin
from local.kube.state import ApiState
from local.kube.times import stamp
from local.kube.wire import ApiRequest, Obj, Response, reply

BOUND: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(state: ApiState, call: ApiCall) -> Response:
    call.check("CreateOptions")
    target, resource = call.target, call.target.resource
    binding = posted(call, body(call), ("", "v1", "Binding"))
    bound = binding.get("target") or {}
    if bound.get("kind") not in (None, "", "Node"):
        shown = f'target.kind: Unsupported value: "{bound["kind"]}": supported values: "Node", "<empty>"'
        raise StatusError(500, "", shown)
    if not bound.get("name"):
        raise StatusError(500, "", "target.name: Required value")
    key = (target.namespace, target.name)
    pod = state.get(resource.storage, *key)
    if pod is None:
        raise not_found(resource.subject, target.name)
    meta, given = pod["metadata"], binding["metadata"]
    for name, field in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if given.get(name) and given[name] != meta[name]:
            raise conflict(resource.subject, target.name, _precondition(key, field, given[name], meta[name]))
    if why := _unbindable(pod):
        raise conflict(ErrorSubject("", "pods/binding", "Binding"), target.name, why)
    notes = {**(meta.get("annotations") or {}), **(given.get("annotations") or {})}
    labels = {**(meta.get("labels") or {}), **(given.get("labels") or {})}
    meta = {**meta, **({"annotations": notes} if notes else {}), **({"labels": labels} if labels else {})}
    status = with_condition(
        pod.get("status") or {}, stamp(state.clock()), {"type": "PodScheduled", "status": "True"}
    )
    status.pop("nominatedNodeName", None)
    spec = {**pod["spec"], "nodeName": bound["name"]}
    if not call.dry_run:
        state.put(resource, key, {**pod, "metadata": meta, "spec": spec, "status": status})
    return reply(BOUND, status=201)


def posted(call: ApiCall, raw: Any, gvk: tuple[str, str, str]) -> Obj:
    """The body of a POST to a subresource, which has a kind of its own and the name of the URL."""
    group, version, kind = gvk
    api_version = f"{group}/{version}" if group else version
    if not isinstance(raw, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind})")
    given = raw.setdefault("kind", kind), raw.setdefault("apiVersion", api_version)
    if given != (kind, api_version):
        raise bad_request(
            f'{given[0]} in version "{given[1]}" cannot be handled as a {kind}: '
            f'no kind "{given[0]}" is registered for version "{given[1]}"'
        )
    shape = builtin(*gvk)
    assert shape is not None
    obj = decode(raw, shape, unknown=[])
    if obj.setdefault("metadata", {}).get("name") != call.target.name:
        raise bad_request(f"name in URL does not match name in {kind} object")
    return obj


def _unbindable(pod: Obj) -> str:
    name, spec = pod["metadata"]["name"], pod.get("spec") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def _precondition(key: tuple[str, str], field: str, expected: str, actual: str) -> str:
    return (
        f"StorageError: invalid object, Code: 4, Key: /registry/pods/{key[0]}/{key[1]}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {field} in precondition: {expected}, "
        f"{field} in object meta: {actual}"
    )


def bind_anywhere(state: ApiState, call: ApiCall) -> Response:
    """POST bindings: the older way, with the pod's name in the body only."""
    raw = body(call)
    name = (raw.get("metadata") or {}).get("name", "") if isinstance(raw, dict) else ""
    path = f"/api/v1/namespaces/{call.target.namespace}/pods/{name}/binding"
    request = ApiRequest("POST", path, call.request.query, call.request.headers, call.request.body)
    return bind(state, ApiCall(request, route(state.registry, request)))
