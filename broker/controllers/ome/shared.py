"""Dependencies of all loops about OME's kinds, and the factory for loops that read everything at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.ome.reads import OmeReads
from broker.kube.batch import Batcher
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.singleton import Singleton
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.model import ProviderError


@dataclass(frozen=True, kw_only=True)
class ReservationDependencies:
    """Dependencies of the loops about reservations.

    `synced`: the caches of claims and nodes are complete. `owns`: whether the broker launches a claim.
    `describe`: requests a new description of EC2's reservations. `replan`: requests a new plan for waiting
    claims.
    """

    client: Client
    provider: CapacityProvider
    reads: OmeReads
    claims: Cache[NodeClaim]
    nodes: Cache[Node]
    pods: Cache[Pod]
    inventory: InventoryKeeper
    settings: Settings
    clock: Clock
    recorder: Recorder
    owns: Callable[[NodeClaim], bool]
    describe: Callable[[], None]
    replan: Callable[[], None]
    synced: Callable[[], bool]


EVERY = 60.0  # seconds; by time alone EC2 reservations end, and writes of an earlier leader are reconciled
# Longest delay in seconds until a change starts a pass, however many changes follow.
LONGEST = 0.3


def snapshot_loop(
    shared: ReservationDependencies,
    name: str,
    run: Callable[[Sequence[str]], Result | None],
    *,
    by: Iterable[Informer[Any]],
    ready: Callable[[], bool] = lambda: True,
) -> Singleton[str]:
    """A loop that reconciles everything at once whenever one of these kinds changes. It starts once all its
    caches are known.
    """
    loop = Singleton(
        name,
        run,
        batcher=Batcher[str](name, clock=shared.clock, longest=LONGEST),
        clock=shared.clock,
        synced=lambda: shared.synced() and shared.reads.synced() and ready(),
        every=EVERY,
        expected=(ProviderError,),
    )

    def dirty(*_: object) -> None:
        loop.batcher.add(name)

    for informer in by:
        informer.on_change(dirty)
    return loop
