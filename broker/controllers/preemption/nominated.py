"""Claims that others were told to leave for, and the slots that are theirs because of it.

Invariant: a claim is nominated as long as its own condition says so, in a new process too. Where its slot is
follows from the last plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.capacity.entitlement import NominatedSlot
from broker.controllers.nodeclaim.translate import priority_of
from broker.quota.slot_model import SlotRequest


def nominated(claim: NodeClaim) -> bool:
    """Whether another was told to leave for this claim, by its own condition."""
    said = condition(claim.status.conditions, names.RECLAIMING)
    return said is not None and said.status == "True"


def want(claim: NodeClaim, queue: str, odcr_ids: tuple[str, ...]) -> SlotRequest:
    """A slot in any of these, as it is decided about."""
    created = claim.metadata.creation_timestamp
    return SlotRequest(
        name=claim.name,
        queue=queue,
        odcr_ids=odcr_ids,
        priority=priority_of(claim),
        queued=created.timestamp() if created is not None else 0.0,
    )


def nominations_of(
    claims: Sequence[NodeClaim],
    awaited: Mapping[str, NominatedSlot],
    kept: Mapping[str, str],
    *,
    queue: Callable[[NodeClaim], str],
) -> Iterator[SlotRequest]:
    """Of these claims the nominated ones, and those of their gangs that keep a slot meanwhile. `awaited` and
    `kept`, by uid: the slots that the last plan let them wait for, and the EC2 reservation of those kept."""
    first = [each for each in claims if nominated(each)]
    gangs = {each.annotations.get(names.GANG, "") for each in first} - {""}
    for claim in (each for each in first if each.uid in awaited):
        yield want(claim, awaited[claim.uid].queue, awaited[claim.uid].odcr_ids)
    for claim in claims:
        if claim.uid in kept and claim.annotations.get(names.GANG) in gangs:
            yield want(claim, queue(claim), (kept[claim.uid],))
