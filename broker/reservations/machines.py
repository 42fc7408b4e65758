"""The machines of each flavor: slots of ODCRs, and nodes that run in no ODCR.

Invariant: each machine counts once, in one flavor. A slot counts with the resources that EC2 sells with its
type, whether its instance runs yet or not, so that a launch changes nothing. It is out of service if its node
is not initialized in time. A node outside of ODCRs counts with its allocatable resources.

A node has the flavor of its ODCR, else the ResourceFlavor with the most labels in common. Accelerators on
nodes of no flavor, or of two alike, are reported and count in none. A node that is cordoned, not ready or
terminating is out of service; a taint alone is not permanent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import is_true
from broker.apis.units import CPU, whole
from broker.capacity.inventory import Inventory
from broker.capacity.matching import expiring
from broker.capacity.types import ACCELERATORS
from broker.quota.hardware import Machine, attribute
from broker.quota.usage import ReservationKey
from broker.reservations.claims import claims_of_nodes, node_odcr, occupied_odcr
from broker.reservations.ownership import Ownership
from broker.reservations.purchase_obstacles import lent_text
from broker.reservations.sizing import supply
from broker.text import exact, format_time
from providers.model import InstanceType, Odcr

Flavors = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSnapshot:
    """All machines. `unattributed`: accelerators that count in no flavor, by resource and reason. `tied`:
    the nodes that fit two flavors alike, by flavor.
    """

    machines: tuple[Machine, ...] = ()
    unattributed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class MachineReader:
    """`read` reads all machines; unchanged nodes are reused. `starting_seconds`: the longest time for a
    node to be initialized.
    """

    def __init__(self, *, starting_seconds: float) -> None:
        self._starting = timedelta(seconds=starting_seconds)
        self._flavors: Flavors = {}
        self._nodes: dict[str, tuple[Node, tuple[str, ...], Mapping[str, int]]] = {}

    def read(
        self,
        nodes: Iterable[Node],
        claims: Iterable[NodeClaim],
        inventory: Inventory,
        ownership: Ownership,
        flavors: Flavors,
        types: Mapping[str, InstanceType],
        now: datetime,
    ) -> MachineSnapshot:
        if flavors != self._flavors:
            self._flavors, self._nodes = flavors, {}
        machines: list[Machine] = []
        unattributed: Counter[tuple[str, str]] = Counter()
        tied: dict[str, list[str]] = defaultdict(list)
        inside: dict[str, list[Node]] = defaultdict(list)
        known: dict[str, tuple[Node, tuple[str, ...], Mapping[str, int]]] = {}
        nodes = [*nodes]
        claim_of, before_nodes = claims_of_nodes(nodes, claims)
        for node in nodes:
            odcr = inventory.odcrs.get(node_odcr(node, claim_of.get(node.name)))
            if odcr is not None and odcr.id in ownership.flavor and odcr.active:
                inside[odcr.id].append(node)
                continue
            entry = self._nodes.get(node.name)
            if entry is None or entry[0] is not node:
                entry = (node, attribute(node.labels, flavors), resources(node))
            known[node.name] = entry
            _, fitting, has = entry
            if len(fitting) == 1:
                machines.append(
                    Machine(
                        name=node.name, flavor=fitting[0], resources=has, out_of_service=node_problem(node)
                    )
                )
                continue
            reason = "several flavors" if fitting else "no flavor"
            for resource in ACCELERATORS:
                if has.get(resource):
                    unattributed[resource, reason] += has[resource]
            for name in fitting:
                tied[name].append(node.name)
        self._nodes = known
        joining = Counter(occupied_odcr(claim) for claim in before_nodes if not claim.deleting)
        for id_, flavor in ownership.flavor.items():
            odcr = inventory.odcrs.get(id_)
            type_ = types.get(odcr.instance_type) if odcr is not None else None
            if odcr is not None and type_ is not None and odcr.active:
                owner = ownership.owner[id_]
                if odcr.lent and ownership.owner.get(odcr.lent_to) != owner:
                    machines.append(_lent(odcr, flavor, owner, type_))
                machines += slots(
                    odcr, flavor, owner, type_, inside[id_], joining[id_], now, starting=self._starting
                )
        return MachineSnapshot(
            machines=tuple(machines),
            unattributed=unattributed,
            tied={name: tuple(sorted(tied_nodes)) for name, tied_nodes in tied.items()},
        )


def slots(
    odcr: Odcr,
    flavor: str,
    owner: ReservationKey,
    type_: InstanceType,
    nodes: Iterable[Node],
    joining: int,
    now: datetime,
    *,
    starting: timedelta,
) -> Iterator[Machine]:
    """The slots of an active reservation: those with a node, the free ones, and those that others use.

    `starting`: how long a node that is not initialized counts.
    """
    has = whole(supply(type_))
    ending = f"{odcr.id} ends at {format_time(odcr.end)}" if odcr.end and expiring(odcr, now) else ""
    rest = odcr.total
    for node in sorted(nodes, key=lambda node: node.name)[: odcr.total]:
        rest -= 1
        out = ending or _unusable(node, now, starting)
        yield Machine(
            name=node.name, flavor=flavor, resources=has, owner=owner, out_of_service=out, sudden=bool(ending)
        )
    free = min(rest, odcr.available + joining)
    out = ending or (f"{odcr.id} of an UltraServer is unlaunchable in EC2" if odcr.unlaunchable else "")
    if free:
        yield Machine(
            name=odcr.id,
            flavor=flavor,
            resources=has,
            owner=owner,
            out_of_service=out,
            sudden=bool(out),
            count=free,
        )
    for number in range(rest - free):
        yield Machine(
            name=f"{odcr.id}/{number}",
            flavor=flavor,
            resources=has,
            owner=owner,
            out_of_service=ending or f"an instance in {odcr.id} is no node of this cluster",
            sudden=bool(ending),
        )


def _lent(odcr: Odcr, flavor: str, owner: ReservationKey, type_: InstanceType) -> Machine:
    """The instances that a reservation lends: still its own, and of no use to it until they return."""
    return Machine(
        name=f"{odcr.id}/lent",
        flavor=flavor,
        resources=whole(supply(type_)),
        owner=owner,
        out_of_service=lent_text(odcr),
        count=odcr.lent,
    )


def _unusable(node: Node, now: datetime, starting: timedelta) -> str:
    """Decides like `why`, but a node that starts can be used, until it should have been initialized."""
    if node.deleting or node.labels.get(names.REGISTERED) != "true" or names.INITIALIZED in node.labels:
        return node_problem(node)
    since = node.metadata.creation_timestamp
    if since is None or now - since < starting:
        return ""
    minutes = starting.total_seconds() / 60
    limit = f"{minutes:g} minute{'' if minutes == 1 else 's'}"
    return node_problem(node) or f"node {node.name} was not initialized within {limit}"


def node_problem(node: Node) -> str:
    """Why a node cannot be used; empty if it can."""
    if node.deleting:
        return f"node {node.name} is being removed"
    if node.spec.unschedulable:
        return f"node {node.name} is cordoned"
    return "" if is_true(node, names.READY) else f"node {node.name} is not ready"


def resources(node: Node) -> Mapping[str, int]:
    """The node's allocatable resources in whole units of quota."""
    has = node.status.allocatable
    return {name: int(exact(text) * (1000 if name == CPU else 1)) for name, text in has.items()}


def visible_state(node: Node | None) -> tuple[object, ...] | None:
    """The parts of a node that matter here: the rest changes every few minutes."""
    if node is None:
        return None
    return node.labels, node_problem(node), node.status.allocatable
