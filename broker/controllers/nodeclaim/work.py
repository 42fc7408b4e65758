"""What one pass of the launch loop works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.apis.karpenter import NodeClaim
from broker.capacity.launches import LaunchedClaim
from broker.capacity.model import Attempt, Claim, NodeClass, Skipped
from broker.controllers.nodeclass.resolve import LaunchClass
from providers.model import InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Claims that got an instance and are being written; `wait` returns when each of them was tried."""

    pairs: Sequence[LaunchedClaim]
    ready: LaunchClass
    wait: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class Pass:
    """Claims and classes as this pass found them; `waiting` are those that are still to be launched.

    `held` are launch ids of claims that are not tried now: their instances are kept for them.
    """

    classes: dict[str, LaunchClass]
    plans: dict[str, NodeClass]
    types: Mapping[str, InstanceType]
    waiting: dict[str, Claim]
    objects: dict[str, NodeClaim]
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    skipped: Mapping[str, tuple[Skipped, ...]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    written: list[Written] = field(default_factory=list)
