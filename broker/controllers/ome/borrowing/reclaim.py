"""Slots that owners wait for, taken back from those who borrow them.

Invariant: for one slot that is waited for at most one claim is asked to leave, however often this looks, and
whoever looks: those who leave already are counted first, and so is every slot that comes free. Only claims in
slots of another reservation are asked, by that reservation's `reclaimWithinCohort`, and only for claims that
its quota covers. They leave as any deleted NodeClaim does: drained by evictions, so that PodDisruptionBudgets
hold, for no longer than their terminationGracePeriod.

Both sides are told before anybody leaves, in Kueue's words (conditions and reasons of its Workload:
apis/kueue/v1beta1/workload_types.go): who preempts whom, why, and where both are in the tree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.capacity.entitlement import Awaited
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.status import Change, write
from broker.controllers.ome.borrowing.entitler import Entitler, priority_of
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Again
from broker.kube.errors import NotFound
from broker.kube.events import Recorder
from broker.oncall.metrics import REGISTRY
from broker.quota.slots import Victim, Want
from providers.base import CapacityProvider

LOOK_AGAIN: Final = 5.0  # while somebody waits: what counts as coming free does so for a time only
RECLAIMED = Counter(
    "capacity_broker_slots_reclaimed",
    "Claims that were drained because the owner of their reserved slot wanted it back, by Kueue's reason.",
    ["reason"],
    registry=REGISTRY,
)
_log = structlog.get_logger("borrowing")


class Reclaimer:
    """`awaited` is told of each plan, by the loop that plans; `run` is one look."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        claims: Cache[NodeClaim],
        inventory: InventoryKeeper,
        entitler: Entitler,
        *,
        clock: Clock,
        recorder: Recorder,
        wake: Callable[[], None],
    ) -> None:
        self._client = client
        self._provider = provider
        self._claims = claims
        self._inventory = inventory
        self._entitler = entitler
        self._clock = clock
        self._recorder = recorder
        self._wake = wake
        self._lock = threading.Lock()
        self._awaited: Mapping[str, Awaited] = {}
        self._planned = False

    def awaited(self, found: Mapping[str, Awaited]) -> None:
        """Which claims (by uid, the first first) wait to have which slots back, as of the last plan."""
        with self._lock:
            before, self._awaited, self._planned = self._awaited, dict(found), True
        if found or before:
            self._wake()

    def run(self, _items: Sequence[str] = ()) -> Again | None:
        """Raises ApiError, ProviderError."""
        with self._lock:
            awaited, planned = self._awaited, self._planned
        waiting = {
            claim.uid: claim
            for claim in self._claims.list()
            if claim.uid in awaited and not claim.status.provider_id and not claim.deleting
        }
        self._settle(waiting, planned=planned)
        wants = [_want(waiting[uid], awaited[uid]) for uid in awaited if uid in waiting]
        if not wants:
            return None
        found = self._entitler.look(self._inventory.snapshot(), self._provider.instance_types())
        if found is not None:
            for victim in found.slots.reclaim(wants):
                self._take(victim)
        return Again(LOOK_AGAIN)

    def _take(self, victim: Victim) -> None:
        holder, owner = self._claims.get(victim.holder.name), self._claims.get(victim.want.name)
        if holder is None or holder.deleting or owner is None:
            return
        preempted, preempting = _told(victim, holder, owner)
        reason = str(victim.reason)
        now = self._clock.now()
        change = Change(type=names.PREEMPTED, status="True", reason=reason, message=preempted)
        write(self._client, self._claims, holder, change, now=now)
        change = Change(type=names.RECLAIMING, status="True", reason=reason, message=preempting)
        write(self._client, self._claims, owner, change, now=now)
        self._recorder.event(holder, "Warning", "Preempted", preempted)
        self._recorder.event(owner, "Normal", "Reclaiming", preempting)
        try:
            self._client.delete(NodeClaim.KIND, holder.name, uid=holder.uid)
        except NotFound:
            return
        self._entitler.leaves(holder.uid)
        _log.info("slot reclaimed", claim=owner.name, of=holder.name, reason=reason, why=preempted)
        RECLAIMED.labels(reason).inc()

    def _settle(self, waiting: Mapping[str, NodeClaim], *, planned: bool) -> None:
        """Claims that have their slot, or take another way, no longer reclaim one."""
        for claim in self._claims.list():
            said = condition(claim.status.conditions, names.RECLAIMING)
            if said is None or said.status != "True" or claim.uid in waiting or claim.deleting:
                continue
            if not claim.status.provider_id and not planned:
                continue  # the first plan says whether it still waits
            got = claim.labels.get(names.RESERVATION_ID, "")
            message = f"it has a slot of {got}" if got else "it takes another way"
            change = Change(type=names.RECLAIMING, status="False", reason="Settled", message=message)
            write(self._client, self._claims, claim, change, now=self._clock.now())


def _want(claim: NodeClaim, awaited: Awaited) -> Want:
    created = claim.metadata.creation_timestamp
    return Want(
        name=claim.name,
        queue=awaited.lot.owner,
        odcr_ids=awaited.odcr_ids,
        priority=priority_of(claim),
        queued=created.timestamp() if created is not None else 0.0,
    )


def _told(victim: Victim, holder: NodeClaim, owner: NodeClaim) -> tuple[str, str]:
    """What the one who leaves is told, and the one who waits."""
    paths = f"preemptor path: {victim.preemptor_path}; preemptee path: {victim.preemptee_path}"
    preempted = (
        f"Preempted to accommodate NodeClaim {owner.name} (UID: {owner.uid}) due to reclamation within the "
        f"cohort ({victim.reason}): it borrows a slot of {victim.holder.odcr_id}; {paths}"
    )
    preempting = (
        f"waits for NodeClaim {holder.name} (UID: {holder.uid}) to give back a slot of "
        f"{victim.holder.odcr_id} ({victim.reason}); {paths}"
    )
    return preempted, preempting
