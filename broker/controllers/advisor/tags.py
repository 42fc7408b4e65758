"""The tags by which a selector term finds a class's reservations: kept on exactly these.

Invariant: a tag of this cluster's classes is on exactly the reservations that its class selects, as EC2
describes them. Other tags are never touched. One call serves many reservations, and is repeated only after
EC2 was described again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from broker.controllers.advisor.terms import tag_key, tag_prefix, untagged
from broker.controllers.inventory import InventoryCache
from broker.kube.client import Client
from broker.kube.clock import Clock
from providers.base import ResourceTags
from providers.errors import ErrorClass, ProviderError

_log = structlog.get_logger("advisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagResult:
    """`waiting`: EC2 has not shown the tag on them yet. `refused`: by id, why a reservation gets no tag."""

    waiting: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentTags:
    ids: frozenset[str]
    at: datetime
    refused: dict[str, str]


class ReservationTags:
    """Tags reservations for classes, by name."""

    def __init__(
        self,
        client: Client,
        provider: ResourceTags,
        inventory: InventoryCache,
        *,
        clock: Clock,
        cluster: str,
        describe: Callable[[], None],
    ) -> None:
        self._client = client
        self._provider = provider
        self._inventory = inventory
        self._clock = clock
        self._cluster = cluster
        self._describe = describe
        self._sent: dict[str, _SentTags] = {}

    def put(self, node_class: str, ids: Collection[str]) -> TagResult:
        """Puts the class's tag on these reservations. Raises ProviderError if EC2 cannot be called now."""
        inventory = self._inventory.snapshot()
        key = tag_key(self._cluster, node_class)
        missing = untagged(ids, inventory.odcrs.values(), key, node_class)
        if not missing:
            self._sent.pop(node_class, None)
            return TagResult()
        sent = self._sent.get(node_class)
        if sent is None or not missing <= sent.ids or (inventory.described or sent.at) > sent.at:
            refused = self._tag(sorted(missing), {key: node_class})
            sent = self._sent[node_class] = _SentTags(ids=missing, at=self._clock.now(), refused=refused)
            self._describe()
        return TagResult(
            waiting=tuple(sorted(missing - sent.refused.keys())),
            refused={id_: why for id_, why in sent.refused.items() if id_ in missing},
        )

    def take(self, node_class: str, *, keep: Collection[str] = ()) -> None:
        """Removes the class's tag from all reservations but `keep`. Raises ProviderError."""
        key = tag_key(self._cluster, node_class)
        marked = {o.id for o in self._inventory.snapshot().odcrs.values() if o.tags.get(key) == node_class}
        if wrong := marked - {*keep}:
            self._client.check()
            self._provider.untag(sorted(wrong), [key])
            self._describe()

    def classes(self) -> Iterator[str]:
        """Every class with its tag on a reservation, also a class that is gone."""
        prefix = tag_prefix(self._cluster)
        for odcr in self._inventory.snapshot().odcrs.values():
            for key, value in odcr.tags.items():
                if key.startswith(prefix) and key == tag_key(self._cluster, value):
                    yield value

    def _tag(self, ids: list[str], tags: dict[str, str]) -> dict[str, str]:
        """Tags the reservations; returns the reasons of those that cannot be tagged.

        EC2 refuses a whole call for one bad reservation, so after a refusal each is tagged by itself.
        """
        self._client.check()
        try:
            self._provider.tag(ids, tags)
        except ProviderError as error:
            if error.class_.passes:
                raise
            if error.class_ is ErrorClass.PERMISSION or len(ids) == 1:
                _log.warning("cannot tag", odcrs=ids, error=str(error), request_id=error.request_id)
                # The part that differs each time (EC2's message to the administrator) is only in the log.
                return dict.fromkeys(ids, f"{error.operation}: {error.code}")
            refused: dict[str, str] = {}
            for id_ in ids:
                refused |= self._tag([id_], tags)
            return refused
        return {}
