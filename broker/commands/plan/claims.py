"""`capacity-broker plan -f FILES`: a dry run of these classes and claims; changes nothing.

It describes EC2, resolves the classes and plans the claims exactly as the launch loop does, with the same
ownership of slots. Problems name the field and the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool, pods_of
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Object, condition
from broker.apis.static_pools import number_of_nodes, static
from broker.capacity.inventory import Inventory
from broker.capacity.matching import NAME_ANOTHER
from broker.capacity.model import LAUNCH_DEFAULTS, Claim, LaunchDefaults, NodeClass, Plan, Skipped, Solution
from broker.capacity.plan import plan
from broker.capacity.reasons import CLASS_NOT_FOUND
from broker.capacity.solve import SECONDS
from broker.capacity.supply import LaunchSupply
from broker.commands.dry_run import AccountReads, DryEviction, DryRun
from broker.commands.explain.decision import Decision, because, decided, unplanned
from broker.commands.inventory.prices import shown_price
from broker.commands.manifests import BadManifest
from broker.commands.plan import bill
from broker.controllers.inventory import read_groups
from broker.controllers.left_slots import slots_of_claims
from broker.controllers.nodeclass.resolve import (
    LaunchClass,
    Unresolved,
    launch_class,
    read_surroundings,
    selection,
)
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.oncall.state import is_brokers
from broker.placement.claims import BadClaim, in_gangs, planned, waiting_since
from broker.placement.pool_choice import of_broker
from broker.quota.slot_model import CLAIM
from broker.reservations.claims import ending_claims, occupied_odcr
from broker.text import abridged, counted, plain
from providers.errors import ErrorClass, ProviderError

COLUMNS = {
    "claim": "CLAIM",
    "class": "CLASS",
    "pool": "POOL",
    "price": "$/H",
    "then": "THEN",
    "why": "WHY",
}
EXTRA = ("class",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The inputs of a plan, and the excluded ones: `problems` by class, `refused` by claim."""

    ready: Mapping[str, LaunchClass]
    problems: Mapping[str, str]
    waiting: tuple[Claim, ...]
    refused: Mapping[str, str]
    inventory: Inventory

    @property
    def classes(self) -> dict[str, NodeClass]:
        return {name: ready_class.plan for name, ready_class in self.ready.items()}


def rows(
    objects: Iterable[Object],
    provider: AccountReads,
    *,
    now: datetime,
    seconds: float = SECONDS,
    timer: Callable[[], float] = float,
    where: str = "in the files",
    defaults: LaunchDefaults = LAUNCH_DEFAULTS,
    dry_run: DryRun,
) -> tuple[list[dict[str, Any]], list[DryEviction], Solution]:
    """One row a claim, in the given order; the claims that would be evicted; and the solver's result, within
    `seconds` by `timer`.

    Raises ProviderError if EC2 cannot be read, and ApiError.
    """
    given = list(objects)
    known = {claim.name: claim for claim in dry_run.claims}
    claims = [known[name] for name in dict.fromkeys(o.name for o in given if isinstance(o, NodeClaim))]
    classes = [o for o in given if isinstance(o, EC2NodeClass)]
    unlaunched = [claim for claim in claims if claim.waits]
    open_ = {claim.uid: claim for claim in (*waiting(dry_run), *unlaunched)}
    inputs = considered(
        classes,
        open_.values(),
        provider,
        among=dry_run.claims,
        now=now,
        where=where,
        defaults=defaults,
        pods=dry_run.pods,
        odds=dry_run.odds(),
    )
    types = provider.instance_types()
    by_uid = {planned_.uid: open_[planned_.uid] for planned_ in inputs.waiting}
    supply = LaunchSupply(
        classes=inputs.classes,
        types=types,
        inventory=inputs.inventory,
        shortages=dry_run.shortages(),
        now=now,
        entitlements=dry_run.entitlements(by_uid, inputs.inventory),
        ending=ending_claims(dry_run.claims),
    )
    launched = in_gangs(dry_run.claims)
    result = plan(inputs.waiting, supply, launched=launched, seconds=seconds, timer=timer)
    evictions = dry_run.evictions(result, inputs.inventory)
    return [_row(claim, result, inputs, evictions) for claim in claims], evictions, result.solution


def check(objects: Iterable[Object], documents: Iterable[Mapping[str, Any]], *, where: str) -> None:
    """Raises BadManifest if there is nothing to plan."""
    if not any(isinstance(obj, NodeClaim) for obj in objects):
        way_out = unread_claims(documents) or "add a file that has some"
        raise BadManifest(f"{where}: no NodeClaim (karpenter.sh/v1) and no pod to plan: {way_out}")


