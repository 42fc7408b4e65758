"""The pass that decides jointly about quota of dedicated clusters and slots of claims.

Invariant: there is one decision at a time. While this one is made no launch is planned. The next plan knows
its admissions before they are written, and this decision knows the plan's assignments before they are
launched. So no slot is promised twice. If Kueue counts quota, its decisions are an input, and only slots are
decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.units import CPU
from broker.capacity.entitlement import NominatedSlot
from broker.capacity.model import Inventory
from broker.controllers.dedicatedaicluster.admission import ClusterAdmission
from broker.controllers.dedicatedaicluster.drawing import share
from broker.controllers.dedicatedaicluster.headroom import without_room
from broker.controllers.dedicatedaicluster.keeper import NOT_YET, ClusterController, ClusterPass
from broker.controllers.ome.shared import ReservationDependencies
from broker.controllers.preemption.entitler import EntitlementReader
from broker.controllers.preemption.nominated import nominated, want
from broker.controllers.preemption.reclaim import Preemptor
from broker.controllers.reservations.each import each
from broker.kube.bisection import bisected_among
from broker.kube.controller import Result
from broker.quota import part
from broker.quota.entitled import AdmissionPhase
from broker.quota.joint import JointDecision, QuotaState, SlotState, WaitingClaim, decide
from broker.quota.model import AdmittedWorkload, Amounts
from broker.quota.slot_model import CLAIM
from broker.reservations.queues import queues
from broker.reservations.sizing import supply

LOOK_AGAIN: Final = 5.0  # seconds, while a claim waits: a slot counts as being freed only for a time


class PreemptionController:
    """`run` is one pass."""

    def __init__(
        self,
        shared: ReservationDependencies,
        entitler: EntitlementReader,
        reclaimer: Preemptor,
        keeper: ClusterController,
        *,
        kueue: Callable[[], bool],
    ) -> None:
        self._shared = shared
        self._entitler = entitler
        self._reclaimer = reclaimer
        self._keeper = keeper
        self._kueue = kueue
        entitler.held_back = self._held_back

    def run(self, _items: Sequence[str] = ()) -> Result | None:
        """Raises ProviderError; ApiError after everything else had its turn."""
        with self._entitler.alone():
            awaiting = self._reclaimer.waiting()
            this = self._keeper.observe()
            decided = self._decide(this, awaiting)
            admitted, later = (
                {} if this is None else self._keeper.given(this, decided, standing)
                for standing in (AdmissionPhase.ADMITTED, AdmissionPhase.PREEMPTING)
            )
            self._entitler.decided(admitted, decided, later=later)
        waits = [LOOK_AGAIN] if awaiting else []
        if self._keeper.waits:
            waits.append(NOT_YET)

        def clusters() -> None:
            soonest = None if this is None else self._keeper.act(this, None if self._kueue() else decided)
            waits.extend([] if soonest is None else [soonest])

        # An error in one step must not skip the others.
        each((self._reclaimer.settle, lambda: self._reclaimer.act(decided), clusters), lambda step: step())
        return Result(requeue_after=min(waits)) if waits else None

    def _decide(
        self, this: ClusterPass | None, awaiting: Sequence[tuple[NodeClaim, NominatedSlot]]
    ) -> JointDecision:
        shared = self._shared
        if not awaiting and (this is None or self._kueue()):
            return JointDecision()
        if not shared.inventory.described:
            return JointDecision() if this is None else _decided(self._keeper.quota(this, ()), None, (), ())
        inventory = shared.inventory.snapshot()
        asking = {claim.uid for claim, _ in awaiting}
        places = self._entitler.places(inventory, shared.provider.instance_types(), waiting=asking)
        made = _Shares(this, places, inventory)
        quota = None if this is None else self._keeper.quota(this, self._launching(places, made))
        waiting = []
        for claim, slot in awaiting:
            usage = {} if names.DEDICATED in claim.labels else made.of(slot.queue, slot.odcr_ids[0])
            waiting.append(
                WaitingClaim(
                    want=want(claim, slot.queue, slot.odcr_ids), usage=usage, nominated=nominated(claim)
                )
            )
        return _decided(quota, places, waiting, self._entitler.nominated)

    def _held_back(
        self, claims: Mapping[str, NodeClaim], draws: Mapping[str, str], later: Mapping[str, ClusterAdmission]
    ) -> Collection[str]:
        """The claims that would take quota which clusters (by uid) are nominated for."""
        this = self._keeper.observe()
        quota = None if this is None else self._keeper.quota(this, ())
        if this is None or quota is None:
            return ()
        named = {
            one.cluster.name: later[one.cluster.uid] for one in this.world.asking if one.cluster.uid in later
        }
        waiting = [
            (each, draws[uid])
            for uid, each in claims.items()
            if names.DEDICATED not in each.labels and uid in draws
        ]
        return without_room(quota, named, waiting, flavors=this.world.flavors, types=this.types)

    def _launching(self, places: SlotState | None, made: _Shares) -> Iterable[AdmittedWorkload]:
        """Claims of no cluster that have a slot and no instance yet. They are non-preemptible."""
        for one in places.holders if places is not None else ():
            claim = None if one.cluster else self._shared.claims.get(one.name)
            if claim is not None and not claim.status.provider_id:
                yield AdmittedWorkload(
                    name=f"{CLAIM}{one.name}",
                    queue=one.queue,
                    usage=made.of(one.queue, one.odcr_id),
                    priority=one.priority,
                    non_preemptible=True,
                )


def _decided(
    quota: QuotaState | None,
    places: SlotState | None,
    waiting: Sequence[WaitingClaim],
    nominated: Collection[str],
) -> JointDecision:
    """As `joint.decide`. Raises CulpritFound with the name of the object that it fails on."""

    def among(some: Sequence[str]) -> JointDecision:
        return decide(*part.only({*some}, quota, places, waiting), nominated=nominated)

    return bisected_among(
        lambda: decide(quota, places, waiting, nominated=nominated),
        among,
        lambda: part.names(quota, places, waiting),
    )


class _Shares:
    """The part of a reservation's quota that a slot without an instance stands for."""

    def __init__(self, this: ClusterPass | None, places: SlotState | None, inventory: Inventory) -> None:
        self._types = {} if this is None else this.types
        self._inventory = inventory
        self._queues = {} if this is None else {one.name: one for one in queues(this.world.specs)[0]}
        self._flavors = {id_: lot.flavor for lot in (places.lots if places else ()) for id_ in lot.slots}

    def of(self, queue: str, odcr_id: str) -> Amounts:
        mine, odcr = self._queues.get(queue), self._inventory.odcrs.get(odcr_id)
        kind = None if odcr is None else self._types.get(odcr.instance_type)
        if mine is None or kind is None or odcr_id not in self._flavors:
            return {}
        has = {name: int(value * 1000 if name == CPU else value) for name, value in supply(kind).items()}
        return share(mine, self._flavors[odcr_id], has)
