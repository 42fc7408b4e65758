"""The actions on interruptible allocations."""

from __future__ import annotations

from moto.core.responses import ActionResult

from local.aws.ec2 import answers, interruptible
from local.aws.ec2.world import world
from local.aws.ec2_responses.reservations import CapacityReservations


class InterruptibleAllocations(CapacityReservations):
    def create_interruptible_capacity_reservation_allocation(self) -> ActionResult:
        source = self._reservation()
        self.error_on_dryrun()
        tags = self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {})
        allocation = interruptible.allocate(world(), source, self.current_account, self.params)
        self.ec2_backend.create_tags([allocation.reservation.id], tags)
        return answers.Named(
            {
                "SourceCapacityReservationId": source.id,
                "TargetInstanceCount": allocation.target,
                "Status": allocation.status,
                "InterruptionType": interruptible.ADHOC,
            }
        )

    def update_interruptible_capacity_reservation_allocation(self) -> ActionResult:
        source = self._reservation()
        self.error_on_dryrun()
        updated = interruptible.update(world(), source, self.current_account, self.params)
        shown = interruptible.describe(updated, lent=source.lent)
        del shown["ZeroSizePreference"]
        return answers.Named({"SourceCapacityReservationId": source.id, **shown})
