"""Chooses the domain of each gang whose claims must be in one: a zone, or a reservation.

Invariant: the claims of such a gang launch in one domain, that of its claims with instances if there are
any. Each domain is tried in a plan with the claims that come before the gang, or without them if there is no
time. The gang gets the one in which all its claims launch, most of them in reservations, at the least cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from broker.apis.names import RESERVATION_ID, ZONE
from broker.capacity.demand import gangs_of, order
from broker.capacity.model import Claim, NodeClass, Plan
from broker.capacity.options import tenancy
from broker.capacity.reasons import GANG_INCOMPLETE, UNKNOWN_DOMAIN
from broker.capacity.requirements import Requirements

# The labels of a node by which the claims of a gang may be kept together; the narrower last.
DOMAINS: Final = (ZONE, RESERVATION_ID)

Labels = Mapping[str, str]
LaunchedGangs = Mapping[str, Sequence[Labels]]  # the labels of their claims that have an instance
Score = tuple[int, int, int, int, float]


def in_domains(
    claims: Iterable[Claim],
    node_classes: Mapping[str, NodeClass],
    launched: LaunchedGangs,
    plan: Callable[[Sequence[Claim]], Plan],
    in_time: Callable[[], bool],
) -> list[Claim]:
    """The claims, where those of gangs with a domain require one of its values.

    `plan`: of these claims alone. `in_time`: whether there is time for plans with other claims.
    """
    by_uid = {claim.uid: claim for claim in claims}
    for name, gang in gangs_of(sorted(by_uid.values(), key=order)).items():
        key = max((claim.domain for claim in gang), key=("", *DOMAINS).index)
        if not key:
            continue
        before = [claim for claim in by_uid.values() if claim.gang != name and order(claim) < order(gang[0])]
        settled = {labels.get(key, UNKNOWN_DOMAIN) for labels in launched.get(name, ())}
        values = sorted(settled or _values(key, gang, node_classes))
        trials = [[_within(claim, key, [value]) for claim in gang] for value in values]
        if not trials and key == RESERVATION_ID:
            trials = [[_within(claim, key, []) for claim in gang]]
        if len(trials) > 1:
            scores = _scores(trials, before, plan, in_time)
            trials = [trials[scores.index(min(scores))]]
        by_uid |= {claim.uid: claim for claim in next(iter(trials), gang)}
    return [*by_uid.values()]


def _values(key: str, gang: Sequence[Claim], node_classes: Mapping[str, NodeClass]) -> set[str]:
    """The domains that all claims of the gang allow; if there is none, one of any claim, so that all wait."""
    values = [
        {value for value in _of_class(key, claim, node_classes) if claim.requirements.allows(key, value)}
        for claim in gang
    ]
    return set.intersection(*values) or {*sorted(set.union(*values))[:1]}


def _of_class(key: str, claim: Claim, node_classes: Mapping[str, NodeClass]) -> Collection[str]:
    if (node_class := node_classes.get(claim.node_class)) is None:
        return ()
    if key == ZONE:
        return {subnet.zone for subnet in node_class.subnets}
    resolved = node_class.of_tenancy(tenancy(claim.requirements)).resolved
    return {odcr.id for odcr in (*resolved.usable, *resolved.pending)}


def _within(claim: Claim, key: str, values: Sequence[str]) -> Claim:
    """The claim in one of the domains; without any, it requires that there is one, so that it waits."""
    required = Requirements.of([(key, "In" if values else "Exists", values)])
    return replace(claim, requirements=claim.requirements & required)


def _scores(
    trials: Sequence[Sequence[Claim]],
    before: Sequence[Claim],
    plan: Callable[[Sequence[Claim]], Plan],
    in_time: Callable[[], bool],
) -> list[Score]:
    scores: list[Score] = []
    for narrowed in trials:
        if before and not in_time():
            return _scores(trials, (), plan, in_time)
        scores.append(_score(plan([*before, *narrowed]), narrowed))
    return scores


def _score(plan: Plan, gang: Sequence[Claim]) -> Score:
    """Less is better: claims without instance, reclaim or kept slot, then those that lack an option or a slot
    held for them, then claims outside reservations, then reclaims, then cost; an unknown price comes last.
    """
    uids = {claim.uid for claim in gang}
    reclaims = uids & plan.nominated.keys()
    without = (item for item in plan.unplaced if item.claim.uid in uids - reclaims)
    lacking = sum(item.reason != GANG_INCOMPLETE for item in without)
    options = [item.option for item in plan.assignments if item.claim.uid in uids]
    bought = [option for option in options if not option.pool.reserved]
    waiting = len(uids) - len(options) - len(reclaims) - len(uids & plan.kept.keys())
    prices = (math.inf if option.price is None else option.price for option in bought)
    held = sum(sum(hold.slots.values()) for hold in plan.holds if hold.gang == gang[0].gang)
    return waiting, lacking - held, len(bought), len(reclaims), sum(prices)
