"""The actions on billing assignments of shared reservations."""

from __future__ import annotations

from moto.core.responses import ActionResult

from local.aws.ec2 import billing, checks, pages
from local.aws.ec2.records import BillingRequest
from local.aws.ec2.world import world
from local.aws.ec2_responses.reservations import CapacityReservations

OWNER, CONSUMER = "odcr-owner", "unused-reservation-billing-owner"
FILTERS: dict[str, dict[str, pages.Value[BillingRequest]]] = {
    OWNER: {
        "status": lambda request: request.status,
        "unused-reservation-billing-owner": lambda request: request.consumer,
    },
    CONSUMER: {
        "status": lambda request: request.status,
        "requested-by": lambda request: request.reservation.owner_id,
    },
}


class BillingAssignments(CapacityReservations):
    def associate_capacity_reservation_billing_owner(self) -> ActionResult:
        reservation, consumer = self._reservation(), self._get_param("UnusedReservationBillingOwnerId")
        self.error_on_dryrun()
        billing.associate(world(), reservation, self.current_account, consumer)
        return ActionResult({"Return": True})

    def disassociate_capacity_reservation_billing_owner(self) -> ActionResult:
        reservation, consumer = self._reservation(), self._get_param("UnusedReservationBillingOwnerId")
        self.error_on_dryrun()
        billing.disassociate(world(), reservation, self.current_account, consumer)
        return ActionResult({"Return": True})

    def accept_capacity_reservation_billing_ownership(self) -> ActionResult:
        return self._answered(accepted=True)

    def reject_capacity_reservation_billing_ownership(self) -> ActionResult:
        return self._answered(accepted=False)

    def _answered(self, *, accepted: bool) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        billing.answer(world(), reservation, self.current_account, accepted=accepted)
        return ActionResult({"Return": True})

    def describe_capacity_reservation_billing_requests(self) -> ActionResult:
        self.error_on_dryrun()
        role = checks.one_of("Role", self._get_param("Role"), FILTERS)
        ids = self._get_param("CapacityReservationIds", [])
        requests = [
            request
            for request in billing.visible(world(), self.current_account, self.region, role)
            if not ids or request.reservation.id in ids
        ]
        return self._listed(
            "CapacityReservationBillingRequests", self._filtered(requests, FILTERS[role]), billing.describe
        )
