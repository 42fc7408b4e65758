"""A cluster's instances: the number of claims of each flavor, and the request of each claim.

Invariant: a cluster has as many claims as its quota comes to in whole instances (`reservations.sizing`). A
claim without an instance is replaced if its EC2NodeClass or its flavor's labels have changed. A claim's name
contains the cluster's uid and the lowest number that is free among its claims. A second create of the same
claim, after a crash or with a stale cache, therefore fails as already existing. A claim that is left out of
the cache counts as one that stays. A taint and a label keep other pods off the cluster's nodes. Its claims
draw from its reservation alone: from ODCRs, unless flavor or cluster require another capacity type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

from broker.apis import names
from broker.apis.core import NodeSelectorRequirement
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import ResourceFlavor
from broker.apis.label_names import by_present_names, stable
from broker.apis.meta import Json, is_true
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.types import ACCELERATORS, WELL_KNOWN
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.kube.conditions import owner_reference
from broker.kube.partial import PartialObject
from broker.lists import lists_by_key
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_objects import short
from broker.reservations.sizing import SizedQuota, supply
from broker.text import InvalidText, decode_whole
from providers.model import InstanceType

_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_LONGEST: Final = 40  # of the cluster's name in a claim's name, which becomes a node label
_HIGHEST: Final = 10**9
LAUNCH_LIMIT: Final = 64  # claims that wait for an instance, unless the ODCRs have more slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChanges:
    """The claims to make, as (number, flavor), and the claims to end, in this order."""

    create: tuple[tuple[int, str], ...] = ()
    delete: tuple[NodeClaim, ...] = ()


def claim_changes(
    sizes: Mapping[str, int],
    claims: Sequence[NodeClaim],
    left_out: Sequence[PartialObject] = (),
    *,
    launch_limit: int = LAUNCH_LIMIT,
) -> ClaimChanges:
    """The changes that lead from the existing claims, terminating ones included, to `sizes` by flavor.

    `launch_limit`: the limit of claims without an instance at a time, since a size is unchecked user input.
    """
    taken = {*map(number, claims), *map(number, left_out)}
    unread = Counter(map(flavor_name, left_out))
    numbers = (free for free in count() if free not in taken)
    room = launch_limit - sum(not claim.status.provider_id for claim in claims if not claim.deleting)
    create: list[tuple[int, str]] = []
    delete: list[NodeClaim] = []
    alive = lists_by_key((flavor_name(claim), claim) for claim in claims if not claim.deleting)
    for flavor in sorted({*sizes, *alive}):
        existing, target = alive.get(flavor, []), sizes.get(flavor, 0) - unread[flavor]
        delete += sorted(existing, key=_deletion_order)[: max(0, len(existing) - target)]
        for lowest in islice(numbers, max(0, min(target - len(existing), room))):
            create.append((lowest, flavor))
            room -= 1
    return ClaimChanges(create=tuple(create), delete=tuple(delete))


def more_than(sizes: Mapping[str, int], claims: Iterable[NodeClaim | PartialObject]) -> bool:
    """Whether a flavor has more claims than its size, terminating ones included."""
    counts = Counter(flavor_name(claim) for claim in claims)
    return any(value > sizes.get(flavor, 0) for flavor, value in counts.items())


def outdated(claim: NodeClaim, flavor: ResourceFlavor | None, node_class: str) -> bool:
    """Whether a claim without an instance is outdated: its class, or a label of its flavor, has changed.
    A claim's spec is immutable, so another claim must replace it."""
    if claim.deleting or claim.status.provider_id:
        return False
    requirements = {
        (requirement.key, *requirement.values)
        for requirement in claim.spec.requirements
        if requirement.operator == "In"
    }
    labels = flavor.spec.node_labels if flavor is not None else {}
    return claim.spec.node_class_ref.name != node_class or any(
        key in WELL_KNOWN and (key, value) not in requirements for key, value in labels.items()
    )


def name(cluster: DedicatedAICluster, claim_number: int) -> str:
    head = cluster.name[:_LONGEST].rstrip("-.").replace(".", "-")
    return f"{head}-{cluster.uid[:8]}-{claim_number}"


def claim_of(cluster: DedicatedAICluster, partial: PartialObject) -> bool:
    """Whether a left-out object is a claim of the cluster, by its name."""
    return partial.name == name(cluster, number(partial))


