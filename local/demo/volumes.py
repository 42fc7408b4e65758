"""Simulates the controller of persistent volumes, and a provisioner that binds at once.

A claim that names a volume of its user is bound to it; any other one gets a volume without a zone. Claims of
a class with WaitForFirstConsumer are left to the scheduler.
Rule: https://kubernetes.io/docs/concepts/storage/persistent-volumes/#binding
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from broker.apis.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from broker.kube.client import Client
from broker.kube.errors import AlreadyExists, ApiError
from broker.placement.storage import BIND_COMPLETED

Json = dict[str, Any]
_DELAYED = "WaitForFirstConsumer"


def bind_claims(client: Client) -> None:
    """Binds each claim that waits for no pod. Raises ApiError if the claims cannot be listed."""
    unbound = [raw for raw in client.list(PersistentVolumeClaim.KIND)[0] if not _is_bound(raw)]
    if not unbound:
        return
    classes = client.list(StorageClass.KIND)[0]
    delayed = {raw["metadata"]["name"] for raw in classes if raw.get("volumeBindingMode") == _DELAYED}
    for claim in unbound:
        spec = claim["spec"]
        if spec.get("volumeName") or spec.get("storageClassName") not in delayed:
            with suppress(ApiError):  # deleted meanwhile: the others go on
                bind(client, claim)


def bind(client: Client, claim: Json) -> None:
    """Binds a claim to its volume, or to a new one. Raises ApiError."""
    meta, spec = claim["metadata"], claim["spec"]
    volume = spec.get("volumeName") or f"pv-{meta['name']}"
    if not spec.get("volumeName"):
        source = {"hostPath": {"path": f"/var/lib/demo/{volume}"}}
        capacity = spec["resources"]["requests"]
        body = {
            "metadata": {"name": volume},
            "spec": {"accessModes": spec["accessModes"], **source, "capacity": capacity},
        }
        with suppress(AlreadyExists):
            client.create(PersistentVolume.KIND, body)
    bound = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume}}
    kind, name, namespace = PersistentVolumeClaim.KIND, meta["name"], meta["namespace"]
    client.patch(kind, name, bound, namespace=namespace)
    client.patch(kind, name, {"status": {"phase": "Bound"}}, namespace=namespace, subresource="status")


def _is_bound(claim: Json) -> bool:
    return BIND_COMPLETED in claim["metadata"].get("annotations", {})
