"""The NodeClaim of a packed machine.

The name follows from the pods and the pool: after a stop between two creations, the same claim is not made
twice. Types are listed cheapest first, at most 60; the launch plan chooses among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.label_names import stable
from broker.apis.meta import is_true
from broker.apis.units import add
from broker.capacity.options import capacity_types
from broker.capacity.types import WELL_KNOWN
from broker.controllers.provisioning.from_pool import listed_types, one_of, pool_claim
from broker.controllers.provisioning.pools import ServedPool
from broker.controllers.provisioning.reservation_rules import keys_read, reservation_rules
from broker.placement.claims import minimums
from broker.placement.model import PodInfo
from broker.placement.packing_model import MachineOption, PackedBin
from broker.placement.quantities import PODS
from broker.text import format_time

_SUFFIX: Final = 8
_CHOSEN: Final = frozenset({names.INSTANCE_TYPE, names.ZONE, names.CAPACITY_TYPE})


def claim_name(pool: str, pods: Iterable[str], taken: Collection[str] = ()) -> str:
    """The pool's name and a hash of the pods; another one if that one is taken."""
    text = ",".join(sorted(pods))
    for attempt in range(len(taken) + 1):
        digest = sha256(f"{pool}/{text}/{attempt}".encode()).hexdigest()[:_SUFFIX]
        if (name := f"{pool[: 253 - _SUFFIX - 1]}-{digest}") not in taken:
            break
    return name


def spent(claim: NodeClaim) -> bool:
    """Whether the claim serves no pods that still wait: it is ending, or its node's room is for any pod.

    Its name is taken. The name of a claim in flight is not: it keeps its pods from a second claim.
    """
    return claim.deleting or is_true(claim, names.INITIALIZED_CONDITION)


def manifest(
    name: str,
    packed: PackedBin,
    pool: ServedPool,
    options: Sequence[MachineOption],
    *,
    gang_claims: int,
    since: datetime | None = None,
) -> dict[str, Any]:
    """The claim's body. `options`: all that packing had.

    `gang_claims`: the number of claims of the pods' gang. `since`: when claims before it began to wait.
    """
    template = pool.pool.spec.template
    own = packed.option.node.labels
    chosen = {key: own[key] for key in pool.requirements if key in own and key not in WELL_KNOWN}
    annotations = {names.PODS: ",".join(sorted(pod.key for pod in packed.pods))}
    first, offered = packed.pods[0], alike(options, packed.option)
    priority = max(pod.priority for pod in packed.pods)
    if priority and names.PRIORITY not in template.metadata.annotations:
        annotations[names.PRIORITY] = str(priority)
    if first.drawing.named:
        annotations[names.DRAWS_FROM] = first.drawing.named
    if first.gang:
        annotations |= {names.GANG: first.gang, names.GANG_SIZE: str(gang_claims)}
    if since is not None:
        annotations[names.WAITING_SINCE] = format_time(since)
    return pool_claim(
        pool.pool,
        name,
        requirements=narrowed(
            pool.pool,
            sorted(alternatives(packed, offered), key=lambda item: (item.cost, item.instance_type)),
            chosen,
            [pod.info for pod in packed.pods],
            capacity_types(pool.requirements),
            offered=offered,
        ),
        requests=total_requests((pod.info for pod in packed.pods), packed.option.daemons),
        labels=chosen,
        annotations=annotations,
    )


