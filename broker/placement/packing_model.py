"""The values of packing: pods that need a machine, machines that could be opened, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.placement.model import NodeInfo, PodInfo
from broker.placement.type_reasons import PoolReason


class Drawing(NamedTuple):
    """The reservation that a pod may take slots of. Pods share a machine only if theirs are equal.

    `named`: the one that the pod or its Namespace names; empty if each NodePool's own decides. `admitted`: of
    it and of those that NodePools name, the ones that serve the pod's namespace.
    """

    named: str = ""
    admitted: tuple[str, ...] = ()

    def refused(self, of_pool: str) -> str:
        """The reservation that is named for the pod in a pool, and does not serve it; empty without one."""
        named = self.named or of_pool
        return "" if named in self.admitted else named


NO_DRAWING: Final = Drawing()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPod:
    """A pod that needs a node. Higher `priority` first.

    The pods of a `gang` get machines all together or not at all, and share none with others; `gang_size` of
    them must exist, and are enough if there are no machines for more.
    """

    info: PodInfo
    priority: int = 0
    gang: str = ""
    gang_size: int = 0
    drawing: Drawing = NO_DRAWING

    @property
    def key(self) -> str:
        return f"{self.info.namespace}/{self.info.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineOption:
    """A machine that could be opened: a NodePool's node of one type in one zone from one source.

    `node`: the node that it becomes; its allocatable is for pods, after DaemonSets. `drawing`: that of the
    pods for which it may be opened. `source`: the EC2 reservation that bounds the number of such machines;
    empty for none. `cost`: dollars an hour, as packing weighs them. `capacity`: counted against
    the pool's limits. `daemons`: the requests of DaemonSets' pods. `weight`: the pool's; less than 0 for a
    last resort.

    `valued`: a slot with accelerators, for pods alone that no plain machine of the pool outside reservations
    can have. `waits`: its claim will wait, for a slot to be given back or a reservation that begins soon.
    `closed`: why the source has no slot, unless all are taken.
    """

    pool: str
    node: NodeInfo
    instance_type: str
    zone: str
    capacity_type: str
    cost: float
    source: str = ""
    drawing: Drawing = NO_DRAWING
    weight: int = 0
    accelerated: bool = False
    valued: bool = False
    waits: bool = False
    closed: str = ""
    capacity: Mapping[str, int] = field(default_factory=dict)
    daemons: Mapping[str, int] = field(default_factory=dict)

    def uses_no_more(self, than: MachineOption, limited: Mapping[str, int]) -> bool:
        """Whether the machine adds no more of the limited resources than the other one and these amounts."""
        return all(
            self.capacity.get(name, 0) <= than.capacity.get(name, 0) + more for name, more in limited.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBin:
    """A machine to open, and its pods. `also`: options that the same pods fit as well."""

    option: MachineOption
    pods: tuple[PendingPod, ...]
    also: tuple[MachineOption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The machines to open, and the reason of each pod (by `key`) that gets none.

    `taken`: the existing nodes of pods that affinity keeps with those on the machines.
    `cost`: dollars an hour of all machines, as packing weighs them; `bound`: no packing found by the program
    costs less. `unsolved`: why the solver had no answer, so that pods were placed one after another.
    `by_pool`: the reasons of each NodePool, by pod, where they differ. `held`: the pods that a reason of
    their own keeps from any machine.
    """

    bins: tuple[PackedBin, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    by_pool: Mapping[str, Mapping[str, PoolReason]] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    cost: float = 0.0
    bound: float = 0.0
    unsolved: str = ""
