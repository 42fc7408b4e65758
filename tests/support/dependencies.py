"""The dependencies of controllers about OME's kinds, for tests that need a few of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.events import Recorder
from broker.settings import Settings
from tests.support.caches import claim_caches


def dependencies(client: Client, clock: Clock, **given: Any) -> ReservationDependencies:
    """The given ones, and for the rest empty caches and the default settings."""
    defaults: dict[str, Callable[[], Any]] = {
        "recorder": lambda: Recorder(client, "test", clock),
        "reads": lambda: ReservationReads(client, clock=clock),
        "caches": claim_caches,
        "inventory": SimpleNamespace,
        "settings": Settings,
        "describe": lambda: lambda: None,
    }
    rest = {name: make() for name, make in defaults.items() if name not in given}
    return ReservationDependencies(client=client, clock=clock, **rest, **given)
