"""Drains Capacity Blocks before they end, and warns about the end of other reservations.

Invariant: a claim is deleted, never its instance, so its termination drains it as any other; each claim and
class gets each warning once a process. The seconds that are left are a metric, computed when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object
from broker.apis.static_pools import ALL_RESERVED, follows
from broker.capacity.matching import ends_at, leaves_at
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.inventory import InventoryCache
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Result
from broker.kube.events import Recorder
from broker.kube.for_each import for_each
from broker.kube.removal import remove
from broker.lists import lists_by_key
from broker.oncall.metrics import GaugeTable
from broker.placement.pool_choice import of_broker
from broker.reservations.claims import occupied_odcr
from broker.reservations.endings import drains, next_moment, notice
from broker.text import counted, format_time
from providers.model import Odcr

UNREADABLE: Final = "ExtensionsUnreadable"
NoticeKey = tuple[str, str, datetime | None, timedelta]  # uid, reservation, its end, the notice

_LEFT = GaugeTable(
    "capacity_broker_odcr_end_seconds",
    "Seconds until an EC2 capacity reservation ends; negative while EC2 takes its time to end it.",
    ("odcr", "instance_type", "zone", "reservation_type"),
)
_log = structlog.get_logger("reservations")


class EndingController:
    """`run` is one pass; its result requests the next pass for the next drain or notice."""

    def __init__(
        self,
        client: Client,
        caches: ClaimCaches,
        classes: Cache[EC2NodeClass],
        inventory: InventoryCache,
        *,
        clock: Clock,
        recorder: Recorder,
        users: Callable[[], Mapping[str, Iterable[str]]],
    ) -> None:
        self._client = client
        self._claims, self._pools, self._owns = caches.claims, caches.pools, caches.owns
        self._classes = classes
        self._inventory = inventory
        self._clock = clock
        self._recorder = recorder
        self._users = users  # reservation id -> names of the classes that use it
        self._published: frozenset[NoticeKey] = frozenset()

    def run(self) -> Result | None:
        """Raises ApiError, after every claim had its turn unless the API server is unavailable."""
        now = self._clock.now()
        ending = [odcr for odcr in self._inventory.snapshot().odcrs.values() if odcr.end is not None]
        _measure(ending, self._clock)
        claims_by_odcr = self._claims_by_odcr() if ending else {}
        self._publish_notices(
            [(odcr, due) for odcr in ending if (due := notice(odcr, now)) is not None], claims_by_odcr
        )
        self._report_refusals(ending, claims_by_odcr)
        drained = [odcr for odcr in ending if drains(odcr, now)]
        for_each(
            [(odcr, claim) for odcr in drained for claim in claims_by_odcr.get(odcr.id, ())],
            lambda pair: self._drain(*pair),
        )
        at = next_moment(ending, now)
        return None if at is None else Result(requeue_after=(at - now).total_seconds())

    def _claims_by_odcr(self) -> dict[str, list[NodeClaim]]:
        """The claims in each reservation."""
        staying = (claim for claim in self._claims.list() if not claim.deleting and self._owns(claim))
        return lists_by_key((id_, claim) for claim in staying if (id_ := occupied_odcr(claim)))

    def _drain(self, odcr: Odcr, claim: NodeClaim) -> None:
        remove(self._client, claim, self._claims)
        message = f"{_name(odcr)} ends at {_end(odcr)}: the claim is deleted, so that its node drains before"
        _log.warning("claim of an ending capacity block deleted", claim=claim.name, odcr=odcr.id)
        self._recorder.event(claim, "Warning", "CapacityBlockEnding", message)

    def _report_refusals(
        self, ending: Iterable[Odcr], claims_by_odcr: Mapping[str, Sequence[NodeClaim]]
    ) -> None:
        """Reports the blocks of which EC2 does not give the extensions, on their classes and claims."""
        refused = self._inventory.extensions_refused
        users = self._users() if refused else {}
        for odcr in ending:
            if (error := refused.get(odcr.id)) is None:
                continue
            drain = ends_at(odcr)
            message = (
                f"EC2 does not give the extensions of {_name(odcr)} ({error.operation}: {error.code}): "
                f"without them its claims drain at {format_time(drain) if drain else 'its end'}; "
                f"{error.class_.policy.next_step}"
            )
            for obj in self._concerned(odcr, users, claims_by_odcr):
                self._recorder.event(obj, "Warning", UNREADABLE, message, topic=UNREADABLE)

    def _publish_notices(
        self, due: Sequence[tuple[Odcr, timedelta]], claims_by_odcr: Mapping[str, Sequence[NodeClaim]]
    ) -> None:
        users = self._users() if due else {}
        published: set[NoticeKey] = set()
        for odcr, before in due:
            objects = self._concerned(odcr, users, claims_by_odcr)
            new = [obj for obj in objects if (obj.uid, odcr.id, odcr.end, before) not in self._published]
            for obj in new:
                message = _warning(odcr, before, self._following(obj))
                self._recorder.event(obj, "Warning", "ReservationEnding", message)
            if new:
                _log.warning(
                    "reservation ends", odcr=odcr.id, end=_end(odcr), notified=[obj.name for obj in new]
                )
            published.update((obj.uid, odcr.id, odcr.end, before) for obj in objects)
        self._published = frozenset(published)

    def _following(self, obj: Object) -> str:
        """The NodePools of the class or claim that leave a reservation before its end; empty if none does."""
        return ", ".join(
            sorted(
                pool.name
                for pool in self._pools.list()
                if follows(pool) and of_broker(pool)
                if pool.name == obj.labels.get(names.NODEPOOL)
                or (isinstance(obj, EC2NodeClass) and obj.name == pool.spec.template.spec.node_class_ref.name)
            )
        )

    def _concerned(
        self, odcr: Odcr, users: Mapping[str, Iterable[str]], claims: Mapping[str, Sequence[NodeClaim]]
    ) -> list[Object]:
        """The classes that use the reservation, and the claims in it."""
        classes = map(self._classes.get, users.get(odcr.id, ()))
        return [*(obj for obj in classes if obj is not None), *claims.get(odcr.id, ())]


def _measure(ending: Iterable[Odcr], clock: Clock) -> None:
    ends = {
        (odcr.id, odcr.instance_type, odcr.zone, odcr.reservation_type): odcr.end
        for odcr in ending
        if odcr.end is not None and not odcr.released
    }
    _LEFT.follow(lambda: {labels: (end - clock.now()).total_seconds() for labels, end in ends.items()})


def _warning(odcr: Odcr, before: timedelta, following: str) -> str:
    """`following`: the NodePools that end their nodes there before."""
    then = "EC2 terminates {}" if odcr.interruptible else "{} run on as On-Demand Instances"
    instances = "its instances"
    if following and (at := leaves_at(odcr)):
        then = f"NodePool {following} ({ALL_RESERVED}) ends its nodes there at {format_time(at)}; {then}"
        instances = "other instances"
    then = then.format(instances)
    minutes = int(before.total_seconds() // 60)
    return (
        f"{_name(odcr)} ends at {_end(odcr)}, in less than {counted(minutes, 'minute')}: {then} and nothing "
        "more is launched into it; to keep it, set a later end (aws ec2 modify-capacity-reservation "
        f"--capacity-reservation-id {odcr.id} --end-date-type unlimited)"
    )


def _name(odcr: Odcr) -> str:
    kind = "capacity block" if odcr.prepaid else "reservation"
    return f"{kind} {odcr.id} ({odcr.instance_type}, {odcr.zone})"


def _end(odcr: Odcr) -> str:
    return format_time(odcr.end) if odcr.end else ""
