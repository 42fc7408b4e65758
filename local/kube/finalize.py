"""The end of a namespace: marked when it is deleted, gone when its finalizers are.

Rule: k8s.io/kubernetes/pkg/registry/core/namespace/storage. The API server alone never ends a namespace;
collector.py plays the controller that does.
"""

from __future__ import annotations

from local.kube.errors import invalid, problem
from local.kube.incoming import read_object
from local.kube.kinds.namespaces import FINALIZER
from local.kube.managing import managed
from local.kube.options import ApiCall, DeleteOptions
from local.kube.resources import Resource
from local.kube.state import ApiState
from local.kube.store import Key
from local.kube.times import stamp
from local.kube.wire import Obj, Response, reply
from local.kube.writes import store_change


def mark(state: ApiState, resource: Resource, key: Key, live: Obj, options: DeleteOptions) -> Obj:
    """The first delete: the namespace ends when all in it has ended."""
    if live["metadata"].get("deletionTimestamp"):
        return live
    meta = {**live["metadata"], "deletionTimestamp": stamp(state.clock())}
    obj = {**live, "metadata": meta, "status": {**(live.get("status") or {}), "phase": "Terminating"}}
    return obj if options.dry_run else state.put(resource, key, obj).obj


def finalize(state: ApiState, call: ApiCall) -> Response:
    """PUT namespaces/NAME/finalize: sets the finalizers of the spec, and ends a namespace that has none."""
    call.check("UpdateOptions")
    obj = read_object(call)
    finalizers = (obj.get("spec") or {}).get("finalizers")

    def change(live: Obj | None) -> Obj:
        assert live is not None
        out = {**live, "spec": {"finalizers": finalizers} if finalizers else {}}
        given = obj["metadata"].get("resourceVersion") or live["metadata"]["resourceVersion"]
        out["metadata"] = {**live["metadata"], "resourceVersion": given}
        return managed(state, call, live, out)

    for name in finalizers or ():
        if "/" not in name and name != FINALIZER:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            raise invalid(
                call.target.resource.subject,
                call.target.name,
                [problem("invalid", "spec.finalizers", why, name)],
            )
    out, _ = store_change(state, call, change, create=False)
    return reply(out)
