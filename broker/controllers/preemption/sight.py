"""Builds the slot snapshot: the owner and the holder of each slot, for plans and preemption.

Invariant: it makes no call and writes nothing. `unexplained` decides which slots are being freed and which
are unattributed. An ODCR with a tag that ownership does not contain yet is entitled to no queue meanwhile.

A lot is the slots of one flavor that one reservation owns (SlotPool).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import (
    Borrower,
    Entitlements,
    SlotAvailability,
    SlotPool,
    SlotPreemption,
)
from broker.capacity.model import Inventory
from broker.controllers.dedicatedaicluster.sizes import sizes
from broker.controllers.nodeclaim.report import launched_at
from broker.controllers.nodeclaim.translate import priority_of
from broker.controllers.ome.reads import OmeReads
from broker.controllers.preemption.nominated import nominations_of
from broker.controllers.preemption.promised import ClusterHolding, cluster_of, nominations, promises
from broker.controllers.preemption.promised import cluster_holdings as holding_of
from broker.controllers.preemption.slot_values import (
    Assumptions,
    SlotSnapshot,
    held_odcr,
    usable_slots,
    without_ended,
)
from broker.controllers.preemption.spared import non_preemptible
from broker.controllers.preemption.terms import SlotQuotaReader
from broker.controllers.preemption.unexplained import UnattributedSlots
from broker.controllers.snapshot import Snapshot
from broker.kube.bisection import bisected_among
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.quota import part
from broker.quota.joint import SlotState
from broker.quota.model import Preemption, QuotaCohort
from broker.quota.resolve import Names, UnresolvedName
from broker.quota.slot_model import CLAIM, SlotHolder
from broker.quota.slot_model import OwnedSlots as BookLot
from broker.quota.slots import SlotTree
from broker.quota.usage import Reserved
from broker.reservations.ownership import Ownership, elsewhere
from broker.settings import Settings
from providers.model import InstanceType

# How long a terminating claim counts as giving its slot back.
DRAINING: Final = timedelta(minutes=10)


class SlotSnapshotBuilder:
    """`look` is safe to call from any loop. `kueue`: whether Kueue counts the quota of dedicated clusters."""

    def __init__(
        self,
        reads: OmeReads,
        holdings: Callable[[], Ownership | None],
        claims: Cache[NodeClaim],
        nodes: Cache[Node],
        pods: Cache[Pod],
        *,
        settings: Settings,
        clock: Clock,
        owns: Callable[[NodeClaim], bool],
        kueue: Callable[[], bool],
    ) -> None:
        self.reads = reads
        self.holdings = holdings
        self.claims = claims
        self._nodes = nodes
        self._pods = pods
        self._settings = settings
        self.clock = clock
        self._owns = owns
        self._kueue = kueue
        self._terms = SlotQuotaReader()
        self.unexplained = UnattributedSlots()
        self._told: tuple[object, int] = (None, 0)

    @property
    def empty(self) -> bool:
        """Whether there is no reservation."""
        return not self.reads.snapshot().reservations

    def look(
        self,
        inventory: Inventory,
        types: Mapping[str, InstanceType],
        *,
        planning: Collection[str],
        given: Assumptions,
    ) -> SlotSnapshot | None:
        """The snapshot; None if there is no reservation. `planning`: claims (by uid) that are considered by
        themselves, and not as part of their cluster.
        """
        snapshot = self.reads.snapshot()
        if not snapshot.reservations:
            return None
        now = self.clock.now()
        holdings = self.holdings() or Ownership()
        said = self._terms.said(
            snapshot,
            snapshot.flavors.instances(types, self._settings.bought_zones),
            types,
            self._version(snapshot.flavors, types),
        )
        lots = self._owned(snapshot, holdings, inventory)
        rules = {one.member.name: one.member.preemption for one in said}
        holders = without_ended(self._holders(lots, given, rules), inventory)
        strange, coming = self._counts(lots, holders, inventory, now)
        usable = usable_slots(lots, inventory, strange, now)
        made = [
            BookLot(
                owner=one.reserved.queue,
                flavor=flavor,
                slots=usable.get(SlotPool(one.reserved.queue, flavor), {}),
                quota=each.quota,
                lending_limit=each.lending_limit,
            )
            for one in said
            for flavor, each in one.flavors.items()
        ]
        cohorts = [
            QuotaCohort(name=each.name, parent=each.spec.parent_name)
            for each in self.reads.cohorts.cache.list()
        ]
        holding = self._holding(types, given, asking={*planning} - given.planned.keys())
        kueue = self._kueue()
        places = SlotState(
            lots=made,
            members=[one.member for one in said],
            cohorts=cohorts,
            holders=holders,
            nominated=[
                *nominations_of(
                    [each for each in self.claims.list() if each.uid in planning],
                    given.awaited,
                    {uid: odcr_id for uid, odcr_id in given.kept.items() if odcr_id in lots},
                    queue=lambda claim: self.draws((claim,))[0].get(claim.uid, ""),
                )
            ],
            promises=lambda usage, gone: promises(
                holding, usage=usage, gone={*gone, *given.leave}, spared=kueue
            ),
            # If Kueue decides about evictions, no cluster is nominated here.
            nominations=lambda usage, gone: (
                [] if kueue else nominations(holding, usage=usage, gone={*gone, *given.leave})
            ),
        )
        return SlotSnapshot(
            places=places,
            said=said,
            lots=lots,
            holdings=holdings,
            coming=coming,
            holding={each.name for each in holding if each.held.usage} - {*given.leave},
        )

    def _holding(
        self, types: Mapping[str, InstanceType], given: Assumptions, *, asking: Collection[str]
    ) -> Sequence[ClusterHolding]:
        """The dedicated clusters with the number of their existing instances."""
        clusters = self.reads.clusters.cache.list()
        if not clusters:
            return ()
        snapshot = self.reads.snapshot()
        known, flavors = snapshot.reservations, snapshot.resource_flavors
        return holding_of(
            clusters,
            self.claims.list(),
            by_name=Names(known),
            flavors=[*flavors.values()],
            sizes=sizes(flavors, known, types, self._settings),
            settled={*asking, *given.planned},
            asking=asking,
            admitted=given.admitted,
            later=given.later,
        )

    def entitled(self, seen: SlotSnapshot) -> Entitlements:
        """Entitlements of queues, without those of single claims. Raises CulpritFound with the object that
        this fails on.
        """

        def among(some: Sequence[str]) -> Entitlements:
            _, places, _ = part.only({*some}, None, seen.places)
            said = [one for one in seen.said if one.reserved.queue in some]
            return self._entitled(replace(seen, places=places or seen.places, said=said))

        return bisected_among(lambda: self._entitled(seen), among, lambda: part.names(None, seen.places))

    def _entitled(self, seen: SlotSnapshot) -> Entitlements:
        now, said = self.clock.now(), seen.said
        slots = seen.places.slots({}, ())
        rules = {one.member.name: one.member.preemption for one in said}
        return Entitlements(
            lots=seen.lots,
            terms={
                SlotPool(*key): self._terms_of(slots, lot, seen.coming, rules[lot.owner], now)
                for key, lot in slots.lots.items()
            },
            borrow={
                SlotPool(one.reserved.queue, flavor): slots.borrowable(one.reserved.queue, flavor)
                for one in said
                for flavor in one.member.borrowing_limit
            },
            peers={one.reserved.queue: peers for one in said if (peers := slots.peers(one.reserved.queue))},
            names={one.reserved.queue: str(one.reserved) for one in said},
            barred={one.reserved.queue: one.barred for one in said if one.barred} | dict(slots.inactive),
            rules={
                queue: SlotPreemption(
                    within=rule.within != "Never",
                    lower=rule.borrow != "Never" and rule.reclaim != "Never",
                    threshold=rule.threshold,
                )
                for queue, rule in rules.items()
            },
        )

    def draws(self, waiting: Iterable[NodeClaim]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """The queue of each claim by uid; for unresolved names also the reason, and the name as written, by
        queue.
        """
        known = Names(self.reads.snapshot().reservations)
        draws: dict[str, str] = {}
        barred: dict[str, str] = {}
        called: dict[str, str] = {}
        for claim in waiting:
            if not (given := claim.annotations.get(names.DRAWS_FROM, "")):
                continue
            found = known.resolve(given)
            if isinstance(found, UnresolvedName):
                draws[claim.uid] = queue = f"?{given}"
                barred[queue], called[queue] = found.message, given
            else:
                draws[claim.uid] = found.queue
        return draws, barred, called

    def _version(self, flavors: object, types: Mapping[str, InstanceType]) -> int:
        """A number that changes with the flavors or the instance types."""
        seen = (flavors, id(types))
        if self._told[0] != seen:
            self._told = (seen, self._told[1] + 1)
        return self._told[1]

    def _owned(self, snapshot: Snapshot, holdings: Ownership, inventory: Inventory) -> dict[str, SlotPool]:
        """The lot of each owned EC2 reservation. A reservation with a tag that ownership does not contain
        yet has no flavor, so that no claim takes its slots meanwhile.
        """
        lots = {
            odcr_id: SlotPool(reserved.queue, holdings.flavor.get(odcr_id, ""))
            for odcr_id, reserved in holdings.owner.items()
        }
        for odcr in inventory.odcrs.values():
            if odcr.id not in lots:
                namespace, _, name = odcr.tags.get(names.TAG_RESERVATION, "").rpartition("/")
                theirs = elsewhere(odcr, self._settings.cluster_name)
                if name and not theirs and Reserved(namespace, name) in snapshot.reservations:
                    lots[odcr.id] = SlotPool(Reserved(namespace, name).queue, "")
        return lots

    def _holders(
        self, lots: Mapping[str, SlotPool], given: Assumptions, rules: Mapping[str, Preemption]
    ) -> list[SlotHolder]:
        """Claims with an instance in an owned slot, or planned into one."""
        held = {}
        top = 0  # the highest waiting priority: a holder that no claim outranks needs no disruption check
        for claim in self.claims.list():
            if (odcr_id := held_odcr(claim) or given.planned.get(claim.uid, "")) in lots:
                held[claim.uid] = claim, odcr_id
            elif not claim.status.provider_id:
                top = max(top, priority_of(claim))
        there = [claim for claim, _ in held.values()]
        draws, _, _ = self.draws(there)
        since = launched_at(there)
        found = []
        for claim, odcr_id in held.values():
            queue, priority = draws.get(claim.uid, ""), priority_of(claim)
            own = queue == lots[odcr_id].owner
            rule = rules.get(queue)
            asked = not own or (priority < top and rule is not None and rule.within != "Never")
            _, cluster = cluster_of(claim)
            found.append(
                SlotHolder(
                    name=claim.name,
                    queue=queue,
                    odcr_id=odcr_id,
                    cluster=cluster,
                    priority=priority,
                    since=since[claim.uid].timestamp() if claim.uid in since else float("inf"),
                    terminating=claim.deleting
                    or claim.uid in given.left
                    or (bool(cluster) and cluster in given.leave),
                    # A claim without an instance cannot be drained: the next plan decides about it.
                    non_preemptible=not claim.status.provider_id or (asked and self._spared(claim)),
                    evicted_for=given.leaves_for.get(cluster or f"{CLAIM}{claim.name}", ""),
                )
            )
        return found

    def _spared(self, claim: NodeClaim) -> bool:
        """Whether the claim is never a victim. A dedicated cluster is preempted as a whole, unless Kueue
        counts its quota.
        """
        if names.DEDICATED in claim.labels:
            return self._kueue()
        return non_preemptible(claim, owns=self._owns, nodes=self._nodes, pods=self._pods)

    def _counts(
        self,
        lots: Mapping[str, SlotPool],
        holders: Iterable[SlotHolder],
        inventory: Inventory,
        now: datetime,
    ) -> tuple[dict[str, int], dict[str, int]]:
        held = Counter(each.odcr_id for each in holders)
        unexplained = {
            odcr_id: odcr.total - inventory.free(odcr_id) - held[odcr_id]
            for odcr_id in lots
            if (odcr := inventory.odcrs.get(odcr_id)) is not None
        }
        return self.unexplained.look(unexplained, now)

    def _terms_of(
        self,
        slots: SlotTree,
        lot: BookLot,
        coming: Mapping[str, int],
        rule: Preemption,
        now: datetime,
    ) -> SlotAvailability:
        ended = [Borrower(id_, 0, coming=True) for id_ in lot.slots for _ in range(coming.get(id_, 0))]
        borrowers = [
            Borrower(
                each.odcr_id,
                each.priority,
                coming=each.terminating,
                queue=each.queue,
                leaves_for=each.evicted_for.removeprefix(CLAIM) if each.evicted_for.startswith(CLAIM) else "",
            )
            for each in slots.takers(lot)
            if not (each.terminating and self._stuck(each.name, now))
        ]
        return SlotAvailability(
            quota=slots.quota(lot),
            room=slots.room(lot),
            lendable=slots.lendable(lot),
            reclaim=rule.reclaim,
            borrowers=(*ended, *borrowers),
        )

    def _stuck(self, name: str, now: datetime) -> bool:
        claim = self.claims.get(name)
        since = claim.metadata.deletion_timestamp if claim is not None else None
        return since is not None and now - since > DRAINING
