"""The pods that wait, from the caches of a leading broker, for its page, metrics and notifications."""

from __future__ import annotations

from collections.abc import Callable

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.kube.cache import Cache
from broker.oncall.slot_holders import slot_uses
from broker.oncall.waiters import gang_members
from broker.oncall.waiting_pods import (
    PodSurroundings,
    WaitingPod,
    advised_classes,
    may_fit,
    waiting_rows,
)
from broker.placement.pool_room import TypeRoom
from broker.wiring.provisioning import Failures
from broker.wiring.term import Term


def waiting_pods_of(
    term: Term, mirrors: Cache[OnDemandCapacityReservation], failures: Failures
) -> Callable[[], list[WaitingPod]]:
    """Returns the pods that wait, each time anew; none before the caches are complete."""

    def waiting() -> list[WaitingPod]:
        if not term.synced():
            return []
        read, snapshot = term.read, term.reads.snapshot()
        pods, claims = read.pods.cache.list(), read.claims.cache.list()
        owners, rights = snapshot.odcrs.owned.owner, snapshot.rights
        around = PodSurroundings(
            claims=claims,
            pools=read.pools.cache.list(),
            uses=slot_uses(mirrors.list(), owners, claims, pods, rights.of_claim),
            reports=failures(),
            members=gang_members(pods),
            advised=advised_classes(read.classes.cache.list()),
            has_room=TypeRoom(lambda: snapshot.types) if snapshot.types else may_fit,
        )
        return waiting_rows(pods, around, term.clock.now())

    return waiting
