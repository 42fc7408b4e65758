"""Gödel's reservations at a moment no earlier than that of the pods.

Invariant: the room of a pod that is gone is free only once it is known that no reservation keeps it. Each
kind has a watch of its own, so one cache may show the end of a pod before the other shows the reservation of
its room. Then the reservations are listed, until the cache shows them or they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import structlog
from pydantic import ValidationError

from broker.apis.godel import PLACEHOLDER_UID, GodelReservation
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer

log = structlog.get_logger(__name__)
# Seconds between two reads, in which pods may have come and gone unseen: another process may have led.
PAUSE: Final = 60.0


class KeptRoom:
    """Used by one thread, that of the scheduler."""

    def __init__(self, client: Client, informer: Informer[GodelReservation], clock: Clock) -> None:
        self._client, self._informer, self._clock = client, informer, clock
        self._unshown: set[str] = set()  # uids of gone pods; no cache shows their reservation yet
        self._read = float("-inf")

    def pods_gone(self, uids: Iterable[str]) -> None:
        """These pods are gone, and each may have left its room to a reservation."""
        self._unshown.update(uids)

    def reservations(self) -> list[GodelReservation]:
        """Raises ApiError: then it is unknown which room is free."""
        cached = self._informer.cache.list()
        now = self._clock.monotonic()
        self._unshown -= {item.annotations.get(PLACEHOLDER_UID) for item in cached}
        if self._informer.served and (self._unshown or now - self._read >= PAUSE):
            known = {item.uid for item in cached}
            ahead = [item for item in self._listed() if item.uid not in known]
            self._unshown = {item.annotations.get(PLACEHOLDER_UID, "") for item in ahead}
            cached = [*cached, *ahead]
        self._read = now
        return cached

    def _listed(self) -> Iterator[GodelReservation]:
        for body in self._client.list(GodelReservation.KIND)[0]:
            try:
                yield GodelReservation.decode(body)
            except ValidationError as error:  # the cache has no such object either, and reports it
                log.debug("reservation not read", name=body["metadata"]["name"], error=str(error))
