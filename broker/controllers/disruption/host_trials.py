"""Which machines hold the pods of a node that ends, before any is compared with the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from broker.capacity.model import Option
from broker.controllers.provisioning.offers import MachineMaker
from broker.placement.filters import prepare
from broker.placement.machines import label_keys
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.packing_state import node_of
from broker.placement.snapshot import PlacementSnapshot

MOST_TRIED: Final = 240  # pairs of type and zone outside reservations


@dataclass(frozen=True, kw_only=True)
class HostTrials:
    """Which machines hold the pods of one node all together; each is tried once.

    `usable`: whether the pool may have a machine in a reservation (empty: outside). `failed`: the machines
    that it may not have, or that do not hold the pods.
    """

    pods: Sequence[PodInfo]
    placement: PlacementSnapshot
    maker: MachineMaker
    usable: Callable[[str], bool]
    failed: list[MachineOption] = field(default_factory=list)
    _places: set[tuple[str, str]] = field(default_factory=set)
    _machines: dict[tuple[Option, str], MachineOption | None] = field(default_factory=dict)
    _fits: dict[Hashable, bool] = field(default_factory=dict)

    def machine(self, option: Option, slot: str = "") -> MachineOption | None:
        """The machine of an option (`slot`: its reservation) if it holds the pods."""
        key = (option, slot)
        if key not in self._machines:
            self._machines[key] = self._tried(option, slot)
        return self._machines[key]

    def _tried(self, option: Option, slot: str) -> MachineOption | None:
        place = (option.pool.instance_type, option.pool.zone)
        if not slot and place not in self._places:
            if len(self._places) == MOST_TRIED:
                return None
            self._places.add(place)
        machine = self.maker.machine(option, slot)
        if self.usable(slot) and self._holds(machine):
            return machine
        self.failed.append(machine)
        return None

    def _holds(self, machine: MachineOption) -> bool:
        room = tuple(sorted(machine.node.allocatable.items()))  # DaemonSets can differ, too
        kind = (room, *(machine.node.labels.get(key) for key in self._keys))
        if kind not in self._fits:
            self._fits[kind] = hosts(node_of(machine, machine.node.name), self.pods, self.placement)
        return self._fits[kind]

    @cached_property
    def _keys(self) -> Sequence[str]:
        """The labels that decide where the pods may be."""
        repelling = {term.topology_key for terms in self.placement.repelling for term in terms}
        return sorted({*label_keys(self.pods, self.placement.storage), *repelling})


def hosts(node: NodeInfo, pods: Iterable[PodInfo], placement: PlacementSnapshot) -> bool:
    """Whether a new node holds all these pods together."""
    trial = placement.with_node(node)
    for pod in pods:
        if prepare(pod, trial).reasons(trial.states[node.name]):
            return False
        trial = trial.with_pod(pod, node.name)
    return True
