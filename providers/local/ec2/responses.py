"""The EC2 actions of local AWS that moto doesn't have, or answers otherwise than EC2; one method an action.

moto finds a method by the action's name in snake case. The way of every call is in `pipeline.py`.
"""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidLaunchTemplateIdNotFound
from moto.ec2.responses import EC2Response

from providers.local import groups
from providers.local.ec2 import answers, changes, errors, pages, reservations, templates
from providers.local.ec2.fleets import InstantFleet
from providers.local.ec2.pipeline import Pipeline
from providers.local.ec2.reservations import CapacityReservation, View
from providers.local.world import world

# filter -> what of a reservation, as describe shows it, it is compared with
FILTERS: dict[str, pages.Value[tuple[CapacityReservation, View]]] = {
    "instance-type": lambda row: row[0].instance_type,
    "owner-id": lambda row: row[0].owner_id,
    "instance-platform": lambda row: row[0].platform,
    "availability-zone": lambda row: row[0].zone,
    "availability-zone-id": lambda row: row[0].zone_id,
    "tenancy": lambda row: row[0].tenancy,
    "outpost-arn": lambda row: row[0].outpost_arn,
    "state": lambda row: row[1].state,
    "start-date": lambda row: _moment(row[0].start_date),
    "end-date": lambda row: _moment(row[1].end_date),
    "end-date-type": lambda row: row[1].end_date_type,
    "instance-match-criteria": lambda row: row[1].match_criteria,
    "placement-group-arn": lambda row: row[0].placement_group_arn,
}

STACK_TAGS = "aws:cloudformation:"


def _moment(at: Any) -> str | None:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z") if at else None


