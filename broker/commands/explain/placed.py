"""The slot of a pod that has its node: claim, reservation, owner, price, and the next step of the node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import true_condition
from broker.commands.explain.event_facts import concerned, event_rows
from broker.commands.explain.explanation import Explanation
from broker.commands.explain.slot_rows import end_of
from broker.commands.output import age
from broker.oncall.broken import BrokenNode
from broker.oncall.situation import Situation
from broker.oncall.slot_holders import SlotUse, holder, leaving, workloads_on
from broker.placement.disruption_pods import active, annotated, protected
from broker.reservations.claims import occupied_odcr
from broker.text import abridged, format_time

MOST_EVENTS: Final = 5


def placed(situation: Situation, pod: Pod) -> Explanation:
    claim = claim_of_node(situation, pod)
    node = f"on node {pod.spec.node_name}" if pod.spec.node_name else "without a node"
    state = "is being deleted" if pod.deleting else pod.status.phase.lower() or "bound"
    since = pod.status.start_time or pod.metadata.creation_timestamp
    broken = [row for row in situation.broken if claim is not None and row.claim == claim.name]
    use = situation.slot_uses.get(occupied_odcr(claim)) if claim is not None else None
    return Explanation(
        subject=f"Pod {pod.key}",
        headline=f"{state} {node}{f' for {age(situation.now - since)}' if since else ''}",
        parts={
            "placed": [place_row(situation, claim)] if claim is not None else [],
            "do": _command_of(pod, claim, broken),
            "events": last_events(situation, pod, claim),
        },
        next=[*_next_of_node(pod, claim, broken, use, _kept_by(situation, claim) if claim else ())],
        unread=situation.unread,
    )


def claim_of_node(situation: Situation, pod: Pod) -> NodeClaim | None:
    """The claim that made the pod's node."""
    node = pod.spec.node_name
    return next((claim for claim in situation.claims if node and claim.status.node_name == node), None)


def place_row(situation: Situation, claim: NodeClaim) -> dict[str, Any]:
    """The slot of a claim with an instance: its reservation, owner and price, and its pods."""
    slot = occupied_odcr(claim)
    use = situation.slot_uses.get(slot)
    pods = workloads_on(claim, situation.pods)
    user = holder(claim, pods, situation.rights.of_claim, use)
    type_, zone = claim.labels.get(names.INSTANCE_TYPE, ""), claim.labels.get(names.ZONE, "")
    kind = claim.labels.get(names.CAPACITY_TYPE, "")
    owned = f" of {use.owner}" if use is not None and use.owner else ""
    return {
        "claim": claim.name,
        "node": claim.status.node_name,
        "nodepool": claim.node_pool,
        "capacity_type": kind,
        "instance_type": type_,
        "zone": zone,
        "reservation": slot,
        "owner": use.owner if use is not None else "",
        "draws_from": user.owner,
        "pods": [pod.key for pod in pods],
        "usd_hour": situation.price(claim),
        "since": user.since and format_time(user.since),
        "where": f"{claim.name}\n{type_} in {zone}",
        "slot": f"{slot or 'outside reservations'}{owned}\n{kind}".rstrip(),
        "beside": abridged([pod.key for pod in pods], 3),
        **end_of(user),
    }


def _next_of_node(
    pod: Pod,
    claim: NodeClaim | None,
    broken: Iterable[BrokenNode],
    use: SlotUse | None,
    kept: Sequence[str],
) -> Iterator[str]:
    """`kept`: the objects with do-not-disrupt that keep the node, for which no event is recorded."""
    if pod.ended:
        yield "nothing: the pod has ended"
    elif claim is None:
        yield "nothing: no NodeClaim made its node"
    elif rows := [*broken]:
        yield from (f"{row.sign}: {row.next}" for row in rows)
    elif why := leaving(claim):
        yield f"NodeClaim {claim.name} {why}"
    elif use and use.drains and use.ends:
        drain, end = format_time(use.drains), format_time(use.ends)
        yield f"its node drains from {drain} on, before Capacity Block {use.id} ends at {end}"
    elif drifted := true_condition(claim, names.DRIFTED):
        replaced = f"its node is replaced once {_until(kept)}"
        yield f"NodeClaim {claim.name} has drifted ({drifted.reason}): {replaced}"
    else:
        yield "nothing: its node stays"


def _kept_by(situation: Situation, claim: NodeClaim) -> list[str]:
    pods = [
        f"pod {pod.key}"
        for pod in situation.pods
        if pod.spec.node_name == claim.status.node_name and active(pod) and protected(pod, situation.now)
    ]
    nodes = [node for node in situation.nodes if node.spec.provider_id == claim.status.provider_id]
    return [*(f"{item.KIND.kind} {item.name}" for item in annotated([claim, *nodes])), *pods]


def _until(kept: Sequence[str]) -> str:
    if kept:
        return f"the annotation {names.DO_NOT_DISRUPT} of {abridged(kept, 3)} no longer keeps it"
    return "its pods have room elsewhere, and the budgets of its pods and of its NodePool allow it"


def _command_of(pod: Pod, claim: NodeClaim | None, broken: Sequence[BrokenNode]) -> list[dict[str, Any]]:
    if broken:
        row = broken[0]
        return [{"command": f"kubectl describe node {row.node}", "why": f"it is broken: {row.sign}"}]
    if claim is not None:
        return [{"command": f"capacity-broker explain claim {claim.name}", "why": "how it got its instance"}]
    return [{"command": f"kubectl describe pod -n {pod.namespace} {pod.name}", "why": "its state and events"}]


def last_events(situation: Situation, pod: Pod, claim: NodeClaim | None) -> list[dict[str, Any]]:
    """The last events of the broker, of Karpenter and of the scheduler about the pod and its claim."""
    about = {(Pod.KIND.kind, pod.key)} | ({(NodeClaim.KIND.kind, claim.name)} if claim is not None else set())
    events = (*situation.events, *situation.karpenter_events, *situation.scheduler_events)
    return event_rows((event for event in events if concerned(event) in about), MOST_EVENTS)
