"""Deletes the instance profiles that the broker made for classes that are gone.

Invariant: a profile is deleted only if no class names its role, every class can be read, and no instance runs
with it. IAM is called when a role may no longer be used, and once an hour: classes may have been deleted
while no broker ran.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.clock import Clock
from providers.base import BrokerProfiles

EVERY = 3600.0

_log = structlog.get_logger("profiles")


class ProfileSweeper:
    """`sweep` is called periodically; most calls do not reach IAM."""

    def __init__(
        self,
        provider: BrokerProfiles,
        *,
        clock: Clock,
        classes: Callable[[], Collection[EC2NodeClass]],
        unreadable: Callable[[], Collection[str]],
    ) -> None:
        """`unreadable` names classes that exist and cannot be read: any role may be theirs."""
        self._provider = provider
        self._clock = clock
        self._classes = classes
        self._unreadable = unreadable
        self._used: frozenset[str] = frozenset()
        self._due = float("-inf")  # when IAM is called again, even if no role went out of use

    def sweep(self) -> None:
        """Raises ProviderError; a later sweep deletes the remaining profiles."""
        if self._unreadable():
            return
        used, now = self._roles(), self._clock.monotonic()
        if self._used <= used and now < self._due:
            self._used = used
            return
        self._due = float("-inf")
        kept = False
        for ref in self._provider.instance_profiles():
            if ref.role in self._roles():
                continue
            if self._provider.delete_instance_profile(ref):
                _log.info("instance profile deleted", profile=ref.name, role=ref.role)
            else:
                kept = True
        self._used = used
        self._due = now if kept else now + EVERY

    def _roles(self) -> frozenset[str]:
        """Roles by name, without the path."""
        return frozenset(role.rpartition("/")[2] for c in self._classes() if (role := c.spec.role))
