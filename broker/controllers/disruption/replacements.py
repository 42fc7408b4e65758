"""Claims that take over the pods of a node: what they need, and the NodeClaim to create.

Invariant: a replacement is made from the pool's present template, for the pods that are on the node now. It
names the types and zones where all of them fit together by kube-scheduler's filters, on the nodes that
provisioning would make. A pod stays in its zone if its volume is for some nodes alone; that is not checked
further.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.units import base
from broker.capacity.model import Claim
from broker.capacity.options import with_capacity_types
from broker.capacity.requirements import Requirements
from broker.capacity.types import WELL_KNOWN
from broker.controllers.disruption.assumed import moving_pods
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.provisioning.claims import narrowed, total_requests
from broker.controllers.provisioning.from_pool import pool_claim
from broker.controllers.provisioning.pools import required_by
from broker.placement.claims import priority_of
from broker.placement.future_nodes import FutureNode
from broker.placement.model import PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.reading import node_taints
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights, namespaces_of

Triple = tuple[str, str, tuple[str, ...]]
# Annotations of a claim that its replacement keeps.
_KEPT: Final = (names.PRIORITY, names.EXPECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pods that move off a node. `zone`: the only zone, if volumes keep the pods there.

    Once machines were searched for: `unfit`, those that do not hold the pods, and `problem`, why there are
    none. `slot`: the reservation in which the replacement takes over the slot, after the node has ended;
    empty if the replacement is launched first. `joins`: the full reservation in which EC2 counts it then.
    `also`: the other nodes that end for the same replacement, of which the pods are among these.
    """

    node: ManagedNode
    pods: tuple[PodInfo, ...]
    zone: str = ""
    unfit: tuple[MachineOption, ...] = ()
    problem: str = ""
    slot: str = ""
    joins: str = ""
    also: tuple[ManagedNode, ...] = ()

    @property
    def nodes(self) -> tuple[ManagedNode, ...]:
        return self.node, *self.also

    @property
    def empty(self) -> bool:
        """Whether only the NodePool's number of nodes needs the replacement."""
        return self.node.static and not self.pods and not self.node.holds

    @property
    def chosen(self) -> dict[str, str]:
        """The claim's values of labels of the user's own, which stay if they are allowed.

        Raises InvalidRequirement.
        """
        required, labels = required_by(self.node.pool), self.node.claim.labels
        own = (key for key in required if key not in WELL_KNOWN and key in labels)
        return {key: labels[key] for key in own if not required.unmet(labels, among={key})}


# A replacement, and the machines that it may become, in order.
Pair = tuple[Demand, list[MachineOption]]


def demand(node: ManagedNode, pods: Sequence[Pod], assumed: Sequence[PodInfo] = ()) -> Demand:
    """The demand of these pods of the node, and of those that are assumed on it."""
    return Demand(
        node=node,
        pods=(*moving_pods(node, pods), *assumed),
        zone=node.zone if any(pod.key in node.tied for pod in pods) else "",
    )


def planned(needed: Demand, *, uid: str, name: str, only: Iterable[Triple] = ()) -> Claim:
    """The replacement as the planner reads it, without DaemonSets. Raises InvalidRequirement."""
    claim, template = needed.node.claim, needed.node.pool.spec.template.spec
    zone: tuple[Triple, ...] = ((names.ZONE, "In", (needed.zone,)),) if needed.zone else ()
    node = FutureNode(
        requirements=with_capacity_types(required_by(needed.node.pool))
        & Requirements.of_labels(needed.chosen)
        & Requirements.of((*zone, *only)),
        taints=node_taints(template.taints),
    )
    return Claim(
        name=name,
        uid=uid,
        node_class=template.node_class_ref.name,
        requirements=node.selected_by(needed.pods),
        requests=base(total_requests(needed.pods, {})),
        priority=priority_of(claim),
        created=claim.metadata.creation_timestamp,
    )


def beside_daemons(claim: Claim, needed: Demand, machine: MachineOption) -> Claim:
    """The claim with the requests of the machine's DaemonSets."""
    return replace(claim, requests=base(total_requests(needed.pods, machine.daemons)))


def body(
    needed: Demand,
    machines: Sequence[MachineOption],
    *,
    rights: DrawRights,
    name: str,
    move: str,
    gang: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """The NodeClaim to create, which becomes one of the machines. `move`: the value of MOVE."""
    pool, old = needed.node.pool, needed.node.claim
    kept: dict[str, str] = {key: old.annotations[key] for key in _KEPT if key in old.annotations}
    gang_annotations = {names.GANG: gang[0], names.GANG_SIZE: str(gang[1])} if gang else {}
    if gang and (domain := old.annotations.get(names.GANG_DOMAIN)):
        gang_annotations[names.GANG_DOMAIN] = domain
    return pool_claim(
        pool,
        name,
        requirements=narrowed(
            pool,
            machines,
            needed.chosen,
            needed.pods,
            {machine.capacity_type for machine in machines},
            offered=[*machines, *needed.unfit],
        ),
        requests=total_requests(needed.pods, machines[0].daemons),
        annotations={
            **kept,
            **gang_annotations,
            names.DRAWS_FROM: _drawn(needed, rights),
            names.REPLACES: f"{old.name}/{old.uid}",
            names.MOVE: move,
            names.TAKES_SLOT: needed.slot or None,
            names.JOINS_SLOT: needed.joins or None,
            names.REPLACES_ALSO: ",".join(f"{n.claim.name}/{n.claim.uid}" for n in needed.also) or None,
            names.REPLACES_EMPTY: "true" if needed.empty else None,
        },
    )


def _drawn(needed: Demand, rights: DrawRights) -> str | None:
    """The reservation that the replacement draws from: the old claim's, else its pool's.

    A replacement is made for no pods of its own, so it gets a name only if the old claim, or the pods that
    move, may draw from it.
    """
    claim = needed.node.claim
    if named := claim.annotations.get(names.DRAWS_FROM):
        return named if isinstance(rights.of_claim(claim), ReservationKey) else None
    named = needed.node.pool.draws_from
    namespaces = {pod.namespace for pod in needed.pods} | namespaces_of(claim)
    return named if isinstance(rights.decide(named, namespaces), ReservationKey) else None


def replacement_name(node: ManagedNode, move: str) -> str:
    """Equal for equal moves, so that a repeated creation is refused instead of made twice."""
    suffix = hashlib.sha256(f"{node.claim.uid}/{move}".encode()).hexdigest()[:5]
    return f"{node.pool.name[:57]}-{suffix}"
