"""The loops about OME's kinds: reservations, their EC2 reservations, Kueue's objects, dedicated clusters.

Invariant: each loop waits for the caches that it reads and fails on its own; the broker's launches wait for
none of them, so that a cluster without OME's definitions launches all the same.
"""

from __future__ import annotations

from typing import Any

from broker.controllers.ome.shared import Shared
from broker.kube.controller import Controller
from broker.kube.informer import Informer
from broker.kube.singleton import Singleton

Loop = Controller[str] | Singleton[str]


class OmeLoops:
    """`informers` and `loops` are started and stopped by whoever builds it."""

    def __init__(self, shared: Shared) -> None:
        self.reads = shared.reads
        self.informers: tuple[Informer[Any], ...] = tuple(shared.reads.named.values())
        self.loops: tuple[Loop, ...] = ()
