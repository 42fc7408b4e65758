"""What the page, the metrics and the notifications show of a leading broker's caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.snapshot import Snapshot
from broker.oncall.broken import broken_nodes
from broker.oncall.outside import Dollars, outside_cost
from broker.oncall.slot_holders import SlotUse, slot_uses
from broker.oncall.slot_marks import SlotRow, slot_rows
from broker.oncall.waiters import gang_members
from broker.oncall.waiting_pods import WaitingPod, waiting_rows
from broker.oncall.waiting_reasons import PodSurroundings, advised_classes
from broker.placement.node_prices import Price, node_price
from broker.placement.pool_room import TypeRoom
from broker.wiring.odcr import Mirrored
from broker.wiring.provisioning import PodReports
from broker.wiring.term import Term
from providers.prices import slot_price


def waiting_pods_of(term: Term, mirrored: Mirrored, reports: PodReports) -> Callable[[], list[WaitingPod]]:
    """Returns the pods that wait, each time anew; none before the caches are complete."""

    def waiting() -> list[WaitingPod]:
        if not term.synced():
            return []
        read, snapshot = term.read, term.reads.snapshot()
        pods, claims = read.pods.cache.list(), read.claims.cache.list()
        around = PodSurroundings(
            claims=claims,
            pools=read.pools.cache.list(),
            uses=_slot_uses(mirrored, snapshot, claims, pods),
            reports=reports(),
            members=gang_members(pods),
            advised=advised_classes(read.classes.cache.list()),
            room=TypeRoom(mirrored.types),
        )
        return waiting_rows(pods, around, term.clock.now())

    return waiting


def slot_rows_of(term: Term, mirrored: Mirrored) -> Callable[[], list[SlotRow]]:
    """Returns the picture of capacity, each time anew; no row before the caches are complete."""

    def rows() -> list[SlotRow]:
        if not term.synced():
            return []
        read, snapshot, now = term.read, term.reads.snapshot(), term.clock.now()
        pods, claims = read.pods.cache.list(), read.claims.cache.list()
        odcrs, types = snapshot.inventory.odcrs, mirrored.types()
        broken = broken_nodes(
            claims, read.nodes.cache.list(), read.pools.cache.list(), now, price=lambda _: None
        )
        return slot_rows(
            _slot_uses(mirrored, snapshot, claims, pods).values(),
            broken={node.claim for node in broken},
            price=lambda use: slot_price(types, odcr) if (odcr := odcrs.get(use.id)) else None,
        )

    return rows


def _slot_uses(
    mirrored: Mirrored, snapshot: Snapshot, claims: Sequence[NodeClaim], pods: Sequence[Pod]
) -> Mapping[str, SlotUse]:
    """The EC2 reservations with the users of their slots, by id."""
    owners, rights = snapshot.odcrs.owned.owner, snapshot.rights
    promised = snapshot.inventory.promised
    return slot_uses(mirrored.reservations.list(), owners, claims, pods, rights.of_claim, promised)


def node_prices_of(term: Term, mirrored: Mirrored) -> Price:
    """The prices of nodes and claims now."""
    listing = term.ec2.view.listing
    instances = listing.instances if listing is not None else {}
    return partial(node_price, mirrored.types(), term.inventory.snapshot().odcrs, instances)


def outside_cost_of(term: Term, mirrored: Mirrored) -> Dollars:
    """Nothing before EC2's first description of the instances."""
    listing = term.ec2.view.listing
    if listing is None:
        return {}
    odcrs = term.inventory.snapshot().odcrs.values()
    return outside_cost(odcrs, listing.instances.values(), mirrored.types())
