"""The pods that existing nodes and claims in flight take, and those that need a machine.

Both the provisioning loop and `capacity-broker plan -f` decide with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.apis.core import Pod
from broker.controllers.provisioning.existing import ExistingNodes
from broker.controllers.provisioning.pending import incomplete
from broker.placement.affinity import node_affinity
from broker.placement.filters import FILTERS, Filter, prepare
from broker.placement.gangs import GroupSizes
from broker.placement.packing_model import PendingPod
from broker.placement.sequential import place_on_existing
from broker.placement.snapshot import PlacementSnapshot

# A claim has the rules of its pods, and the labels of its instance later.
BESIDE_LABELS: Final[tuple[Filter, ...]] = tuple(item for item in FILTERS if item is not node_affinity)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAssignment:
    """Pods: `nominated`, the claim or node that was made for each; `taken`, another with room for it;
    `reasons`, why it waits. `unassigned` need a machine. `snapshot` has the pods of the first two.
    """

    nominated: Mapping[str, str]
    taken: Mapping[str, str]
    reasons: Mapping[str, str]
    unassigned: Sequence[PendingPod]
    snapshot: PlacementSnapshot


def assign(
    pending: Sequence[PendingPod],
    known: ExistingNodes,
    pods: Sequence[Pod],
    group_size: GroupSizes,
) -> PodAssignment:
    """`pods`: all that exist, which gangs are counted from. `group_size`: the minimum of a PodGroup."""
    snapshot = known.snapshot
    nominated: dict[str, str] = {}
    joined = {pod.key: node for pod in pods if (node := pod.status.nominated_node_name)}
    for pod in pending:
        own = known.nominated.get(pod.key)
        node = own or joined.get(pod.key, "")
        # Another pod may have taken the room of the claim that was made for this one.
        filters = BESIDE_LABELS if own in known.undetermined else FILTERS
        if node in snapshot.states and not prepare(pod.info, snapshot, filters).reasons(
            snapshot.states[node]
        ):
            snapshot = snapshot.with_pod(pod.info, node)
            nominated[pod.key] = node
    rest = [pod for pod in pending if pod.key not in nominated]
    short = incomplete(rest, pods, group_size)
    reasons = {pod.key: short[pod.gang] for pod in rest if pod.gang in short}
    rest = [pod for pod in rest if pod.gang not in short]
    snapshot, taken = place_on_existing(rest, snapshot)
    return PodAssignment(
        nominated=nominated,
        taken=taken,
        reasons=reasons,
        unassigned=[pod for pod in rest if pod.key not in taken],
        snapshot=snapshot,
    )
