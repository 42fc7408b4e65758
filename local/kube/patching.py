"""The four patch types as functions from the live object to the new one.

Rule: k8s.io/apiserver/pkg/endpoints/handlers/patch.go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from local.kube import patches
from local.kube.apply.verb import applied_by
from local.kube.decode import Mismatch, json_type
from local.kube.errors import (
    ErrorSubject,
    StatusError,
    bad_request,
    go_text,
    invalid,
    problem,
    unsupported_media_type,
)
from local.kube.incoming import Unreadable, decoded, misfit, parse_json, parse_yaml
from local.kube.kinds import kind_of
from local.kube.managing import managed
from local.kube.options import ApiCall
from local.kube.shown import patched_text
from local.kube.state import ApiState
from local.kube.strategic import strategic
from local.kube.wire import Obj

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

# (live object or None for a new one) → the object as it shall be
Change = Callable[[Obj | None], Obj]
_NO_SUBJECT = ErrorSubject("", "", "")


def patching(state: ApiState, call: ApiCall) -> Change:
    """The object after the request's patch, with its record of field managers."""
    content, raw = call.content_type, call.request.body or b""
    custom = call.target.resource.custom is not None
    if content not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH) and not custom:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    if custom and content not in (JSON_PATCH, MERGE_PATCH, APPLY_PATCH):
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH, APPLY_PATCH))
    call.check("PatchOptions")
    if content == APPLY_PATCH:
        return _applying(state, call, raw)

    def change(live: Obj | None) -> Obj:
        assert live is not None
        return managed(state, call, live, _patched(call, content, _document(content, raw), live))

    return change


def _document(content: str, raw: bytes) -> Any:
    prefix = "" if content == STRATEGIC_PATCH else "error decoding patch: "
    try:
        document = parse_json(raw)
    except Unreadable as why:
        raise bad_request(f"{prefix}{why}") from why
    if content == JSON_PATCH:
        go_type = "[]handlers.jsonPatchOp"
        right = isinstance(document, list) and all(isinstance(operation, dict) for operation in document)
    else:
        go_type, right = "map[string]interface {}", isinstance(document, dict)
    if not right:
        kind = json_type(document)
        raise bad_request(f"{prefix}json: cannot unmarshal {kind} into Go value of type {go_type}")
    return document


def _patched(call: ApiCall, content: str, document: Any, live: Obj) -> Obj:
    resource = call.resource
    if content == STRATEGIC_PATCH:
        patched, shown = strategic(live, document, kind_of(resource).shape), go_text(document)
    else:
        merge = content == MERGE_PATCH
        patched = patches.merge(live, document) if merge else patches.json_patch(live, document)
        shown = ""

    def text() -> str:
        return patched_text(patched, document, kind_of(resource).shape, custom=resource.custom is not None)

    if not isinstance(patched, dict):
        raise _refused(orjson.dumps(patched).decode(), "the patch left no object")
    try:
        if content != STRATEGIC_PATCH and resource.custom is None and (why := misfit(resource, patched)):
            raise Mismatch(why)
        obj, unknown = decoded(resource, patched)
    except Mismatch as wrong:
        message = wrong.converted if content == STRATEGIC_PATCH else str(wrong)
        raise _refused(shown or text(), message) from wrong
    if unknown and call.strict == "Strict":
        message = "strict decoding error: " + ", ".join(unknown)
        raise _refused(shown or text(), message)
    if call.strict == "Warn":
        call.warn(*unknown)
    return obj


def _refused(patch: str, why: str) -> StatusError:
    return invalid(_NO_SUBJECT, "", [problem("invalid", "patch", why, patch)])


def _applying(state: ApiState, call: ApiCall, raw: bytes) -> Change:
    def change(live: Obj | None) -> Obj:
        config = _configuration(raw)
        try:
            obj, _ = decoded(call.resource, applied_by(state, call, config, live), nulls=True)
        except Mismatch as wrong:
            resource, meta = call.resource, config.get("metadata") or {}
            kind = f"{resource.group or ''}/{resource.version}, Kind={resource.kind}"
            named = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {kind}"
            why = f"unable to convert unstructured object to {kind}: {wrong.converted}"
            message = f"failed to convert new object ({named}) to proper version: {why}"
            raise StatusError(500, "", message) from wrong
        return obj

    return change


def _configuration(raw: bytes) -> Obj:
    try:
        config = parse_yaml(raw)
    except Unreadable as why:
        raise bad_request(f"error decoding YAML: {why}") from why
    if not isinstance(config, dict):
        message = (
            f"json: cannot unmarshal {json_type(config)} into Go value of type map[string]interface {{}}"
        )
        raise bad_request(f"error decoding YAML: error unmarshaling JSON: while decoding JSON: {message}")
    return config
