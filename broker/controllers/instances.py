"""This cluster's instances as EC2 last described them, compared with the claims.

Invariant: an instance is an orphan only if a complete list of claims lacks its providerID. It is terminated
only after its grace time, and only if no waiting claim can adopt it. An instance without the cluster's UID
may belong to another cluster of this name, and no claim proves otherwise: others can write its annotations.
So such an instance is never an orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.kube.clock import Clock
from broker.kube.watches import Signal
from providers.base import InstanceCalls
from providers.errors import ProviderError
from providers.model import Instance
from providers.names import TAG_CLUSTER_UID

FRESH = timedelta(seconds=60)
UNSHOWN = timedelta(seconds=5)  # until EC2 is read again for instances that it does not show yet
# EC2 may not describe an instance for some time after its launch.
LISTING_LAG = timedelta(minutes=2)

_log = structlog.get_logger("instances")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceListing:
    """One description of all instances, unchanged."""

    taken: datetime
    instances: Mapping[str, Instance]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Claims without a living instance: EC2 shows that it has ended, or shows none of its id."""

    ended: tuple[tuple[NodeClaim, str], ...] = ()  # with EC2's reason
    unlisted: tuple[NodeClaim, ...] = ()
    recent: tuple[NodeClaim, ...] = ()  # missing for less than LISTING_LAG: EC2 may show them yet
    listed: frozenset[str] = frozenset()  # ids of the instances that EC2 shows alive


