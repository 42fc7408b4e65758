"""Launching, starting and stopping instances, each with its place.

Invariant: moto makes exactly as many instances as places were found, and each enters the ledger with its
place. A refused launch leaves nothing behind.

DescribeInstances shows the values of the template or the request: security groups (those of the primary
interface), instance profile, metadata options, placement, tags, market type, reservation specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.models.instances import Reservation
from moto.ec2.utils import filter_iam_instance_profiles

from local.aws.ec2 import errors, matching, placement_groups, platforms, templates, zones
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND, ONLY, RESERVED_MARKETS, CapacityTarget, LaunchNeeds
from local.aws.ec2.reservations import Ec2Reservation, Occupant
from local.aws.ec2.templates import LaunchData
from local.aws.ec2.world import AwsWorld

Run = Callable[..., Reservation]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch into one pool, from any caller."""

    data: LaunchData
    needs: LaunchNeeds
    action: str = "RunInstances"
    at_least: int = 1
    at_most: int = 1
    spill: bool = True  # off: into reservations only, even if the specification allows more
    facts: Mapping[str, Any] = field(default_factory=dict)


def needs_of(
    world: AwsWorld, backend: Any, data: Mapping[str, Any], market: str, *, lenient: bool = False
) -> LaunchNeeds:
    """The instance's needs towards its place. A subnet decides the zone, else the placement, else zone `a`.

    EC2 refuses a zone that isn't the subnet's and an unknown placement group; moto's own services launch with
    both (`lenient`).
    """
    placement = data.get("Placement") or {}
    zone = placement.get("AvailabilityZone")
    if not zone and placement.get("AvailabilityZoneId"):
        zone = zones.named(backend, placement["AvailabilityZoneId"])
    if subnet_id := templates.subnet_of(data):
        in_subnet = backend.get_subnet(subnet_id).availability_zone
        if zone and zone != in_subnet and not lenient:
            raise errors.combination(f"The subnet {subnet_id} is in {in_subnet}, not in {zone}")
        zone = in_subnet
    group = placement_groups.name_in(backend, placement)
    if group and not lenient:
        placement_groups.find(backend, group)
    return LaunchNeeds(
        account_id=backend.account_id,
        region=backend.region_name,
        instance_type=data.get("InstanceType") or "m1.small",
        zone=zone or f"{backend.region_name}a",
        platform=platforms.details(backend.amis.get(data.get("ImageId"))),
        tenancy=placement.get("Tenancy") or "default",
        placement_group_arn=placement_groups.arn_of(backend, group) if group else None,
        market=market,
        target=CapacityTarget.of(data.get("CapacityReservationSpecification"), world.codes),
    )


def facts_of(launch: Launch) -> dict[str, Any]:
    """The facts that a fault at the launch stage can match."""
    needs, target = launch.needs, launch.needs.target
    reserved = bool(target.reservation_id or target.group or target.preference == ONLY)
    return {
        "InstanceType": needs.instance_type,
        "AvailabilityZone": needs.zone,
        "SubnetId": templates.subnet_of(launch.data),
        "ImageId": launch.data.get("ImageId"),
        "MarketType": needs.market,
        "CapacityType": "reserved" if reserved or not launch.spill else needs.market,
        "CapacityReservationId": target.reservation_id,
        "CapacityReservationResourceGroupArn": target.group,
        **launch.facts,
    }


def find_places(world: AwsWorld, launch: Launch) -> list[Ec2Reservation | None]:
    """A place for each instance, or the refusal that was scripted for this pool, or EC2's own."""
    fault = world.faults.take(launch.action, "launch", facts_of(launch))
    if fault is not None and fault.code:
        raise Ec2Error(fault.code, fault.message or f"Scripted by {fault.id}", status=fault.status)
    needs = launch.needs
    places = matching.place(
        world.ledger, needs, at_least=launch.at_least, at_most=launch.at_most, spill=launch.spill
    )
    # an instance in a reservation counts with the reservation
    left = world.quotas.left(needs.account_id, needs.region, needs.instance_type, needs.market)
    if left is None or places.count(None) <= left or needs.market in RESERVED_MARKETS:
        return places
    allowed = [place for place in places if place is not None] + [None] * left
    if len(allowed) < launch.at_least:
        raise world.quotas.exceeded(needs)
    return allowed


