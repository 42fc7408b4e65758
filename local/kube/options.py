"""Options of a request: dry run, field manager and validation, paging, preconditions.

Rule: k8s.io/apimachinery/pkg/apis/meta/v1 (`CreateOptions` and its like) and its validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.kube import selectors
from local.kube.errors import (
    ErrorSubject,
    FieldError,
    bad_request,
    invalid,
    problem,
    supported,
)
from local.kube.resources import Resource, subresource_kind
from local.kube.route import TRUE, RequestTarget, flag
from local.kube.wire import ApiRequest

_META = "meta.k8s.io"


@dataclass(slots=True)
class ApiCall:
    """One request on its way: its target and the warnings for its response."""

    request: ApiRequest
    target: RequestTarget
    warnings: list[str] = field(default_factory=list)

    def warn(self, *messages: str) -> None:
        self.warnings += [message for message in dict.fromkeys(messages) if message not in self.warnings]

    @property
    def resource(self) -> Resource:
        """The resource of the request's object: mostly the target's, for some subresources another kind."""
        target = self.target
        sub = target.resource.subresources.get(target.subresource)
        if sub is None or sub.kind == target.resource.kind:
            return target.resource
        return subresource_kind(sub, target.resource.namespaced)

    @property
    def dry_run(self) -> bool:
        return bool(self.request.query.get("dryRun"))

    @property
    def strict(self) -> str:
        """The policy for unknown fields: Strict refuses, Warn warns, Ignore drops."""
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
        applies = self.content_type.startswith("application/apply-patch")
        manager = query.get("fieldManager", "")
        if kind == "PatchOptions" and applies and not manager:
            wrong.append(problem("required", "fieldManager", "is required for apply patch"))
        if kind == "PatchOptions" and not applies and "force" in query:
            wrong.append(problem("forbidden", "force", "may not be specified for non-apply patch"))
        if len(manager) > _MANAGER_LIMIT:
            wrong.append(problem("too_long", "fieldManager", f"may not be more than {_MANAGER_LIMIT} bytes"))
        for i, letter in enumerate(manager):
            if not letter.isprintable():
                text = "should only contain printable characters"
                wrong.append(problem("invalid", "fieldManager", f"{text}, invalid character at {i}", manager))
        wrong += dry_run_problems(query.get("dryRun"))
        if (mode := query.get("fieldValidation")) and mode not in _MODES:
            wrong.append(supported("fieldValidation", mode, _MODES))
        if wrong:
            raise invalid(ErrorSubject(_META, "", kind), "", wrong)


_MODES = ("", "Ignore", "Strict", "Warn")
_MANAGER_LIMIT = 128


def dry_run_problems(value: object) -> list[FieldError]:
    given = [value] if isinstance(value, str) and value else value or []
    return [] if given in ([], ["All"]) else [supported("dryRun", given, ["All"])]


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace: int | None = None
    policy: str = ""
    orphan: bool | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def options_of(given: Mapping[str, Any]) -> DeleteOptions:
    """Reads the option from the object of that name, or from the query, which spells it the same."""
    grace, policy, orphan = (
        given.get("gracePeriodSeconds"),
        given.get("propagationPolicy"),
        given.get("orphanDependents"),
    )
    if isinstance(orphan, str):
        orphan = orphan in TRUE
    try:
        seconds = None if grace is None else int(grace)
    except ValueError as error:
        raise bad_request(f'strconv.ParseInt: parsing "{grace}": invalid syntax') from error
    wrong: list[FieldError] = []
    if policy is not None and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        wrong.append(problem("invalid", "propagationPolicy", why, policy))
    if policy is not None and policy not in _POLICIES:
        wrong.append(supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    wrong += dry_run_problems(given.get("dryRun"))
    if wrong:
        raise invalid(ErrorSubject(_META, "", "DeleteOptions"), "", wrong)
    conditions = given.get("preconditions") or {}
    return DeleteOptions(
        seconds,
        policy or "",
        orphan,
        conditions.get("uid"),
        conditions.get("resourceVersion"),
        bool(given.get("dryRun")),
    )


_POLICIES = ("Foreground", "Background", "Orphan")


@dataclass(slots=True)
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
    selected: selectors.Predicate | None = None


def list_options(call: ApiCall) -> ListOptions:
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
    options.selected = selectors.labels(options.labels) if options.labels else None
    if wrong := _list_problems(options, watch=flag(query, "watch")):
        raise invalid(ErrorSubject(_META, "", "ListOptions"), "", wrong)
    return options


def revision(text: str) -> int:
    """A resourceVersion as the number that it is; none is 0."""
    if text and not text.isdigit():
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: resourceVersion: {why}")
    return int(text or 0)


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
