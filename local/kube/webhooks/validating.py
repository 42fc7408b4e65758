"""The last check of a write: every validating webhook that matches, after all other checks.

Invariant: a webhook is called while the store is not locked, since it may itself call this server. A
change in between restarts the request (`Moved`), so the written object is the reviewed one.
Rule: k8s.io/apiserver/pkg/admission/plugin/webhook/validating and webhook/errors (how a refusal is worded).
"""

from __future__ import annotations

import uuid

from local.kube.errors import StatusError, quoted
from local.kube.options import ApiCall
from local.kube.reviews import ME
from local.kube.state import ApiState
from local.kube.store import Item, Key
from local.kube.webhooks import calling, conditions, matching
from local.kube.wire import Obj

_WITHOUT_EFFECT = ("None", "NoneOnDryRun")
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class Moved(Exception):
    """The object or its namespace changed during the webhook calls."""


def validate(state: ApiState, call: ApiCall, new: Obj | None, old: Obj | None) -> None:
    """Calls the matching webhooks; raises the first refusal, or Moved. Warnings go to the call."""
    if not matching.any_at_all(state):
        return
    operation = "DELETE" if new is None else "CREATE" if old is None else "UPDATE"
    hooks = matching.matching_hooks(state, call, operation, new, old)
    reviews = [(hook, _review(call, operation, new, old)) for hook in hooks]
    reviews = [(hook, review) for hook, review in reviews if conditions.hold(hook, review, call)]
    if not reviews:
        return
    before = _stored_versions(state, call, new or old)
    state.store.lock.release()
    try:
        refusals = [_call(state, call, *pair) for pair in reviews]
    finally:
        state.store.lock.acquire()
    for refusal in refusals:
        if refusal is not None:
            raise refusal
    if _stored_versions(state, call, new or old) != before:
        raise Moved


def _call(state: ApiState, call: ApiCall, hook: Obj, review: Obj) -> StatusError | None:
    name = hook["name"]
    if call.dry_run and hook.get("sideEffects") not in _WITHOUT_EFFECT:
        return StatusError(400, "BadRequest", f"admission webhook {quoted(name)} does not support dry run")
    try:
        answer = calling.call_webhook(hook, review, state.services)
    except calling.CallFailed as error:
        if hook.get("failurePolicy") == "Ignore":
            return None
        return StatusError(
            500, "InternalError", f"Internal error occurred: failed calling webhook {quoted(name)}: {error}"
        )
    call.warn(*answer.warnings)
    return None if answer.allowed else _refusal(name, answer.status)


def _refusal(name: str, status: Obj) -> StatusError:
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or reason)
    why = f": {message}" if message else " without explanation"
    return StatusError(
        max(int(status.get("code") or 0), 400),
        reason,
        f"admission webhook {quoted(name)} denied the request{why}",
        details=status.get("details"),
        metadata=status.get("metadata"),
    )


def _review(call: ApiCall, operation: str, new: Obj | None, old: Obj | None) -> Obj:
    target, resource = call.target, call.target.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    resource_names = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    request: Obj = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": resource_names,
        "requestKind": kind,
        "requestResource": resource_names,
        "name": target.name or ((new or old or {}).get("metadata") or {}).get("name", ""),
        "operation": operation,
        "userInfo": ME,
        "object": new,
        "oldObject": old,
        "dryRun": call.dry_run,
        "options": {"kind": _OPTIONS[operation], "apiVersion": "meta.k8s.io/v1"},
    }
    if resource.namespaced:
        request["namespace"] = target.namespace
    if target.subresource:
        request["subResource"] = request["requestSubResource"] = target.subresource
    return {"kind": "AdmissionReview", "apiVersion": calling.API_VERSION, "request": request}


def _stored_versions(state: ApiState, call: ApiCall, obj: Obj | None) -> tuple[Item | None, ...]:
    """The stored object and its namespace: versions of objects are never changed in place."""
    assert obj is not None
    resource, meta = call.target.resource, obj["metadata"]
    key: Key = (meta.get("namespace", "") if resource.namespaced else "", meta.get("name", ""))
    space = state.store.collection("namespaces.").items.get(("", key[0]))
    return state.store.collection(resource.storage).items.get(key), space
