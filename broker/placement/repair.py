"""What is broken on a node, and which repair is due when: the rules of a pool applied to one node.

Source: Karpenter, pkg/controllers/disruption/repair.go. A sign is due when it has been tolerated since it was
first seen, since the node was made, and since its last reboot was over. A condition without a transition time
is shown, and its repair is never due.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import Condition, condition, is_true
from broker.placement.reboots import Reboots, reboots_of
from broker.placement.repair_policies import RepairAction, RepairPolicy, RepairRules
from broker.text import EARLIEST


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSign:
    """One sign of a broken node. `due`: when its repair is due."""

    policy: RepairPolicy
    reason: str
    message: str
    since: datetime
    due: datetime
    action: RepairAction

    @property
    def text(self) -> str:
        """The sign in words, as on the Node or the claim."""
        if self.policy.sign == self.reason:
            return self.reason
        return f"{self.policy.sign}={self.policy.status} {self.reason}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A broken node: its signs, the decisive one first.

    Of its signs that are due: `drain` is the bound of the drain, None without one; `ends_first`, whether
    nothing runs on it any more.
    """

    signs: tuple[BrokenSign, ...]
    drain: timedelta | None
    ends_first: bool

    @property
    def sign(self) -> BrokenSign:
        return self.signs[0]

    @property
    def text(self) -> str:
        """All signs in words."""
        return ", ".join(dict.fromkeys(sign.text for sign in self.signs))

    @property
    def since(self) -> datetime:
        return min(sign.since for sign in self.signs)

    def reboots(self, now: datetime) -> bool:
        """Whether a reboot is due, and no replacement."""
        return self.sign.due <= now and self.sign.action == "reboot"

    @property
    def counts(self) -> bool:
        return any(sign.policy.counts for sign in self.signs)


def diagnose(node: Node, claim: NodeClaim, rules: RepairRules, now: datetime) -> Diagnosis | None:
    """The diagnosis of a node; None if no sign of the table is on it."""
    before = _History(
        joined=_joined(node, claim), reboots=reboots_of(claim), boots=bool(node.status.node_info.boot_id)
    )
    signs = [
        _sign(policy, item, before, now)
        for sign, item in _conditions(node, claim)
        for policy in rules.matching(sign, item.status, item.reason)
    ]
    if not signs:
        return None
    due = sorted((sign for sign in signs if sign.due <= now), key=_by_action)
    later = sorted((sign for sign in signs if sign.due > now), key=lambda sign: sign.due)
    if not due and not is_true(claim, names.INITIALIZED_CONDITION):
        return None  # it is about to join
    policies = [sign.policy for sign in due or later]
    bounds = [policy.drain for policy in policies if policy.drain is not None]
    return Diagnosis(
        signs=(*due, *later),
        drain=min(bounds, default=None),
        ends_first=any(policy.ends_first for policy in policies),
    )


def _by_action(sign: BrokenSign) -> tuple[bool, datetime, str]:
    return sign.action != "replace", sign.due, sign.policy.sign


def obstacle_of_repair(node: Node, claim: NodeClaim, rules: RepairRules) -> str:
    """Why a broken node is not repaired at all; empty if it is."""
    if not rules.on:
        return f"its NodePool has {names.REPAIR}: off"
    for holder in (claim, node):
        if holder.annotations.get(names.DO_NOT_REPAIR) == "true":
            return f"{holder.KIND.kind} {holder.name} has {names.DO_NOT_REPAIR}: true"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """`joined`: since when the node has been there. `boots`: whether its reboots can be observed."""

    joined: datetime
    reboots: Reboots
    boots: bool


def _sign(policy: RepairPolicy, item: Condition, before: _History, now: datetime) -> BrokenSign:
    since, last = item.last_transition_time or now, before.reboots.last
    ended = last.until if last is not None and last.over and last.until is not None else before.joined
    due, action = max(since, before.joined, ended) + policy.tolerated, policy.action
    spent = before.reboots.current is None and not before.reboots.left(now)
    if last is not None and last.phase == "Failed" and since <= ended:
        due, action = ended, "replace"
    elif spent or not before.boots:
        action = "replace"
    return BrokenSign(
        policy=policy, reason=item.reason, message=item.message, since=since, due=due, action=action
    )


def _joined(node: Node, claim: NodeClaim) -> datetime:
    """When the node was made, or registered: the second is of the broker's own clock."""
    registered = condition(claim.status.conditions, names.REGISTERED_CONDITION)
    times = [node.metadata.creation_timestamp, registered.last_transition_time if registered else None]
    return max((at for at in times if at is not None), default=EARLIEST)


def _conditions(node: Node, claim: NodeClaim) -> Iterator[tuple[str, Condition]]:
    """The conditions that may be signs, by type."""
    yield from ((item.type, item) for item in node.status.conditions)
    yield from ((item.type, item) for item in claim.status.conditions if item.type in names.INSTANCE_SIGNS)