def unplanned_pools(objects: Iterable[Object]) -> list[str]:
    """A line about each static NodePool of the files: the plan has neither its nodes nor their price."""
    pools = [obj for obj in objects if isinstance(obj, NodePool) and of_broker(obj) and static(obj)]
    return [
        f"NodePool {pool.name}: {number_of_nodes(pool)}: the plan leaves out the nodes that it makes for that"
        for pool in pools
    ]


def unread_claims(documents: Iterable[Mapping[str, Any]]) -> str:
    """A line about the NodeClaims of other versions than the plan reads; empty without any."""
    read = NodeClaim.KIND
    versions = [
        str(document.get("apiVersion")) for document in documents if document.get("kind") == read.kind
    ]
    others = Counter(version for version in versions if version != read.api_version)
    counts = ", ".join(f"{counted(count, 'NodeClaim')} of {version}" for version, count in others.items())
    return f"ignored {counts}: write apiVersion {read.api_version}" if others else ""


def classes(client: Client, objects: Sequence[Object], dry_run: DryRun) -> list[EC2NodeClass]:
    """The cluster's classes that waiting claims name and the files lack. Raises ApiError."""
    given = {obj.name for obj in objects if isinstance(obj, EC2NodeClass)}
    claims = [*waiting(dry_run), *(obj for obj in objects if isinstance(obj, NodeClaim))]
    named = {claim.spec.node_class_ref.name for claim in claims} - given
    if not named:
        return []
    try:
        stored, _ = client.list(EC2NodeClass.KIND)
    except NotFound:
        return []
    return [EC2NodeClass.decode(obj) for obj in stored if obj["metadata"]["name"] in named]


def waiting(dry_run: DryRun) -> list[NodeClaim]:
    """The broker's claims without an instance, of the cluster and of the files."""
    return [claim for claim in dry_run.claims if claim.waits and is_brokers(claim)]


def also_planned(objects: Iterable[Object], dry_run: DryRun) -> str:
    """A line about the waiting claims of the cluster that the files do not have; empty without any."""
    given = {obj.name for obj in objects if isinstance(obj, NodeClaim)}
    waiting_names = sorted(claim.name for claim in waiting(dry_run) if claim.name not in given)
    if not waiting_names:
        return ""
    return f"planned with the NodeClaims that wait in the cluster: {abridged(waiting_names, 3)}"


def considered(
    classes: Sequence[EC2NodeClass],
    claims: Iterable[NodeClaim],
    provider: AccountReads,
    *,
    among: Sequence[NodeClaim],
    now: datetime,
    where: str = "in the files",
    defaults: LaunchDefaults = LAUNCH_DEFAULTS,
    pods: Callable[[], Iterable[Pod]] = tuple,
    odds: Mapping[str, int] = MappingProxyType({}),
) -> PlanInputs:
    """Resolves the classes as a launch would and reads the claims. Raises ProviderError.

    `among`: all claims that exist: slots are promised to some. `odds`: the ranks of pools that the running
    broker published.

    A claim that does not exist yet counts as created now. `pods`: the cluster's; read only if the hold of a
    gang depends on them.
    """
    known_pods = cache(lambda: {pod.key: pod for pod in pods()})
    inventory, errors = _inventory(classes, provider, now)
    inventory = replace(
        slots_of_claims(among, now, owns=is_brokers),
        odcrs=inventory.odcrs,
        groups=inventory.groups,
        odds=odds,
        described=now,
    )
    ready: dict[str, LaunchClass] = {}
    problems: dict[str, str] = {}
    for node_class in classes:
        if denial := _denial(node_class):
            problems[node_class.name] = denial
            continue
        try:
            selection(node_class)  # an invalid spec is reported before EC2 is called
            around, obstacle = read_surroundings(node_class, provider, dry_run=True)
            if obstacle is not None:
                raise obstacle
            ready[node_class.name] = launch_class(
                node_class,
                around,
                inventory,
                account_id=provider.account_id(),
                now=now,
                group_errors=errors,
                defaults=defaults,
            )
        except Unresolved as error:
            problems[node_class.name] = f"{error.reason}: {error.message}"
        except ProviderError as error:
            if error.class_ is not ErrorClass.NOT_FOUND:
                raise  # no answer about any class
            problems[node_class.name] = f"{error.code}: {error.message}"
    return plan_inputs(
        claims, ready, problems, inventory, lambda key: known_pods().get(key), now=now, where=where
    )


