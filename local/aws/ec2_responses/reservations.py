"""The actions on Capacity Reservations."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult

from local.aws import groups
from local.aws.ec2 import (
    answers,
    changes,
    errors,
    interruptible,
    pages,
    quotes,
    reservations,
    transfers,
)
from local.aws.ec2.records import ReservationQuote
from local.aws.ec2.reservations import Ec2Reservation, ReservationView
from local.aws.ec2.world import world
from local.aws.ec2_responses.pipeline import Pipeline

# filter -> the described field that it is compared with
FILTERS: dict[str, pages.Value[tuple[Ec2Reservation, ReservationView]]] = {
    "instance-type": lambda row: row[0].instance_type,
    "owner-id": lambda row: row[0].owner_id,
    "instance-platform": lambda row: row[0].platform,
    "availability-zone": lambda row: row[0].zone,
    "tenancy": lambda row: row[0].tenancy,
    "outpost-arn": lambda row: row[0].outpost_arn,
    "state": lambda row: row[1].state,
    "start-date": lambda row: format_time(row[0].start_date),
    "end-date": lambda row: format_time(row[1].end_date),
    "end-date-type": lambda row: row[1].end_date_type,
    "instance-match-criteria": lambda row: row[1].match_criteria,
    "placement-group-arn": lambda row: row[0].placement_group_arn,
}


def format_time(at: Any) -> str | None:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z") if at else None


# fields that GetCapacityReservationUsage shows beside the counts
INTERRUPTIBLE = ("Interruptible", "InterruptibleCapacityAllocation", "InterruptionInfo")


class CapacityReservations(Pipeline):
    def create_capacity_reservation(self) -> ActionResult:
        self.error_on_dryrun()
        tags = self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {})
        reservation = changes.create(world(), self.ec2_backend, self.params)
        self.ec2_backend.create_tags([reservation.id], tags)
        self.replay = lambda response: response.shown(reservation)
        return self.shown(reservation)

    def shown(self, reservation: Ec2Reservation) -> ActionResult:
        """A reservation as it is now, without lag, for the response of the call that made it."""
        view = reservation.view(world().clock.now())
        return ActionResult({"CapacityReservation": self._describe(reservation, view)})

    def describe_capacity_reservations(self) -> ActionResult:
        self.error_on_dryrun()
        ids = self._get_param("CapacityReservationIds", [])
        if ids and self._get_int_param("MaxResults") is not None:
            raise errors.combination(
                "The parameter capacityReservationIds cannot be used with the parameter maxResults"
            )
        here, backend = world(), self.ec2_backend
        if ids:
            reservations = [backend.find_reservation(reservation_id) for reservation_id in dict.fromkeys(ids)]
        else:
            reservations = list(here.ledger.in_scope(backend.account_id, backend.region_name).values())
        at = here.clock.now() - here.describe_lag
        rows = ((reservation, reservation.seen(at)) for reservation in reservations)
        shown = self._filtered(rows, FILTERS, lambda row: row[0].id)
        return self._listed("CapacityReservations", shown, lambda row: self._describe(*row))

    def _describe(self, reservation: Ec2Reservation, view: ReservationView) -> dict[str, Any]:
        shown = reservations.describe(reservation, view, self.tags_of(reservation.id))
        allocation = world().allocations.get(reservation.id)
        if allocation is not None and view.at >= allocation.reservation.created:
            shown["InterruptibleCapacityAllocation"] = interruptible.describe(allocation, lent=view.lent)
        return shown

    def modify_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        changes.modify(world(), reservation, self.current_account, self.params)
        return ActionResult({"Return": True, **reservations.adjustment(reservation)})

    def cancel_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        changes.cancel(world(), reservation, self.current_account, self.params)
        return ActionResult({"Return": True})

    def create_capacity_reservation_by_splitting(self) -> ActionResult:
        source = self._reservation("SourceCapacityReservationId")
        self.error_on_dryrun()
        tags = self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {})
        count = int(self._get_param("InstanceCount"))
        target = transfers.split(world(), source, self.current_account, count)
        self.ec2_backend.create_tags([target.id], tags)
        return self._transferred(source, target, count)

    def move_capacity_reservation_instances(self) -> ActionResult:
        source = self._reservation("SourceCapacityReservationId")
        destination = self._reservation("DestinationCapacityReservationId")
        self.error_on_dryrun()
        count = int(self._get_param("InstanceCount"))
        transfers.move(world(), source, destination, self.current_account, count)
        return self._transferred(source, destination, count)

    def _transferred(self, source: Ec2Reservation, destination: Ec2Reservation, count: int) -> ActionResult:
        now = world().clock.now()
        return ActionResult(
            {
                "SourceCapacityReservation": self._describe(source, source.view(now)),
                "DestinationCapacityReservation": self._describe(destination, destination.view(now)),
                "InstanceCount": count,
            }
        )

    def get_capacity_reservation_usage(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        here = world()
        view = reservation.seen(here.clock.now() - here.describe_lag)
        shown, used = self._describe(reservation, view), dict[str, int]()
        for occupant in reservation.slots.occupants.values():
            if self.current_account in (reservation.owner_id, occupant.needs.account_id):
                used[occupant.needs.account_id] = used.get(occupant.needs.account_id, 0) + 1
        usages, token = pages.page(
            [{"AccountId": account, "UsedInstanceCount": count} for account, count in used.items()],
            size=self._get_int_param("MaxResults"),
            token=self._get_param("NextToken"),
        )
        return ActionResult(
            {
                "CapacityReservationId": reservation.id,
                "InstanceType": reservation.instance_type,
                "TotalInstanceCount": view.total,
                "AvailableInstanceCount": view.available,
                "State": view.state,
                "InstanceUsages": usages,
                "NextToken": token,
                **{name: shown[name] for name in INTERRUPTIBLE if name in shown},
            }
        )

    def get_groups_for_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        group_rows = groups.groups_of(self.current_account, self.region, reservation.arn)
        shown, token = pages.page(
            group_rows, size=self._get_int_param("MaxResults"), token=self._get_param("NextToken")
        )
        return ActionResult({"CapacityReservationGroups": shown, "NextToken": token})

    # ---- quotes

    def create_capacity_reservation_cancellation_quote(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        quote = quotes.for_cancellation(world(), reservation, self.current_account)
        return self._quoted(quote, "CapacityReservationCancellationQuote", "cancellation-quote")

    def create_capacity_reservation_date_change_quote(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        start = self._get_param("NewStartDate")
        if not start:
            raise errors.missing("NewStartDate")
        quote = quotes.for_date_change(world(), reservation, self.current_account, start)
        return self._quoted(quote, "CapacityReservationModificationQuote", "modification-quote")

    def describe_capacity_reservation_cancellation_quotes(self) -> ActionResult:
        return self._quotes("cancellation", "CapacityReservationCancellationQuote")

    def describe_capacity_reservation_date_change_quotes(self) -> ActionResult:
        return self._quotes("date-change", "CapacityReservationModificationQuote")

    def _quoted(self, quote: ReservationQuote, member: str, kind: str) -> ActionResult:
        resource = f"capacity-reservation-{kind}"
        self.ec2_backend.create_tags([quote.id], self._parse_tag_specification(resource).get(resource, {}))
        return answers.Named({member: quotes.describe(quote, world().ledger.now(), self.tags_of(quote.id))})

    def _quotes(self, kind: str, member: str) -> ActionResult:
        self.error_on_dryrun()
        here, backend = world(), self.ec2_backend
        scope = here.ledger.in_scope(backend.account_id, backend.region_name)
        own = {q.id: q for q in here.quotes.values() if q.kind == kind and q.reservation.id in scope}
        ids = self._get_param(f"{member}Ids", [])
        for quote_id in ids:
            if quote_id not in own:
                raise errors.Ec2Error(here.codes["quote-unknown"], f"There is no quote {quote_id}")
        now = here.ledger.now()
        fields: dict[str, pages.Value[ReservationQuote]] = {
            "capacity-reservation-id": lambda quote: quote.reservation.id,
            "quote-state": lambda quote: quote.state(now),
        }
        requested = [own[quote_id] for quote_id in dict.fromkeys(ids)] or own.values()
        return self._listed(
            f"{member}s",
            self._filtered(requested, fields, lambda quote: quote.id),
            lambda quote: quotes.describe(quote, now, self.tags_of(quote.id)),
        )

    def modify_instance_capacity_reservation_attributes(self) -> ActionResult:
        self.error_on_dryrun()
        specification = self._get_param("CapacityReservationSpecification")
        if not specification:
            raise errors.missing("CapacityReservationSpecification")
        self.ec2_backend.specify(self._get_param("InstanceId"), specification)
        return ActionResult({"Return": True})

    def _reservation(self, parameter: str = "CapacityReservationId") -> Ec2Reservation:
        reservation_id = self._get_param(parameter)
        if not reservation_id:
            raise errors.missing(parameter)
        reservation: Ec2Reservation = self.ec2_backend.find_reservation(reservation_id)
        return reservation
