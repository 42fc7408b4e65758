"""The body of a dedicated cluster's status: always complete, and written only if it has changed.

Invariant: server-side apply drops fields that a manager omits, so each apply contains all of the broker's
fields. A condition's time changes only with its status. Conditions of other managers are left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from broker.apis.meta import Json
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.status import CONDITIONS, ClusterStatus
from broker.kube.conditions import condition_body, set_conditions
from broker.reservations.cluster_admission import status

MESSAGE: Final = 2000
INT32: Final = 2**31 - 1  # the highest value that OME's schema allows


def body(cluster: DedicatedAICluster, new: ClusterStatus, *, now: datetime) -> Json | None:
    """The status to apply; None if the object has all of it already."""
    before = tuple(current for current in cluster.status.conditions if current.type in CONDITIONS)
    after = set_conditions(
        before,
        *new.conditions,
        now=now,
        observed_generation=cluster.metadata.generation,
        message_limit=MESSAGE,
    )
    desired: Json = {
        "dacLifecycleState": new.state,
        "lifecycleDetail": new.detail[:MESSAGE],
        "availableGpu": min(new.available, INT32),
        "allocatedGpu": min(new.allocated, INT32),
        "conditions": [condition_body(current) for current in after],
    }
    if new.held is not None:
        desired["admission"] = status(new.held).wire()
    old = cluster.status
    written: Json = {
        "dacLifecycleState": old.dac_lifecycle_state,
        "lifecycleDetail": old.lifecycle_detail,
        "availableGpu": old.available_gpu,
        "allocatedGpu": old.allocated_gpu,
        "conditions": [condition_body(current) for current in before],
    }
    if old.admission is not None:
        written["admission"] = old.admission.wire()
    return None if written == desired else desired
