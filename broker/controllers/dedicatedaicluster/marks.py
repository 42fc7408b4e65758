"""The broker's metadata on a dedicated cluster: a finalizer, and its reservation's name as a label.

Invariant: a user's own metadata is never changed. The label makes `kubectl get dedicatedaiclusters -l
capacity-reservation=NAME` work; a user's own label of that name stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from broker.apis import names
from broker.apis.ome_clusters import DedicatedAICluster
from broker.kube.client import Client
from broker.kube.errors import Conflict
from broker.reservations.kueue_objects import short

Json = dict[str, Any]


class ClusterLabels:
    """Uses server-side apply without force: the API server knows the owner of a label."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # By uid: the desired label and the actual one, which another manager owns.
        self._foreign_labels: dict[str, tuple[str, str]] = {}

    def keep(self, cluster: DedicatedAICluster, reservation: str) -> Json | None:
        """Writes finalizer and label; returns the object, or None if unchanged. `reservation`: a name."""
        if cluster.deleting:
            return None  # no finalizer may be added any more
        desired, now = short(reservation), cluster.labels.get(names.RESERVATION_LABEL, "")
        held = names.RESERVED_FINALIZER in cluster.metadata.finalizers
        if held and (now == desired or self._foreign_labels.get(cluster.uid) == (desired, now)):
            return None
        try:
            answer = self._apply(cluster, desired)
        except Conflict:
            answer = self._apply(cluster, "")
        after = answer["metadata"].get("labels", {}).get(names.RESERVATION_LABEL, "")
        if after != desired:
            self._foreign_labels[cluster.uid] = desired, after
        return answer

    def forget(self, alive: Collection[str]) -> None:
        self._foreign_labels = {uid: labels for uid, labels in self._foreign_labels.items() if uid in alive}

    def _apply(self, cluster: DedicatedAICluster, label: str) -> Json:
        metadata: Json = {
            "name": cluster.name,
            "uid": cluster.uid,
            "finalizers": [names.RESERVED_FINALIZER],
        }
        if label:
            metadata["labels"] = {names.RESERVATION_LABEL: label}
        return self._client.apply(DedicatedAICluster.KIND, {"metadata": metadata}, force=False)
