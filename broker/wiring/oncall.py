"""What the page, the metrics and the notifications show of a leading broker's caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.controllers.launch.launcher import Launcher
from broker.oncall.outside import Dollars, outside_cost
from broker.oncall.situation import Situation
from broker.placement.node_prices import Price, node_price
from broker.wiring.odcr import Mirrored
from broker.wiring.provisioning import PodReports
from broker.wiring.term import Term


def situation_of(
    term: Term, mirrored: Mirrored, reports: PodReports, launcher: Launcher
) -> Callable[[], Situation]:
    """Returns the situation, each time anew, without events. Before the caches are complete it has no pods
    and no slots: their reasons and users are not known.
    """

    def situation() -> Situation:
        read, snapshot, now = term.read, term.reads.snapshot(), term.clock.now()
        complete = term.synced()
        return Situation(
            now=now,
            claims=read.claims.cache.list(),
            pods=read.pods.cache.list() if complete else (),
            pools=read.pools.cache.list(),
            nodes=read.nodes.cache.list(),
            classes=read.classes.cache.list(),
            reservations=[*snapshot.reservations.values()],
            namespaces=snapshot.namespaces,
            odcrs=snapshot.odcrs,
            mirrors=mirrored.reservations.list() if complete else (),
            price=node_prices_of(term, mirrored),
            shortages=sorted(launcher.shortages.lasting(now), key=lambda shortage: shortage.since),
            types=mirrored.types(),
            inventory=snapshot.inventory,
            reports=reports(),
        )

    return situation


def node_prices_of(term: Term, mirrored: Mirrored) -> Price:
    """The prices of nodes and claims now."""
    listing = term.ec2.view.listing
    instances = listing.instances if listing is not None else {}
    return partial(node_price, mirrored.types(), term.inventory.snapshot().odcrs, instances)


def outside_cost_of(term: Term, mirrored: Mirrored) -> Dollars | None:
    """None before EC2's first description of the instances."""
    listing = term.ec2.view.listing
    if listing is None:
        return None
    odcrs = term.inventory.snapshot().odcrs.values()
    return outside_cost(odcrs, listing.instances.values(), mirrored.types())
