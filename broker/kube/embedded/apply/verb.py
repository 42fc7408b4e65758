"""The apply patch: what a request asks for, checked, as a change of one object."""

from __future__ import annotations

from typing import Any

from ..decode import fragment
from ..errors import bad_request
from ..kinds import kind_of
from ..options import Call
from ..route import flag
from ..state import State
from ..times import stamp
from ..wire import Obj
from .managers import Context, applied
from .merge import check, failed


def context_of(call: Call) -> Context:
    kind, sub = kind_of(call.resource), call.target.subresource
    return Context(kind.shape, call.resource.api_version, sub, kind.ignored.get(sub, {}))


def applying(state: State, call: Call, config: Any) -> Any:
    """A function from the live object (None for a new one) to the object after the apply."""
    resource, target = call.resource, call.target
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: an apply configuration is an object")
    if (config.get("apiVersion"), config.get("kind")) != (resource.api_version, resource.kind):
        group, _, version = str(config.get("apiVersion", "")).rpartition("/")
        raise bad_request(f"invalid object type: {group}/{version}, Kind={config.get('kind', '')}")
    meta = config.setdefault("metadata", {})
    if meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    shape = kind_of(resource).shape
    if problems := check(config, shape):
        group = resource.api_version if resource.group else f"/{resource.version}"
        subject = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {group}, Kind={resource.kind}"
        raise failed(subject, problems)
    force = flag(call.request.query, "force")

    def change(live: Obj | None) -> Obj:
        base = live
        if base is None:
            empty: Obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {}}
            base = empty if resource.custom else fragment(empty, shape)
        now = stamp(state.clock())
        out = applied(base, config, call.request.query["fieldManager"], now, context_of(call), force=force)
        if live is None:
            out["metadata"].setdefault("name", target.name)
        return out

    return change
