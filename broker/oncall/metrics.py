"""The registry that /metrics shows; a metric is defined beside the code that it measures."""

from __future__ import annotations

import gc

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

# No second series for each counter: it is never read.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


def tune_collector() -> None:
    """Decoding big lists is dominated by the cyclic collector at its default thresholds."""
    gc.set_threshold(50_000, 20, 100)
