"""The claims of one static pool, and how many it lacks or has too many.

Source: Karpenter, pkg/controllers/static (provisioning and deprovisioning) and pkg/controllers/state
(statenodepool.go). A claim that is being replaced counts for neither: its replacement does.

Invariant: a slot that a claim leaves goes to one successor. So no claim is left, and no slot is given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import is_true
from broker.controllers.claim_status import replaces
from broker.controllers.provisioning.usage import counted
from broker.reservations.claims import occupied_odcr
from providers.model import Odcr


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCensus:
    """`active`: the claims that neither end nor are replaced. `replaced`: those with a replacement.

    `vacating`: those that end, each in a slot to which no successor is made yet. `present`: all of them.
    """

    active: tuple[NodeClaim, ...] = ()
    replaced: int = 0
    vacating: tuple[NodeClaim, ...] = ()
    present: tuple[NodeClaim, ...] = ()

    @property
    def waiting(self) -> frozenset[str]:
        """The uids of the active claims without an instance."""
        return frozenset(claim.uid for claim in self.active if claim.waits)

    def lacks(self, wanted: int) -> int:
        """How many claims the pool lacks of so many.

        A node that is replaced counts beside its replacement, which may be given up. A slot that is left for
        good needs its successor in any case.
        """
        missing = max(0, wanted - len(self.active))
        return missing if missing > self.replaced else min(missing, len(self.vacating))

    def excess(self, wanted: int) -> int:
        return max(0, len(self.active) - wanted)

    def left_by(
        self, odcr_ids: Collection[str], *, free: Callable[[str], int], room: int | None
    ) -> tuple[list[NodeClaim], int]:
        """The ending claims in slots of these reservations that get a successor now, by name. And how many of
        the successors find a slot free, and are launched beside their node: at most `room`; None: any number.
        """
        left: list[NodeClaim] = []
        beside: Counter[str] = Counter()
        for claim in self.vacating:
            id_ = occupied_odcr(claim)
            if id_ not in odcr_ids:
                continue
            if beside[id_] < free(id_):
                if room is not None and beside.total() >= room:
                    continue
                beside[id_] += 1
            left.append(claim)
        return left, beside.total()


def census(pool: NodePool, claims: Iterable[NodeClaim], *, owns: Callable[[NodeClaim], bool]) -> PoolCensus:
    """The pool's claims among these. Those of another launcher are left by an older pool."""
    own = [claim for claim in claims if claim.node_pool == pool.name and owns(claim)]
    own.sort(key=lambda claim: claim.name)
    active = tuple(counted(own))
    succeeded = {replaces(claim)[1] for claim in own if not claim.deleting}
    staying = {claim.uid for claim in active}
    return PoolCensus(
        active=active,
        replaced=sum(
            claim.uid in succeeded and claim.uid not in staying and not claim.deleting for claim in own
        ),
        vacating=tuple(claim for claim in own if _vacates(claim) and claim.uid not in succeeded),
        present=tuple(own),
    )


def outside(
    claims: Iterable[NodeClaim], odcr_ids: Collection[str], odcrs: Mapping[str, Odcr]
) -> Sequence[NodeClaim]:
    """The claims with an instance in none of these reservations.

    One that EC2 has not shown yet is not among them, nor one in a reservation that EC2 does not describe.
    """
    return [claim for claim in claims if _shown(claim, odcrs) and occupied_odcr(claim) not in odcr_ids]


class OutsideClaims:
    """The claims of each pool outside its slots, with the description of EC2 that first put them there."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, datetime | None]] = {}

    def confirmed(
        self, pool: str, claims: Iterable[NodeClaim], described: datetime | None
    ) -> list[NodeClaim]:
        """Those of these claims that an earlier description put outside as well; the others wait for one."""
        claims, known = [*claims], self._first.get(pool, {})
        first = self._first[pool] = {claim.uid: known.get(claim.uid, described) for claim in claims}
        return [claim for claim in claims if first[claim.uid] != described]


def _shown(claim: NodeClaim, odcrs: Mapping[str, Odcr]) -> bool:
    kind, odcr_id = claim.labels.get(names.CAPACITY_TYPE), claim.labels.get(names.RESERVATION_ID, "")
    known = odcr_id in odcrs if kind == "reserved" else bool(kind)
    return bool(claim.status.provider_id) and known


def _vacates(claim: NodeClaim) -> bool:
    """Whether the claim ends and leaves its slot to the pool. A borrowed slot goes to its owner."""
    return claim.deleting and bool(occupied_odcr(claim)) and not is_true(claim, names.PREEMPTED)
