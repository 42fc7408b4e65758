"""Watches the definition of EC2NodeClass, and restores a missing `capacityReservationSpec` if enabled.

Invariant: the broker's own definition is left to `crds install`; in another definition only this property is
written. If another manager keeps applying a definition without it, that manager wins. After a few times in an
hour the broker only reports it.
"""

from __future__ import annotations

import threading

import structlog
from prometheus_client import Gauge

from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_definition import (
    NAME,
    PROPERTY,
    CustomResourceDefinition,
    StoredDefinition,
    definition,
    patch,
)
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.errors import Invalid
from broker.oncall.metrics import REGISTRY

HOUR = 3600.0
PATIENCE = 5
# API servers learn of a changed definition one after the other.
SETTLED = 5.0
LATER, LONG_AFTER = 30.0, 300.0
SOON = 1.0

_log = structlog.get_logger("definition")
_MISSING = Gauge(
    "capacity_broker_definition_missing",
    "Versions of EC2NodeClass whose definition lacks capacityReservationSpec.",
    registry=REGISTRY,
)


class DefinitionController:
    """`current` shows whether the field is kept; `run` checks the definition once."""

    def __init__(
        self,
        client: Client,
        cache: Cache[CustomResourceDefinition],
        classes: Cache[EC2NodeClass],
        *,
        clock: Clock,
        keep: bool,
    ) -> None:
        self._client = client
        self._cache = cache
        self._classes = classes
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._seen: tuple[str, float] = ("", 0.0)  # the identity, and the time since which it is known
        self._told_of: tuple[CustomResourceDefinition, StoredDefinition] | None = (
            None  # the same object has the same definition
        )
        self._told = self._reread = ""
        self._looks: list[float] = []  # when classes are read again
        self._put_back: list[float] = []

    def current(self) -> StoredDefinition | None:
        """The definition as last seen; None if there is none, or if it cannot be read."""
        there = self._cache.get(NAME)
        if there is None:
            return None
        with self._lock:
            if self._told_of is not None and self._told_of[0] is there:
                return self._told_of[1]
        found = definition(there.wire())
        with self._lock:
            self._told_of = there, found
            if self._seen[0] != found.identity:
                self._seen = found.identity, self._clock.monotonic()
        return found

    def unsettled(self) -> float:
        """Seconds until every API server can be expected to know the present definition."""
        with self._lock:
            return max(0.0, self._seen[1] + SETTLED - self._clock.monotonic())

    def confirmed(self, identity: str) -> bool:
        """Whether the API server itself has the definition that `current` showed. Raises ApiError."""
        raw = self._client.get(CustomResourceDefinition.KIND, NAME)
        self._cache.observe(raw)
        return definition(raw).identity == identity

    def run(self) -> Result | None:
        """Raises ApiError."""
        found = self.current()
        _MISSING.set(len(found.missing) if found and not found.own else 0)
        if found is None or found.own:
            return None
        asked = (self._mend(found) if found.missing or found.outdated else None, self._look_again(found))
        return min((again for again in asked if again), key=lambda again: again.requeue_after, default=None)

    def _look_again(self, found: StoredDefinition) -> Result:
        """Reads the classes again once the definition is valid on every API server.

        Until then a watch may have shown them by the old definition. The end of such a watch is not reported,
        so the read is repeated at growing intervals.
        """
        now = self._clock.monotonic()
        if self._reread != found.identity:
            self._reread, self._looks = found.identity, [now + self.unsettled(), now + LATER]
        if now >= self._looks[0]:
            self._classes.reread(self._client.list(EC2NodeClass.KIND)[0])
            self._looks = [*self._looks[1:], now + LONG_AFTER]
        return Result(requeue_after=max(self._looks[0] - now, 0.0))

    def _mend(self, found: StoredDefinition) -> Result | None:
        lacking = ", ".join((*found.missing, *found.outdated))
        if self._told != found.identity:
            self._told = found.identity
            _log.warning(
                f"the definition of EC2NodeClass lacks {PROPERTY}, or has an older one: "
                + ("it is put back" if self._keep else "run capacity-broker crds patch"),
                versions=lacking,
            )
        there = self._cache.get(NAME)
        if not self._keep or there is None:
            return None
        now = self._clock.monotonic()
        self._put_back = [at for at in self._put_back if at > now - HOUR]
        if len(self._put_back) >= PATIENCE:
            _log.warning(
                f"somebody takes {PROPERTY} out of the definition again and again: it is left so for now",
                times=len(self._put_back),
            )
            return Result(requeue_after=self._put_back[0] + HOUR - now)
        try:
            answer = self._client.patch(CustomResourceDefinition.KIND, NAME, patch(there.wire()), type="json")
        except Invalid as error:
            # The definition changed meanwhile: a test of the patch does not hold.
            _log.info("definition read anew", why=error.message)
            self._cache.observe(self._client.get(CustomResourceDefinition.KIND, NAME))
            return Result(requeue_after=SOON)
        self._put_back.append(now)
        self._cache.observe(answer)
        _log.info(f"{PROPERTY} added to the definition of EC2NodeClass", versions=lacking)
        return None