def number(claim: NodeClaim | PartialObject) -> int:
    tail = claim.name.rpartition("-")[2]
    try:
        return decode_whole(tail, least=0, most=_HIGHEST)
    except InvalidText:
        return -1


def flavor_name(claim: NodeClaim | PartialObject) -> str:
    return claim.annotations.get(names.TAG_FLAVOR, "")


def dedicated(cluster: DedicatedAICluster) -> str:
    """The value of the cluster's label and taint: its name, shortened if needed."""
    return short(cluster.name)


def claim(
    cluster: DedicatedAICluster,
    claim_number: int,
    *,
    demand: ClusterDemand,
    reserved: ReservationKey,
    flavor: ResourceFlavor,
    sized: SizedQuota,
    types: Mapping[str, InstanceType],
    node_class: str,
    priority: int,
) -> Json:
    """The body of one claim of the cluster."""
    requirements, labels = _requirements(flavor.spec.node_labels, demand)
    alike = sorted(type_name for type_name, count in sized.counts.items() if count == sized.count)
    keys = {requirement["key"] for requirement in requirements}
    for key, values in ((names.INSTANCE_TYPE, alike), (names.CAPACITY_TYPE, ["reserved"])):
        if key not in keys:
            requirements.append({"key": key, "operator": "In", "values": values})
    gpus = {
        resource: f"{amount:.0f}"
        for resource, amount in supply(types[sized.instance_type]).items()
        if resource in ACCELERATORS and amount and resource in demand.requests
    }
    taint = {"key": names.DEDICATED, "value": dedicated(cluster), "effect": "NoSchedule"}
    return {
        "metadata": {
            "name": name(cluster, claim_number),
            "labels": {**labels, names.DEDICATED: dedicated(cluster)},
            "annotations": {
                names.DRAWS_FROM: str(reserved),
                names.TAG_FLAVOR: flavor.name,
                names.PRIORITY: str(priority),
            },
            "ownerReferences": [owner_reference(cluster, block=False)],
        },
        "spec": {
            "nodeClassRef": {"group": names.BROKER, "kind": EC2NodeClass.KIND.kind, "name": node_class},
            "requirements": requirements,
            "taints": [taint, *(node_taint.wire() for node_taint in flavor.spec.node_taints)],
            "expireAfter": "Never",
            "resources": {"requests": gpus},
        },
    }


def takes_reserved(flavor: Mapping[str, str], demand: ClusterDemand) -> bool:
    """Whether claims of a flavor with these labels may launch into reserved instances."""
    requirements, _ = _requirements(flavor, demand)
    return all(
        ("reserved" in requirement.get("values", ())) is (requirement["operator"] == "In")
        for requirement in requirements
        if requirement["key"] == names.CAPACITY_TYPE
    )


def _requirements(flavor: Mapping[str, str], demand: ClusterDemand) -> tuple[list[Json], Json]:
    """The requirements on the instance, and the labels of its node."""
    labels: Json = {}
    requirements: list[Json] = []
    for key, value in {**by_present_names(demand.node_selector), **flavor}.items():
        if key in WELL_KNOWN:
            requirements.append({"key": key, "operator": "In", "values": [value]})
        else:
            labels[key] = value
    for requirement in _term(demand, flavor):
        if stable(requirement.key) in WELL_KNOWN:
            requirements.append(requirement.wire())
        elif requirement.operator == "In" and requirement.values:
            labels.setdefault(requirement.key, requirement.values[0])
    return requirements, labels


def _term(demand: ClusterDemand, flavor: Mapping[str, str]) -> tuple[NodeSelectorRequirement, ...]:
    """The first required node selector term that the flavor does not contradict."""
    node = demand.affinity.node_affinity
    required = node.required_during_scheduling_ignored_during_execution if node else None
    for term in required.node_selector_terms if required else ():
        if not any(
            requirement.operator == "In"
            and flavor.get(stable(requirement.key), requirement.values[0]) not in requirement.values
            for requirement in term.match_expressions
            if requirement.values
        ):
            return tuple(
                requirement for requirement in term.match_expressions if requirement.operator in _OPERATORS
            )
    return ()


def _deletion_order(claim: NodeClaim) -> tuple[bool, bool, int]:
    """The order of ending claims: not ready first, then not launched, then the highest number."""
    return is_true(claim, names.READY), bool(claim.status.provider_id), -number(claim)
