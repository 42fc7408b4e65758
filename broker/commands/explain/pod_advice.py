"""The one command that helps a pod that waits, and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from broker.apis import names
from broker.apis.meta import condition
from broker.apis.static_pools import REPLICAS_MET
from broker.commands.explain.advice import (
    Rule,
    allows_purchase,
    broken,
    excluded,
    held,
    lent,
    limits,
    matches,
    no_fallback,
    quotas,
)
from broker.controllers.provisioning.usage import NODES, node_room
from broker.oncall.journal import repeated
from broker.oncall.situation import Situation
from broker.oncall.waiters import own_requirements
from broker.oncall.waiting_pods import WaitingPod
from broker.oncall.waiting_reasons import (
    GATED,
    NO_NODEPOOL,
    NODE_NOT_READY,
    NODEPOOL_NOT_READY,
    RESERVATIONS_FULL,
    STATIC_NODEPOOL,
)
from broker.placement.pool_choice import NO_MACHINE
from broker.placement.type_reasons import over_limits
from providers.launch import RESERVATIONS_ONLY


def _reserved_only(situation: Situation) -> Iterator[tuple[str, str]]:
    """Classes that forbid the fallback which their NodePools allow."""
    for node_class in situation.classes:
        spec = node_class.reservation_settings.spec
        if spec is not None and spec.preference == RESERVATIONS_ONLY:
            yield (
                f"kubectl edit ec2nodeclass {node_class.name}",
                f"its capacityReservationPreference is {spec.preference}: with open the pod falls back",
            )


def _insists(situation: Situation, pod: WaitingPod) -> bool:
    """Whether the pod's own selector or affinity takes reservations only."""
    return not any(
        own.allows(names.CAPACITY_TYPE, kind) and not own.values(names.RESERVATION_ID)
        for item in situation.pods
        if item.key == pod.key
        for own in own_requirements(item)
        for kind in ("on-demand", "spot")
    )


def _by_options(
    situation: Situation, pod: WaitingPod, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    if any(row["verdict"] == "next" for row in rows):
        own = (claim for claim in situation.claims if claim.name == pod.claim)
        if (refusal := next(filter(None, map(repeated, own)), None)) is not None:
            yield f"capacity-broker explain claim {pod.claim}", f"EC2 refused the launch: {refusal.next_step}"
        yield "capacity-broker watch", "an option is free: it shows the launch"
    elif begins := next((row["message"] for row in rows if row["verdict"] == "soon"), ""):
        yield "capacity-broker watch", f"{begins}: it shows the launch"
    elif rows and pod.node_pool and {row["capacity_type"] for row in rows} == {"reserved"}:
        pool, pool_buys = pod.node_pool, allows_purchase(situation, pod.node_pool)
        if _insists(situation, pod):
            of_pool = f"NodePool {pool} also buys" if pool_buys else f"so does NodePool {pool}"
            yield pod.edit, f"its node selector or affinity takes reservations only; {of_pool}"
        elif not pool_buys:
            yield (
                f"kubectl edit nodepool {pool}",
                f"it may only take reservations: with on-demand in {names.CAPACITY_TYPE} the pod falls back",
            )
        else:
            yield from _reserved_only(situation)
    elif not rows and pod.reason == NO_MACHINE and not allows_purchase(situation, pod.node_pool):
        fallback = f"with on-demand in {names.CAPACITY_TYPE} the pod falls back"
        yield f"kubectl edit nodepool {pod.node_pool}", f"its class has no reservation for it: {fallback}"
    elif pod.node_pool and _all_refused(situation, rows):
        more = "more instance types or zones in its requirements give the pod more of them"
        yield f"kubectl edit nodepool {pod.node_pool}", f"EC2 refuses each option now: {more}"


def _all_refused(situation: Situation, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether EC2 has no capacity for any of the options."""
    closed = rows and all(row["verdict"] in ("skipped", "unfit") for row in rows)
    return bool(closed) and any(shortage.class_.policy.full for shortage in situation.shortages)


def _over_limit(pod: WaitingPod) -> Iterator[tuple[str, str]]:
    own_first = sorted(over_limits(pod.message), key=lambda limited: limited[0] != pod.node_pool)
    for pool, resource in own_first:
        yield f"kubectl edit nodepool {pool}", f"its limit of {resource} is reached: raise it in spec.limits"


def _of_static_pool(situation: Situation, pod: WaitingPod) -> Iterator[tuple[str, str]]:
    """What gives a static NodePool more nodes: its number, its limit, or its reservations."""
    pool = next((item for item in situation.pools if item.name == pod.node_pool), None)
    if pod.reason != STATIC_NODEPOOL or pool is None:
        return
    edit, replicas = f"kubectl edit nodepool {pool.name}", pool.spec.replicas
    met, every = condition(pool.status.conditions, REPLICAS_MET), (situation.whole or situation).claims
    limited = node_room(pool, every) == 0
    reached = f"spec.limits.nodes is {pool.spec.limits.get(NODES)}, and it has as many"
    if limited and replicas is None:
        yield edit, f"{reached}: raise it, and add slots to its reservations if none is free"
    elif limited:
        short = met is not None and met.status == "False"
        yield edit, f"{reached}: raise it{'' if short else f', and spec.replicas, which is {replicas}'}"
    elif met is not None and met.status == "True" and replicas is not None:
        yield edit, f"spec.replicas is {replicas}, and it has as many: raise it"
    elif met is not None and met.status == "True":
        yield "capacity-broker inventory", "it has a node in each of its slots: add slots to its reservations"
    else:
        yield f"kubectl describe nodepool {pool.name}", f"its condition {REPLICAS_MET} has the cause"


# The rules that help a pod, the most useful first.
_OF_A_POD: Final[tuple[Rule, ...]] = (broken, held, limits, quotas, matches, lent, no_fallback)
# By reason: the command of the others, with `{pod}`, `{pool}` and `{claim}`; and why it helps.
_BY_REASON: Final[Mapping[str, tuple[str, str]]] = {
    GATED: ("kubectl describe pod {pod}", "its scheduling gates, and the events of their controller"),
    NO_NODEPOOL: (
        "kubectl get nodepools -o yaml",
        "none, or their requirements allow no type of EC2: apply one as in the folder examples",
    ),
    NODEPOOL_NOT_READY: ("kubectl describe nodepool {pool}", "its conditions have the field and the remedy"),
    RESERVATIONS_FULL: ("capacity-broker inventory", "all reservations with their owners and free slots"),
    NODE_NOT_READY: ("capacity-broker explain claim {claim}", "the conditions of the claim and its node"),
}


def best_advice(
    situation: Situation, pod: WaitingPod, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The one command that helps a pod that waits. `situation`: the part about it; `rows`: its options."""
    if pod.remedy:
        return [{"command": pod.edit, "why": pod.remedy}]
    of_pod = [row for rule in _OF_A_POD for row in rule(situation)]
    own_pool = (*_over_limit(pod), *_of_static_pool(situation, pod))
    rules = (*own_pool, *of_pod, *_by_options(situation, pod, rows), *excluded(situation))
    command, why = next(iter(rules), ("", ""))
    if command in ("", pod.command):  # the page that this is for names another one
        usual = ("kubectl describe pod {pod}", "its conditions and events in full")
        if pod.claim:
            usual = ("capacity-broker explain claim {claim}", "every attempt, with EC2's answers")
        command, usually = _BY_REASON.get(pod.reason, usual)
        named, why = f"-n {pod.namespace} {pod.name}", why or usually
        command = command.format(pod=named, pool=pod.node_pool, claim=pod.claim)
    return [{"command": command, "why": why}]
