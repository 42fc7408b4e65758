"""This broker's instances: found by its cluster tag, ended and tagged in batches.

Invariant: an id that EC2 does not know never spoils a batch. DescribeInstances and TerminateInstances
refuse the whole call for one unknown id (InvalidInstanceID.NotFound), so ids are looked up by filter, and a
terminate that is refused for one is asked again for those that EC2 does know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from providers.aws import filters, tags
from providers.aws.clients import Aws
from providers.aws.clock import utc
from providers.aws.listings import Listing, leave_out
from providers.model import ErrorClass, Instance, ProviderError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceTypeDef, TagTypeDef

PAGE = 500  # EC2 gives up to 1,000; each page is held as XML and as what is read of it
# EC2 takes up to 1,000 ids; it advises fewer so that a call does not time out.
BATCH = 500
# What DescribeInstances tells of an instance and nobody here asks for; most of its answer.
UNREAD = (
    "blockDeviceMapping",
    "capacityReservationSpecification",
    "cpuOptions",
    "enclaveOptions",
    "groupSet",
    "hibernationOptions",
    "iamInstanceProfile",
    "maintenanceOptions",
    "metadataOptions",
    "monitoring",
    "networkInterfaceSet",
    "privateDnsNameOptions",
    "productCodes",
    "usageOperationUpdateTime",
)


def described(aws: Aws, ids: Collection[str]) -> dict[str, Instance]:
    """Those of the ids that EC2 knows, by id."""
    found: dict[str, Instance] = {}
    for batch in filters.batches(sorted(set(ids)), filters.VALUES):
        chosen: list[FilterTypeDef] = [{"Name": "instance-id", "Values": list(batch)}]
        found.update({instance.id: instance for instance in _pages(aws, chosen)})
    return found


def listing(aws: Aws) -> Listing[Instance]:
    """What `of_cluster` reads."""
    listed = Listing(
        aws,
        "DescribeInstances",
        element="reservationSet",
        member="Reservations",
        decode=lambda reservation: [_instance(item) for item in reservation.get("Instances", [])],
    )
    leave_out(aws, "DescribeInstances", UNREAD)
    return listed


def of_cluster(listed: Listing[Instance], cluster: str) -> list[Instance]:
    """Every instance with the cluster's tag, in every state that EC2 still shows, by id."""
    chosen = [{"Name": f"tag:{tags.CLUSTER}", "Values": [cluster]}]
    return sorted(listed.read(Filters=chosen, MaxResults=PAGE), key=lambda instance: instance.id)


def terminate(aws: Aws, ids: Collection[str]) -> None:
    """Ends instances; one that is gone already is success."""
    for batch in filters.batches(sorted(set(ids)), BATCH):
        try:
            aws.call(aws.ec2.terminate_instances, InstanceIds=list(batch))
        except ProviderError as error:
            if error.class_ is not ErrorClass.NOT_FOUND:
                raise
            known = [i for i, instance in described(aws, batch).items() if instance.state != "terminated"]
            if known:
                aws.call(aws.ec2.terminate_instances, InstanceIds=sorted(known))


def add_tags(aws: Aws, ids: Collection[str], new: Mapping[str, str]) -> None:
    """Adds tags to resources of any kind."""
    listed = tags.to_ec2(tags.checked(new))
    for batch in filters.batches(sorted(set(ids)), BATCH):
        if listed:
            aws.call(aws.ec2.create_tags, Resources=list(batch), Tags=listed)


def remove_tags(aws: Aws, ids: Collection[str], keys: Collection[str]) -> None:
    """Removes tags of resources of any kind, whatever their value."""
    listed: list[TagTypeDef] = [{"Key": key} for key in sorted(keys)]
    for batch in filters.batches(sorted(set(ids)), BATCH):
        if listed:
            aws.call(aws.ec2.delete_tags, Resources=list(batch), Tags=listed)


def _pages(aws: Aws, chosen: Sequence[FilterTypeDef]) -> list[Instance]:
    return [
        _instance(item)
        for page in aws.pages(aws.ec2.describe_instances, Filters=chosen, MaxResults=PAGE)
        for reservation in page["Reservations"]
        for item in reservation.get("Instances", [])
    ]


def _instance(item: InstanceTypeDef) -> Instance:
    placement = item.get("Placement", {})
    return Instance(
        id=item["InstanceId"],
        instance_type=item.get("InstanceType", ""),
        zone=placement.get("AvailabilityZone", ""),
        zone_id=placement.get("AvailabilityZoneId", ""),
        state=item.get("State", {}).get("Name", "pending"),
        image_id=item.get("ImageId", ""),
        subnet_id=item.get("SubnetId", ""),
        reservation_id=item.get("CapacityReservationId", ""),
        lifecycle=item.get("InstanceLifecycle", ""),
        architecture="arm64" if item.get("Architecture", "").startswith("arm64") else "amd64",
        private_dns_name=item.get("PrivateDnsName", ""),
        launched=utc(item.get("LaunchTime")),
        tags=tags.from_ec2(item.get("Tags", [])),
    )
