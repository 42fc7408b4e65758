"""The webhook's reads from the API server during a review.

Invariant: however many reviews come, at most `RATE` reads a second reach the API server. Below that rate
each review reads again, because a cache lags behind the create or delete before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from pydantic import ValidationError

from broker.admission.rules import Unknown
from broker.apis.core import ResourceQuota
from broker.apis.meta import Json, Object
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAIClusterProfile
from broker.controllers.elasticquota.reading import Quota
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError, NotFound

O = TypeVar("O", bound=Object)  # noqa: E741
V = TypeVar("V")
RATE: Final = 30  # reads a second
KEPT: Final = 10.0  # seconds


class RecentReads:
    """`client` should give up before the API server gives up on the webhook. Threads may share it."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        rate = _Rate(clock)

        def recent(read: Callable[[str], V]) -> _Recent[V]:
            return _Recent(read, rate=rate, clock=clock)

        def listed(model: type[O], namespace: str = "") -> Sequence[O]:
            return _read(lambda: client.list(model.KIND, namespace=namespace)[0], model)

        def profile(name: str) -> DedicatedAIClusterProfile | None:
            kind = DedicatedAIClusterProfile
            return next(iter(_read(lambda: [client.get(kind.KIND, name)], kind)), None)

        def elastic(_: str) -> Sequence[Quota]:
            single: Sequence[Quota] = listed(ElasticQuota)
            return [*single, *listed(CompositeElasticQuota)]

        self.quotas = recent(lambda namespace: listed(ResourceQuota, namespace)).get
        self.reservations = recent(lambda namespace: listed(CapacityReservation, namespace)).get
        self.profile = recent(profile).get
        self._elastic = recent(elastic)

    def elastic_quotas(self) -> Sequence[Quota]:
        return self._elastic.get("")


class _Rate:
    """At most `RATE` reads begin within any one second of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._second, self._begun = clock, 0, 0

    def allows(self) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._begun = second, 0
        self._begun += 1
        return self._begun <= RATE


class _Recent(Generic[V]):
    """Values by key: read anew while the rate allows it, else as last read within `KEPT` seconds."""

    def __init__(self, read: Callable[[str], V], *, rate: _Rate, clock: Clock) -> None:
        self._read, self._rate, self._clock = read, rate, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[V, float]] = {}

    def get(self, key: str) -> V:
        """Raises Unknown."""
        with self._lock:
            now = self._clock.monotonic()
            self._known = {name: (value, at) for name, (value, at) in self._known.items() if now - at < KEPT}
            if not self._rate.allows():
                if key not in self._known:
                    raise Unknown("too many reviews at once: try again in a second")
                return self._known[key][0]
        value = self._read(key)
        with self._lock:
            self._known[key] = (value, now)
        return value


def _read(fetch: Callable[[], list[Json]], model: type[O]) -> Sequence[O]:
    """Nothing if the object or its kind is not there. Raises Unknown."""
    try:
        return [model.decode(raw) for raw in fetch()]
    except NotFound:
        return []
    except ApiError as error:
        raise Unknown(str(error)) from error
    except ValidationError as error:
        raise Unknown(f"a {model.KIND.kind} cannot be read: {error}") from error
