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
PROPAGATION = 5.0
LATER, LONG_AFTER = 30.0, 300.0
SOON = 1.0

_log = structlog.get_logger("definition")
_MISSING = Gauge(
    "capacity_broker_definition_missing",
    "Versions of EC2NodeClass that lack capacityReservationSpec in their definition.",
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
        self._parsed: tuple[CustomResourceDefinition, StoredDefinition] | None = (
            None  # the same object has the same definition
        )
        self._reported = self._reread = ""
        self._rereads: list[float] = []  # when classes are read again
        self._put_back: list[float] = []

    def current(self) -> StoredDefinition | None:
        """The definition as last seen; None if there is none, or if it cannot be read."""
        crd = self._cache.get(NAME)
        if crd is None:
            return None
        with self._lock:
            if self._parsed is not None and self._parsed[0] is crd:
                return self._parsed[1]
        stored = definition(crd.wire())
        with self._lock:
            self._parsed = crd, stored
            if self._seen[0] != stored.identity:
                self._seen = stored.identity, self._clock.monotonic()
        return stored

    def propagation_wait(self) -> float:
        """Seconds until every API server can be expected to know the present definition."""
        with self._lock:
            return max(0.0, self._seen[1] + PROPAGATION - self._clock.monotonic())

    def confirmed(self, identity: str) -> bool:
        """Whether the API server itself has the definition that `current` showed. Raises ApiError."""
        raw = self._client.get(CustomResourceDefinition.KIND, NAME)
        self._cache.observe(raw)
        return definition(raw).identity == identity

    def run(self) -> Result | None:
        """Raises ApiError."""
        stored = self.current()
        _MISSING.set(len(stored.missing) if stored and not stored.own else 0)
        if stored is None or stored.own:
            return None
        results = (
            self._restore(stored) if stored.missing or stored.outdated else None,
            self._reread_classes(stored),
        )
        return min(
            (result for result in results if result), key=lambda result: result.requeue_after, default=None
        )

    def _reread_classes(self, stored: StoredDefinition) -> Result:
        """Reads the classes again once the definition is valid on every API server.

        Until then a watch may have shown them by the old definition. The end of such a watch is not reported,
        so the read is repeated at growing intervals.
        """
        now = self._clock.monotonic()
        if self._reread != stored.identity:
            self._reread, self._rereads = stored.identity, [now + self.propagation_wait(), now + LATER]
        if now >= self._rereads[0]:
            self._classes.reread(self._client.list(EC2NodeClass.KIND)[0])
            self._rereads = [*self._rereads[1:], now + LONG_AFTER]
        return Result(requeue_after=max(self._rereads[0] - now, 0.0))

    def _restore(self, stored: StoredDefinition) -> Result | None:
        lacking = ", ".join((*stored.missing, *stored.outdated))
        if self._reported != stored.identity:
            self._reported = stored.identity
            _log.warning(
                f"the definition of EC2NodeClass lacks {PROPERTY}, or has an older one: "
                + ("it is put back" if self._keep else "run capacity-broker crds patch"),
                versions=lacking,
            )
        crd = self._cache.get(NAME)
        if not self._keep or crd is None:
            return None
        now = self._clock.monotonic()
        self._put_back = [at for at in self._put_back if at > now - HOUR]
        if len(self._put_back) >= PATIENCE:
            _log.warning(
                f"another manager keeps removing {PROPERTY} from the definition: it stays removed for now",
                times=len(self._put_back),
            )
            return Result(requeue_after=self._put_back[0] + HOUR - now)
        try:
            answer = self._client.patch(CustomResourceDefinition.KIND, NAME, patch(crd.wire()), type="json")
        except Invalid as error:
            # The definition changed meanwhile: a test of the patch does not hold.
            _log.info("definition read anew", why=error.message)
            self._cache.observe(self._client.get(CustomResourceDefinition.KIND, NAME))
            return Result(requeue_after=SOON)
        self._put_back.append(now)
        self._cache.observe(answer)
        _log.info(f"{PROPERTY} added to the definition of EC2NodeClass", versions=lacking)
        return None
