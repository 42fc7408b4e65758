"""Prints /metrics once everything that defines a metric is imported, for promtool to check."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from prometheus_client import CollectorRegistry, generate_latest

import broker
from broker.app import REGISTRIES
from providers.aws import AwsProvider


def define() -> None:
    """Imports everything of the broker's that defines a metric."""
    for module in pkgutil.walk_packages(broker.__path__, "broker."):
        if not module.name.startswith(("broker.apiserver", "broker.demo")):
            importlib.import_module(module.name)  # a metric is defined where it is counted


def text() -> str:
    """Every series of the process, in Prometheus' text format."""
    define()
    aws = CollectorRegistry(auto_describe=True)
    AwsProvider(cluster="exposition", region="us-east-1", registry=aws)
    return "".join(generate_latest(registry).decode() for registry in (*REGISTRIES, aws))


if __name__ == "__main__":
    sys.stdout.write(text())