def plan_inputs(
    claims: Iterable[NodeClaim],
    ready: Mapping[str, LaunchClass],
    problems: Mapping[str, str],
    inventory: Inventory,
    pod: Callable[[str], Pod | None],
    *,
    now: datetime,
    where: str = "in the cluster",
) -> PlanInputs:
    """Reads the claims, of classes that can launch. `pod`: by `namespace/name`."""
    waiting: list[Claim] = []
    refused: dict[str, str] = {}
    for claim in claims:
        try:
            in_gang = names.GANG in claim.annotations  # only a gang's hold counts from the wait of pods
            since = waiting_since(claim, pod) if in_gang else None
            planned_claim = planned(claim, since=since)
        except BadClaim as error:
            refused[claim.name] = f"{error.reason}: {error.message}"
            continue
        if not is_brokers(claim):
            group = claim.spec.node_class_ref.group
            refused[claim.name] = (
                f"NotTheBrokers: spec.nodeClassRef.group is {group!r}, and the broker launches those of "
                f"{names.BROKER} only"
            )
        elif planned_claim.node_class in problems:
            refused[claim.name] = f"class {planned_claim.node_class}: {problems[planned_claim.node_class]}"
        elif planned_claim.node_class not in ready:
            refused[claim.name] = f"{CLASS_NOT_FOUND}: no EC2NodeClass {planned_claim.node_class} {where}"
        else:
            waiting.append(planned_claim if planned_claim.created else replace(planned_claim, created=now))
    return PlanInputs(
        ready=ready, problems=problems, waiting=tuple(waiting), refused=refused, inventory=inventory
    )


def _denial(node_class: EC2NodeClass) -> str:
    """What the running broker's role lacks for launches from the class (commands try no launch)."""
    launchable = condition(node_class.status.conditions, names.LAUNCHABLE)
    lacks = ErrorClass.PERMISSION.policy.read_reason
    if launchable is None or (launchable.status, launchable.reason) != ("False", lacks):
        return ""
    current = launchable.observed_generation == node_class.metadata.generation
    return f"{launchable.reason}: {launchable.message}" if current else ""


def _inventory(
    classes: Iterable[EC2NodeClass], provider: AccountReads, now: datetime
) -> tuple[Inventory, dict[str, ProviderError]]:
    arns = set()
    for node_class in classes:
        with suppress(Unresolved):  # reported where the class is resolved
            arns.add(selection(node_class).group_arn)
    groups, errors = read_groups(provider, arns - {""})
    odcrs = {odcr.id: odcr for odcr in provider.reservations()}
    return Inventory(odcrs=odcrs, groups=groups, described=now), errors


def _row(
    claim: NodeClaim, result: Plan, inputs: PlanInputs, evictions: Iterable[DryEviction]
) -> dict[str, Any]:
    if claim.status.provider_id:
        slot = occupied_odcr(claim)
        decision = Decision(sentence=f"runs already: {claim.instance_id}{f' in {slot}' if slot else ''}")
    elif why := inputs.refused.get(claim.name):
        decision = unplanned(why)
    else:
        decision = decided(result, claim.uid)
    return {
        "claim": claim.name,
        "class": claim.spec.node_class_ref.name,
        "decision": decision.sentence,
        "pool": str(decision.option.pool) if decision.option else "-",
        "capacity_type": decision.option.pool.capacity_type if decision.option else "",
        "usd_hour": bill.usd_hour(decision.option) if decision.option else None,
        "then": [bill.alternative(option) for option in decision.rest] if decision.option else [],
        "why": _why(decision),
        "launches": decision.option is not None,
        "runs": bool(claim.status.provider_id),
        "pods": pods_of(claim),
        "evicts": [eviction.claim for eviction in evictions if eviction.preemptor == f"{CLAIM}{claim.name}"],
    }


def format_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows for a person."""
    return [
        {
            **row,
            "pool": plain(row["pool"]),
            "price": shown_price(row["capacity_type"], [row["usd_hour"]]) if row["launches"] else "-",
            "then": "\n".join(bill.alternatives(row["then"])),
            "why": plain(row["why"]),
        }
        for row in rows
    ]


def _why(decision: Decision) -> str:
    if decision.option is None:
        return decision.sentence
    return "; ".join(map(_because, decision.skipped)) or "the best option that it has"


def _because(skip: Skipped) -> str:
    text = because(skip.reason, skip.message, pool=str(skip.pool))
    return text if skip.reason in NAME_ANOTHER else f"{skip.pool.shown}: {text}"
