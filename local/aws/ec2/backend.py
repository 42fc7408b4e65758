"""moto's EC2 backend, with instances that occupy reservations and pools.

Only methods about capacity are overridden, and each override ends in moto's own method. One lock is held
through every change (`world.LOCK`), also when another service of moto launches or ends instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, Final

from moto.core.resource_tagging import TaggedResource
from moto.ec2.exceptions import EC2ClientError, InvalidInstanceIdError, OperationNotPermitted4
from moto.ec2.models.fleets import Fleet
from moto.ec2.models.instances import InstanceState, Reservation
from moto.ec2.utils import filter_reservations

from local.aws.ec2 import errors, events, fleets, lag, launches, request, templates
from local.aws.ec2.fleet_filling import check_reserved
from local.aws.ec2.health import HealthRecord
from local.aws.ec2.launch_needs import SPOT, CapacityTarget
from local.aws.ec2.launches import Launch
from local.aws.ec2.lookups import QuickLookups
from local.aws.ec2.placement_groups import Ec2PlacementGroup
from local.aws.ec2.reservations import Ec2Reservation, Occupant
from local.aws.ec2.world import LOCK, AwsWorld, world

ENDED = ("terminated", "shutting-down")

# Of a template: whether and how its instances stop and terminate. moto's names to EC2's.
LIFE_FIELDS: Final = {
    "disable_api_stop": "DisableApiStop",
    "disable_api_termination": "DisableApiTermination",
    "instance_initiated_shutdown_behavior": "InstanceInitiatedShutdownBehavior",
    "hibernation_options": "HibernationOptions",
}


class LocalEC2Backend(QuickLookups):
    def __init__(self, region_name: str, account_id: str):
        self.placement_groups: dict[str, Ec2PlacementGroup] = {}
        super().__init__(region_name, account_id)

    @property
    def _url_module(self) -> Any:  # moto derives it from the class's own module, which is not moto's
        import moto.ec2.urls

        return moto.ec2.urls

    # ---- reservations

    def find_reservation(self, reservation_id: str) -> Ec2Reservation:
        return world().ledger.find(self.account_id, self.region_name, reservation_id)

    def do_resources_exist(self, resource_ids: list[str]) -> bool:
        for resource_id in resource_ids:
            if resource_id.startswith("cr-"):
                self.find_reservation(resource_id)
        return super().do_resources_exist(resource_ids)

    def iter_tagged_resources(self) -> Iterator[TaggedResource]:
        yield from super().iter_tagged_resources()
        for reservation in world().ledger.in_scope(self.account_id, self.region_name).values():
            yield TaggedResource(
                arn=reservation.arn,
                tags=dict(self.tags.get(reservation.id, {})),
                resource_type="ec2:capacity-reservation",
            )

    # ---- launches

    def run_instances(
        self,
        image_id: str,
        count: int,
        user_data: Any,
        security_group_names: list[str],
        **kwargs: Any,
    ) -> Reservation:
        launch: Launch | None = kwargs.pop("launch", None)
        with LOCK:
            here = world()
            here.ledger.run_due()
            if launch is None:
                launch = self._launch_of(here, image_id, count, kwargs)
                self._complete(launch, kwargs, bool(security_group_names))
            given = {name: launch.data.get(field) for name, field in LIFE_FIELDS.items()}
            kwargs |= {name: value for name, value in given.items() if value is not None}
            profile = None if _names_profile(kwargs) else launches.profile_of(self, launch.data)
            kwargs.setdefault("is_instance_type_default", False)

            def start(number: int) -> Reservation:
                before = len(self.reservations)
                try:
                    return super(LocalEC2Backend, self).run_instances(
                        image_id, number, user_data, security_group_names, **kwargs
                    )
                except (EC2ClientError, StopIteration):
                    for half_made in list(self.reservations.values())[before:]:
                        self._discard(half_made)
                    raise

            reservation, _ = launches.run(here, self, launch, start)
            for instance in reservation.instances:
                self.instances_by_id[instance.id] = instance
                launches.number_interfaces(instance, launch.data)
                if profile is not None:
                    self.associate_iam_instance_profile(instance.id, iam_instance_profile_arn=profile.arn)
                    instance.iam_instance_profile = {"Arn": profile.arn, "Id": profile.id}
            self._publish(here, reservation.instances, "pending", "running")
            return reservation

    def _launch_of(self, here: AwsWorld, image_id: str, count: int, kwargs: Mapping[str, Any]) -> Launch:
        """The launch that moto's caller requests: a RunInstances request, or another service of moto."""
        params = request.current("RunInstances")
        if params is not None:
            data = templates.of_request(self, params)
            at_most = int(params.get("MaxCount") or count)
            if at_most < count:
                raise errors.invalid("MaxCount", at_most, f"It is less than MinCount, {count}.")
        else:
            data, at_most = self._data_of(image_id, kwargs), count
        if not kwargs.get("is_instance_type_default") and kwargs.get("instance_type"):
            data["InstanceType"] = kwargs["instance_type"]
        is_spot = kwargs.get("lifecycle") == SPOT or kwargs.get("instance_market_options") == SPOT
        market = templates.market_of(data, *([SPOT] if is_spot else []))
        return Launch(
            data=data,
            needs=launches.needs_of(here, self, data, market, lenient=params is None),
            at_least=count,
            at_most=at_most,
            facts=data.get("LaunchTemplate") or kwargs.get("launch_template") or {},
        )

    def _data_of(self, image_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        if kwargs.get("launch_template"):
            data.update(templates.version_of(self, kwargs["launch_template"])[1].data)
        data["ImageId"] = image_id or data.get("ImageId")
        if kwargs.get("subnet_id"):
            data["SubnetId"] = kwargs["subnet_id"]
        if kwargs.get("placement"):
            data["Placement"] = {**(data.get("Placement") or {}), "AvailabilityZone": kwargs["placement"]}
            if not kwargs.get("subnet_id"):
                data.pop("SubnetId", None)
                data.pop("NetworkInterfaces", None)
        return data

    def _complete(self, launch: Launch, kwargs: dict[str, Any], has_group_names: bool) -> None:
        """Hands moto the fields of the template that moto does not read itself."""
        data = launch.data
        interfaces = templates.primary_first(data)
        existing = any(interface.get("NetworkInterfaceId") for interface in interfaces)
        if interfaces and not existing and (not kwargs.get("nics") or interfaces[0].get("Groups")):
            kwargs["nics"] = launches.interfaces_of(data)
        if not kwargs.get("subnet_id"):
            kwargs["subnet_id"] = templates.subnet_of(data)
        if not kwargs.get("subnet_id") and not kwargs.get("placement"):
            kwargs["placement"] = (data.get("Placement") or {}).get("AvailabilityZone")
        if not kwargs.get("security_group_ids") and not has_group_names:
            kwargs["security_group_ids"] = templates.security_groups_of(data)
        kwargs["metadata_options"] = kwargs.get("metadata_options") or data.get("MetadataOptions") or {}
        if (data.get("Monitoring") or {}).get("Enabled"):
            kwargs["monitoring_state"] = "enabled"
        if data.get("EbsOptimized"):
            kwargs["ebs_optimized"] = True
        mappings = data.get("BlockDeviceMappings") or []
        if "block_device_mappings" not in kwargs and any("Ebs" not in mapping for mapping in mappings):
            kwargs["block_device_mappings"] = templates.volumes_of(self, data)  # moto reads Ebs of each
        if kwargs.get("instance_market_options") != SPOT:
            kwargs["instance_market_options"] = None  # moto takes every market type for spot
        volume_tags = templates.tags_of(data.get("TagSpecifications")).get("volume")
        if volume_tags:
            tags = kwargs.get("tags") or {}
            kwargs["tags"] = {**tags, "volume": {**volume_tags, **tags.get("volume", {})}}

    def create_fleet(self, *args: Any, **kwargs: Any) -> Fleet:
        with LOCK:
            here = world()
            here.ledger.run_due()
            params = request.current("CreateFleet") or {}
            if args or not fleets.is_unmixed_instant(kwargs):
                check_reserved("", kwargs.get("fleet_type", ""), params.get("ReservedCapacityOptions") or {})
                return super().create_fleet(*args, **kwargs)
            return fleets.create(here, self, kwargs, params)

    def erase(self, reservation: Reservation) -> None:
        """Take a launch back, as if it had never been: a fleet below its minimum launches nothing."""
        ledger = world().ledger
        for instance in reservation.instances:
            ledger.forget(ledger.occupants[instance.id])
        self._discard(reservation)

    def _discard(self, reservation: Reservation) -> None:
        for instance in reservation.instances:
            instance.terminate()
            self.instances_by_id.pop(instance.id, None)
            self.tags.pop(instance.id, None)
        self.reservations.pop(reservation.id, None)

    # ---- the life of instances

    def terminate_instances(self, instance_ids: list[str]) -> list[tuple[Any, InstanceState]]:
        with LOCK:
            here = world()
            here.ledger.run_due()
            instances = self.get_multi_instances_by_id(instance_ids)
            # EC2 takes a second termination; moto looks for the network interfaces that went with the first.
            ended = [instance for instance in instances if instance.state in ENDED]
            alive = [instance for instance in instances if instance.state not in ENDED]
            protected = [instance for instance in alive if instance.disable_api_termination is True]
            protected_zones = {
                instance.placement.zone for instance in protected
            }  # all of a zone with a protected one
            ending = [instance.id for instance in alive if instance.placement.zone not in protected_zones]
            out = super().terminate_instances(ending) if ending or not instances else []
            self._publish(here, [i for i, before in out if before.name == "stopped"], "terminated")
            self._vacate(here, [instance.id for instance, _ in out], "shutting-down", 32)
            if protected:
                raise OperationNotPermitted4(protected[0].id)
            return [*out, *((instance, copy(instance._state)) for instance in ended)]

    def stop_instances(self, instance_ids: list[str]) -> list[tuple[Any, InstanceState]]:
        with LOCK:
            here = world()
            here.ledger.run_due()
            out = super().stop_instances(instance_ids)
            self._vacate(here, [instance.id for instance, _ in out], "stopping", 64)
            return out

    def start_instances(self, instance_ids: list[str]) -> list[tuple[Any, InstanceState]]:
        with LOCK:
            here = world()
            here.ledger.run_due()
            stopped = [i.id for i in self.get_multi_instances_by_id(instance_ids) if i.state == "stopped"]
            occupants = [here.ledger.occupants[i] for i in stopped if i in here.ledger.occupants]
            out: list[tuple[Any, InstanceState]] = launches.start_again(
                here, occupants, lambda: super(LocalEC2Backend, self).start_instances(instance_ids)
            )
            self._publish(here, [occupant.instance for occupant in occupants], "pending", "running")
            return out

    def reboot_instances(self, instance_ids: list[str]) -> list[Any]:
        with LOCK:
            here = world()
            here.ledger.run_due()
            instances = self.get_multi_instances_by_id(instance_ids)
            for instance in instances:
                if instance.state != "running":
                    raise errors.Ec2Error(
                        "IncorrectInstanceState",
                        f"The instance '{instance.id}' is not in a state from which it can be rebooted",
                    )
            for instance in instances:
                here.health.setdefault(instance.id, HealthRecord()).reboots.append(here.clock.now())
            return super().reboot_instances(instance_ids)

    def _publish(self, here: AwsWorld, instances: Iterable[Any], *states: str) -> None:
        for instance in instances:
            for state in states:
                events.state_change(here.notices, instance, state)

    def _vacate(self, here: AwsWorld, instance_ids: list[str], state_name: str, code: int) -> None:
        """The instances gave up their places; with slow slots they are on their way out for as long."""
        for instance_id in instance_ids:
            occupant = here.ledger.occupants.get(instance_id)
            if occupant is None or occupant.where is None:
                continue
            self._publish(here, [occupant.instance], state_name)
            if here.knobs.slot_release_s > 0:
                self._finish_later(here, occupant, InstanceState(state_name, code))
            else:
                self._publish(here, [occupant.instance], occupant.instance.state)
            here.ledger.leave(
                occupant,
                slot_free_after=here.knobs.slot_release_s,
                absorbs=here.knobs.freed_slot_absorbs,
            )

    def _finish_later(self, here: AwsWorld, occupant: Occupant, transition: InstanceState) -> None:
        instance = occupant.instance
        final, instance._state = instance._state, transition

        def arrive() -> None:
            if instance._state is transition:
                instance._state = final
                here.ledger.glimpse(occupant)
                self._publish(here, [instance], instance.state)

        here.ledger.after(here.knobs.slot_release_s, arrive)

    def specify(self, instance_id: str, specification: Mapping[str, Any]) -> None:
        """ModifyInstanceCapacityReservationAttributes: only of a stopped instance."""
        here = world()
        instance = self.get_instance(instance_id)
        if instance.state != "stopped":
            raise errors.Ec2Error(
                "IncorrectInstanceState",
                f"The instance '{instance_id}' is not in the 'stopped' state, but in '{instance.state}'",
            )
        target = CapacityTarget.of(specification, here.codes)
        occupant = here.ledger.occupants[instance_id]
        here.ledger.retarget(occupant, target)

    # ---- describe

    def describe_instances(self, filters: Any = None) -> list[Reservation]:
        here = world()
        if not here.describe_lag:
            return super().describe_instances(filters)
        return self._older(here, super().describe_instances(), filters)

    def get_reservations_by_instance_ids(
        self, instance_ids: list[str], filters: Any = None
    ) -> list[Reservation]:
        here = world()
        if not here.describe_lag:
            return super().get_reservations_by_instance_ids(instance_ids, filters)
        reservations = self._older(here, super().get_reservations_by_instance_ids(instance_ids), None)
        seen = {instance.id for reservation in reservations for instance in reservation.instances}
        if unseen := [instance_id for instance_id in instance_ids if instance_id not in seen]:
            raise InvalidInstanceIdError(unseen)
        return filter_reservations(reservations, filters) if filters else reservations

    def _older(self, here: AwsWorld, reservations: list[Reservation], filters: Any) -> list[Reservation]:
        at = here.clock.now() - here.describe_lag
        older = lag.as_of(reservations, here.ledger.occupants, at)
        return filter_reservations(older, filters) if filters else older


def _names_profile(kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("iam_instance_profile_name") or kwargs.get("iam_instance_profile_arn"))
