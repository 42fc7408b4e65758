"""What one fleet call came to, and what of it is given back.

Invariant: a claim keeps no instance that it does not take as EC2 runs it, and a gang keeps none unless whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.capacity.launches import Distribution, LaunchGroup, LeftOver
from providers.model import ErrorClass, LaunchError

GANG_BROKEN = LaunchError(
    code="GangIncomplete",
    message="another claim of the gang got no instance, so this one was given back",
    class_=ErrorClass.CAPACITY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one call came to. `errors` are all refusals, also those that other pools made good.

    `launch` is its id where its answer is known.
    """

    group: LaunchGroup
    dealt: Distribution
    errors: tuple[LaunchError, ...]
    uncertain: bool = False
    request_id: str = ""
    launch: str = ""

    def without(self, uids: set[str], why: tuple[LaunchError, ...]) -> Answered:
        """The same with the instances of these claims given back: they are left over."""
        kept = tuple(pair for pair in self.dealt.pairs if pair.claim.uid not in uids)
        back = tuple(LeftOver(pair.assignment, why) for pair in self.dealt.pairs if pair.claim.uid in uids)
        return replace(self, dealt=replace(self.dealt, pairs=kept, left=(*self.dealt.left, *back)))

    def kept_out(self) -> Answered:
        """The same without instances that run outside the reservations for claims that take nothing else."""
        uids = {pair.claim.uid for pair in self.dealt.pairs if pair.unwanted}
        if not uids:
            return self
        first = self.group.overrides[0]
        why = LaunchError(
            code="LaunchedOutsideReservation",
            message="EC2 launched it on demand, which the claim does not take; the instance was terminated",
            class_=ErrorClass.RESERVATION_FULL,
            instance_type=first.instance_type,
            zone=first.zone,
        )
        return replace(self.without(uids, (why,)), errors=(*self.errors, why))