def narrowed(
    pool: NodePool,
    machines: Sequence[MachineOption],
    chosen: Mapping[str, str],
    pods: Iterable[PodInfo],
    kinds: Iterable[str],
    *,
    offered: Sequence[MachineOption] = (),
) -> list[dict[str, Any]]:
    """The pool's requirements, narrowed to the machines that the pods fit, the preferred ones in front.

    `chosen`: labels of the user's own. `kinds`: the capacity types, unless the pods read that label.
    `offered`: all machines of the pool with these labels, also those that the pods do not fit. If the pods
    fit fewer values than minValues requires, it is lowered, as by Karpenter's policy BestEffort
    (https://karpenter.sh/docs/concepts/nodepools/#min-values): otherwise no machine would come.
    """
    infos = [*pods]
    required = pool.spec.template.spec.requirements
    least = dict(minimums(required))
    by_type: dict[str, dict[str, set[str]]] = {}
    for machine in machines:
        type_values = by_type.setdefault(machine.instance_type, {})
        for key in least:
            if (value := machine.node.labels.get(key)) is not None:
                type_values.setdefault(key, set()).add(value)
    types = listed_types([*by_type], least, by_type)
    fitting = [machine for machine in machines if machine.instance_type in types]
    if names.CAPACITY_TYPE in keys_read(infos):
        kinds = {machine.capacity_type for machine in fitting}
    kinds = {*kinds} - _unfit_kinds(fitting, offered)
    listed: list[dict[str, Any]] = []
    for item in required:
        values = {machine.node.labels.get(item.key) for machine in fitting} if item.min_values else set()
        count = min(item.min_values or 0, len(values - {None}))
        if item.key not in _CHOSEN and item.key not in chosen:
            listed.append(item.model_copy(update={"min_values": count or None}).wire())
        elif item.key == names.INSTANCE_TYPE and count:
            listed.append({"key": item.key, "operator": "Exists", "minValues": count})
    listed += [one_of(key, [value]) for key, value in sorted(chosen.items())]
    listed.append(one_of(names.INSTANCE_TYPE, types))
    listed.append(one_of(names.ZONE, sorted({machine.zone for machine in fitting})))
    listed.append(one_of(names.CAPACITY_TYPE, sorted(kinds)))
    return [*listed, *reservation_rules(infos, fitting, offered)]


def meets_minimums(pool: NodePool, machines: Sequence[MachineOption]) -> bool:
    """Whether the machines have as many values as minValues of the pool asks for: no saving lowers it.

    As Karpenter's consolidation (sigs.k8s.io/karpenter pkg/controllers/disruption/consolidation.go).
    """
    return all(
        len({machine.node.labels.get(key) for machine in machines} - {None}) >= least
        for key, least in minimums(pool.spec.template.spec.requirements)
    )


def _unfit_kinds(fitting: Sequence[MachineOption], offered: Iterable[MachineOption]) -> set[str]:
    """The capacity types that the pods do not fit, such as one with more DaemonSets.

    That of reservations stays: the rules about reservations leave out those that the pods do not fit.
    """
    types, zones = {item.instance_type for item in fitting}, {item.zone for item in fitting}
    return {
        option.capacity_type
        for option in offered
        if not option.source and option.instance_type in types and option.zone in zones
    } - {machine.capacity_type for machine in fitting}


def alternatives(packed: PackedBin, offered: Iterable[MachineOption]) -> list[MachineOption]:
    """Options such that the pods fit every offered option of these types in these zones. `offered`: those of
    the same claims.

    Reservations that the pods do not fit do not count: the claim leaves them out.
    """
    own = packed.option
    good = set(map(id, packed.also))
    sources = {o.source for o in packed.also}
    zones = {o.zone for o in packed.also if o.instance_type == own.instance_type} | {own.zone}
    bad = {
        o.instance_type
        for o in offered
        if o.zone in zones and id(o) not in good and (not o.source or o.source in sources)
    }
    if own.instance_type in bad:  # some zone or capacity type of the own type does not fit: the own one only
        return [o for o in packed.also if o.instance_type == own.instance_type and o.zone == own.zone]
    return [o for o in packed.also if o.zone in zones and o.instance_type not in bad]


def alike(options: Iterable[MachineOption], own: MachineOption) -> list[MachineOption]:
    """The options that claims of the same labels and the same reservation's owner get."""
    labels = {key: value for key, value in own.node.labels.items() if stable(key) not in WELL_KNOWN}
    return [
        option
        for option in options
        if option.pool == own.pool
        and option.drawing == own.drawing
        and labels.items() <= option.node.labels.items()
    ]


def total_requests(pods: Iterable[PodInfo], daemons: Mapping[str, int]) -> dict[str, int]:
    """The requests of a claim for these pods, beside those of DaemonSets."""
    total = {**daemons}
    for pod in pods:
        add(total, {PODS: 1})
        add(total, pod.requests)
    return total
