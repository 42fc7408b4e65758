"""The registry of the Kubernetes runtime's metrics; each metric is defined beside the code that it measures.

A registry is itself a collector: the process's own registry shows this one by `register(REGISTRY)`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

REGISTRY = CollectorRegistry(auto_describe=True)
