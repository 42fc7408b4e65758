"""Refreshes prices twice a day; a failure is logged, and retried after 15 minutes.

Invariant: no decision waits for a price. Until one is known, the provider's shipped table is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from prometheus_client import Gauge

from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.oncall.metrics import REGISTRY
from providers.base import AccountFacts
from providers.errors import ProviderError

EVERY = 12 * 3600.0
AGAIN = 15 * 60.0

_AT = Gauge(
    "capacity_broker_prices_refreshed_timestamp_seconds",
    "Time of the last successful refresh of all prices; 0 before.",
    registry=REGISTRY,
)
_log = structlog.get_logger("prices")


class PriceRefresher:
    """A Singleton calls `run`."""

    def __init__(self, provider: AccountFacts, *, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._logged = ""

    def run(self, _items: Sequence[str]) -> Result | None:
        try:
            self._provider.refresh_prices()
        except ProviderError as error:
            if self._logged != (message := str(error)):
                _log.warning("prices could not be refreshed; those known before hold", error=message)
            self._logged = message
            return Result(requeue_after=AGAIN)
        self._logged = ""
        _AT.set(self._clock.now().timestamp())
        return None
