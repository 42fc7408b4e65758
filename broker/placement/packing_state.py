"""The state of a packing: the machines opened so far, and the rest of sources and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

from broker.apis.names import HOSTNAME
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.snapshot import PlacementSnapshot

PART: Final = 4  # alternatives may use a quarter of the rest of a limit


@dataclass(slots=True, kw_only=True)
class OpenBin:
    """A machine that is being packed. `name`: of its node in the snapshot."""

    name: str
    option: MachineOption
    pods: list[PendingPod]
    coupled: bool = False


@dataclass(slots=True, kw_only=True)
class Supply:
    """The rest of sources and limits while machines are opened."""

    room: dict[str, int]
    limits: dict[str, dict[str, int]]

    def copy(self) -> Supply:
        """A supply that changes by itself."""
        return Supply(
            room=dict(self.room), limits={pool: dict(amounts) for pool, amounts in self.limits.items()}
        )

    def has(self, option: MachineOption) -> bool:
        if option.source and self.room.get(option.source, 0) <= 0:
            return False
        return self.within_limits(option)

    def within_limits(self, option: MachineOption) -> bool:
        remaining = self.limits.get(option.pool, {})
        return all(option.capacity.get(name, 0) <= amount for name, amount in remaining.items())

    def larger(self, opened: Iterable[MachineOption]) -> dict[str, dict[str, int]]:
        """How much of a limit the alternatives of each of these machines may use beyond the machine, by pool.

        The machines are taken already. A claim counts with its largest alternative until EC2 answers. So the
        claims share a part of the rest, and the other part is for pods to come. As in Karpenter, a limit that
        is far away leaves a claim all its types.
        """
        parts = {pool: PART * count for pool, count in Counter(item.pool for item in opened).items()}
        return {
            pool: {name: max(0, left) // part for name, left in self.limits.get(pool, {}).items()}
            for pool, part in parts.items()
        }

    def take(self, option: MachineOption, by: int = 1) -> None:
        if option.source:
            self.room[option.source] = self.room.get(option.source, 0) - by
        if (remaining := self.limits.get(option.pool)) is not None:
            for name in remaining:
                remaining[name] -= by * option.capacity.get(name, 0)


class BrokenGang(NamedTuple):
    """What a gang left when some of its pods got no machine: the supply beside its other pods."""

    supply: Supply
    unplaced: list[PendingPod]


@dataclass(slots=True, kw_only=True)
class PackingState:
    """The machines opened so far, as nodes of the snapshot.

    `needed`: how many pods of a gang must get a machine, for gangs that need less than all.
    """

    snapshot: PlacementSnapshot
    supply: Supply
    needed: Mapping[str, int] = field(default_factory=dict)
    bins: list[OpenBin] = field(default_factory=list)
    opened: int = 0
    bound: float = 0.0
    postponed: set[str] = field(default_factory=set)  # pods whose machine would block pods placed before
    taken: dict[str, tuple[PodInfo, str]] = field(default_factory=dict)  # pods on existing nodes
    apart: dict[str, str] = field(default_factory=dict)  # why no domain has machines for a unit's pods
    broken: dict[str, list[BrokenGang]] = field(default_factory=dict)  # each attempt that failed, by gang
    unsolved: str = ""  # why the solver had no answer

    def copy(self) -> PackingState:
        """A state that changes by itself."""
        bins = [replace(item, pods=[*item.pods]) for item in self.bins]
        return replace(
            self,
            supply=self.supply.copy(),
            bins=bins,
            postponed={*self.postponed},
            taken={**self.taken},
            apart={**self.apart},
            broken={gang: [*attempts] for gang, attempts in self.broken.items()},
        )

    @property
    def placed(self) -> set[str]:
        """The pods on machines and existing nodes, by key."""
        return {pod.key for item in self.bins for pod in item.pods} | self.taken.keys()

    def splits(self, gang: str) -> bool:
        """Whether the gang has too few machines to start, if some of its pods have none."""
        placed = sum(pod.gang == gang for item in self.bins for pod in item.pods)
        return gang not in self.needed or placed < self.needed[gang]

    def adopt(self, other: PackingState) -> None:
        """Goes on from a copy."""
        for item in fields(self):
            setattr(self, item.name, getattr(other, item.name))

    def open(self, option: MachineOption) -> OpenBin:
        """Opens a machine without pods."""
        self.supply.take(option)
        self.opened += 1
        name = f"new-{self.opened}"
        opened = OpenBin(name=name, option=option, pods=[])
        self.snapshot = self.snapshot.with_node(node_of(option, name))
        self.bins.append(opened)
        return opened

    def put(self, pod: PendingPod, target: OpenBin) -> None:
        self.snapshot = self.snapshot.with_pod(pod.info, target.name)
        target.pods.append(pod)

    def leave(self, keys: Iterable[str]) -> None:
        """Takes these pods off existing nodes."""
        for key in [key for key in keys if key in self.taken]:
            self.snapshot = self.snapshot.without_pod(*self.taken.pop(key))

    def undo(self, opened: OpenBin, before: PlacementSnapshot) -> None:
        """Takes back the machine opened last, which has no pods."""
        self.bins.pop()
        self.supply.take(opened.option, -1)
        self.snapshot = before

    def close(self, emptied: Iterable[OpenBin]) -> None:
        """Gives back machines, with their pods."""
        gone = [*emptied]
        for item in gone:
            self.supply.take(item.option, -1)
        names = {item.name for item in gone}
        self.snapshot = self.snapshot.without_nodes(names)
        self.bins = [item for item in self.bins if item.name not in names]


def node_of(option: MachineOption, name: str) -> NodeInfo:
    return replace(option.node, name=name, labels={**option.node.labels, HOSTNAME: name})
