"""Triggers that are not the change of an object."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.kube.watches import Signal


@dataclass(frozen=True, kw_only=True)
class Signals:
    """One signal for each of these triggers: its callers do not know the loops."""

    describe: Signal = field(default_factory=Signal)  # describe EC2's reservations again
    described: Signal = field(default_factory=Signal)  # EC2's reservations were described for the first time
    replan: Signal = field(default_factory=Signal)  # plan the waiting claims again
    reconcile_class: Signal = field(default_factory=Signal)  # by the name of the class
    instance_changed: Signal = field(default_factory=Signal)  # by the id of an instance that is to end
    owner_changed: Signal = field(default_factory=Signal)  # claims were taken over from Karpenter, or back
    template_limit: Signal = field(default_factory=Signal)  # EC2 makes no further launch template
