"""Prints what /metrics shows once everything that defines a metric is imported, for promtool to check."""

from __future__ import annotations

import sys

from prometheus_client import generate_latest

import broker.app  # noqa: F401
import providers.aws  # noqa: F401
from broker.kube.metrics import REGISTRY as KUBE
from broker.oncall.metrics import REGISTRY

if __name__ == "__main__":
    REGISTRY.register(KUBE)
    sys.stdout.write(generate_latest(REGISTRY).decode())
