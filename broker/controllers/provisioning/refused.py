"""Selects the claims in flight that may give way to other machines for their pods.

Karpenter deletes a claim that EC2 refuses with a code of capacity, and makes another for its pods from the
offerings that are left (pkg/controllers/nodeclaim/lifecycle/launch.go). It deletes any claim without an
instance after five minutes (liveness.go, LaunchTimeout). The broker's claim tries all its own options first,
and gives way only to a machine that could be launched now.

Invariant: a claim gives way early only if EC2 refused it. Each refusal is remembered as a shortage, which
bounds how often pods change their claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool, pods_of
from broker.apis.meta import condition
from broker.capacity.answers import answer
from broker.capacity.attempts import Outcome
from broker.oncall.journal import recorded

PATIENCE: Final = timedelta(minutes=5)


def made_for_pods(claim: NodeClaim) -> bool:
    """Whether the broker made the claim from a NodePool, for pods."""
    return bool(pods_of(claim)) and from_pool(claim)


def from_pool(claim: NodeClaim) -> bool:
    """Whether the claim was made from a NodePool."""
    return any(owner.kind == NodePool.KIND.kind for owner in claim.metadata.owner_references)


def in_flight(claim: NodeClaim) -> bool:
    """Whether the claim has no instance yet, and was made for pods.

    A replacement of a disrupted node is not meant: its predecessor waits for it.
    """
    ended = not claim.waits or names.REPLACES in claim.annotations
    return not ended and made_for_pods(claim)


def refused_long(claim: NodeClaim, now: datetime) -> bool:
    """Whether the claim reported a refusal by EC2, or has waited long."""
    launched = condition(claim.status.conditions, names.LAUNCHED)
    if launched is None or launched.status != "Unknown":
        return False
    since = launched.last_transition_time
    return _refused(claim) or (since is not None and now - since >= PATIENCE)


def pods_refused(claims: Iterable[NodeClaim], now: datetime) -> set[str]:
    """The keys of the pods whose claim reported a refusal by EC2, or has waited long."""
    return {key for claim in claims if refused_long(claim, now) for key in pods_of(claim)}


def _refused(claim: NodeClaim) -> bool:
    """Whether EC2 refused the claim for a reason that another machine may avoid."""
    return any(
        attempt.outcome is Outcome.REFUSED and attempt.class_ and answer(attempt.class_).elsewhere
        for attempt in recorded(claim)
    )
