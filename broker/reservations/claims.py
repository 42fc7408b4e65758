"""The part of a single claim in preemption: its cluster, its nomination, and its owner.

Invariant: a claim is nominated, because victims were evicted for it, as long as its own condition is True, in
a new process too. The place of its slot follows from the last plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import is_true
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.entitlement import NominatedSlot
from broker.lists import lists_by_key
from broker.placement.claims import priority_of
from broker.quota.slot_model import SlotRequest
from broker.quota.usage import ReservationKey


def cluster_of(claim: NodeClaim) -> tuple[str, str]:
    """The uid and the name of the cluster that owns a claim, empty without one."""
    if names.DEDICATED in claim.labels:
        for owner in claim.metadata.owner_references:
            if owner.kind == DedicatedAICluster.KIND.kind:
                return owner.uid, owner.name
    return "", ""


def names_reservation(claim: NodeClaim) -> bool:
    """Whether it is a cluster's, or draws from a reservation."""
    return names.DEDICATED in claim.labels or names.DRAWS_FROM in claim.annotations


def nominated(claim: NodeClaim) -> bool:
    """Whether a victim was evicted for this claim, by the claim's own condition."""
    return is_true(claim, names.RECLAIMING)


def occupied_odcr(claim: NodeClaim) -> str:
    """The ODCR that the claim's instance counts in: until EC2 shows it, the one that it was launched into."""
    if not claim.status.provider_id:
        return ""
    unshown = names.CAPACITY_TYPE not in claim.labels
    launched_into = claim.annotations.get(names.LAUNCHED_INTO, "") if unshown else ""
    return claim.labels.get(names.RESERVATION_ID, "") or launched_into


def node_odcr(node: Node, claim: NodeClaim | None) -> str:
    """The ODCR that a node's instance counts in: by its label, else by its claim."""
    return node.labels.get(names.RESERVATION_ID) or (occupied_odcr(claim) if claim is not None else "")


def claims_of_nodes(
    nodes: Iterable[Node], claims: Iterable[NodeClaim]
) -> tuple[dict[str, NodeClaim], list[NodeClaim]]:
    """The claim of each node, by the node's name, and the claims whose node has not joined.

    By their instance: a node joins before its claim names it.
    """
    known = [*claims]
    by_instance = {claim.instance_id: claim for claim in known if claim.instance_id}
    joined = {node.name: claim for node in nodes if (claim := by_instance.get(node.instance_id))}
    uids = {claim.uid for claim in joined.values()}
    return joined, [claim for claim in known if not claim.status.node_name and claim.uid not in uids]


def held_slot(claim: NodeClaim) -> tuple[str, ...]:
    """The ODCR of the claim's instance if that stays: EC2 counts one that ends until it has left."""
    return (odcr_id,) if not claim.deleting and (odcr_id := occupied_odcr(claim)) else ()


def held_slots(claims: Iterable[NodeClaim]) -> Counter[str]:
    """The claims with an instance that stays, by its ODCR."""
    return Counter(odcr_id for claim in claims for odcr_id in held_slot(claim))


def ending_claims(claims: Iterable[NodeClaim]) -> dict[str, list[str]]:
    """The names of the claims that are being deleted and still have a slot, by its ODCR."""
    ending = (claim for claim in claims if claim.deleting)
    return lists_by_key((id_, claim.name) for claim in ending if (id_ := occupied_odcr(claim)))


def slot_request(claim: NodeClaim, queue: str, odcr_ids: tuple[str, ...]) -> SlotRequest:
    """The claim's request for a slot in any of these EC2 reservations."""
    created = claim.metadata.creation_timestamp
    return SlotRequest(
        name=claim.name,
        queue=queue,
        odcr_ids=odcr_ids,
        priority=priority_of(claim),
        queued=created.timestamp() if created is not None else 0.0,
    )


def nominated_requests(
    claims: Sequence[NodeClaim],
    nominated_slots: Mapping[str, NominatedSlot],
    kept: Mapping[str, str],
    *,
    queue: Callable[[NodeClaim], str],
) -> Iterator[SlotRequest]:
    """The nominated ones of these claims, and claims of their gangs that keep a slot meanwhile.

    `nominated_slots` and `kept`, by uid: the slots that claims wait for since the last plan, and the EC2
    reservation of each kept slot.
    """
    first = [claim for claim in claims if nominated(claim)]
    gangs = {claim.gang for claim in first} - {""}
    for claim in (claim for claim in first if claim.uid in nominated_slots):
        yield slot_request(claim, nominated_slots[claim.uid].queue, nominated_slots[claim.uid].odcr_ids)
    for claim in claims:
        if claim.uid in kept and claim.gang in gangs:
            yield slot_request(claim, queue(claim), (kept[claim.uid],))


def borrows(claim: NodeClaim, reserved: ReservationKey, owners: Mapping[str, ReservationKey]) -> bool:
    """Whether a claim that draws from `reserved` runs in an EC2 reservation of another owner. `owners` is
    by the id of the EC2 reservation.
    """
    return owners.get(occupied_odcr(claim), reserved) != reserved


def unowned(claim: NodeClaim, reserved: ReservationKey, owners: Mapping[str, ReservationKey]) -> bool:
    """Whether a claim runs in an EC2 reservation without an owner, although `reserved` owns slots.

    The quota of `reserved` covers its own slots only.
    """
    id_ = occupied_odcr(claim)
    return bool(id_) and id_ not in owners and reserved in owners.values()


def occupied_queues(claims: Iterable[NodeClaim], owners: Mapping[str, ReservationKey]) -> frozenset[str]:
    """The queues that own the slots of these claims, if known."""
    ids = {occupied_odcr(claim) for claim in claims}
    return frozenset(owners[id_].queue for id_ in ids & owners.keys())
