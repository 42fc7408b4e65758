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
        # By uid: the wanted label and the present one, if another manager owns it.
        self._theirs: dict[str, tuple[str, str | None]] = {}

    def keep(self, one: Reservation, cohort: str) -> Json | None:
        """The object after a write; None if no write was needed."""
        if one.deleting:
            return None  # a deleted object accepts no new finalizer
        wanted = label_of(cohort)
        now = one.labels.get(COHORT)
        held = names.RESERVED_FINALIZER in one.metadata.finalizers
        if held and ((now or "") == wanted or self._theirs.get(one.uid) == (wanted, now)):
            return None
        try:
            answer = self._apply(one, wanted)
        except Conflict:
            self._theirs[one.uid] = (wanted, now)
            answer = self._apply(one, "")
        after = answer["metadata"].get("labels", {}).get(COHORT)
        if (after or "") != wanted:
            self._theirs[one.uid] = (wanted, after)
        return answer

    def forget(self, alive: Collection[str]) -> None:
        self._theirs = {uid: said for uid, said in self._theirs.items() if uid in alive}

    def _apply(self, one: Reservation, label: str) -> Json:
        metadata: Json = {
            "name": one.name,
            "uid": one.uid,
            "finalizers": [names.RESERVED_FINALIZER],
        }
        if one.namespace:
            metadata["namespace"] = one.namespace
        if label:
            metadata["labels"] = {COHORT: label}
        return self._client.apply(one.KIND, {"metadata": metadata}, force=False)
