"""Nominated claims, for which victims were evicted, and their slots.

Invariant: a claim is nominated as long as its own condition is True, in a new process too. The place of its
slot follows from the last plan.
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
    """Whether a victim was evicted for this claim, by the claim's own condition."""
    said = condition(claim.status.conditions, names.RECLAIMING)
    return said is not None and said.status == "True"


def want(claim: NodeClaim, queue: str, odcr_ids: tuple[str, ...]) -> SlotRequest:
    """The claim's request for a slot in any of these EC2 reservations."""
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
    """The nominated ones of these claims, and claims of their gangs that keep a slot meanwhile.

    `awaited` and `kept`, by uid: the slots that claims wait for since the last plan, and the EC2 reservation
    of each kept slot.
    """
    first = [each for each in claims if nominated(each)]
    gangs = {each.annotations.get(names.GANG, "") for each in first} - {""}
    for claim in (each for each in first if each.uid in awaited):
        yield want(claim, awaited[claim.uid].queue, awaited[claim.uid].odcr_ids)
    for claim in claims:
        if claim.uid in kept and claim.annotations.get(names.GANG) in gangs:
            yield want(claim, queue(claim), (kept[claim.uid],))