class InstanceView:
    """The last description. `doubt` requests a new one before the next decision.

    One thread works with it; `listing` and `doubt` are for any thread.
    """

    def __init__(
        self, provider: InstanceCalls, *, clock: Clock, grace: timedelta, check: Callable[[], None]
    ) -> None:
        """`check` raises if another process may lead by now: EC2 does not check the Lease."""
        self._provider = provider
        self._clock = clock
        self._grace = grace
        self._check = check
        self._known: dict[str, Instance] = {}
        self._listed_at: float | None = None
        self._doubted = True
        self._unshown = False  # whether the last description lacks an earlier launch
        self._unclaimed_since: dict[str, float] = {}  # instance id -> since when it is seen without a claim
        self._missing_since: dict[
            str, float
        ] = {}  # since when claims' instances that were never shown are missing
        self._untouched: set[str] = set()
        self._readers = Signal()
        self.listing: InstanceListing | None = None

    def on_listing(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each description."""
        self._readers.subscribe(reader)

    def doubt(self) -> None:
        """Requests a new description: a reply was lost or incomplete, so there may be an unknown instance."""
        self._doubted = True

    def due(self) -> float:
        """Seconds until EC2 must be read again, or an orphan's grace time ends."""
        if self._doubted or self._unshown:
            return UNSHOWN.total_seconds()
        now, grace = self._clock.monotonic(), self._grace.total_seconds()
        remaining = (since + grace - now for since in self._unclaimed_since.values())
        return min((seconds for seconds in remaining if seconds > 0), default=FRESH.total_seconds())

    def refresh(self) -> None:
        """Describes again if the last description is old or doubted. Raises ProviderError."""
        now, began = self._clock.now(), self._clock.monotonic()
        fresh = (UNSHOWN if self._unshown else FRESH).total_seconds()
        if self._listed_at is not None and not self._doubted and began - self._listed_at < fresh:
            return
        self._doubted = False  # a doubt that comes during the call requests another
        try:
            listed = {instance.id: instance for instance in self._provider.instances()}
        except ProviderError:
            self._doubted = True
            raise
        # EC2 lists a new instance late; until then it is known from the reply to the launch.
        unseen = {
            id_: instance
            for id_, instance in self._known.items()
            if not instance.described and instance.launched and now - instance.launched < LISTING_LAG
        }
        self._known, self._listed_at = unseen | listed, began
        self._unshown = not unseen.keys() <= listed.keys()
        self.listing = InstanceListing(taken=now, instances=listed)
        self._readers()

    def put(self, instances: Iterable[Instance]) -> None:
        """Adds the instances of a launch."""
        self._known |= {instance.id: instance for instance in instances}

    def launched_by(self, launch: str) -> list[Instance]:
        """The known instances of one call, ended or not."""
        return [
            instance for instance in self._known.values() if instance.tags.get(names.TAG_LAUNCH) == launch
        ]

    def drop(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self._known.pop(id_, None)

    def orphans(self, claimed_ids: Collection[str]) -> list[Instance]:
        """Living instances that no claim has, as EC2 describes them now. Raises ProviderError.

        The last description may precede the end of a claim and of its instance.
        """
        unclaimed = [i for i in self._known.values() if i.alive and i.id not in claimed_ids]
        suspects = [i for i in unclaimed if i.ownership == "owned"]
        self._log_untouched({i.id for i in unclaimed}.difference(i.id for i in suspects))
        if not suspects:
            self._unclaimed_since.clear()
            return []
        described = {i.id: i for i in self._provider.instances([i.id for i in suspects])}
        for old in suspects:
            # EC2 may not show a new instance yet: it lives, but its reservation is unknown.
            self._known[old.id] = described.get(old.id, replace(old, described=False))
        unclaimed = [new for old in suspects if _may_end(new := self._known[old.id])]
        now = self._clock.monotonic()
        self._unclaimed_since = {
            instance.id: self._unclaimed_since.get(instance.id, now) for instance in unclaimed
        }
        return unclaimed

    def _log_untouched(self, unproven: set[str]) -> None:
        """Logs the untouched instances once."""
        if new := unproven - self._untouched:
            _log.warning(
                "instances with the cluster's name, without its UID and without a claim are left alone: "
                "tag them with the UID, or terminate them",
                instances=sorted(new),
                tag=TAG_CLUSTER_UID,
            )
        self._untouched = unproven

    def overdue(self, orphans: Sequence[Instance]) -> list[Instance]:
        """Orphans past their grace time, which begins when this process first sees them without a claim.

        Only the process's own clock is comparable.
        """
        now = self._clock.monotonic()
        return [
            i for i in orphans if now - self._unclaimed_since.get(i.id, now) >= self._grace.total_seconds()
        ]

    def missing(self, launched: Mapping[str, NodeClaim]) -> Missing:
        """Those of the claims, given by their instance, that EC2 does not show alive. Raises ProviderError.

        An instance that this process has never seen may only be too new: its claim is `recent` for some time
        first.
        """
        suspects, recent, missing_since, now = {}, [], {}, self._clock.monotonic()
        alive = {id_ for id_, known in self._known.items() if known.alive}
        for id_, claim in launched.items():
            if id_ in alive:
                continue
            missing_since[id_] = self._missing_since.get(id_, now)
            if id_ in self._known or now - missing_since[id_] >= LISTING_LAG.total_seconds():
                suspects[id_] = claim
            else:
                recent.append(claim)
        self._missing_since = missing_since
        # A describe by id is EC2's final answer; the list may lag.
        by_id = {i.id: i for i in self._provider.instances(list(suspects))} if suspects else {}
        return Missing(
            ended=tuple(
                (claim, by_id[id_].end_reason)
                for id_, claim in suspects.items()
                if id_ in by_id and not by_id[id_].alive
            ),
            unlisted=tuple(claim for id_, claim in suspects.items() if id_ not in by_id),
            recent=tuple(recent),
            listed=frozenset(id_ for id_ in alive if self._known[id_].described)
            | {id_ for id_, instance in by_id.items() if instance.alive},
        )

    def terminate(self, instances: Sequence[Instance], *, reason: str) -> None:
        """Raises ProviderError; ApiError if another process may lead by now, and may have bound the
        instances.
        """
        if not instances:
            return
        self._check()
        ids = [instance.id for instance in instances]
        _log.warning("terminating instances without a claim", instances=ids, why=reason)
        self._provider.terminate(ids)
        self.drop(ids)


def _may_end(instance: Instance) -> bool:
    return instance.alive and instance.ownership == "owned"
