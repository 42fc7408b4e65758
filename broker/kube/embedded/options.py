"""What a caller asked for besides the object: dry run, field manager and validation, paging, preconditions.

Rule: k8s.io/apimachinery/pkg/apis/meta/v1 (`CreateOptions` and its like) and its validation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml

from .errors import (
    ApiError,
    FieldError,
    Who,
    bad_request,
    invalid,
    problem,
    supported,
    unsupported_media_type,
)
from .route import Target, flag
from .wire import Obj, Request

_META = "meta.k8s.io"
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BODY_TYPES = (
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
)


@dataclass(slots=True)
class Call:
    """One request on its way: what it asks and the warnings that it has earned."""

    request: Request
    target: Target
    warnings: list[str] = field(default_factory=list)

    @property
    def dry_run(self) -> bool:
        return bool(self.request.query.get("dryRun"))

    @property
    def strict(self) -> str:
        """How unknown fields are met: Strict refuses, Warn warns, Ignore drops."""
        return self.request.query.get("fieldValidation") or "Warn"

    @property
    def manager(self) -> str:
        """The field manager: as named, else the program that the User-Agent names."""
        named = self.request.query.get("fieldManager", "")
        return named or self.request.header("User-Agent").partition("/")[0][:128] or "unknown"

    @property
    def content_type(self) -> str:
        return self.request.header("Content-Type").partition(";")[0].strip()

    def check(self, kind: str) -> None:
        """Refuses options that mean nothing, in the words of the options' own validation."""
        query, wrong = self.request.query, list[FieldError]()
        if (dry := query.get("dryRun")) and dry != "All":
            wrong.append(supported("dryRun", dry, ["All"]))
        modes = ["Ignore", "Strict", "Warn"]
        if (mode := query.get("fieldValidation")) and mode not in modes:
            wrong.append(supported("fieldValidation", mode, modes))
        manager = query.get("fieldManager", "")
        if len(manager) > 128:
            wrong.append(problem("too_long", "fieldManager", "may not be more than 128 bytes"))
        if kind == "PatchOptions" and not manager and self.content_type.startswith("application/apply-patch"):
            wrong.append(problem("required", "fieldManager", "is required for apply patch"))
        is_apply = self.content_type.startswith("application/apply-patch")
        if kind == "PatchOptions" and "force" in query and not is_apply:
            wrong.append(problem("forbidden", "force", "may not be specified for non-apply patch"))
        if wrong:
            raise invalid(Who(_META, "", kind), "", wrong)


def body(call: Call) -> Any:
    """The body as JSON, whatever it came as."""
    raw, kind = call.request.body or b"", call.content_type or "application/json"
    if kind == "application/json":
        return parse_json(raw)
    if kind in ("application/yaml", "application/apply-patch+yaml"):
        return parse_yaml(raw)
    if kind == "application/vnd.kubernetes.protobuf" and call.target.resource.custom is None:
        from . import protobuf

        return protobuf.decode(raw)
    raise unsupported_media_type(_BODY_TYPES)


def parse_json(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        message = f"the object provided is unrecognized (must be of type JSON): {error}"
        raise bad_request(message) from error


def parse_yaml(raw: bytes) -> Any:
    try:
        value = orjson.loads(raw) if raw[:1] == b"{" else yaml.load(raw, _YAML_LOADER)  # noqa: S506
        return orjson.loads(orjson.dumps(value))  # dates and other YAML types become what JSON has
    except (yaml.YAMLError, orjson.JSONDecodeError, TypeError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace: int | None = None
    policy: str = ""
    orphan: bool | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def delete_options(call: Call) -> DeleteOptions:
    """From the body, or from the query where there is none."""
    query = call.request.query
    given: Obj = body(call) if call.request.body else dict(query)
    if not isinstance(given, dict):
        raise bad_request("the object provided is unrecognized: DeleteOptions are an object")
    return options_of(given, dry=bool(call.request.query.get("dryRun")))


def options_of(given: Obj, *, dry: bool = False) -> DeleteOptions:
    grace, policy = given.get("gracePeriodSeconds"), given.get("propagationPolicy") or ""
    wrong: list[FieldError] = []
    try:
        seconds = None if grace is None else int(grace)
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{grace}": invalid syntax') from error
    if policy and policy not in ("Foreground", "Background", "Orphan"):
        wrong.append(supported("propagationPolicy", policy, ["Background", "Foreground", "Orphan", "nil"]))
    if policy and given.get("orphanDependents") is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        wrong.append(problem("invalid", "propagationPolicy", why, policy))
    if wrong:
        raise invalid(Who(_META, "", "DeleteOptions"), "", wrong)
    conditions = given.get("preconditions") or {}
    return DeleteOptions(
        seconds,
        policy,
        given.get("orphanDependents"),
        conditions.get("uid"),
        conditions.get("resourceVersion"),
        dry or bool(given.get("dryRun")),
    )


@dataclass(frozen=True, slots=True)
class ListOptions:
    limit: int = 0
    token: str = ""
    version: str = ""
    match: str = ""
    labels: str = ""
    fields: str = ""
    timeout: float | None = None
    bookmarks: bool = False
    initial_events: bool | None = None


def list_options(call: Call) -> ListOptions:
    query = call.request.query
    try:
        limit, timeout = int(query.get("limit") or 0), query.get("timeoutSeconds")
        seconds = float(timeout) if timeout else None
    except ValueError as error:
        raise bad_request(f"strconv.ParseInt: {error}: invalid syntax") from error
    options = ListOptions(
        limit=limit,
        token=query.get("continue", ""),
        version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        timeout=seconds,
        bookmarks=flag(query, "allowWatchBookmarks"),
        initial_events=flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
    )
    if wrong := _list_problems(options, watch=flag(query, "watch")):
        raise invalid(Who(_META, "", "ListOptions"), "", wrong)
    if options.version and not options.version.isdigit():
        message = f'Invalid value: "{options.version}": strconv.ParseUint: parsing "{options.version}": invalid syntax'
        raise ApiError(400, "BadRequest", f"invalid resource version: {message}")
    return options


def _list_problems(options: ListOptions, *, watch: bool) -> list[FieldError]:
    wrong: list[FieldError] = []

    def forbid(path: str, why: str) -> None:
        wrong.append(problem("forbidden", path, why))

    if watch:
        if options.initial_events is not None and options.match != "NotOlderThan":
            forbid(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )
        elif options.match and options.initial_events is None:
            forbid(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        return wrong
    if options.initial_events is not None:
        forbid("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if options.match:
        if not options.version:
            forbid(
                "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if options.token:
            forbid("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
        if options.match not in ("Exact", "NotOlderThan"):
            wrong.append(supported("resourceVersionMatch", options.match, ["Exact", "NotOlderThan", ""]))
        if options.match == "Exact" and options.version == "0":
            forbid(
                "resourceVersionMatch", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            )
    return wrong
