"""The decisions about slots, as the launch loop and provisioning use them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Plan
from broker.controllers.snapshot import Snapshot
from broker.reservations.drawing import DrawRequest


class SlotPolicy(Protocol):
    """Decides which claims may take which reserved slots."""

    def known(self) -> bool:
        """Whether ownership of the slots is known."""

    def begin(self) -> bool:
        """Whether ownership of the slots is known. Earlier launches are written by now."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Held from a plan's entitlements until `planned`: no other decision about slots is made."""

    def snapshot(self) -> Snapshot:
        """Everything but claims that one plan decides by."""

    def entitlements(
        self, claims: Mapping[str, NodeClaim], snapshot: Snapshot, machines: Mapping[str, DrawRequest] = {}
    ) -> Entitlements:
        """The entitlements for a plan of these claims, and of machines that may be opened, by uid."""

    def planned(self, plan_: Plan) -> None:
        """Records the plan's launches and nominations."""
