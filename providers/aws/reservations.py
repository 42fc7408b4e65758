"""EC2's On-Demand Capacity Reservations, all of them by one paginated describe.

Invariant: the number of calls grows with pages of 1,000, never with ids (DescribeCapacityReservations counts
against EC2's bucket of 100 calls and 20 a second). Every state is returned; its meaning is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from providers.aws import tags
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.aws.clock import utc
from providers.aws.listings import ListOperation, leave_out
from providers.aws.tags import NO_OWNER, Owner
from providers.model import LINUX, BlockExtension, Odcr

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef

PAGE = 1000
# States of an interruptible allocation without instances (EC2 API, InterruptibleAllocationStatus).
ALLOCATION_OVER = ("canceled", "failed")
# An extension whose payment failed changes nothing (EC2 API Reference, CapacityBlockExtension).
_PAID: Final = {"payment-pending": False, "payment-succeeded": True}


def listing(aws: Aws, owner: Owner = NO_OWNER) -> ListOperation[Odcr]:
    """The listing that `reservations` reads."""
    listed = ListOperation(
        aws,
        "DescribeCapacityReservations",
        element="capacityReservationSet",
        member="CapacityReservations",
        decode=lambda item: [odcr(item, owner)],
    )
    leave_out(aws, "DescribeCapacityReservations", ("capacityAllocationSet",))
    return listed


class AwsReservations(AwsAccount):
    """Reads reservations."""

    def __init__(self, aws: Aws, owner: Owner) -> None:
        super().__init__(aws, owner)
        self._reservations = listing(aws, owner)

    def reservations(self) -> Sequence[Odcr]:
        """Every reservation that the account owns or was given to share, by id."""
        return sorted(self._reservations.read(MaxResults=PAGE), key=lambda reservation: reservation.id)


def odcr(item: CapacityReservationTypeDef, owner: Owner = NO_OWNER) -> Odcr:
    """One reservation of an answer."""
    carried = tags.from_ec2(item.get("Tags", []))
    allocation = item.get("InterruptibleCapacityAllocation", {})
    lends = allocation.get("Status", "active") not in ALLOCATION_OVER
    return Odcr(
        id=item["CapacityReservationId"],
        arn=item.get("CapacityReservationArn", ""),
        owner_id=item.get("OwnerId", ""),
        billing_owner_id=item.get("UnusedReservationBillingOwnerId", ""),
        instance_type=item.get("InstanceType", ""),
        zone=item.get("AvailabilityZone", ""),
        zone_id=item.get("AvailabilityZoneId", ""),
        platform=item.get("InstancePlatform", LINUX),
        tenancy=item.get("Tenancy", "default"),
        match_criteria=item.get("InstanceMatchCriteria", "open"),
        state=item.get("State", "active"),
        total=item.get("TotalInstanceCount", 0),
        available=item.get("AvailableInstanceCount", 0),
        reservation_type=item.get("ReservationType", "default"),
        interruptible=item.get("Interruptible", False),
        source_id=item.get("InterruptionInfo", {}).get("SourceCapacityReservationId", ""),
        lent=allocation.get("InstanceCount", 0) if lends else 0,
        lent_to=allocation.get("InterruptibleCapacityReservationId", "") if lends else "",
        created=utc(item.get("CreateDate")),
        start=utc(item.get("StartDate")),
        end=utc(item.get("EndDate")),
        placement_group_arn=item.get("PlacementGroupArn", ""),
        outpost_arn=item.get("OutpostArn", ""),
        # EC2 gives a launch status to reservations of UltraServers only.
        ultraserver="LaunchStatus" in item,
        unlaunchable=item.get("LaunchStatus", "launchable") != "launchable",
        tags=carried,
        ownership=owner.ownership_of(carried),
    )


class BlockExtensions(AwsAccount):
    """Reads extensions."""

    def extensions(self, odcr_ids: Collection[str]) -> Sequence[BlockExtension]:
        """The extensions of these blocks that are paid, or may still be."""
        extensions: list[BlockExtension] = []
        for page in self._aws.pages(
            self._aws.ec2.describe_capacity_block_extension_history,
            CapacityReservationIds=sorted(odcr_ids),
            MaxResults=PAGE,
        ):
            for item in page["CapacityBlockExtensions"]:
                paid = _PAID.get(item.get("CapacityBlockExtensionStatus", ""))
                start = utc(item.get("CapacityBlockExtensionStartDate"))
                end = utc(item.get("CapacityBlockExtensionEndDate"))
                if paid is not None and start is not None and end is not None:
                    id_ = item.get("CapacityReservationId", "")
                    extensions.append(BlockExtension(odcr_id=id_, start=start, end=end, paid=paid))
        return extensions
