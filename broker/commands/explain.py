"""`capacity-broker explain claim NAME`: the attempts for a claim, in order, and the reason of its state.

The attempts are read from the claim alone: its conditions, and the attempts that the broker wrote on it. So
that part works for every reader of NodeClaims, with the broker up or down. A waiting claim is also planned
again with present data, which calls EC2. If EC2 cannot be called, the answer reports it and leaves that
part out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition
from broker.capacity.model import DEFAULT_OVERHEAD, Overhead
from broker.commands.decision import because
from broker.commands.explain_options import Outlook, outlook
from broker.commands.output import short
from broker.controllers.nodeclaim.report import ATTEMPTS
from broker.controllers.nodeclaim.status import BROKER_CONDITIONS, instance_id
from broker.controllers.preemption.once import Entitle
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.oncall.journal import load
from providers.base import CapacityProvider
from providers.model import ProviderError

ATTEMPT_COLUMNS = {"step": "#", "when": "WHEN", "outcome": "OUTCOME", "what": "POOL, AND RESULT"}
OPTION_COLUMNS = {"step": "#", "verdict": "VERDICT", "free": "FREE", "what": "OPTION, AND WHY NOT"}
# Alike options and attempts beyond this are one line with a count.
ALIKE = 3


def claim(client: Client, name: str) -> NodeClaim:
    """Raises ValueError, which names those that are meant perhaps, and ApiError."""
    try:
        return NodeClaim.decode(client.get(NodeClaim.KIND, name))
    except NotFound as error:
        there = sorted(each["metadata"]["name"] for each in client.list(NodeClaim.KIND)[0])
        if meant := get_close_matches(name, there, n=3):
            shown = f"did you mean {' or '.join(meant)}?"
        else:
            more = f" and {len(there) - 3} more" if len(there) > 3 else ""
            shown = f"its claims are {', '.join(there[:3])}{more}" if there else "there is none at all"
        raise ValueError(
            f"no NodeClaim {name!r} in this cluster: {shown} (kubectl get nodeclaims; they have no namespace)"
        ) from error


def attempts(one: NodeClaim) -> list[dict[str, Any]]:
    """One row an attempt, oldest first."""
    recorded = load(
        one.annotations.get(ATTEMPTS, ""), claim=one.name, node_class=one.spec.node_class_ref.name
    )
    return [
        {
            "at": f"{attempt.at:%Y-%m-%dT%H:%M:%SZ}",
            "pool": str(attempt.pool),
            "also": [str(pool) for pool in attempt.also],
            "outcome": str(attempt.outcome),
            "code": attempt.code,
            "class": str(attempt.class_ or ""),
            "message": attempt.message,
            "instance": attempt.instance_id,
            "request_id": attempt.request_id,
            "next": attempt.next_step,
        }
        for attempt in recorded
    ]


def prospects(
    one: NodeClaim,
    client: Client,
    provider: Callable[[], CapacityProvider],
    *,
    now: datetime,
    overhead: Overhead = DEFAULT_OVERHEAD,
    entitle: Callable[[CapacityProvider], Entitle] | None = None,
) -> Outlook | None:
    """The options of a waiting claim; None for a claim with an instance, or of another launcher."""
    if one.status.provider_id or one.deleting or one.spec.node_class_ref.group != names.BROKER:
        return None
    claims, _ = client.list(NodeClaim.KIND)
    classes, _ = client.list(EC2NodeClass.KIND)
    try:
        asked = provider()
        return outlook(
            one,
            (NodeClaim.decode(each) for each in claims),
            (EC2NodeClass.decode(each) for each in classes),
            asked,
            now=now,
            overhead=overhead,
            entitle=entitle(asked) if entitle is not None else None,
        )
    except ProviderError as error:
        return Outlook(decision=f"unknown, because EC2 cannot be read: {error}")


def document(one: NodeClaim, found: Outlook | None) -> dict[str, Any]:
    """Everything, for a machine."""
    told: dict[str, Any] = {
        "claim": one.name,
        "class": one.spec.node_class_ref.name,
        "instance": instance_id(one),
        "provider_id": one.status.provider_id,
        "node": one.status.node_name,
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
            for type_ in BROKER_CONDITIONS
            if (c := condition(one.status.conditions, type_))
        ],
        "attempts": attempts(one),
    }
    if found is not None:
        told |= {"decision": found.decision, "options": list(found.rows)}
    return told


def headline(one: NodeClaim) -> list[str]:
    """Where the claim stands, in a few lines."""
    ref = one.spec.node_class_ref
    lines = [f"NodeClaim {one.name}, class {ref.name or '(none)'}"]
    if ref.group != names.BROKER:
        lines.append(f"  not the broker's: spec.nodeClassRef.group is {ref.group!r}, not {names.BROKER!r}")
    if one.deleting:
        lines.append(f"  deleted at {one.metadata.deletion_timestamp:%Y-%m-%dT%H:%M:%SZ}")
    if one.status.provider_id:
        lines.append(
            f"  instance {instance_id(one)} ({one.status.provider_id}), "
            f"node {one.status.node_name or '(none yet)'}"
        )
    for type_ in BROKER_CONDITIONS:
        if found := condition(one.status.conditions, type_):
            text = f"  {type_}={found.status} {found.reason}"
            lines.append(f"{text}: {found.message}" if found.message else text)
    return lines


def told_attempts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For a person: a pool's ARN, EC2's words and its request id need lines of their own."""

    def alike(row: Mapping[str, Any]) -> tuple[object, ...]:
        return row["outcome"], row["code"], row["class"], row["next"], row["instance"]

    found = []
    for step, group in _grouped(rows, alike):
        row = group[-1]
        more = len({pool for each in group for pool in (each["pool"], *each["also"])}) - 1
        times = f"{len(group)} times, last\n" if len(group) > 1 else ""
        lines = (
            short(row["pool"]) + (f" and {more} more pools" if more else ""),
            ": ".join(filter(None, (row["code"], row["instance"] or row["message"]))),
            row["request_id"] and f"AWS request {row['request_id']}",
            row["next"] and f"then: {row['next']}",
        )
        found.append(
            {
                "step": step,
                "when": times + row["at"].replace("T", " ")[5:],
                "outcome": row["outcome"],
                "what": "\n".join(filter(None, lines)),
            }
        )
    return found


def told_options(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For a person: options that differ in nothing but their name are one line."""

    def alike(row: Mapping[str, Any]) -> tuple[object, ...]:
        return row["verdict"], row["reason"], row["class"], row["capacity_type"]

    found = []
    for step, group in _grouped(rows, alike):
        head, count = group[0], len(group)
        why = because(head["reason"], head["message"], pool=head["pool"])
        first, last = short(head["pool"]), short(group[-1]["pool"])
        what = f"{first} to {last}, {count} options" if count > 1 else first
        alike_too = f" (and {count - 1} alike)" if count > 1 else ""
        found.append(
            {
                "step": step,
                "verdict": head["verdict"],
                "free": None if head["free"] is None else sum(row["free"] for row in group),
                "what": "\n".join(filter(None, (what, why + alike_too if why else ""))),
            }
        )
    return found


def _grouped(
    rows: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], object]
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Step and rows of each line: one, or more than ALIKE neighbours of one key."""
    step = 1
    for _, members in groupby(rows, key=key):
        group = list(members)
        if len(group) > ALIKE:
            yield f"{step}-{step + len(group) - 1}", group
        else:
            yield from ((str(step + offset), [row]) for offset, row in enumerate(group))
        step += len(group)
