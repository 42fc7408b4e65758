"""How a node in a reservation is replaced: in a free slot, beside its slot, or in that after its end.

Invariant: nothing is bought beside a slot, unless EC2 counts the new instance there once the node has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.ways import Way
from broker.controllers.disruption.replacements import Demand
from broker.controllers.disruption.rollouts import ReplaceWay
from broker.controllers.disruption.snapshot import ManagedNode
from broker.placement.packing_model import MachineOption
from broker.reservations.claims import occupied_odcr

MOST_NAMED: Final = 3  # causes in a message


class Fitting(NamedTuple):
    """A machine that holds the pods, and the way to get it."""

    machine: MachineOption
    way: Way

    @property
    def open(self) -> bool:
        return self.way.out is None and (not self.way.odcr_id or self.way.free > 0)

    @property
    def cause(self) -> str:
        """Why the machine cannot be had."""
        if self.way.out is not None:
            return self.way.out.message
        return f"{self.way.option.pool.shown}: all slots of {self.way.odcr_id} are lent to others"


def beside_or_in(
    needed: Demand, own: Fitting, fitting: list[Fitting], *, way: ReplaceWay, unit: int, left: int
) -> tuple[Demand, list[Fitting]]:
    """The machines to replace a node in a reservation, and where: the first of these ways that is possible.

    `own`: the machine in the slot of the node. `unit`: the number of nodes that are replaced together.
    `left`: the slots of the reservation that nodes left to instances which EC2 does not count there yet.
    """
    slot = own.way.odcr_id
    kept = [item for item in fitting if item.way.odcr_id and not item.way.borrows]
    free = _free_together(kept, needed.node.claim) >= unit
    if free and way == "auto":
        return needed, kept  # nothing is bought or borrowed beside a slot
    beside = [] if free else [item for item in fitting if item.way.joins]
    if beside and left:
        problem = f"a node has just left {slot}, and EC2 is to count its successor, which runs outside, there"
        return replace(needed, problem=problem), []
    if beside:
        return replace(needed, joins=slot), [*beside, own]
    if way == "launch-first":
        return needed, fitting
    freed = Fitting(own.machine, replace(own.way, free=1, out=None))
    return replace(needed, slot=slot), [freed, *(item for item in fitting if item is not own)]


def combinable(fitting: Sequence[Fitting], failed: Iterable[MachineOption]) -> list[MachineOption]:
    """The machines of which each type fits in each zone, with each capacity type; the first can be had.

    A claim lists types, zones and capacity types by themselves, and may get any combination.
    """
    machines = [item.machine for item in fitting]
    unfit = {*map(_place, failed)} - {*map(_place, machines)}
    zones = {machine.zone for machine in machines}
    kinds = {machine.capacity_type for machine in machines}
    bad = {name for name, zone, kind in unfit if zone in zones and kind in kinds}
    good = [item for item in fitting if item.machine.instance_type not in bad]
    if any(item.open for item in good):
        return [item.machine for item in sorted(good, key=lambda item: not item.open)]
    first = next((item.machine for item in fitting if item.open), None)
    return [machine for machine in machines if first and _place(machine)[1:] == _place(first)[1:]]


def _free_together(fitting: Iterable[Fitting], claim: NodeClaim) -> int:
    """The free slots for a unit of nodes; if these must be together, the most of one zone."""
    free = {(item.machine.zone, item.way.odcr_id): item.way.free for item in fitting if item.open}
    if names.GANG_DOMAIN not in claim.annotations:
        return sum(free.values())
    zones: Counter[str] = Counter()
    for (zone, _), count in free.items():
        zones[zone] += count
    return max(zones.values(), default=0)


def own_slot(node: ManagedNode, fitting: Iterable[Fitting]) -> Fitting | None:
    """The machine in the slot that the node leaves, if its pods fit there."""
    slot = occupied_odcr(node.claim)
    return next((item for item in fitting if item.way.odcr_id == slot), None) if slot else None


def problem_of(pool: str, fitting: Sequence[Fitting]) -> str:
    if not fitting:
        return f"no instance type of NodePool {pool} holds its pods"
    causes = [*dict.fromkeys(item.cause for item in fitting)]
    more = f" and {len(causes) - MOST_NAMED} more" if len(causes) > MOST_NAMED else ""
    return f"NodePool {pool} has no machine for its pods now: {'; '.join(causes[:MOST_NAMED])}{more}"


def _place(machine: MachineOption) -> tuple[str, str, str]:
    return machine.instance_type, machine.zone, machine.capacity_type
