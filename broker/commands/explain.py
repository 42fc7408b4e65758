"""`capacity-broker explain claim NAME`: what was tried for a claim, in order, and why it is where it is.

It reads the claim alone: its conditions and the attempts that the broker wrote on it, so it works for
anybody who may read NodeClaims, with the broker up or down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.controllers.nodeclaim.report import ATTEMPTS
from broker.controllers.nodeclaim.status import OURS, instance_id
from broker.kube.client import Client
from broker.oncall.journal import load

COLUMNS = {"step": "#", "at": "WHEN", "outcome": "OUTCOME", "what": "WHERE, AND WHAT CAME OF IT"}


def claim(client: Client, name: str) -> NodeClaim:
    """Raises NotFound, ApiError."""
    return NodeClaim.decode(client.get(NodeClaim.KIND, name))


def rows(one: NodeClaim) -> list[dict[str, Any]]:
    """One row an attempt, oldest first."""
    attempts = load(
        one.annotations.get(ATTEMPTS, ""), claim=one.name, node_class=one.spec.node_class_ref.name
    )
    return [
        {
            "step": number,
            "at": f"{attempt.at:%Y-%m-%d %H:%M:%SZ}",
            "pool": attempt.pool,
            "outcome": str(attempt.outcome),
            "code": attempt.code,
            "class": str(attempt.class_ or ""),
            "detail": attempt.instance_id or attempt.message,
            "request_id": attempt.request_id,
            "next": attempt.next_step,
        }
        for number, attempt in enumerate(attempts, 1)
    ]


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a person: a pool's ARN, EC2's words and its request id need lines of their own."""
    said = ": ".join(part for part in (row["code"], row["detail"]) if part)
    request = row["request_id"] and f"AWS request {row['request_id']}"
    then = row["next"] and f"then: {row['next']}"
    return {**row, "what": "\n".join(part for part in (row["pool"], said, request, then) if part)}


def headline(one: NodeClaim) -> list[str]:
    """Where the claim stands, in a few lines."""
    lines = [f"NodeClaim {one.name}, class {one.spec.node_class_ref.name or '(none)'}"]
    if one.status.provider_id:
        lines.append(
            f"  instance {instance_id(one)} ({one.status.provider_id}), "
            f"node {one.status.node_name or '(none yet)'}"
        )
    for type_ in OURS:
        if found := condition(one.status.conditions, type_):
            text = f"  {type_}={found.status} {found.reason}"
            lines.append(f"{text}: {found.message}" if found.message else text)
    return lines
