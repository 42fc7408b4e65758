"""Prints what /metrics shows once everything that defines a metric is imported, for promtool to check."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry, generate_latest

from broker.app import REGISTRIES
from providers.aws import AwsProvider

if __name__ == "__main__":
    aws = CollectorRegistry(auto_describe=True)
    AwsProvider(cluster="exposition", region="us-east-1", registry=aws)
    sys.stdout.write("".join(generate_latest(registry).decode() for registry in (*REGISTRIES, aws)))
