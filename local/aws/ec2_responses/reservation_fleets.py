"""The actions on Capacity Reservation Fleets."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult

from local.aws.ec2 import answers, errors, pages, reservation_fleets
from local.aws.ec2.records import ReservationFleet
from local.aws.ec2.world import world
from local.aws.ec2_responses.reservations import CapacityReservations

KIND = "capacity-reservation-fleet"
FILTERS: dict[str, pages.Value[ReservationFleet]] = {
    "state": lambda fleet: fleet.state,
    "instance-match-criteria": lambda _: reservation_fleets.ONLY["InstanceMatchCriteria"],
    "tenancy": lambda _: reservation_fleets.ONLY["Tenancy"],
    "allocation-strategy": lambda _: reservation_fleets.ONLY["AllocationStrategy"],
}


class CapacityReservationFleets(CapacityReservations):
    def create_capacity_reservation_fleet(self) -> ActionResult:
        self.error_on_dryrun()
        tags = self._parse_tag_specification(KIND).get(KIND, {})
        fleet = reservation_fleets.create(world(), self.ec2_backend, self.params, tags)
        self.ec2_backend.create_tags([fleet.id], tags)
        shown = reservation_fleets.describe(fleet, self.tags_of(fleet.id))
        shown["FleetCapacityReservations"] = shown.pop("InstanceTypeSpecifications")
        return answers.Named({**shown, "State": "submitted"})  # EC2 answers before it has checked

    def modify_capacity_reservation_fleet(self) -> ActionResult:
        fleet = self._fleet(self._get_param("CapacityReservationFleetId"))
        self.error_on_dryrun()
        reservation_fleets.modify(world(), fleet, self.params)
        return ActionResult({"Return": True})

    def describe_capacity_reservation_fleets(self) -> ActionResult:
        self.error_on_dryrun()
        ids = self._get_param("CapacityReservationFleetIds", [])
        own = [f for f in world().reservation_fleets.values() if f.backend is self.ec2_backend]
        fleets = [self._fleet(fleet_id) for fleet_id in dict.fromkeys(ids)] or own
        return self._listed(
            "CapacityReservationFleets",
            self._filtered(fleets, FILTERS, lambda fleet: fleet.id),
            lambda fleet: reservation_fleets.describe(fleet, self.tags_of(fleet.id)),
        )

    def cancel_capacity_reservation_fleets(self) -> ActionResult:
        self.error_on_dryrun()
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for fleet_id in dict.fromkeys(self._get_param("CapacityReservationFleetIds", [])):
            try:
                fleet = self._fleet(fleet_id)
                before = reservation_fleets.cancel(world(), fleet)
            except errors.Ec2Error as refused:
                failed.append(
                    {
                        "CapacityReservationFleetId": fleet_id,
                        "CancelCapacityReservationFleetError": {
                            "Code": refused.code,
                            "Message": refused.message,
                        },
                    }
                )
                continue
            done.append(
                {
                    "CapacityReservationFleetId": fleet_id,
                    "CurrentFleetState": fleet.state,
                    "PreviousFleetState": before,
                }
            )
        return answers.Named({"SuccessfulFleetCancellations": done, "FailedFleetCancellations": failed})

    def _fleet(self, fleet_id: str | None) -> ReservationFleet:
        fleet = world().reservation_fleets.get(fleet_id or "")
        if fleet is None or fleet.backend is not self.ec2_backend:
            raise errors.Ec2Error(
                world().codes["reservation-fleet-unknown"],
                f"The Capacity Reservation Fleet '{fleet_id}' was not found",
            )
        return fleet
