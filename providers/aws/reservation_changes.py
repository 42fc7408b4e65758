"""Making, changing and ending EC2's On-Demand Capacity Reservations.

Invariant: a reservation is never made twice, and one without this cluster's tags is never changed or ended.
A create carries the caller's client token, which the SDK does not fill in for this operation. Change and end
have no token in EC2: they state the goal, and first check the owner and the running instances. EC2 itself
would cancel, or shrink below running instances, which then run on unreserved (EC2 API Reference, "Ensuring
idempotency", CreateCapacityReservation, ModifyCapacityReservation, CancelCapacityReservation).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from providers.aws import errors, tags
from providers.aws.clients import Aws
from providers.aws.reservations import odcr
from providers.aws.tags import Owner
from providers.model import ENDED_STATES, UNCHANGED, ErrorClass, Odcr, OdcrRequest, ProviderError, Unchanged

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        CreateCapacityReservationRequestTypeDef,
        ModifyCapacityReservationRequestTypeDef,
    )

_ZONE_ID = re.compile(r"-az[0-9]+$")


def create(aws: Aws, request: OdcrRequest, *, cluster: Owner) -> Odcr:
    """The reservation that the request's token stands for, made if it is not."""
    labels = tags.checked({**request.tags, **cluster.labels()})
    asked: CreateCapacityReservationRequestTypeDef = {
        "ClientToken": request.token,
        "InstanceType": request.instance_type,
        "InstancePlatform": request.platform,  # type: ignore[typeddict-item]  # EC2 checks it
        "InstanceCount": request.count,
        "InstanceMatchCriteria": request.match_criteria,
        "Tenancy": request.tenancy,
        "EbsOptimized": request.ebs_optimized,
        "EndDateType": "limited" if request.end else "unlimited",
        "TagSpecifications": [{"ResourceType": "capacity-reservation", "Tags": tags.to_ec2(labels)}],
    }
    if _ZONE_ID.search(request.zone):
        asked["AvailabilityZoneId"] = request.zone
    else:
        asked["AvailabilityZone"] = request.zone
    if request.end:
        asked["EndDate"] = request.end
    return odcr(aws.call(aws.ec2.create_capacity_reservation, **asked)["CapacityReservation"], cluster)


def resize(aws: Aws, id_: str, *, cluster: Owner, count: int, end: datetime | Unchanged | None) -> None:
    """Makes count and end so; never fewer than run in it."""
    seen = _look(aws, id_, cluster)
    if seen is None:
        raise ProviderError(
            "InvalidCapacityReservationId.NotFound",
            f"there is no reservation {id_} to change",
            class_=ErrorClass.RESERVATION_GONE,
            operation="ModifyCapacityReservation",
        )
    _require_ours(seen, cluster, operation="ModifyCapacityReservation")
    _require_unused(seen, count, operation="ModifyCapacityReservation")
    # Whatever was seen: descriptions lag behind changes.
    asked: ModifyCapacityReservationRequestTypeDef = {"CapacityReservationId": id_, "InstanceCount": count}
    if end is not UNCHANGED:
        asked["EndDateType"] = "limited" if end else "unlimited"
        if end:
            asked["EndDate"] = end
    aws.call(aws.ec2.modify_capacity_reservation, **asked)


def cancel(aws: Aws, id_: str, *, cluster: Owner) -> None:
    """Ends it, unless it has ended, or something runs in it."""
    seen = _look(aws, id_, cluster)
    if seen is None or seen.state in ENDED_STATES:
        return
    _require_ours(seen, cluster, operation="CancelCapacityReservation")
    _require_unused(seen, 0, operation="CancelCapacityReservation")
    try:
        aws.call(aws.ec2.cancel_capacity_reservation, CapacityReservationId=id_)
    except ProviderError as error:
        if error.class_ is not ErrorClass.RESERVATION_GONE:
            raise
        # A call whose response was lost did it, or another caller was faster.
        seen = _look(aws, id_, cluster)
        if seen is not None and seen.state not in ENDED_STATES:
            raise


def _look(aws: Aws, id_: str, cluster: Owner) -> Odcr | None:
    """The reservation now; None where EC2 knows none of that id."""
    try:
        answer = aws.call(aws.ec2.describe_capacity_reservations, CapacityReservationIds=[id_])
    except ProviderError as error:
        if error.class_ is ErrorClass.RESERVATION_GONE:
            return None
        raise
    return next((odcr(item, cluster) for item in answer["CapacityReservations"]), None)


def _require_unused(seen: Odcr, count: int, *, operation: str) -> None:
    used = seen.total - seen.available
    if count < used and seen.state not in ENDED_STATES:
        raise ProviderError(
            "InstancesRunning",
            f"{seen.id} has {used} of its {seen.total} slots in use, so it is not made {count}: it is "
            "given back as they end",
            class_=ErrorClass.RESERVATION_FULL,
            operation=operation,
        )


def _require_ours(seen: Odcr, cluster: Owner, *, operation: str) -> None:
    if seen.ownership != "ours":
        wanted = " and ".join(f"{key}={value}" for key, value in cluster.labels().items())
        raise errors.misconfigured(
            "ForeignReservation",
            f"{seen.id} does not carry the tag {wanted}, so this broker did not make it and "
            "leaves it as it is: change it where it was made",
            operation=operation,
        )
