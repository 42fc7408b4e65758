"""Reports the pods that may not draw from the reservation that is named for them.

The name is the pod's, its Namespace's, or that of the NodePool in which the pod gets its machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.controllers.provisioning.decide import ProvisioningDecision
from broker.controllers.provisioning.pools import ServedPool
from broker.placement.packing_model import PendingPod
from broker.quota.resolve import UnresolvedName
from broker.reservations.drawing import DrawRights

MOST_NAMED: Final = 3  # reservations of NodePools, for a pod without a machine


def refusals(
    pending: Iterable[PendingPod],
    decision: ProvisioningDecision,
    pools: Sequence[ServedPool],
    rights: DrawRights,
) -> Mapping[str, UnresolvedName]:
    """Explains by pod why it takes no slot of the reservation that is named for it."""
    of_pool = {pool.pool.name: pool.pool.draws_from for pool in pools}
    packed = [item.packed for item in decision.created]
    named_by = {pod.key: of_pool.get(item.option.pool, "") for item in packed for pod in item.pods}
    refused: dict[str, UnresolvedName] = {}
    for pod in pending:
        named = [named_by.get(pod.key, "")]
        if pod.key in decision.reasons:
            named = sorted({*of_pool.values()})
        names = dict.fromkeys(name for text in named if (name := pod.drawing.refused(text)))
        whys = [rights.decide(name, (pod.info.namespace,)) for name in [*names][:MOST_NAMED]]
        problems = [why for why in whys if isinstance(why, UnresolvedName)]
        if problems:
            message = "; ".join(problem.message for problem in problems)
            refused[pod.key] = UnresolvedName(problems[0].reason, f"draws from no reservation: {message}")
    return refused
