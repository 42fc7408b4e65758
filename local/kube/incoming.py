"""Decodes the bytes of a request into an object of the kind that its path names, or refuses it.

Rule: k8s.io/apiserver/pkg/endpoints/handlers (create.go, update.go, rest.go) and the decoders that they use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import yaml

from local.kube.decode import Mismatch, json_type
from local.kube.duplicates import duplicates
from local.kube.errors import StatusError, bad_request, unsupported_media_type
from local.kube.kinds import kind_of
from local.kube.options import ApiCall
from local.kube.resources import Resource, builtins
from local.kube.wire import Obj

BODY_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SNIPPET = 30
_HEADER = (
    'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
)


class Unreadable(Exception):
    """Bytes that are no JSON or YAML, in Go's words."""


def parse_json(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        text = raw.decode(errors="replace")
        at = min(error.pos, len(text))
        if not text[at:].strip():
            raise Unreadable("unexpected end of JSON input") from error
        wrong, expected = text[at:].lstrip()[0], "value"
        if text[:at].rstrip().endswith("{"):
            expected = "object key string"
        raise Unreadable(f"invalid character '{wrong}' looking for beginning of {expected}") from error


def parse_yaml(raw: bytes) -> Any:
    try:
        if raw[:1] == b"{":
            return orjson.loads(raw)
        # Dates and other types of YAML alone become their JSON forms.
        return orjson.loads(orjson.dumps(yaml.load(raw, _YAML_LOADER)))
    except (yaml.YAMLError, orjson.JSONDecodeError, TypeError) as error:
        raise Unreadable(f"yaml: {str(error).splitlines()[0]}") from error


def body(call: ApiCall) -> Any:
    """The body as JSON, from any accepted media type."""
    raw, content = call.request.body or b"", call.content_type or "application/json"
    try:
        if content == "application/json":
            return parse_json(raw)
        if content == "application/yaml":
            return parse_yaml(raw) or {}
    except Unreadable as why:
        prefix = "couldn't get version/kind; json parse error: " if content == "application/json" else ""
        raise _unrecognized(call.resource, f"{prefix}{why}", raw) from why
    if content == "application/vnd.kubernetes.protobuf" and call.target.resource.custom is None:
        from local.kube.protobuf import decode

        return decode(raw)
    raise unsupported_media_type(BODY_TYPES)


def _unrecognized(resource: Resource, why: str, raw: bytes) -> StatusError:
    shown = raw.decode(errors="replace") if raw[:1] == b"{" else raw.hex()
    limit = _SNIPPET if raw[:1] == b"{" else 2 * _SNIPPET
    shown = shown[:limit] + " ..." if len(shown) > limit else shown or "<empty>"
    return bad_request(
        f"the object provided is unrecognized (must be of type {resource.kind}): {why} ({shown})"
    )


def read_object(call: ApiCall) -> Obj:
    """The object that a client sends whole."""
    resource, raw = call.resource, body(call)
    parsed, sent = raw, call.request.body or b""
    if not isinstance(raw, dict):
        empty = "unexpected end of JSON input"
        why = (
            f"json: cannot unmarshal {json_type(raw)} into Go value of type {_HEADER}"
            if raw is not None
            else empty
        )
        raise _unrecognized(resource, f"couldn't get version/kind; json parse error: {why}", sent)
    if resource.custom is None:
        raw = {**raw, "apiVersion": raw.get("apiVersion") or resource.api_version}
        raw["kind"] = raw.get("kind") or resource.kind
        if why := misfit(resource, raw):
            version = str(raw["apiVersion"]).rpartition("/")[2]
            text = f'{raw["kind"]} in version "{version}" cannot be handled as a {resource.kind}: {why}'
            raise bad_request(text)
    elif not raw.get("kind"):
        why = f"Object 'Kind' is missing in '{sent.decode(errors='replace')}'"
        if call.strict == "Ignore":
            text = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
            raise bad_request(f"{text}: {why}")
        raise _unrecognized(resource, why, sent)
    try:
        obj, unknown = decoded(resource, raw)
    except Mismatch as wrong:
        if call.target.resource.custom and resource.custom is None:
            kind = f"{resource.version}.{resource.kind}"
            raise bad_request(
                f'no kind is registered for the type {kind} in scheme "pkg/runtime/scheme.go:111"'
            ) from wrong
        text = (
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {wrong}'
        )
        raise bad_request(text) from wrong
    if call.strict != "Ignore" and sent[:1] == b"{":
        unknown = list(dict.fromkeys([*duplicates(sent, parsed), *unknown]))
    if unknown and call.strict == "Strict":
        listed = ", ".join(unknown)
        text = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise bad_request(f"{text}: strict decoding error: {listed}")
    if call.strict == "Warn":
        call.warn(*unknown)
    given = raw.get("apiVersion", "")
    if given != resource.api_version:
        mismatch = f"does not match the expected API version ({resource.api_version})"
        raise bad_request(f"the API version in the data ({given}) {mismatch}")
    return obj


def given_options(call: ApiCall) -> Mapping[str, Any]:
    """DeleteOptions, which come as the body or, without one, in the query."""
    raw = call.request.body
    if not raw:
        return call.request.query
    content = call.content_type or "application/json"
    prefix = "couldn't get version/kind; json parse error: "
    try:
        if content == "application/vnd.kubernetes.protobuf":
            from local.kube.protobuf import decode

            given = decode(raw)
        else:
            given = parse_yaml(raw) if content == "application/yaml" else parse_json(raw)
    except Unreadable as why:
        raise bad_request(f"{prefix if 'json' in content else ''}{why}") from why
    if not isinstance(given, dict):
        raise bad_request(
            f"{prefix}json: cannot unmarshal {json_type(given)} into Go value of type {_HEADER}"
        )
    return given


def decoded(resource: Resource, raw: Obj, *, nulls: bool = False) -> tuple[Obj, list[str]]:
    """A fresh object with its defaults, and the unknown fields in it. Raises Mismatch for wrong types.

    `nulls` stay in an applied custom resource, so that they are reported as errors.
    """
    kind, unknown = kind_of(resource), list[str]()
    obj = kind.decode(raw, unknown)
    if not nulls:
        kind.tidy(obj)
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    elif (raw.get("metadata") or {}).get("managedFields") == [] and resource.custom is None:
        # An empty list drops all managers; an absent one changes nothing.
        obj["metadata"]["managedFields"] = []
    kind.rules.default(obj)
    return obj, unknown


def misfit(resource: Resource, raw: Obj) -> str:
    """Why an object is not of the built-in kind that its path names; empty if it is."""
    api_version, kind = raw.get("apiVersion"), raw.get("kind")
    if (api_version, kind) == (resource.api_version, resource.kind):
        return ""
    if not any((served.api_version, served.kind) == (api_version, kind) for served in builtins()):
        where = 'in scheme "pkg/runtime/scheme.go:111"'
        return f'no kind "{kind}" is registered for version "{api_version}" {where}'
    version = str(api_version).rpartition("/")[2]
    internal = resource.group.partition(".")[0] or "core"
    return f"converting ({version}.{kind}) to ({internal}.{resource.kind}): unknown conversion"
