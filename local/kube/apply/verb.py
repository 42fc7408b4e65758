"""The apply patch: a checked request as a change of one object."""

from __future__ import annotations

from functools import lru_cache

from local.kube.apply.managers import Context, applied
from local.kube.apply.merge import check, failed
from local.kube.decode import fragment
from local.kube.errors import bad_request
from local.kube.kinds import kind_of
from local.kube.options import ApiCall
from local.kube.resources import Resource
from local.kube.route import flag
from local.kube.state import ApiState
from local.kube.times import stamp
from local.kube.wire import Obj


def context_of(call: ApiCall) -> Context:
    kind, sub = kind_of(call.resource), call.target.subresource
    empty = nothing(call.resource)
    return Context(kind.shape, call.resource.api_version, sub, kind.ignored.get(sub, {}), empty)


@lru_cache(maxsize=256)
def nothing(resource: Resource) -> Obj:
    """The base that a new object is compared with: for a built-in kind, its empty struct."""
    empty: Obj = {"apiVersion": resource.api_version, "kind": resource.kind}
    return empty if resource.custom else fragment(empty, kind_of(resource).shape)


def applied_by(state: ApiState, call: ApiCall, config: Obj, live: Obj | None) -> Obj:
    """The live object (None for a new one) with the request's configuration applied."""
    resource, context = call.resource, context_of(call)
    if (config.get("apiVersion"), config.get("kind")) != (resource.api_version, resource.kind):
        group, _, version = str(config.get("apiVersion", "")).rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={config.get('kind', '')}")
    given = config.get("metadata")
    meta = given if isinstance(given, dict) else {}
    if meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    if problems := check(config, context.shape):
        group = resource.api_version if resource.group else f"/{resource.version}"
        named = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {group}, Kind={resource.kind}"
        raise failed(named, problems)
    base = live if live is not None else {"metadata": {}, **context.empty}
    query = call.request.query
    return applied(
        base, config, query["fieldManager"], stamp(state.clock()), context, force=flag(query, "force")
    )