def run(
    world: AwsWorld, backend: Any, launch: Launch, start: Callable[[int], Reservation]
) -> tuple[Reservation, list[Ec2Reservation | None]]:
    """Find places, let `start` make so many instances, and put each into its place."""
    if world.knobs.check_offerings:
        zones.require_offering(backend, launch.needs.instance_type, launch.needs.zone)
    places = find_places(world, launch)
    try:
        reservation = start(len(places))
    except StopIteration as exhausted:  # moto's subnet has no address left
        raise Ec2Error(
            "InsufficientFreeAddressesInSubnet",
            f"There are not enough free addresses in subnet '{templates.subnet_of(launch.data)}' to satisfy "
            "the requested number of instances.",
        ) from exhausted
    for instance, place in zip(reservation.instances, places, strict=True):
        show(world, backend, instance, launch)
        world.ledger.enter(instance, launch.needs, place)
    return reservation, places


def show(world: AwsWorld, backend: Any, instance: Any, launch: Launch) -> None:
    """Lets DescribeInstances show the requested fields that moto leaves out."""
    needs, data = launch.needs, launch.data
    placement = data.get("Placement") or {}
    instance.launch_time = world.clock.now().replace(tzinfo=None)
    instance.capacity_reservation_specification = needs.target.shown()
    instance.platform_details = needs.platform
    instance.usage_operation = platforms.USAGE_OPERATION.get(needs.platform)
    profile = profile_of(backend, data)
    instance.profile_arn = profile.arn if profile is not None else None
    instance.lifecycle = None if needs.market == ON_DEMAND else needs.market
    instance.placement.availability_zone_id = zones.id_of(backend, instance.availability_zone)
    instance.placement.tenancy = needs.tenancy
    instance.placement.group_name = placement_groups.name_in(backend, placement) or ""
    if placement.get("PartitionNumber") is not None:
        instance.placement.partition_number = placement["PartitionNumber"]


def interfaces_of(data: LaunchData) -> list[dict[str, Any]]:
    """The interfaces to make. moto identifies them by device index alone, so each gets a unique index
    here, and `number_interfaces` writes the real ones. The primary one's groups are the instance's."""
    subnet = templates.subnet_of(data)
    out = []
    for position, interface in enumerate(templates.primary_first(data)):
        interface_ = {**interface, "DeviceIndex": position}
        interface_["Groups"] = list(interface.get("Groups") or []) if position else []
        if subnet and not interface_.get("SubnetId"):
            interface_["SubnetId"] = subnet
        out.append(interface_)
    return out


def number_interfaces(instance: Any, data: LaunchData) -> None:
    """Writes the requested card and device index of each interface; see `attachment_with_card`."""
    requested = templates.primary_first(data)
    if len(requested) != len(instance.nics):
        return
    for interface, nic in zip(requested, list(instance.nics.values()), strict=True):
        nic.device_index = int(interface.get("DeviceIndex") or 0)
        nic.network_card_index = int(interface.get("NetworkCardIndex") or 0)
        nic.interface_type = interface.get("InterfaceType") or nic.interface_type


def attachment_with_card(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """moto makes an attachment anew for each description, always on card 0."""

    def attachment(interface: Any) -> Any:
        body = stock(interface)
        if body is not None:
            body.network_card_index = getattr(interface, "network_card_index", 0)
        return body

    return attachment


def profile_of(backend: Any, data: Mapping[str, Any]) -> Any:
    """The instance profile that a launch names, from moto's IAM; EC2 refuses one that does not exist."""
    named = data.get("IamInstanceProfile") or {}
    name, arn = named.get("Name"), named.get("Arn")
    if not name and not arn:
        return None
    try:
        profile = filter_iam_instance_profiles(
            backend.account_id,
            partition=backend.partition,
            iam_instance_profile_arn=arn,
            iam_instance_profile_name=name,
        )
    except Exception as absent:
        raise _no_profile(name, arn) from absent
    if profile is None:
        raise _no_profile(name, arn)
    return profile


def _no_profile(name: str | None, arn: str | None) -> Ec2Error:
    parameter = "iamInstanceProfile.name" if name else "iamInstanceProfile.arn"
    return errors.invalid(parameter, name or arn, "Invalid IAM Instance Profile name")


def start_again(world: AwsWorld, occupants: list[Occupant], start: Callable[[], Any]) -> Any:
    """Places for stopped instances first, all or none; then they start."""
    entered: list[Occupant] = []
    try:
        for occupant in occupants:
            needs = occupant.needs
            place = matching.place(world.ledger, needs, at_least=1, at_most=1)[0]
            left = world.quotas.left(needs.account_id, needs.region, needs.instance_type, needs.market)
            if place is None and left == 0:
                raise world.quotas.exceeded(needs)
            world.ledger.enter(occupant.instance, needs, place)
            entered.append(occupant)
        out = start()
    except Ec2Error:
        for occupant in entered:
            world.ledger.leave(occupant, slot_free_after=0, absorbs=world.knobs.freed_slot_absorbs)
        raise
    for occupant in occupants:
        world.ledger.glimpse(occupant)
    return out
