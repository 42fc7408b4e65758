"""Entitlements to slots, for each plan: the owner of each slot, and the slots that each queue may take.

Invariant: no plan is made before the ownership of ODCRs is known, unless it stays unknown for PATIENCE (a
kind is served and cannot be read). If no kind of reservation is served, or none exists, plans do not wait
and are not restricted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import KEPT, NO_ENTITLEMENTS, WHY_KEPT, Entitlements, NominatedSlot
from broker.capacity.model import Inventory, Plan
from broker.controllers.dedicatedaicluster.admission import ClusterAdmission
from broker.controllers.preemption.nominated import nominated
from broker.controllers.preemption.promised import cluster_of
from broker.controllers.preemption.sight import SlotSnapshotBuilder
from broker.controllers.preemption.slot_values import Assumptions
from broker.kube.informer import Informer
from broker.quota.joint import JointDecision, SlotState
from broker.quota.slot_model import CLAIM
from providers.model import InstanceType

# How long a plan waits for unread kinds before launches go on without them.
PATIENCE: Final = timedelta(seconds=30)

HeldBack = Callable[
    [Mapping[str, NodeClaim], Mapping[str, str], Mapping[str, ClusterAdmission]], Collection[str]
]

_log = structlog.get_logger("borrowing")


class EntitlementReader:
    """Reads entitlements from caches and assumptions. Safe to call from any loop. It makes no call and
    writes nothing.
    """

    def __init__(self, sight: SlotSnapshotBuilder) -> None:
        self._sight = sight
        self._reads = sight.reads
        self._holdings = sight.holdings
        self._clock = clock = sight.clock
        self._began = clock.monotonic()
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._admitted: Mapping[str, ClusterAdmission] = {}
        self._later: Mapping[str, ClusterAdmission] = {}
        self._leave: Collection[str] = ()
        self._leaves_for: dict[str, str] = {}
        self._left: set[str] = set()
        self._said: set[str] = set()
        self._planned: dict[str, str] = {}
        self._awaited: Mapping[str, NominatedSlot] = {}
        self._kept: Mapping[str, str] = {}
        # Clusters that claims or clusters were evicted for and that hold quota now, as long as plans find
        # slots for their claims; and these claims in the last plan, by uid.
        self._served: set[str] = set()
        self._first: Mapping[str, str] = {}
        # Given claims (by uid) and their queues: the claims that would take quota of nominated clusters.
        self.held_back: HeldBack = lambda *_: ()
        sight.claims.on_change(self._changed)

    def known(self) -> bool:
        """Whether a plan may be made: ownership is known, or has been unknown for longer than PATIENCE."""
        reads = self._reads
        if _read(reads.reservations) and _read(reads.cluster_reservations) and self._sight.empty:
            return True
        if reads.synced() and (self._sight.empty or self._holdings() is not None):
            return True
        over = self._clock.monotonic() - self._began > PATIENCE.total_seconds()
        self._tell(over=over)
        return over

    def _tell(self, *, over: bool) -> None:
        """Logs once that launches wait for kinds that cannot be read, and once that they go on without
        them.
        """
        unread = {name: each for name, each in self._reads.named.items() if not _read(each)}
        step = "launches go on without" if over else "launches wait"
        if step in self._said or not (over or any(each.error for each in unread.values())):
            return
        self._said.add(step)
        _log.warning(
            f"whose slots are whose is not known: {step}",
            longest_seconds=PATIENCE.total_seconds(),
            unread={name: each.error or "not read yet" for name, each in unread.items()},
            advice="the broker's role must let it list and watch these kinds",
        )

    def entitlements(
        self, claims: Mapping[str, NodeClaim], inventory: Inventory, types: Mapping[str, InstanceType]
    ) -> Entitlements:
        """For a plan of these claims, by uid. Other claims planned in this pass keep their assigned slots."""
        with self._lock:
            self._planned = {uid: odcr_id for uid, odcr_id in self._planned.items() if uid not in claims}
        seen = self._sight.look(inventory, types, planning=claims.keys(), given=self._given())
        if seen is None:
            return NO_ENTITLEMENTS
        draws, barred, called = self._sight.draws(claims.values())
        given = self._sight.entitled(seen)
        owners = {uid: cluster_of(each) for uid, each in claims.items()}
        with self._lock:
            places = {
                uid: given.lots[odcr_id] for uid, odcr_id in self._kept.items() if odcr_id in given.lots
            }
            places |= {uid: each.lot for uid, each in self._awaited.items()}
            later = dict(self._later)
            self._first = {uid: owner for uid, (owner, _) in owners.items() if owner in self._served}
            first = {uid for uid, each in claims.items() if nominated(each)} | self._first.keys()
        if later and (kept := self.held_back(claims, draws, later)):
            draws |= dict.fromkeys(kept, KEPT)
            barred[KEPT] = WHY_KEPT
        return Entitlements(
            lots=given.lots,
            terms=given.terms,
            draws=draws,
            borrow=given.borrow,
            peers=given.peers,
            names={**given.names, **called},
            barred={**given.barred, **barred},
            rules=given.rules,
            held=frozenset(uid for uid, (_, name) in owners.items() if name in seen.holding),
            nominated={uid: places.get(uid) for uid in first},
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes any other decision about slots, so that the next one sees the results of this one."""
        with self._turn:
            yield

    def places(
        self, inventory: Inventory, types: Mapping[str, InstanceType], *, waiting: Collection[str]
    ) -> SlotState | None:
        """None if there is no reservation. `waiting`: claims (by uid) that request a slot by themselves."""
        given = replace(self._given(), later={})  # decided again here
        seen = self._sight.look(inventory, types, planning=waiting, given=given)
        return None if seen is None else seen.places

    @property
    def nominated(self) -> Collection[str]:
        """The names of the clusters nominated in the last decision."""
        with self._lock:
            return {each.name for each in self._reads.clusters.cache.list() if each.uid in self._later}

    def decided(
        self,
        admitted: Mapping[str, ClusterAdmission],
        decided: JointDecision,
        *,
        later: Mapping[str, ClusterAdmission],
    ) -> None:
        """Records a decision, until the next one.

        `admitted`: quota that clusters (by uid) hold from now on; `later`: quota that they are nominated
        for. `decided` has the victims, and the claim or cluster that each leaves for. Plans keep the quota
        of a nominated cluster, and the next decision considers it first.
        """
        leave = {name: each.preemptor for name, each in decided.evictions.items()}
        leave |= {f"{CLAIM}{each.holder.name}": f"{CLAIM}{each.want.name}" for each in decided.victims}
        done = {
            each.uid
            for each in self._reads.clusters.cache.list()
            if each.status.dac_lifecycle_state == "ACTIVE"
        }
        with self._lock:
            self._served = (self._served - done) | (admitted.keys() & self._later.keys())
            self._admitted, self._leave, self._later = admitted, decided.evictions.keys(), later
            there = {each.name for each in self._reads.clusters.cache.list() if each.uid not in admitted}
            there |= {f"{CLAIM}{each.name}" for each in self._sight.claims.list()}
            known = self._leaves_for | leave
            self._leaves_for = {name: whom for name, whom in known.items() if name in there}

    def _given(self) -> Assumptions:
        with self._lock:
            return Assumptions(
                planned=dict(self._planned),
                admitted=self._admitted,
                later=self._later,
                leave=self._leave,
                left=frozenset(self._left),
                leaves_for=self._leaves_for,
                awaited=self._awaited,
                kept=self._kept,
            )

    def begin(self) -> None:
        """A pass begins: all earlier launches are written on the claims."""
        with self._lock:
            self._planned = {}

    def take(self, made: Plan) -> None:
        """Records the claims that launch now, or keep a slot while their gang waits, each with an EC2
        reservation of its lot.
        """
        launched = {
            each.claim.uid: each.option.odcr_ids[0] for each in made.assignments if each.option.odcr_ids
        }
        with self._lock:
            self._planned |= launched | dict(made.kept)
            self._awaited, self._kept = made.awaited, made.kept
            got = {self._first.get(each.claim.uid, "") for each in made.assignments}
            self._served -= {*self._first.values()} - got

    def leaves(self, uid: str) -> None:
        """Records that the claim was just deleted, which the cache may not show yet."""
        with self._lock:
            self._left.add(uid)

    def _changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        if old is not None and new is None:
            with self._lock:
                self._left.discard(old.uid)
            if odcr_id := old.labels.get(names.RESERVATION_ID):
                self._sight.unexplained.ended(odcr_id, self._clock.now())


def _read(informer: Informer[Any]) -> bool:
    """Whether a kind is completely read, or not served."""
    return informer.synced or informer.missing
