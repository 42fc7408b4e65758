"""Prints /metrics once everything that defines a metric is imported, for promtool to check."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry, generate_latest

from broker.app import REGISTRIES
from local.generators.monitoring import define
from providers.aws import AwsProvider


def text() -> str:
    """Every series of the process, in Prometheus' text format."""
    define()
    aws = CollectorRegistry(auto_describe=True)
    AwsProvider(cluster="exposition", region="us-east-1", registry=aws)
    return "".join(generate_latest(registry).decode() for registry in (*REGISTRIES, aws))


if __name__ == "__main__":
    sys.stdout.write(text())
