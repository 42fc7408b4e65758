"""Matches idle slots with what waits: which claim or pod could have which slot, and what stands between.

Only what Kubernetes shows is compared: type, zone, capacity type, the class's target and the owner. Whether
the pods also fit the machine is for `explain claim` and `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.shortages import quota_family
from broker.commands.situation import Situation, draw_rights, drawn_by_pod, is_brokers
from broker.quota.resolve import UnresolvedName
from broker.quota.usage import Reserved
from broker.reservations.sizing import ACCELERATORS
from broker.reservations.spec import reserved_of
from broker.text import abridged, counted

MOST_NAMED: Final = 3
_FAMILY: Final = "karpenter.k8s.aws/instance-family"
_PLAIN_FAMILIES: Final = frozenset({"standard", "x", "u", "hpc"})  # of EC2's limits, without accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A claim or a pod that waits. `alternatives`: it accepts any one of these.

    `node_class`: that of a claim; a pod has none yet. `draws_from`: the owner that it draws from, or why it
    may not; None if it names none. `command` shows its reasons.
    """

    kind: str
    name: str
    alternatives: tuple[Requirements, ...]
    command: str
    node_class: str = ""
    node_pool: str = ""
    draws_from: Reserved | UnresolvedName | None = None
    accelerated: bool = False


def waiters(situation: Situation) -> Iterator[Waiter]:
    """The claims without an instance, of either launcher, then the pods without a claim."""
    rights = draw_rights(situation)
    for claim in situation.waiting_claims:
        yield _of_claim(claim, rights.of_claim(claim))
    for pod in situation.pods:
        yield _of_pod(pod, drawn_by_pod(rights, pod))


def matches(situation: Situation) -> Iterator[tuple[str, str]]:
    """(command, reason) rows: each idle reservation with the waiters that could have its slots."""
    owners = {
        cloud.id: reserved_of(reservation)
        for reservation in situation.all_reservations
        for cloud in reservation.status.cloud_reservations
    }
    waiting = list(waiters(situation))
    for mirror in situation.mirrors:
        if not mirror.status.available or mirror.status.state != "active":
            continue
        groups: dict[tuple[tuple[str, str], ...], list[Waiter]] = {}
        for waiter in waiting:
            between = _between(waiter, mirror, owners.get(mirror.name))
            if between is not None:
                groups.setdefault(between, []).append(waiter)
        for between, alike in sorted(groups.items(), key=lambda group: len(group[0])):
            yield _row(mirror, between, alike)


def _row(
    mirror: OnDemandCapacityReservation, between: tuple[tuple[str, str], ...], alike: list[Waiter]
) -> tuple[str, str]:
    status, first = mirror.status, alike[0]
    named = abridged([waiter.name for waiter in alike], MOST_NAMED)
    kind = first.kind if len(alike) == 1 else f"{len(alike)} {first.kind}s"
    slots = counted(status.available, "free slot")
    why = "; ".join(text for _, text in between) or "nothing known stands between"
    command = next((command for command, _ in between if command), first.command)
    return (
        command,
        f"{kind} {named} could have a slot of {mirror.name} ({slots}, {status.type} in {status.zone}): {why}",
    )


def _between(
    waiter: Waiter, mirror: OnDemandCapacityReservation, owner: Reserved | None
) -> tuple[tuple[str, str], ...] | None:
    """(command, obstacle) of what stands between; None if the slot is of another type than it takes."""
    labels = _labels(mirror)
    unmet = min((r.unmet(labels, among=labels) for r in waiter.alternatives), key=len, default=[])
    if {names.INSTANCE_TYPE, _FAMILY} & {*unmet}:
        return None
    if waiter.accelerated and quota_family(mirror.status.type) in _PLAIN_FAMILIES:
        return None
    obstacles = []
    requirements = min(waiter.alternatives, key=lambda r: len(r.unmet(labels, among=labels)))
    edit = f"kubectl edit nodepool {waiter.node_pool}" if waiter.node_pool else waiter.command
    for key in unmet:
        values = requirements.values(key)
        allowed = ", ".join(sorted(values)) if values else requirements.describe(key)
        obstacles.append((edit, f"its {_NOUNS.get(key, key)} may be {allowed}, not {labels[key]}"))
    if waiter.node_class and waiter.node_class not in mirror.status.node_classes:
        obstacles.append(
            (
                f"kubectl edit ec2nodeclass {waiter.node_class}",
                f"the target of its class {waiter.node_class} is another reservation",
            )
        )
    if owner is not None and waiter.draws_from != owner:
        given = waiter.draws_from
        whose = f"it draws from {given}" if given else f"no {names.DRAWS_FROM} names it"
        if isinstance(given, UnresolvedName):
            whose = given.message
        obstacles.append(
            (f"capacity-broker explain reservation {owner}", f"the slot's owner is {owner}, and {whose}")
        )
    return tuple(obstacles)


_NOUNS: Final[Mapping[str, str]] = {
    names.ZONE: "zone",
    names.CAPACITY_TYPE: "capacity type",
    names.RESERVATION_ID: "reservation",
}


def _labels(mirror: OnDemandCapacityReservation) -> Mapping[str, str]:
    """The labels that a node in the reservation certainly has."""
    status = mirror.status
    return {
        names.INSTANCE_TYPE: status.type,
        _FAMILY: status.type.partition(".")[0],
        names.ZONE: status.zone,
        names.CAPACITY_TYPE: "reserved",
        names.RESERVATION_ID: mirror.name,
    }


def _of_claim(claim: NodeClaim, drawn: Reserved | UnresolvedName | None) -> Waiter:
    written = [(r.key, r.operator, r.values) for r in claim.spec.requirements]
    of_broker = is_brokers(claim)
    return Waiter(
        kind="claim" if of_broker else "claim of Karpenter",
        name=claim.name,
        alternatives=(_requirements(written),),
        command=f"capacity-broker explain claim {claim.name}"
        if of_broker
        else f"kubectl describe nodeclaim {claim.name}",
        node_class=claim.spec.node_class_ref.name,
        node_pool=claim.labels.get(names.NODEPOOL, ""),
        draws_from=drawn,
        accelerated=bool({*ACCELERATORS} & {*claim.spec.resources.requests}),
    )


def _of_pod(pod: Pod, drawn: Reserved | UnresolvedName | None) -> Waiter:
    selector = [(key, "In", [value]) for key, value in pod.spec.node_selector.items()]
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    terms = [
        [(r.key, r.operator, r.values) for r in term.match_expressions]
        for term in (required.node_selector_terms if required else ())
    ]
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    wanted = {name for container in containers for name in container.resources.requests}
    return Waiter(
        kind="pod",
        name=pod.key,
        alternatives=tuple(_requirements([*selector, *term]) for term in terms or [[]]),
        command=f"kubectl describe pod -n {pod.namespace} {pod.name}",
        draws_from=drawn,
        accelerated=bool({*ACCELERATORS} & wanted),
    )


def _requirements(written: Iterable[tuple[str, str, Iterable[str]]]) -> Requirements:
    """Those that can be read; the API server refuses the others."""
    try:
        return Requirements.of([(key, operator, [*values]) for key, operator, values in written])
    except InvalidRequirement:
        return Requirements()
