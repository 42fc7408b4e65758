"""Resource groups of CapacityReservations: the one that the broker keeps for each, and adopted ones.

Invariant: a group is read again after a while, to see changes by hand, and at once after the broker changed
it. A group that could not be read is unknown, not absent; an adopted one then has the members last read. A
group's name follows from the names of the cluster and the object, so that it is found again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from broker.capacity.inventory import Inventory
from broker.capacity.matching import unread_group
from broker.quota.usage import ReservationKey
from broker.reservations.ownership import Adopters
from broker.reservations.reading import ParsedReservation
from providers.base import AccountFacts, ReservationChanges, ReservationListing
from providers.errors import ErrorClass, ProviderError
from providers.model import ReservationGroup, owned_prefix

EVERY: Final = timedelta(minutes=5)
GROUP_NAME_LENGTH: Final = 128  # characters of a group's name (Resource Groups API, CreateGroup)
_UNUSUAL: Final = re.compile(r"[^a-zA-Z0-9_.-]")

_log = structlog.get_logger("odcrs")


class OdcrProvider(AccountFacts, ReservationListing, ReservationChanges, Protocol):
    """The reservations and groups of an account."""


class Groups:
    """Groups as last read. One thread."""

    def __init__(self, provider: OdcrProvider, *, region: str, cluster: str) -> None:
        self._provider = provider
        self._region = region
        self._cluster = cluster
        self._read: dict[str, tuple[ReservationGroup | None, datetime]] = {}
        self._last: dict[str, ReservationGroup] = {}
        self._tagged: dict[str, tuple[ReservationGroup, datetime]] = {}

    def name(self, reserved: ReservationKey) -> str:
        """The name of the group that the broker keeps for the reservation."""
        prefix = owned_prefix(self._cluster)
        queue = _UNUSUAL.sub("-", reserved.queue)
        if queue == reserved.queue and len(prefix + queue) <= GROUP_NAME_LENGTH:
            return prefix + queue
        digest = hashlib.sha256(f"{self._cluster}/{reserved}".encode()).hexdigest()[:10]
        return f"{prefix}{queue[: GROUP_NAME_LENGTH - len(prefix) - 11]}-{digest}"

    def arn(self, reserved: ReservationKey, *, sample_arn: str) -> str:
        """The ARN of that group. `sample_arn`: that of any reservation of the account, for its partition."""
        partition = sample_arn.split(":")[1] if sample_arn.count(":") > 1 else "aws"
        account = self._provider.account_id()
        return f"arn:{partition}:resource-groups:{self._region}:{account}:group/{self.name(reserved)}"

    def read(self, arn: str, now: datetime) -> ReservationGroup | None:
        """The group as it was read lately; None if it does not exist. Raises ProviderError if unknown."""
        group, read = self._read.get(arn, (None, None))
        if read is None or read + EVERY <= now:
            try:
                group = self._provider.group(arn)
            except ProviderError as error:
                if error.class_ is not ErrorClass.NOT_FOUND:
                    raise
                group = None
                self._last.pop(arn, None)
            self._read[arn] = (group, now)
            if group is not None:
                self._last[arn] = group
        return group

    def adopted(
        self, readings: Iterable[ParsedReservation], inventory: Inventory, adopters: Adopters, now: datetime
    ) -> tuple[Mapping[str, ReservationGroup], Mapping[str, str]]:
        """The existing groups that objects name, and why others are unknown."""
        groups, unread = {}, {}
        named: dict[str, set[str]] = {}
        for reading in readings:
            named.setdefault(reading.claimant.group_arn, set()).add(reading.reserved.namespace)
        for arn in sorted(named.keys() - {""}):
            try:
                group = inventory.groups.get(arn) or self.named(arn, now)
                if group and not all(adopters.allow(namespace, arn) for namespace in named[arn]):
                    group = self.tagged(group, now)
            except ProviderError as error:
                _log.warning("group not read", group=arn, error=str(error))
                unread[arn] = unread_group(arn, error)
                continue
            if group is not None:
                self.observe(group)
                groups[arn] = group
        return groups, unread

    def named(self, arn: str, now: datetime) -> ReservationGroup | None:
        """Like `read`, with the last known group if it cannot be read now."""
        try:
            return self.read(arn, now)
        except ProviderError:
            if arn not in self._last:
                raise
            return self._last[arn]

    def tagged(self, group: ReservationGroup, now: datetime) -> ReservationGroup:
        """The group with its tags, as they were read lately. Raises ProviderError if they are unknown."""
        tagged, read = self._tagged.get(group.arn, (group, None))
        if read is None or read + EVERY <= now:
            tagged = self._provider.tagged_group(group)
            self._tagged[group.arn] = (tagged, now)
        return replace(group, tags=tagged.tags, ownership=tagged.ownership)

    def observe(self, group: ReservationGroup) -> None:
        """Records the group as another reader saw it."""
        self._last[group.arn] = group

    def record(self, group: ReservationGroup, now: datetime) -> None:
        """Records the group from the response to a change."""
        self._read[group.arn] = (group, now)

    def forget(self, arn: str) -> None:
        """Drops a changed group, so that the next `read` calls AWS."""
        self._read.pop(arn, None)


def group_arn_of(reading: ParsedReservation, groups: Mapping[str, ReservationGroup]) -> str:
    """The ARN of the reservation's group: the broker's, or the adopted one if it could be read."""
    if reading.desired.group is not None:
        return reading.desired.group.arn
    return reading.claimant.group_arn if reading.claimant.group_arn in groups else ""
