"""Prints what /metrics shows once everything that defines a metric is imported, for promtool to check."""

from __future__ import annotations

import sys

from prometheus_client import generate_latest

from broker.app import REGISTRIES
from broker.oncall.metrics import REGISTRY
from providers.aws import AwsProvider

if __name__ == "__main__":
    AwsProvider(cluster="exposition", region="us-east-1", registry=REGISTRY)
    sys.stdout.write("".join(generate_latest(registry).decode() for registry in REGISTRIES))
