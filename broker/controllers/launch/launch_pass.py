"""One pass of the launch loop: its claims, and the results of its fleet calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.apis.karpenter import NodeClaim
from broker.capacity.attempts import Attempt
from broker.capacity.launches import Distribution, LaunchedClaim, LaunchGroup, RefusedAssignment
from broker.capacity.model import Claim, NodeClass, Skipped
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.controllers.snapshot import Snapshot
from providers.errors import ErrorClass
from providers.launch import LaunchError

GANG_INCOMPLETE = LaunchError(
    code="GangIncomplete",
    message="another claim of the gang got no instance, so this one was given back",
    class_=ErrorClass.CAPACITY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """The result of one fleet call.

    A claim keeps no instance that EC2 runs in a way that it does not accept. A gang keeps none unless
    complete.
    """

    group: LaunchGroup
    distribution: Distribution
    errors: tuple[LaunchError, ...] = ()  # all refusals, also if another pool served the claim
    uncertain: bool = False
    request_id: str = ""
    launch: str = ""  # the launch id of the call, if its answer is known

    def release(self, uids: set[str], errors: tuple[LaunchError, ...]) -> FleetResult:
        """The same result, with the instances of these claims given back."""
        pairs = self.distribution.pairs
        kept = tuple(pair for pair in pairs if pair.claim.uid not in uids)
        back = tuple(RefusedAssignment(pair.assignment, errors) for pair in pairs if pair.claim.uid in uids)
        refused = (*self.distribution.refused, *back)
        return replace(self, distribution=replace(self.distribution, pairs=kept, refused=refused))

    def reject_unreserved(self) -> FleetResult:
        """The same result, without on-demand instances for claims that accept reservations only."""
        uids = {pair.claim.uid for pair in self.distribution.pairs if pair.unwanted}
        if not uids:
            return self
        first = self.group.overrides[0]
        error = LaunchError(
            code="LaunchedOutsideReservation",
            message="EC2 launched it on demand, which the claim does not take; the instance was terminated",
            class_=ErrorClass.RESERVATION_FULL,
            instance_type=first.instance_type,
            zone=first.zone,
        )
        return replace(self.release(uids, (error,)), errors=(*self.errors, error))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBind:
    """Claims that got an instance, while they are written; `wait` returns after each write was tried."""

    pairs: Sequence[LaunchedClaim]
    ready: LaunchClass
    wait: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class LaunchPass:
    """The claims and classes of one pass, as they were when it began; `snapshot` is that of the last plan."""

    snapshot: Snapshot
    classes: dict[str, LaunchClass] = field(default_factory=dict)
    plans: dict[str, NodeClass] = field(default_factory=dict)
    waiting: dict[str, Claim] = field(default_factory=dict)  # still to be launched
    objects: dict[str, NodeClaim] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)  # with the same option, by claim
    skipped: Mapping[str, tuple[Skipped, ...]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)  # launch ids of claims not tried now
    binds: list[PendingBind] = field(default_factory=list)
