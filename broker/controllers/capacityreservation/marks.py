"""The metadata that the broker adds to a reservation: our finalizer, and its cohort as a label.

Invariant: a user's values are never changed. The label `cohort` makes `kubectl get -l cohort=NAME` work. A
user's own label of that name stays as it is. A cohort with a name that is no label value is cut to one, with
a hash (kubernetes.io, "Labels and Selectors: Syntax and character set").
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any, Final

from broker.apis import names
from broker.kube.client import Client
from broker.kube.errors import Conflict
from broker.reservations.spec import Reservation

COHORT: Final = "cohort"
LONGEST: Final = 63

Json = dict[str, Any]


def label_of(cohort: str) -> str:
    """The cohort as a label's value."""
    if len(cohort) <= LONGEST:
        return cohort
    digest = hashlib.sha256(cohort.encode()).hexdigest()[:8]
    return f"{cohort[: LONGEST - 9].rstrip('-._')}-{digest}"


class CohortLabels:
    """Applies the label server-side without force: the API server knows the owner of a label."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # By uid: the desired label and the present one, if another manager owns it.
        self._foreign_labels: dict[str, tuple[str, str | None]] = {}

    def keep(self, reservation: Reservation, cohort: str) -> Json | None:
        """The object after a write; None if no write was needed."""
        if reservation.deleting:
            return None  # a deleted object accepts no new finalizer
        desired = label_of(cohort)
        now = reservation.labels.get(COHORT)
        held = names.RESERVED_FINALIZER in reservation.metadata.finalizers
        if held and ((now or "") == desired or self._foreign_labels.get(reservation.uid) == (desired, now)):
            return None
        try:
            answer = self._apply(reservation, desired)
        except Conflict:
            self._foreign_labels[reservation.uid] = (desired, now)
            answer = self._apply(reservation, "")
        after = answer["metadata"].get("labels", {}).get(COHORT)
        if (after or "") != desired:
            self._foreign_labels[reservation.uid] = (desired, after)
        return answer

    def forget(self, alive: Collection[str]) -> None:
        self._foreign_labels = {uid: labels for uid, labels in self._foreign_labels.items() if uid in alive}

    def _apply(self, reservation: Reservation, label: str) -> Json:
        metadata: Json = {
            "name": reservation.name,
            "uid": reservation.uid,
            "finalizers": [names.RESERVED_FINALIZER],
        }
        if reservation.namespace:
            metadata["namespace"] = reservation.namespace
        if label:
            metadata["labels"] = {COHORT: label}
        return self._client.apply(reservation.KIND, {"metadata": metadata}, force=False)
