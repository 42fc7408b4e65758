"""The body of a dedicated cluster's status: always complete, and written only if it has changed.

Invariant: server-side apply drops fields that a manager omits, so each apply contains all of the broker's
fields. A condition's time changes only with its status. Conditions of other managers are left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.status import CONDITIONS, ClusterStatus
from broker.kube.conditions import condition_body, set_conditions
from broker.reservations.cluster_admission import status

Json = dict[str, Any]

MESSAGE: Final = 2000
INT32: Final = 2**31 - 1  # the highest value that OME's schema allows


def body(cluster: DedicatedAICluster, settled: ClusterStatus, *, now: datetime) -> Json | None:
    """The status to apply; None if the object has all of it already."""
    before = tuple(each for each in cluster.status.conditions if each.type in CONDITIONS)
    after = set_conditions(
        before,
        *settled.said,
        now=now,
        observed_generation=cluster.metadata.generation,
        message_limit=MESSAGE,
    )
    made: Json = {
        "dacLifecycleState": settled.state,
        "lifecycleDetail": settled.detail[:MESSAGE],
        "availableGpu": min(settled.available, INT32),
        "allocatedGpu": min(settled.allocated, INT32),
        "conditions": [condition_body(each) for each in after],
    }
    if settled.held is not None:
        made["admission"] = status(settled.held).wire()
    old = cluster.status
    said: Json = {
        "dacLifecycleState": old.dac_lifecycle_state,
        "lifecycleDetail": old.lifecycle_detail,
        "availableGpu": old.available_gpu,
        "allocatedGpu": old.allocated_gpu,
        "conditions": [condition_body(each) for each in before],
    }
    if old.admission is not None:
        said["admission"] = old.admission.wire()
    return None if said == made else made
