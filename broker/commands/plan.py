"""`capacity-broker plan -f FILES`: a dry run of these classes and claims; changes nothing.

It describes EC2, resolves the classes and plans the claims exactly as the launch loop does, with the same
ownership of slots. Problems name the field and the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object
from broker.capacity.entitlement import NO_ENTITLEMENTS
from broker.capacity.model import DEFAULT_OVERHEAD, Claim, Inventory, NodeClass, Overhead, Plan, Solution
from broker.capacity.options import capacity_types
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.capacity.solve import SECONDS
from broker.commands.decision import Decision, because, decided, unplanned
from broker.commands.manifests import BadManifest
from broker.commands.output import short
from broker.controllers.nodeclaim.template import template_key
from broker.controllers.nodeclaim.translate import BadClaim, planned
from broker.controllers.nodeclass.resolve import (
    LaunchClass,
    Unresolved,
    launch_class,
    selection,
    surroundings,
)
from broker.controllers.preemption.once import Entitle
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound
from providers.base import CapacityProvider
from providers.model import ErrorClass, ProviderError

COLUMNS = {"claim": "CLAIM", "class": "CLASS", "pool": "POOL", "then": "THEN", "why": "WHY"}
EXTRA = ("class",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """The inputs of a plan, and the excluded ones: `problems` by class, `refused` by claim."""

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
    where: str = "in the files",
    overhead: Overhead = DEFAULT_OVERHEAD,
    entitle: Entitle | None = None,
) -> tuple[list[dict[str, Any]], Solution]:
    """One row a claim, in the given order, and the solver's result, within `seconds` by `timer`.

    Raises ProviderError if EC2 cannot be read.
    """
    given = list(objects)
    claims = [_told_apart(o) for o in given if isinstance(o, NodeClaim)]
    classes = [o for o in given if isinstance(o, EC2NodeClass)]
    found = considered(classes, claims, provider, now=now, where=where, overhead=overhead)
    types = provider.instance_types()
    entitlements = NO_ENTITLEMENTS
    if entitle is not None:
        named = {each.uid: each for each in claims}
        waiting = {each.uid: named[each.uid] for each in found.waiting}
        entitlements = entitle(waiting, found.inventory, types)
    result = plan(
        found.waiting,
        found.classes,
        types,
        found.inventory,
        Shortages(),
        now,
        entitlements=entitlements,
        seconds=seconds,
        timer=timer,
    )
    return [_row(claim, result, found) for claim in claims], result.solution


def check(objects: Iterable[Object], *, where: str) -> None:
    """Raises BadManifest where there is nothing to plan."""
    if not any(isinstance(each, NodeClaim) for each in objects):
        raise BadManifest(f"{where}: no NodeClaim to plan (karpenter.sh/v1)")


def classes(client: Client, objects: Sequence[Object]) -> list[EC2NodeClass]:
    """The cluster's classes that the claims name and the files lack. Raises ApiError."""
    given = {each.name for each in objects if isinstance(each, EC2NodeClass)}
    named = {each.spec.node_class_ref.name for each in objects if isinstance(each, NodeClaim)} - given
    if not named:
        return []
    try:
        there, _ = client.list(EC2NodeClass.KIND)
    except NotFound:
        return []
    return [EC2NodeClass.decode(each) for each in there if each["metadata"]["name"] in named]


def uncounted(client: Client, objects: Iterable[Object]) -> str:
    """That claims wait in the cluster which the files do not have, and which may go before; empty where none
    does, or that cannot be seen. Raises ApiError."""
    given = {each.name for each in objects if isinstance(each, NodeClaim)}
    try:
        there, _ = client.list(NodeClaim.KIND)
    except (NotFound, Forbidden):
        return ""
    waiting = [
        one.name
        for one in map(NodeClaim.decode, there)
        if one.spec.node_class_ref.group == names.BROKER
        and not (one.status.provider_id or one.deleting or one.name in given)
    ]
    if not waiting:
        return ""
    some = ", ".join(sorted(waiting)[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    return f"not counted: NodeClaims that wait in the cluster and may take these slots first: {some}"


def considered(
    classes: Sequence[EC2NodeClass],
    claims: Iterable[NodeClaim],
    provider: CapacityProvider,
    *,
    now: datetime,
    where: str = "in the files",
    overhead: Overhead = DEFAULT_OVERHEAD,
) -> Considered:
    """Resolves the classes as a launch would and reads the claims. Raises ProviderError."""
    inventory, errors = _inventory(classes, provider, now)
    ready: dict[str, LaunchClass] = {}
    problems: dict[str, str] = {}
    for one in classes:
        try:
            selection(one)  # an invalid spec is reported before EC2 is called
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
            wanted = planned(claim, template=template_key(claim))
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


def _told_apart(claim: NodeClaim) -> NodeClaim:
    """A manifest has no uid yet; its name is as unique among the files."""
    uid = claim.uid or claim.name
    return claim.model_copy(update={"metadata": claim.metadata.model_copy(update={"uid": uid})})


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
            continue  # reported where the class is resolved
        except ProviderError as error:
            errors[arn] = error
    odcrs = {odcr.id: odcr for odcr in provider.reservations()}
    return Inventory(odcrs=odcrs, groups=groups, described=now), errors


def _row(claim: NodeClaim, result: Plan, found: Considered) -> dict[str, Any]:
    why = found.refused.get(claim.name)
    made = unplanned(why) if why else decided(result, claim.uid)
    more = f" and {len(made.rest) - 3} more" if len(made.rest) > 3 else ""
    return {
        "claim": claim.name,
        "class": claim.spec.node_class_ref.name,
        "decision": made.sentence,
        "pool": str(made.option.pool) if made.option else "-",
        "then": (", ".join(str(o.pool) for o in made.rest[:3]) + more) if made.option else "-",
        "why": _why(made, _misfits(claim, made, found)),
        "launches": made.option is not None,
    }


def told(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows for a person."""
    return [{**row, **{key: short(row[key]) for key in ("pool", "then", "why")}} for row in rows]


def _misfits(claim: NodeClaim, made: Decision, found: Considered) -> list[str]:
    """Why its class has no reservation at all, of a claim that would take one and goes elsewhere."""
    if made.option is None or made.option.pool.capacity_type == "reserved":
        return []
    wanted = next(one for one in found.waiting if one.name == claim.name)
    resolved = found.classes[wanted.node_class].resolved
    if resolved.usable or "reserved" not in capacity_types(wanted.requirements):
        return []
    return [f"{one.reason}: {one.message}" for one in resolved.misfits[:5]]


def _why(made: Decision, misfits: Iterable[str]) -> str:
    if made.option is None:
        return made.sentence
    told = [
        f"{each.pool}: {because(each.reason, each.message, pool=str(each.pool))}" for each in made.skipped
    ]
    return "; ".join([*told, *misfits]) or "the best option that it has"
