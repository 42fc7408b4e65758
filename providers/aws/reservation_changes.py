"""Making, changing and ending EC2's On-Demand Capacity Reservations.

Invariant: a reservation is never made twice, and one without this cluster's tags is never changed or ended.
A create carries the caller's client token, which the SDK does not fill in for this operation. Change and end
have no token in EC2: they state the goal, and first check the owner and the running instances. EC2 itself
would cancel, or shrink below running instances, which then run on unreserved (EC2 API Reference, "Ensuring
idempotency", CreateCapacityReservation, ModifyCapacityReservation, CancelCapacityReservation).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from providers.aws import errors, tags
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.aws.reservations import odcr
from providers.aws.tags import Owner
from providers.errors import ErrorClass, ProviderError
from providers.model import UNCHANGED, Odcr, OdcrRequest, Unchanged, is_zone_id

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        CreateCapacityReservationRequestTypeDef,
        ModifyCapacityReservationRequestTypeDef,
    )


class AwsReservationChanges(AwsAccount):
    """Creates, resizes and cancels reservations."""

    def create_reservation(self, request: OdcrRequest) -> Odcr:
        """The reservation of the request's token, made if missing."""
        labels = tags.checked({**request.tags, **self._owner.labels()})
        parameters: CreateCapacityReservationRequestTypeDef = {
            "ClientToken": request.token,
            "InstanceType": request.instance_type,
            "InstancePlatform": request.platform,  # type: ignore[typeddict-item]  # EC2 checks it
            "InstanceCount": request.count,
            "InstanceMatchCriteria": request.match_criteria,
            "Tenancy": request.tenancy,
            "EndDateType": "limited" if request.end else "unlimited",
            "TagSpecifications": [{"ResourceType": "capacity-reservation", "Tags": tags.to_ec2(labels)}],
        }
        if is_zone_id(request.zone):
            parameters["AvailabilityZoneId"] = request.zone
        else:
            parameters["AvailabilityZone"] = request.zone
        if request.end:
            parameters["EndDate"] = request.end
        return odcr(
            self._aws.call(self._aws.ec2.create_capacity_reservation, **parameters)["CapacityReservation"],
            self._owner,
        )

    def resize_reservation(
        self, id_: str, *, count: int, end: datetime | Unchanged | None = UNCHANGED
    ) -> None:
        """Makes count and end so; never fewer than run in it."""
        seen = _describe(self._aws, id_, self._owner)
        if seen is None:
            raise ProviderError(
                "InvalidCapacityReservationId.NotFound",
                f"there is no reservation {id_} to change",
                class_=ErrorClass.RESERVATION_GONE,
                operation="ModifyCapacityReservation",
            )
        _require_owned(seen, self._owner, operation="ModifyCapacityReservation")
        _require_unused(seen, count, operation="ModifyCapacityReservation")
        # Called even if the description has these values: descriptions lag behind changes.
        parameters: ModifyCapacityReservationRequestTypeDef = {
            "CapacityReservationId": id_,
            "InstanceCount": count,
        }
        if end is not UNCHANGED:
            parameters["EndDateType"] = "limited" if end else "unlimited"
            if end:
                parameters["EndDate"] = end
        self._aws.call(self._aws.ec2.modify_capacity_reservation, **parameters)

    def cancel_reservation(self, id_: str) -> None:
        """Ends it, unless it has ended, or something runs in it."""
        seen = _describe(self._aws, id_, self._owner)
        if seen is None or seen.over:
            return
        _require_owned(seen, self._owner, operation="CancelCapacityReservation")
        _require_unused(seen, 0, operation="CancelCapacityReservation")
        try:
            self._aws.call(self._aws.ec2.cancel_capacity_reservation, CapacityReservationId=id_)
        except ProviderError as error:
            if error.class_ is not ErrorClass.RESERVATION_GONE:
                raise
            # An earlier call with a lost response did it, or another caller was faster.
            seen = _describe(self._aws, id_, self._owner)
            if seen is not None and not seen.over:
                raise


def _describe(aws: Aws, id_: str, cluster: Owner) -> Odcr | None:
    """The reservation now; None if EC2 knows none of that id."""
    with errors.suppressed(ErrorClass.RESERVATION_GONE):
        answer = aws.call(aws.ec2.describe_capacity_reservations, CapacityReservationIds=[id_])
        return next((odcr(item, cluster) for item in answer["CapacityReservations"]), None)
    return None


def _require_unused(seen: Odcr, count: int, *, operation: str) -> None:
    if count < seen.used and not seen.over:
        raise ProviderError(
            "InstancesRunning",
            f"{seen.id} has {seen.used} of its {seen.total} slots in use, so it is not made {count}: it is "
            "given back as they end",
            class_=ErrorClass.RESERVATION_FULL,
            operation=operation,
        )


def _require_owned(reservation: Odcr, cluster: Owner, *, operation: str) -> None:
    if reservation.ownership != "owned":
        missing_tags = " and ".join(f"{key}={value}" for key, value in cluster.labels().items())
        raise errors.misconfigured(
            "ForeignReservation",
            f"{reservation.id} does not carry the tag {missing_tags}, so this broker did not make it and "
            "leaves it as it is: change it where it was made",
            operation=operation,
        )
