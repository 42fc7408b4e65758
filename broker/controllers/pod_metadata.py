"""Writes the metadata of pods: annotations, labels, finalizers.

A pod's metadata can be written through `pods/status` as well as through the pod. The broker uses the status
only: `patch` on `pods` would also replace the image of any container of the cluster. Source: Kubernetes,
pkg/registry/core/pod/strategy.go (podStatusStrategy.PrepareForUpdate).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.core import Pod
from broker.kube.client import Client


def patch_metadata(client: Client, pod: Pod, metadata: Mapping[str, Any]) -> None:
    """Merges into the metadata. Raises ApiError; Conflict if `metadata` has a `uid` that is not the pod's."""
    body = {"metadata": dict(metadata)}
    client.patch(Pod.KIND, pod.name, body, namespace=pod.namespace, subresource="status")
