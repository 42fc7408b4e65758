"""Routes a method and a path to the verb, the resource, the object and the subresource.

Rule: k8s.io/apiserver/pkg/endpoints/request (RequestInfo).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from local.kube.errors import StatusError, bad_request, method_not_allowed, no_such_resource, not_found
from local.kube.resources import Registry, Resource
from local.kube.wire import ApiRequest

_ON_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_ON_OBJECT = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
TRUE = frozenset({"true", "1", "True", "TRUE", "t", "T"})


@dataclass(frozen=True, slots=True)
class RequestTarget:
    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def plural(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in TRUE


def page_not_found() -> StatusError:
    """No such group or version: the server's mux answers in plain text, before any API machinery."""
    return StatusError(404, "", "404 page not found")


def route(registry: Registry, request: ApiRequest) -> RequestTarget:
    parts = [unquote(part) for part in request.path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise page_not_found()
    namespace = ""
    # `/namespaces/x` is the object x, and `/namespaces/x/status` a subresource of it.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    resource = registry.find(group, version, plural)
    if resource is None:
        known = group in registry.groups() and not _is_custom_group(registry, group)
        raise no_such_resource() if known else page_not_found()
    if subresource and subresource not in resource.subresources:
        raise no_such_resource() if resource.custom is None else not_found(resource.subject, name)
    if len(rest) > 3 or (namespace and not resource.namespaced):
        raise no_such_resource() if resource.custom is None else page_not_found()
    if request.method == "POST" and resource.custom and not subresource:
        name = ""  # a path after a custom resource's collection is ignored on creation
    verb = (_ON_OBJECT if name else _ON_COLLECTION).get(request.method)
    if not name and resource.custom and request.method in ("PUT", "PATCH"):
        raise bad_request("name must be provided")
    if verb == "list" and flag(request.query, "watch"):
        verb = "watch"
    allowed = resource.subresources[subresource].verbs if subresource else resource.verbs
    if verb is None or verb not in allowed or (name and not subresource and verb == "create"):
        raise method_not_allowed()
    if resource.namespaced and not namespace and (name or verb in ("create", "deletecollection")):
        raise method_not_allowed() if not name else no_such_resource()
    return RequestTarget(verb, resource, namespace, name, subresource)


def _is_custom_group(registry: Registry, group: str) -> bool:
    return any(r.custom for versions in registry.groups().get(group, {}).values() for r in versions)
