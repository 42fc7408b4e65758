"""Flavor assignment by the letter: every flavor of a group is computed in full, then the first that ends
the search, or the best. Belongs to `naive`, whose preemption stands in for the simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.quota.assign import SharingRules
from broker.quota.flavors import PodSetRequest
from broker.quota.model import FlavorGroup, FlavorResource, Fungibility, Mode, Possibility, QuotaRequest
from tests.unit.quota.naive import World, preempt

Offer = tuple[Possibility, int]  # the possibility, and how far it borrows
Chosen = dict[str, tuple[str, Mode]]  # a pod set's flavor and mode by resource


class Assignment(NamedTuple):
    pod_sets: list[Chosen]
    modes: list[Mode]
    level: int


def assign(
    world: World, request: QuotaRequest, pod_sets: Sequence[PodSetRequest], rules: SharingRules
) -> Assignment:
    """`request` identifies the requester; its amounts are not used."""
    assignment = Assignment([], [], 0)
    taken: dict[FlavorResource, int] = {}
    queue = world.queues[request.queue]
    for pods in pod_sets:
        amounts = {resource: value * pods.count for resource, value in pods.requests.items()}
        offers: dict[str, tuple[str, Offer]] = {}
        lacking = [
            resource
            for resource, value in amounts.items()
            if value and not any(resource in group.resources for group in queue.groups)
        ]
        for group in queue.groups:
            group_amounts = {
                resource: value for resource, value in amounts.items() if resource in group.resources
            }
            if not group_amounts:
                continue
            flavor, group_offers = _flavor(world, request, group, group_amounts, taken, rules)
            if not flavor:
                lacking += group_amounts
            offers |= {resource: (flavor, offer) for resource, offer in group_offers.items()}
        if lacking:
            assignment.pod_sets.append({})
            assignment.modes.append(Mode.NO_FIT)
            break
        assignment.pod_sets.append(
            {resource: (flavor, offer[0].mode) for resource, (flavor, offer) in offers.items()}
        )
        assignment.modes.append(min((offer[0].mode for _, offer in offers.values()), default=Mode.FIT))
        for resource, (flavor, (_, level)) in offers.items():
            key = FlavorResource(flavor, resource)
            taken[key] = taken.get(key, 0) + amounts[resource]
            assignment = assignment._replace(level=max(assignment.level, level))
    return assignment


def _flavor(
    world: World,
    request: QuotaRequest,
    group: FlavorGroup,
    amounts: Mapping[str, int],
    taken: Mapping[FlavorResource, int],
    rules: SharingRules,
) -> tuple[str, dict[str, Offer]]:
    rule = world.queues[request.queue].fungibility
    candidates: list[tuple[Offer, str, dict[str, Offer]]] = []
    for flavor in group.flavors:
        if flavor not in rules.flavors:
            continue
        offers = {}
        for resource, value in amounts.items():
            key = FlavorResource(flavor, resource)
            offers[resource] = _offer(world, request, key, taken.get(key, 0) + value, rules)
        worst = min([*offers.values(), (Possibility.FIT, 0)], key=lambda offer: _rank(offer, rule))
        candidates.append((worst, flavor, offers))
    usable = [candidate for candidate in candidates if candidate[0][0] is not Possibility.NO_FIT]
    if not usable:
        return "", {}
    ending = [candidate for candidate in usable if _ends(candidate[0], rule)]
    _, flavor, offers = ending[0] if ending else max(usable, key=lambda candidate: _rank(candidate[0], rule))
    return flavor, offers


def _offer(
    world: World, request: QuotaRequest, key: FlavorResource, value: int, rules: SharingRules
) -> Offer:
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


def _rank(offer: Offer, rule: Fungibility) -> tuple[int, ...]:
    """A larger one is better."""
    possibility, level = offer
    if possibility is Possibility.NO_FIT:
        return (0,)
    order = (-level, possibility) if rule.preference == "PreemptionOverBorrowing" else (possibility, -level)
    return (1 if possibility is Possibility.NO_CANDIDATES else 2, *order)


def _ends(offer: Offer, rule: Fungibility) -> bool:
    possibility, level = offer
    if possibility is Possibility.NO_CANDIDATES:
        return False
    preempts = possibility is not Possibility.FIT
    return not (preempts and rule.when_can_preempt == "TryNextFlavor") and not (
        level and rule.when_can_borrow == "TryNextFlavor"
    )
