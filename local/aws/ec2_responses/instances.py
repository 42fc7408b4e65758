"""The actions on instances and fleets that moto answers otherwise than EC2."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult

from local.aws.ec2 import answers, errors, health, pages, requirements, zones
from local.aws.ec2.fleets import InstantFleet
from local.aws.ec2.world import world
from local.aws.ec2_responses.pipeline import Pipeline


class Instances(Pipeline):
    def describe_instances(self) -> ActionResult:
        self.error_on_dryrun()
        ids, size = self._get_param("InstanceIds", []), self._get_int_param("MaxResults")
        if ids and size is not None:
            raise errors.combination(
                "The parameter instancesSet cannot be used with the parameter maxResults"
            )
        backend, filters = self.ec2_backend, self._filters_from_querystring()
        if ids:
            reservations = backend.get_reservations_by_instance_ids(ids, filters=filters)
        else:
            reservations = backend.describe_instances(filters=filters)
        names = [reservation.id for reservation in reservations]
        part = pages.page_after(
            list(backend.reservations), names, size=size or 100, last_id=self._get_param("NextToken")
        )
        shown = reservations[part]
        more = shown and part.stop < len(reservations)
        return ActionResult({"Reservations": shown, "NextToken": shown[-1].id if more else None})

    def describe_instance_status(self) -> ActionResult:
        self.error_on_dryrun()
        ids, size = self._get_param("InstanceIds", []), self._get_int_param("MaxResults")
        if ids and size is not None:
            raise errors.combination(
                "The parameter instancesSet cannot be used with the parameter maxResults"
            )
        pages.check_size(size, lowest=5, highest=1000)
        backend = self.ec2_backend
        instances = backend.get_multi_instances_by_id(ids) if ids else backend.all_instances()
        every_state = self._get_bool_param("IncludeAllInstances", False)
        rows = health.rows(instances, world().health, every_state=every_state)
        return self._listed("InstanceStatuses", self._filtered(rows, health.FILTERS), health.describe)

    def run_instances(self) -> ActionResult:
        result = super().run_instances()
        reservation = result.result
        instances = list(getattr(reservation, "instances", []))

        def replay(_: Pipeline) -> ActionResult:
            if all(instance.state in ("terminated", "shutting-down") for instance in instances):
                raise errors.Ec2Error(
                    "IdempotentInstanceTerminated",
                    "The instance that this client token launched has been terminated",
                )
            return result

        self.replay = replay
        return result

    def get_instance_types_from_instance_requirements(self) -> ActionResult:
        self.error_on_dryrun()
        architectures = set(self._get_param("ArchitectureTypes", []))
        required = self._get_param("InstanceRequirements")
        if not architectures or not required:
            raise errors.missing("InstanceRequirements" if architectures else "ArchitectureTypes")
        backend, size = self.ec2_backend, self._get_int_param("MaxResults")
        pages.check_size(size, lowest=1, highest=1000)
        here = {name for zone in zones.by_name(backend) for name in zones.offered(backend, zone)}
        fitting = [name for name in here if architectures.intersection(zones.architectures(name))]
        type_names = sorted(requirements.satisfying(required, fitting))
        shown, token = pages.page(type_names, size=size, token=self._get_param("NextToken"))
        return answers.Named(
            {"InstanceTypes": [{"InstanceType": name} for name in shown], "NextToken": token}
        )

    def create_fleet(self) -> ActionResult:
        result = super().create_fleet()
        answer: Any = result.result
        fleet = self.ec2_backend.fleets[answer["FleetId"]]
        if isinstance(fleet, InstantFleet):
            answer["Errors"] = fleet.errors
        return result
