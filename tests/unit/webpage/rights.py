"""An API server that reviews tokens and rights, and counts the reviews."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from broker.kube.client import Client, Reply, Request, Stream
from broker.kube.errors import Unavailable
from broker.webpage.access import AccessRules, PageAccess
from tests.support.clock import FakeClock
from tests.unit.webpage.world import CLOCK

TEAM = ("capacityreservations", "team")
ALL_TEAMS = ("capacityreservations", "")
CLUSTER = (("nodeclaims", ""), ("clustercapacityreservations", ""))


@dataclass
class Reviews:
    """`rights` are (resource, namespace) pairs by user or group; `tokens` are users by token."""

    rights: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    broken: bool = False

    def request(self, request: Request, *, timeout: float) -> Reply:
        if self.broken:
            raise Unavailable(0, "ConnectionError", "no answer")
        spec = orjson.loads(request.body or b"")["spec"]
        self.seen.append(spec)
        if request.path.endswith("/tokenreviews"):
            user = self.tokens.get(spec["token"], "")
            status = {"authenticated": bool(user), "user": {"username": user, "groups": ["people"]}}
        else:
            attributes = spec["resourceAttributes"]
            granting = {(attributes["resource"], attributes["namespace"]), (attributes["resource"], "")}
            subjects = (spec["user"], *spec["groups"])
            status = {"allowed": any(granting & self.rights.get(name, set()) for name in subjects)}
        return Reply(status=201, body=orjson.dumps({"spec": spec, "status": status}))

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise AssertionError(request)


def guarded(reviews: Reviews, rules: AccessRules, clock: FakeClock = CLOCK) -> PageAccess:
    return PageAccess(rules, Client(reviews), clock=clock)
