"""The launch loop and the slots of reservations, as provisioning reads them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from broker.capacity.shortages import Shortages


class LaunchProgress(Protocol):
    """The launch loop, as provisioning reads it."""

    @property
    def shortages(self) -> Shortages: ...

    def launching(self, uid: str) -> bool:
        """Whether a call for this claim is under way, or its answer is not known."""

    def creating(self) -> AbstractContextManager[object]:
        """Held while claims that are planned together are created."""
