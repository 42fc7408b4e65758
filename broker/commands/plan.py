"""`capacity-broker plan -f FILES`: what the broker would do with these classes and claims; changes nothing.

It asks EC2 what there is, resolves the classes and plans the claims exactly as the launch loop does; what
cannot be planned is said with its field and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object
from broker.capacity.model import USUAL, Claim, Inventory, NodeClass, Overhead, Plan, Solution
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.capacity.solve import SECONDS
from broker.controllers.nodeclaim.template import template_key
from broker.controllers.nodeclaim.translate import BadClaim, planned
from broker.controllers.nodeclass.resolve import (
    LaunchClass,
    Unresolved,
    launch_class,
    selection,
    surroundings,
)
from providers.base import CapacityProvider
from providers.model import ErrorClass, ProviderError

COLUMNS = {"claim": "CLAIM", "class": "CLASS", "pool": "POOL", "then": "THEN", "why": "WHY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """What a plan is made of, and what cannot be part of one: `problems` by class, `refused` by claim."""

    ready: Mapping[str, LaunchClass]
    problems: Mapping[str, str]
    waiting: tuple[Claim, ...]
    refused: Mapping[str, str]
    inventory: Inventory

    @property
    def classes(self) -> dict[str, NodeClass]:
        return {name: one.plan for name, one in self.ready.items()}


def rows(
    objects: Iterable[Object],
    provider: CapacityProvider,
    *,
    now: datetime,
    seconds: float = SECONDS,
    timer: Callable[[], float] = float,
    overhead: Overhead = USUAL,
) -> tuple[list[dict[str, Any]], Solution]:
    """One row a claim, in the order given, and how the plan was solved, within `seconds` as told by `timer`.

    Raises ProviderError where EC2 cannot be read.
    """
    given = list(objects)
    claims = [o for o in given if isinstance(o, NodeClaim)]
    classes = [o for o in given if isinstance(o, EC2NodeClass)]
    found = considered(classes, claims, provider, now=now, overhead=overhead)
    types = provider.instance_types()
    result = plan(
        found.waiting, found.classes, types, found.inventory, Shortages(), now, seconds=seconds, timer=timer
    )
    return _rows(claims, result, found.refused), result.solution


def considered(
    classes: Sequence[EC2NodeClass],
    claims: Iterable[NodeClaim],
    provider: CapacityProvider,
    *,
    now: datetime,
    where: str = "in the files",
    overhead: Overhead = USUAL,
) -> Considered:
    """Resolves the classes as a launch would and reads the claims. Raises ProviderError."""
    inventory, errors = _inventory(classes, provider, now)
    ready: dict[str, LaunchClass] = {}
    problems: dict[str, str] = {}
    for one in classes:
        try:
            selection(one)  # a wrong spec is told before EC2 is asked anything
            ready[one.name] = launch_class(
                one,
                surroundings(one, provider, dry_run=True),
                inventory,
                account_id=provider.account_id(),
                now=now,
                group_errors=errors,
                overhead=overhead,
            )
        except Unresolved as error:
            problems[one.name] = f"{error.reason}: {error.message}"
        except ProviderError as error:
            if error.class_ is not ErrorClass.NOT_FOUND:
                raise  # no answer about any class
            problems[one.name] = f"{error.code}: {error.message}"
    waiting: list[Claim] = []
    refused: dict[str, str] = {}
    for claim in claims:
        try:
            # A manifest has no uid yet; its name is as unique among the files.
            wanted = replace(planned(claim, template=template_key(claim)), uid=claim.uid or claim.name)
        except BadClaim as error:
            refused[claim.name] = f"{error.reason}: {error.message}"
            continue
        group = claim.spec.node_class_ref.group
        if group != names.BROKER:
            refused[claim.name] = (
                f"NotTheBrokers: spec.nodeClassRef.group is {group!r}, and the broker launches those of "
                f"{names.BROKER} only"
            )
        elif wanted.node_class in problems:
            refused[claim.name] = f"class {wanted.node_class}: {problems[wanted.node_class]}"
        elif wanted.node_class not in ready:
            refused[claim.name] = f"NodeClassNotFound: no EC2NodeClass {wanted.node_class} {where}"
        else:
            waiting.append(wanted)
    return Considered(
        ready=ready, problems=problems, waiting=tuple(waiting), refused=refused, inventory=inventory
    )


def _inventory(
    classes: Iterable[EC2NodeClass], provider: CapacityProvider, now: datetime
) -> tuple[Inventory, dict[str, ProviderError]]:
    groups, errors = {}, {}
    for one in classes:
        try:
            arn = selection(one).group_arn
            if arn:
                groups[arn] = provider.group(arn)
        except Unresolved:
            continue  # told where the class is resolved
        except ProviderError as error:
            errors[arn] = error
    odcrs = {odcr.id: odcr for odcr in provider.reservations()}
    return Inventory(odcrs=odcrs, groups=groups, described=now), errors


def _rows(claims: Iterable[NodeClaim], result: Plan, refused: Mapping[str, str]) -> list[dict[str, Any]]:
    assigned = {a.claim.name: a for a in result.assignments}
    unplaced = {u.claim.name: u for u in result.unplaced}
    found = []
    for claim in claims:
        row: dict[str, Any] = {"claim": claim.name, "class": claim.spec.node_class_ref.name}
        if one := assigned.get(claim.name):
            skipped = result.skipped.get(one.claim.uid, ())
            row |= {
                "pool": str(one.option.pool),
                "then": ", ".join(str(o.pool) for o in one.rest[:3])
                + (f" and {len(one.rest) - 3} more" if len(one.rest) > 3 else ""),
                "why": "; ".join(s.message for s in skipped) or "the best option that it has",
                "launches": True,
            }
        else:
            left = unplaced.get(claim.name)
            why = refused.get(claim.name) or (f"{left.reason}: {left.message}" if left else "not planned")
            row |= {"pool": "-", "then": "-", "why": why, "launches": False}
        found.append(row)
    return found
