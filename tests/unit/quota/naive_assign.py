"""Flavor assignment by the letter: every flavor of a group is computed in full, then the first that ends
the search, or the best. Belongs to `naive`, whose preemption stands in for the simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.quota.assign import SharingRules
from broker.quota.flavors import PodSetRequest
from broker.quota.model import FlavorGroup, FlavorResource, Fungibility, Mode, Possibility, QuotaRequest
from tests.unit.quota.naive import World, preempt, preempt_fairly

Offer = tuple[Possibility, int]  # the possibility, and how far it borrows
Chosen = dict[str, tuple[str, Mode]]  # a pod set's flavor and mode by resource


class Given(NamedTuple):
    pod_sets: list[Chosen]
    modes: list[Mode]
    level: int


def assign(world: World, ask: QuotaRequest, pod_sets: Sequence[PodSetRequest], rules: SharingRules) -> Given:
    """`ask` is the requester, not its amounts."""
    given = Given([], [], 0)
    taken: dict[FlavorResource, int] = {}
    queue = world.queues[ask.queue]
    for pods in pod_sets:
        wanted = {resource: value * pods.count for resource, value in pods.requests.items()}
        offers: dict[str, tuple[str, Offer]] = {}
        lacking = [
            resource
            for resource, value in wanted.items()
            if value and not any(resource in group.resources for group in queue.groups)
        ]
        for group in queue.groups:
            asked = {resource: value for resource, value in wanted.items() if resource in group.resources}
            if not asked:
                continue
            flavor, found = _flavor(world, ask, group, asked, taken, rules)
            if not flavor:
                lacking += asked
            offers |= {resource: (flavor, offer) for resource, offer in found.items()}
        if lacking:
            given.pod_sets.append({})
            given.modes.append(Mode.NO_FIT)
            break
        given.pod_sets.append(
            {resource: (flavor, offer[0].mode) for resource, (flavor, offer) in offers.items()}
        )
        given.modes.append(min((offer[0].mode for _, offer in offers.values()), default=Mode.FIT))
        for resource, (flavor, (_, level)) in offers.items():
            key = FlavorResource(flavor, resource)
            taken[key] = taken.get(key, 0) + wanted[resource]
            given = given._replace(level=max(given.level, level))
    return given


def _flavor(
    world: World,
    ask: QuotaRequest,
    group: FlavorGroup,
    asked: Mapping[str, int],
    taken: Mapping[FlavorResource, int],
    rules: SharingRules,
) -> tuple[str, dict[str, Offer]]:
    rule = world.queues[ask.queue].fungibility
    found: list[tuple[Offer, str, dict[str, Offer]]] = []
    for flavor in group.flavors:
        if flavor not in rules.flavors:
            continue
        offers = {}
        for resource, value in asked.items():
            key = FlavorResource(flavor, resource)
            offers[resource] = _offer(world, ask, key, taken.get(key, 0) + value, rules)
        worst = min([*offers.values(), (Possibility.FIT, 0)], key=lambda each: _rank(each, rule))
        found.append((worst, flavor, offers))
    usable = [each for each in found if each[0][0] is not Possibility.NO_FIT]
    if not usable:
        return "", {}
    ending = [each for each in usable if _ends(each[0], rule)]
    _, flavor, offers = ending[0] if ending else max(usable, key=lambda each: _rank(each[0], rule))
    return flavor, offers


def _offer(world: World, ask: QuotaRequest, key: FlavorResource, value: int, rules: SharingRules) -> Offer:
    queue = world.queues[ask.queue]
    if value > world.available(queue.name, key, empty=True):
        return Possibility.NO_FIT, 0
    distance, root = level(world, queue.name, key, value)
    if value <= max(0, world.available(queue.name, key)):
        return Possibility.FIT, distance
    rule = queue.preemption
    borrowing = rule.borrow != "Never" or (rules.fair and rule.reclaim != "Never")
    if root and value > world.quota(queue.name, key).nominal and not borrowing:
        return Possibility.NO_FIT, distance
    one = QuotaRequest(queue=queue.name, amounts={key: value}, priority=ask.priority, queued=ask.queued)
    if rules.fair:
        names = {name for name, _ in preempt_fairly(world, one, frozenset((key,)), rules.strategies)}
    else:
        names = {name for name, _ in preempt(world, one, frozenset((key,)))}
    world.gone.clear()
    world.gone.update({each.name: each for each in world.workloads if each.name in names})
    distance, _ = level(world, queue.name, key, value)
    own = any(each.queue == queue.name for each in world.gone.values())
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
    return max((1 + _height(world, each) for each in world.children(name)), default=0)


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
