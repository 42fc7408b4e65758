"""The requests of a broker to the API server, as RBAC sees them (Kubernetes, "Using RBAC Authorization" and
"Request verbs").

A list or watch of one name by field selector is authorized like a get of that name, so a rule with
resourceNames allows it. An apply that creates is authorized as a create of that name, too; a POST has none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from broker.kube.client import Reply, Request, Stream, Transport

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AccessRequest:
    """One request; `resource` includes the subresource, as a rule spells it."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}.{self.group} {self.name}{where}"


def access_request(request: Request) -> AccessRequest:
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", ""][:3]
    verb = VERBS.get(request.method) or (
        "watch" if request.query.get("watch") == "true" else "get" if name else "list"
    )
    selector = request.query.get("fieldSelector", "")
    if selector.startswith("metadata.name="):
        name = selector.partition("=")[2]
    resource = f"{plural}/{subresource}" if subresource else plural
    return AccessRequest(verb=verb, group=group, resource=resource, namespace=namespace, name=name)


def allows(rule: Rule, access: AccessRequest) -> bool:
    names = rule.get("resourceNames")
    return (
        access.verb in rule["verbs"]
        and access.group in rule["apiGroups"]
        and access.resource in rule["resources"]
        and (not names or access.name in names)
    )


def grants(rules: Iterable[Rule]) -> list[Rule]:
    """The rules one by one: a verb, a resource and, where limited, a name each."""
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        | ({"resourceNames": [name]} if name else {})
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    ]


@dataclass(eq=False)
class Recording:
    """A transport that records requests, and acts as `user` if the server knows users."""

    inner: Transport
    user: str
    seen: Counter[AccessRequest] = field(default_factory=Counter)
    refused: list[AccessRequest] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self, request: Request, *, timeout: float) -> Reply:
        reply = self.inner.request(self._noted(request), timeout=timeout)
        if reply.status == 201 and request.method == "PATCH":
            with self._lock:
                self.seen[replace(access_request(request), verb="create")] += 1
        if reply.status == 403:
            with self._lock:
                self.refused.append(access_request(request))
        return reply

    def stream(self, request: Request, *, timeout: float) -> Stream:
        return self.inner.stream(self._noted(request), timeout=timeout)

    def _noted(self, request: Request) -> Request:
        with self._lock:
            self.seen[access_request(request)] += 1
        return replace(request, headers={**request.headers, "Impersonate-User": self.user})
