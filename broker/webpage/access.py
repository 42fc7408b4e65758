"""Authentication of a request, and the part of the cluster that its person may read.

Invariant: without a proof of identity there is no answer, and without an answer of the API server about a
right there is none, either. A header counts only from the configured addresses of a proxy. The API server
decides about every right, by a SubjectAccessReview, for people of a proxy and of a token alike.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, Generic, TypeVar

from aiohttp import hdrs, web

from broker.apis.access import ReviewedUser, SubjectAccessReview, TokenReview
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.option_rules import listed
from broker.settings import Settings
from broker.webpage.scope import EVERYTHING, VisibleScope

# Seconds for which the answers of the API server count: a right that is taken away is gone after them.
KEEP: Final = 30.0
MOST_ANSWERS: Final = 10_000  # answers in memory
AT_ONCE: Final = 8  # reviews of one request
# The kinds of all names that the page shows outside of namespaces.
CLUSTER_KINDS: Final = (NodeClaim.KIND, ClusterCapacityReservation.KIND)
AUTHENTICATED: Final = "system:authenticated"
_RESERVED: Final = "system:"
_Network = IPv4Network | IPv6Network
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The user that a proxy or a token proves; `extra` are a token's further facts."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class AccessDenied(Exception):
    """A request without an answer: its HTTP status, and a text for the person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """`proxies` may set `user_header` and `groups_header`; `tokens`: a bearer token is a proof, too."""

    user_header: str = ""
    groups_header: str = ""
    proxies: tuple[_Network, ...] = ()
    tokens: bool = False

    @classmethod
    def of(cls, settings: Settings) -> AccessRules:
        return cls(
            user_header=settings.web_user_header,
            groups_header=settings.web_groups_header,
            proxies=tuple(ip_network(block) for block in listed(settings.web_proxies)),
            tokens=settings.web_tokens,
        )

    @property
    def required(self) -> bool:
        """False for a page that only this machine reaches."""
        return bool(self.user_header or self.tokens)

    def trusts(self, address: str) -> bool:
        try:
            peer = ip_address(address)
        except ValueError:
            return False
        if isinstance(peer, IPv6Address) and peer.ipv4_mapped:
            peer = peer.ipv4_mapped
        return any(peer in network for network in self.proxies)


class PageAccess:
    """`person` authenticates a request; `scope` is the part that the person may read. Both raise
    AccessDenied."""

    def __init__(self, rules: AccessRules, client: Client | None, *, clock: Clock) -> None:
        """`client` makes the reviews; without rules it is not needed."""
        self.rules, self._client = rules, client
        self._people: _Answers[Person | None] = _Answers(clock)
        self._rights: _Answers[bool] = _Answers(clock)

    def person(self, request: web.Request) -> Person | None:
        """Authenticates the request; None if the page needs no authentication."""
        rules = self.rules
        if not rules.required:
            return None
        if rules.user_header and rules.user_header in request.headers:
            return self._of_proxy(request)
        if rules.tokens:
            return self._of_token(request)
        raise AccessDenied(
            401, f"This page needs the header {rules.user_header}, which a proxy sets after a login."
        )

    def scope(self, person: Person | None, namespaces: Iterable[str]) -> VisibleScope:
        """The part of these namespaces that the person may read."""
        if person is None:
            return EVERYTHING
        if self._may(person, CapacityReservation.KIND, ""):
            allowed = None
        else:
            names = sorted({*namespaces} - {""})
            with ThreadPoolExecutor(AT_ONCE) as threads:
                answers = threads.map(lambda name: self._may(person, CapacityReservation.KIND, name), names)
                allowed = frozenset(name for name, may in zip(names, answers, strict=True) if may)
        cluster = all(self._may(person, kind, "") for kind in CLUSTER_KINDS)
        return VisibleScope(cluster=cluster, namespaces=allowed)

    def _of_proxy(self, request: web.Request) -> Person:
        rules = self.rules
        if not rules.trusts(request.remote or ""):
            raise AccessDenied(
                403, f"The header {rules.user_header} is accepted from proxies only (--web-proxies)."
            )
        users = request.headers.getall(rules.user_header)
        groups = request.headers.getall(rules.groups_header, []) if rules.groups_header else []
        if len(users) != 1 or len(groups) > 1:
            raise AccessDenied(400, "The proxy must replace the headers of a request, and not add to them.")
        name, member_of = users[0].strip(), listed(groups[0]) if groups else ()
        if not name or any(part.startswith(_RESERVED) for part in (name, *member_of)):
            raise AccessDenied(
                403, f"A proxy's user and groups must have names that do not begin with {_RESERVED}"
            )
        return Person(name=name, groups=(*member_of, AUTHENTICATED))

    def _of_token(self, request: web.Request) -> Person:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise AccessDenied(
                401, "This page needs a bearer token of the cluster in the header Authorization."
            )
        key = hashlib.sha256(token.encode()).digest()  # no token is kept in memory
        person = self._people.get(key, lambda: self._reviewed(token))
        if person is None:
            raise AccessDenied(401, "The API server does not accept this token.")
        return person

    def _reviewed(self, token: str) -> Person | None:
        answer = TokenReview.decode(self._review(TokenReview.KIND, {"token": token}))
        user: ReviewedUser = answer.status.user
        if not answer.status.authenticated or not user.username:
            return None
        return Person(
            name=user.username, groups=user.groups, uid=user.uid, extra=tuple(sorted(user.extra.items()))
        )

    def _may(self, person: Person, kind: Kind, namespace: str) -> bool:
        """Whether the person may list these objects; an empty namespace means everywhere."""

        def review() -> bool:
            spec = {
                "user": person.name,
                "groups": [*person.groups],
                "uid": person.uid,
                "extra": {key: [*values] for key, values in person.extra},
                "resourceAttributes": {
                    "verb": "list",
                    "group": kind.group,
                    "resource": kind.plural,
                    "namespace": namespace,
                },
            }
            answer = SubjectAccessReview.decode(self._review(SubjectAccessReview.KIND, spec))
            return answer.status.allowed and not answer.status.denied

        return self._rights.get((person, kind, namespace), review)

    def _review(self, kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
        if self._client is None:
            raise AccessDenied(503, "Rights cannot be checked: this process has no API server.")
        try:
            return self._client.create(kind, {"spec": spec})
        except ApiError as error:
            raise AccessDenied(
                503, f"The API server does not answer about rights now ({error.reason})."
            ) from error


@dataclass(slots=True)
class _Answers(Generic[_V]):
    """Answers by question for `KEEP` seconds, the newest `MOST_ANSWERS` of them."""

    clock: Clock
    known: OrderedDict[Hashable, tuple[float, _V]] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, fetch: Callable[[], _V]) -> _V:
        now = self.clock.monotonic()
        with self.lock:
            known = self.known.get(key)
        if known is not None and known[0] > now:
            return known[1]
        answer = fetch()
        with self.lock:
            self.known.pop(key, None)
            self.known[key] = (now + KEEP, answer)
            while len(self.known) > MOST_ANSWERS:
                self.known.popitem(last=False)
        return answer
