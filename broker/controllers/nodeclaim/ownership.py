"""Which NodeClaims are the broker's, so that it and Karpenter never act on one claim both.

A claim is the broker's when its nodeClassRef names our group. Karpenter acts only on claims whose
nodeClassRef is of its own group (karpenter pkg/utils/nodeclaim, IsManaged), so the two sets never meet;
taking Karpenter's over is a setting that holds only while Karpenter's own Lease has run out.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from broker.apis import names
from broker.apis.coordination import Lease
from broker.apis.karpenter import NodeClaim

KIND = "EC2NodeClass"
KARPENTER_LEASE_SELECTOR = "metadata.name=karpenter-leader-election"

Owns = Callable[[NodeClaim], bool]


def owned(claim: NodeClaim, *, groups: frozenset[str]) -> bool:
    return claim.spec.node_class_ref.group in groups


def groups(*, take_over: bool, karpenter_alive: bool) -> frozenset[str]:
    """The nodeClassRef groups whose claims the broker launches."""
    if take_over and not karpenter_alive:
        return frozenset({names.BROKER, names.KARPENTER_AWS})
    return frozenset({names.BROKER})


def alive(lease: Lease | None, *, now: datetime) -> bool:
    """Whether somebody holds the Lease and has renewed it within its duration."""
    if lease is None or not lease.spec.holder_identity or lease.spec.renew_time is None:
        return False
    return now - lease.spec.renew_time < timedelta(seconds=lease.spec.lease_duration_seconds or 15)
