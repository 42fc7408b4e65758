"""How long a node is dead from its first sign until its slot has a node again, by a table of repairs.

Karpenter's table is that of its AWS provider 1.15 with the gates NodeRepair and TerminateFirstRepair. Its
rows are the broker's, but it reboots only with a further gate of the provider, which is off. It ends a node
with a failed status check of EC2 after two minutes, too. Without these gates it repairs none of these nodes
in a full reservation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.placement.repair import diagnose
from broker.placement.repair_policies import TABLE, RepairAction, RepairRules
from broker.text import format_time

PASS: Final = timedelta(seconds=10)  # between two looks
READY: Final = timedelta(seconds=90)  # from launch to a Node with pods
DRAIN: Final = timedelta(minutes=1)  # if the kubelet answers
REBOOT: Final = timedelta(minutes=3)
_BROKE: Final = datetime(2026, 11, 23, 3, tzinfo=UTC)
_LONG_AGO: Final = _BROKE - timedelta(days=3)
_LONGEST: Final = timedelta(hours=2)
KARPENTER: Final = RepairRules(rows=tuple(replace(row, action="replace") for row in TABLE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A sign of a broken node. `silent`: no kubelet ends the pods, so that a drain takes its whole bound."""

    sign: str
    status: str = "False"
    reason: str = "Broken"
    silent: bool = False


BREAKS: Final = (
    Break(sign="AcceleratedHardwareReady", reason="NvidiaXID48Error"),
    Break(sign="AcceleratedHardwareReady", reason="NvidiaXID79Error"),
    Break(sign=names.READY, status="Unknown", reason="NodeStatusUnknown", silent=True),
    Break(sign="NetworkingReady", reason="IPAMDNotReady"),
    Break(sign=names.INSTANCE_IMPAIRED, status="True", reason="StatusCheckFailed", silent=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """`until_terminated`: from the sign to the end of the instance; of a reboot, to its call."""

    action: RepairAction
    until_terminated: timedelta

    @property
    def dead(self) -> timedelta:
        return self.until_terminated + (REBOOT if self.action == "reboot" else PASS + READY)


def outage(sign: Break, rules: RepairRules) -> Outage:
    """The repair of a node with this sign alone. Raises ValueError if none is due for hours."""
    waited = timedelta()
    while waited < _LONGEST:
        diagnosis = diagnose(_node(sign), _claim(sign), rules, _BROKE + waited)
        if diagnosis is not None and diagnosis.sign.due <= _BROKE + waited:
            drain = diagnosis.drain if sign.silent and diagnosis.drain is not None else DRAIN
            return Outage(action=diagnosis.sign.action, until_terminated=waited + drain)
        waited += PASS
    raise ValueError(f"no repair of {sign} is due")


def _condition(type_: str, status: str, reason: str, at: datetime) -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason, "lastTransitionTime": format_time(at)}


def _node(sign: Break) -> Node:
    ec2 = sign.sign in names.INSTANCE_SIGNS
    shown = [] if ec2 else [_condition(sign.sign, sign.status, sign.reason, _BROKE)]
    metadata = {"name": "node", "creationTimestamp": format_time(_LONG_AGO)}
    return Node.decode(
        {"metadata": metadata, "status": {"conditions": shown, "nodeInfo": {"bootID": "boot-1"}}}
    )


def _claim(sign: Break) -> NodeClaim:
    shown = [_condition(names.INITIALIZED_CONDITION, "True", "Initialized", _LONG_AGO)]
    if sign.sign in names.INSTANCE_SIGNS:
        shown.append(_condition(sign.sign, sign.status, sign.reason, _BROKE))
    metadata = {"name": "claim", "uid": "claim"}
    return NodeClaim.decode({"metadata": metadata, "status": {"conditions": shown}})
