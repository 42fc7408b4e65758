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
        # By uid: the wanted label and the actual one, which another manager owns.
        self._theirs: dict[str, tuple[str, str]] = {}

    def keep(self, cluster: DedicatedAICluster, reservation: str) -> Json | None:
        """Writes finalizer and label; returns the object, or None if unchanged. `reservation`: a name."""
        if cluster.deleting:
            return None  # no finalizer may be added any more
        wanted, now = short(reservation), cluster.labels.get(names.RESERVATION_LABEL, "")
        held = names.RESERVED_FINALIZER in cluster.metadata.finalizers
        if held and (now == wanted or self._theirs.get(cluster.uid) == (wanted, now)):
            return None
        try:
            answer = self._apply(cluster, wanted)
        except Conflict:
            answer = self._apply(cluster, "")
        after = answer["metadata"].get("labels", {}).get(names.RESERVATION_LABEL, "")
        if after != wanted:
            self._theirs[cluster.uid] = wanted, after
        return answer

    def forget(self, alive: Collection[str]) -> None:
        self._theirs = {uid: said for uid, said in self._theirs.items() if uid in alive}

    def _apply(self, cluster: DedicatedAICluster, label: str) -> Json:
        metadata: Json = {
            "name": cluster.name,
            "uid": cluster.uid,
            "finalizers": [names.RESERVED_FINALIZER],
        }
        if label:
            metadata["labels"] = {names.RESERVATION_LABEL: label}
        return self._client.apply(DedicatedAICluster.KIND, {"metadata": metadata}, force=False)
