"""This broker's instances: found by its cluster tag, ended and tagged in batches.

Invariant: one id never spoils a batch. DescribeInstances rejects the whole call for one unknown id
(InvalidInstanceID.NotFound), so ids are looked up by filter; a rejected terminate is split.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from providers.aws import errors, filters
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.aws.clock import utc
from providers.aws.images import platform
from providers.aws.listings import ListOperation, leave_out
from providers.aws.tags import NO_OWNER, Owner, checked, from_ec2, text, texts, to_ec2
from providers.errors import ErrorClass, ProviderError
from providers.model import Instance
from providers.names import TAG_CLUSTER

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceTypeDef, TagTypeDef

PAGE = 500  # EC2 gives up to 1,000; each page is held as XML and as decoded instances
# EC2 takes up to 1,000 ids; it advises fewer so that a call does not time out.
BATCH = 500
ENDED = ("shutting-down", "terminated")
_ID = re.compile(r"\bi-[0-9a-f]+\b")
# Elements of DescribeInstances that are never read here; most of its response.
UNREAD = (
    "blockDeviceMapping",
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


def described(aws: Aws, ids: Collection[str], owner: Owner) -> dict[str, Instance]:
    """Those of the ids that EC2 knows, by id."""
    by_id: dict[str, Instance] = {}
    for batch in filters.batches(sorted(set(ids)), filters.VALUES):
        chosen: list[FilterTypeDef] = [{"Name": "instance-id", "Values": list(batch)}]
        for page in aws.pages(aws.ec2.describe_instances, Filters=chosen, MaxResults=PAGE):
            for reservation in page["Reservations"]:
                listed = [_instance(item, owner) for item in reservation.get("Instances", [])]
                by_id |= {instance.id: instance for instance in listed}
    return by_id


def listing(aws: Aws, owner: Owner = NO_OWNER) -> ListOperation[Instance]:
    """The listing that `Instances.instances` reads."""
    listed = ListOperation(
        aws,
        "DescribeInstances",
        element="reservationSet",
        member="Reservations",
        decode=lambda reservation: [_instance(item, owner) for item in reservation.get("Instances", [])],
    )
    leave_out(aws, "DescribeInstances", UNREAD)
    return listed


class AwsInstances(AwsAccount):
    """Reads, ends and tags instances; tags resources of any kind."""

    def __init__(self, aws: Aws, owner: Owner) -> None:
        super().__init__(aws, owner)
        self._instances = listing(aws, owner)

    def instances(self, ids: Collection[str] | None = None) -> Sequence[Instance]:
        """Those of the ids, or all with the cluster's name except those with the UID of another; by id."""
        if ids is None:
            chosen = [{"Name": f"tag:{TAG_CLUSTER}", "Values": [self._owner.name]}]
            listed = self._instances.read(Filters=chosen, MaxResults=PAGE)
            instances = [instance for instance in listed if instance.ownership != "foreign"]
        else:
            instances = [*described(self._aws, ids, self._owner).values()]
        return sorted(instances, key=lambda instance: instance.id)

    def terminate(self, ids: Collection[str]) -> None:
        """Ends instances; one that is gone already is success.

        After the rest has ended, raises ProviderError for those that EC2 rejects (`refused`).
        """
        refused: dict[str, ProviderError] = {}
        for batch in filters.batches(sorted(set(ids)), BATCH):
            refused |= _end(self._aws, batch)
        if not refused:
            return
        first = next(iter(refused.values()))
        error = ProviderError(
            first.code,
            "; ".join(f"{id_}: {error.code}: {error.message}" for id_, error in refused.items()),
            class_=first.class_,
            request_id=first.request_id,
            operation="TerminateInstances",
        )
        error.refused = refused
        raise error

    def tag(self, ids: Collection[str], tags: Mapping[str, str]) -> None:
        """Adds tags to resources of any kind."""
        listed = to_ec2(checked(tags))
        for batch in filters.batches(sorted(set(ids)), BATCH):
            if listed:
                self._aws.call(self._aws.ec2.create_tags, Resources=list(batch), Tags=listed)

    def untag(self, ids: Collection[str], keys: Collection[str]) -> None:
        """Removes tags of resources of any kind by key."""
        listed: list[TagTypeDef] = [{"Key": key} for key in sorted(keys)]
        for batch in filters.batches(sorted(set(ids)), BATCH):
            if listed:
                self._aws.call(self._aws.ec2.delete_tags, Resources=list(batch), Tags=listed)


def _end(aws: Aws, batch: Sequence[str]) -> dict[str, ProviderError]:
    """The instances of a batch that EC2 refuses to end, each with the reason.

    EC2 rejects the call for all of a zone, or for all, if one instance has termination protection, a state
    that forbids it or is out of the role's reach (EC2 API Reference, TerminateInstances). The instances that
    the refusal names are retried apart from the others; if it names none, each half is.
    """
    try:
        aws.call(aws.ec2.terminate_instances, InstanceIds=list(batch))
    except ProviderError as error:
        if errors.of_the_caller(error):
            raise
        if len(batch) == 1:
            return {} if _gone(aws, batch[0], error) else {batch[0]: error}
        message_ids = set(_ID.findall(error.message))
        named = [id_ for id_ in batch if id_ in message_ids]
        others = [id_ for id_ in batch if id_ not in message_ids]
        if not named or not others:
            named, others = list(batch[: len(batch) // 2]), list(batch[len(batch) // 2 :])
        return _end(aws, named) | _end(aws, others)
    return {}


def _gone(aws: Aws, id_: str, error: ProviderError) -> bool:
    """Whether there is nothing to end: EC2 knows no such instance, or has ended it."""
    known = described(aws, [id_], NO_OWNER) if error.class_ is ErrorClass.NOT_FOUND else None
    return known is not None and all(instance.state in ENDED for instance in known.values())


def _instance(item: InstanceTypeDef, owner: Owner) -> Instance:
    carried = from_ec2(item.get("Tags", []))
    placement = item.get("Placement", {})
    specification = item.get("CapacityReservationSpecification", {})
    target = specification.get("CapacityReservationTarget", {})
    return Instance(
        id=item["InstanceId"],
        instance_type=text(item, "InstanceType"),
        zone=text(placement, "AvailabilityZone"),
        zone_id=text(placement, "AvailabilityZoneId"),
        state=text(item.get("State", {}), "Name", "pending"),
        image_id=text(item, "ImageId"),
        subnet_id=text(item, "SubnetId"),
        security_group_ids=texts(group.get("GroupId", "") for group in item.get("SecurityGroups", ())),
        reservation_id=text(item, "CapacityReservationId"),
        reservation_preference=text(specification, "CapacityReservationPreference"),
        reservation_group=text(target, "CapacityReservationResourceGroupArn"),
        platform=platform(text(item, "PlatformDetails")),
        placement_group=text(placement, "GroupName"),
        lifecycle=text(item, "InstanceLifecycle"),
        tenancy=text(placement, "Tenancy", "default"),
        private_dns_name=text(item, "PrivateDnsName"),
        launched=utc(item.get("LaunchTime")),
        end_reason=text(item.get("StateReason", {}), "Message"),
        tags=carried,
        ownership=owner.ownership_of(carried),
    )