class LocalEC2Response(Pipeline, EC2Response):
    # ---- reservations

    def create_capacity_reservation(self) -> ActionResult:
        self.error_on_dryrun()
        tags = templates.tags_of(self._get_param("TagSpecifications")).get("capacity-reservation", {})
        reservation = changes.create(world(), self.ec2_backend, self.params)
        if tags:
            self.ec2_backend.create_tags([reservation.id], tags)
        self.replay = lambda response: response.shown(reservation)
        return self.shown(reservation)

    def shown(self, reservation: CapacityReservation) -> ActionResult:
        """A reservation as it is now, with no lag: what the call that made it answers."""
        view = reservation.view(world().clock.now())
        return ActionResult({"CapacityReservation": self._describe(reservation, view)})

    def describe_capacity_reservations(self) -> ActionResult:
        self.error_on_dryrun()
        ids = self._get_param("CapacityReservationIds", [])
        size = self._get_int_param("MaxResults")
        if ids and size is not None:
            raise errors.combination(
                "The parameter capacityReservationIds cannot be used with the parameter maxResults"
            )
        pages.check_size(size, lowest=1, highest=1000)
        here, backend = world(), self.ec2_backend
        if ids:
            found = [backend.find_reservation(reservation_id) for reservation_id in dict.fromkeys(ids)]
        else:
            found = list(here.ledger.in_scope(backend.account_id, backend.region_name).values())
        at = here.clock.now() - here.describe_lag
        filters = self._filters_from_querystring()
        rows = [
            row
            for row in ((reservation, reservation.seen(at)) for reservation in found)
            if not filters or pages.passes(row, filters, FILTERS, backend.tags.get(row[0].id, {}))
        ]
        shown, token = pages.page(rows, size=size, token=self._get_param("NextToken"))
        return answers.Named(
            {"CapacityReservations": [self._describe(*row) for row in shown], "NextToken": token}
        )

    def _describe(self, reservation: CapacityReservation, view: View) -> dict[str, Any]:
        tags = self.ec2_backend.tags.get(reservation.id, {})
        return reservations.describe(reservation, view, [{"Key": k, "Value": v} for k, v in tags.items()])

    def modify_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        changes.modify(world(), reservation, self.current_account, self.params)
        return ActionResult({"Return": True})

    def cancel_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        changes.cancel(world(), reservation, self.current_account)
        return ActionResult({"Return": True})

    def get_capacity_reservation_usage(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        here = world()
        view = reservation.seen(here.clock.now() - here.describe_lag)
        used: dict[str, int] = {}
        for occupant in reservation.slots.occupants.values():
            if self.current_account in (reservation.owner_id, occupant.want.account_id):
                used[occupant.want.account_id] = used.get(occupant.want.account_id, 0) + 1
        return ActionResult(
            {
                "CapacityReservationId": reservation.id,
                "InstanceType": reservation.instance_type,
                "TotalInstanceCount": view.total,
                "AvailableInstanceCount": view.available,
                "State": view.state,
                "InstanceUsages": [
                    {"AccountId": account, "UsedInstanceCount": count} for account, count in used.items()
                ],
            }
        )

    def get_groups_for_capacity_reservation(self) -> ActionResult:
        reservation = self._reservation()
        self.error_on_dryrun()
        found = groups.groups_of(self.current_account, self.region, reservation.arn)
        shown, token = pages.page(
            found, size=self._get_int_param("MaxResults"), token=self._get_param("NextToken")
        )
        return ActionResult({"CapacityReservationGroups": shown, "NextToken": token})

    def modify_instance_capacity_reservation_attributes(self) -> ActionResult:
        self.error_on_dryrun()
        specification = self._get_param("CapacityReservationSpecification")
        if not specification:
            raise errors.missing("CapacityReservationSpecification")
        self.ec2_backend.specify(self._get_param("InstanceId"), specification)
        return ActionResult({"Return": True})

    def _reservation(self) -> CapacityReservation:
        reservation_id = self._get_param("CapacityReservationId")
        if not reservation_id:
            raise errors.missing("CapacityReservationId")
        found: CapacityReservation = self.ec2_backend.find_reservation(reservation_id)
        return found

    # ---- launches

    def describe_instances(self) -> ActionResult:
        self.error_on_dryrun()
        ids, size = self._get_param("InstanceIds", []), self._get_int_param("MaxResults")
        if ids and size is not None:
            raise errors.combination(
                "The parameter instancesSet cannot be used with the parameter maxResults"
            )
        backend, filters = self.ec2_backend, self._filters_from_querystring()
        if ids:
            found = backend.get_reservations_by_instance_ids(ids, filters=filters)
        else:
            found = backend.describe_instances(filters=filters)
        names = [reservation.id for reservation in found]
        part = pages.page_after(
            list(backend.reservations), names, size=size or 100, last=self._get_param("NextToken")
        )
        shown = found[part]
        more = shown and part.stop < len(found)
        return answers.Remembered({"Reservations": shown, "NextToken": shown[-1].id if more else None})

    def run_instances(self) -> ActionResult:
        result = super().run_instances()
        made = result.result
        instances = list(getattr(made, "instances", []))

        def replay(_: LocalEC2Response) -> ActionResult:
            if all(instance.state in ("terminated", "shutting-down") for instance in instances):
                raise errors.Ec2Error(
                    "IdempotentInstanceTerminated",
                    "The instance that this client token launched has been terminated",
                )
            return result

        self.replay = replay
        return result

    def create_fleet(self) -> ActionResult:
        result = super().create_fleet()
        answer: Any = result.result
        fleet = self.ec2_backend.fleets[answer["FleetId"]]
        if isinstance(fleet, InstantFleet):
            answer["Errors"] = fleet.errors
        return result

    # ---- launch templates

    def create_launch_template(self) -> ActionResult:
        templates.check(self._get_param("LaunchTemplateData") or {}, world().codes)
        result = super().create_launch_template()
        answer: Any = result.result
        made = self.ec2_backend.get_launch_template(answer["LaunchTemplate"]["LaunchTemplateId"])
        now = world().clock.now().replace(tzinfo=None)
        made.create_time = answer["LaunchTemplate"]["CreateTime"] = made.versions[0].create_time = now
        return result

    def create_launch_template_version(self) -> ActionResult:
        templates.check(self._get_param("LaunchTemplateData") or {}, world().codes)
        return super().create_launch_template_version()

    def describe_launch_templates(self) -> ActionResult:
        self.error_on_dryrun()
        size = self._get_int_param("MaxResults")
        pages.check_size(size, lowest=1, highest=200)
        backend = self.ec2_backend
        ids = self._get_param("LaunchTemplateIds", [])
        for template_id in ids:
            if template_id not in backend.launch_templates:
                raise InvalidLaunchTemplateIdNotFound(template_id)
        found = backend.describe_launch_templates(
            template_names=self._get_param("LaunchTemplateNames", []),
            template_ids=ids,
            filters=self._filters_from_querystring(),
        )
        shown, token = pages.page(found, size=size or 200, token=self._get_param("NextToken"))
        creator = f"arn:{self.partition}:iam::{self.current_account}:root"
        return ActionResult(
            {
                "LaunchTemplates": [
                    {
                        "CreateTime": template.create_time,
                        "CreatedBy": creator,
                        "DefaultVersionNumber": template.default_version_number,
                        "LatestVersionNumber": template.latest_version_number,
                        "LaunchTemplateId": template.id,
                        "LaunchTemplateName": template.name,
                        # moto's CloudFormation tags templates, which CloudFormation does not
                        "Tags": [t for t in template.get_tags() if not t["key"].startswith(STACK_TAGS)],
                    }
                    for template in shown
                ],
                "NextToken": token,
            }
        )

    def describe_launch_template_versions(self) -> ActionResult:
        size, token = self._get_int_param("MaxResults"), self._get_param("NextToken")
        pages.check_size(size, lowest=1, highest=200)
        self.params["MaxResults"] = 1_000_000  # all of moto's, then a page of them
        result = super().describe_launch_template_versions()
        answer: Any = result.result
        answer["LaunchTemplateVersions"], answer["NextToken"] = pages.page(
            answer["LaunchTemplateVersions"], size=size or 200, token=token
        )
        return result
