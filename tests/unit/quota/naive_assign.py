"""Flavor assignment by the letter: every flavor of a group is computed in full, then the first that fits,
or the best. Belongs to `naive`, whose preemption stands in for the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.model import FlavorGroup, FlavorResource, Mode, Possibility, QuotaRequest
from tests.unit.quota.naive import World, preempt

Offer = tuple[Possibility, int]  # the possibility, and how far it borrows
Chosen = dict[str, tuple[str, Mode]]  # the flavor and mode by resource


class Assignment(NamedTuple):
    choices: Chosen
    mode: Mode
    level: int


def assign(
    world: World, request: QuotaRequest, wanted: FlavorRequest, flavors: Mapping[str, Flavor]
) -> Assignment:
    """`request` identifies the requester; its amounts are not used."""
    queue = world.queues[request.queue]
    offers: dict[str, tuple[str, Offer]] = {}
    lacking = [
        resource
        for resource, value in wanted.requests.items()
        if value and not any(resource in group.resources for group in queue.groups)
    ]
    for group in queue.groups:
        amounts = {
            resource: value for resource, value in wanted.requests.items() if resource in group.resources
        }
        if not amounts:
            continue
        flavor, group_offers = _flavor(world, request, group, amounts, flavors)
        if not flavor:
            lacking += amounts
        offers |= {resource: (flavor, offer) for resource, offer in group_offers.items()}
    if lacking:
        return Assignment({}, Mode.NO_FIT, 0)
    return Assignment(
        {resource: (flavor, offer[0].mode) for resource, (flavor, offer) in offers.items()},
        min((offer[0].mode for _, offer in offers.values()), default=Mode.FIT),
        max((offer[1] for _, offer in offers.values()), default=0),
    )


def _flavor(
    world: World,
    request: QuotaRequest,
    group: FlavorGroup,
    amounts: Mapping[str, int],
    flavors: Mapping[str, Flavor],
) -> tuple[str, dict[str, Offer]]:
    candidates: list[tuple[Offer, str, dict[str, Offer]]] = []
    for flavor in group.flavors:
        if flavor not in flavors:
            continue
        offers = {
            resource: _offer(world, request, FlavorResource(flavor, resource), value)
            for resource, value in amounts.items()
        }
        worst = min([*offers.values(), (Possibility.FIT, 0)], key=_rank)
        candidates.append((worst, flavor, offers))
    usable = [candidate for candidate in candidates if candidate[0][0] is not Possibility.NO_FIT]
    if not usable:
        return "", {}
    fitting = [candidate for candidate in usable if candidate[0][0] is Possibility.FIT]
    _, flavor, offers = fitting[0] if fitting else max(usable, key=lambda candidate: _rank(candidate[0]))
    return flavor, offers


def _offer(world: World, request: QuotaRequest, key: FlavorResource, value: int) -> Offer:
    queue = world.queues[request.queue]
    if value > world.available(queue.name, key, empty=True):
        return Possibility.NO_FIT, 0
    distance, root = level(world, queue.name, key, value)
    if value <= max(0, world.available(queue.name, key)):
        return Possibility.FIT, distance
    rule = queue.preemption
    borrowing = rule.borrow != "Never"
    if root and value > world.quota(queue.name, key).nominal and not borrowing:
        return Possibility.NO_FIT, distance
    flavor_request = QuotaRequest(
        queue=queue.name, amounts={key: value}, priority=request.priority, queued=request.queued
    )
    names = {name for name, _ in preempt(world, flavor_request, frozenset((key,)))}
    world.gone.clear()
    world.gone.update({workload.name: workload for workload in world.workloads if workload.name in names})
    distance, _ = level(world, queue.name, key, value)
    own = any(workload.queue == queue.name for workload in world.gone.values())
    world.gone.clear()
    if not names:
        return Possibility.NO_CANDIDATES, distance
    return (Possibility.PREEMPT if own else Possibility.RECLAIM), distance


def level(world: World, name: str, key: FlavorResource, value: int) -> tuple[int, bool]:
    """The height of the lowest subtree that holds it, or of the highest; whether that is the root."""
    path = world.path(name)
    if not path or world.used(name, key) + value <= world.subtree(name, key):
        return 0, not path
    rest = value - world.spare(name, key)
    for cohort in path:
        if world.used(cohort, key) + rest <= world.subtree(cohort, key):
            return _height(world, cohort), cohort == path[-1]
        rest -= world.spare(cohort, key)
    return _height(world, path[-1]), True


def _height(world: World, name: str) -> int:
    return max((1 + _height(world, child) for child in world.children(name)), default=0)


def _rank(offer: Offer) -> tuple[int, ...]:
    """A larger one is better."""
    possibility, level = offer
    return (0,) if possibility is Possibility.NO_FIT else (possibility, -level)
