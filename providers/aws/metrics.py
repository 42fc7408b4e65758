"""How the calls to AWS go: counted and timed where they are made."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class CallMetrics:
    """One set for a registry; without a registry they are kept apart and never scraped."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self.calls = Counter(
            "capacity_broker_aws_calls",
            "Calls to AWS, each attempt; code is empty for a success.",
            ("service", "operation", "code"),
            registry=registry,
        )
        self.throttled = Counter(
            "capacity_broker_aws_throttled",
            "Calls that AWS refused for their rate, those inside a fleet's answer too.",
            ("service", "operation"),
            registry=registry,
        )
        self.seconds = Histogram(
            "capacity_broker_aws_call_seconds",
            "Time from sending a call to its answer.",
            ("service", "operation"),
            registry=registry,
            buckets=BUCKETS,
        )
        self.waited = Counter(
            "capacity_broker_aws_ratelimit_wait_seconds",
            "Time that calls waited for a token of their bucket.",
            ("operation",),
            registry=registry,
        )
