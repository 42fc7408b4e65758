"""Errors as EC2 answers them: a code, a message and the right HTTP status.

Statuses: EC2's "Error codes" page lists insufficient capacity and internal failures among the server errors
(5xx) and all else among the client errors (4xx); RequestLimitExceeded is answered with 503.

AWS does not document the codes of some situations. Each is a line of `UNDOCUMENTED`. The control plane can
set another code, so that a client's handling of either can be tested.
"""

from __future__ import annotations

from moto.ec2.exceptions import EC2ClientError

STATUS: dict[str, int] = {
    "InsufficientAddressCapacity": 500,
    "InsufficientCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InsufficientInstanceCapacity": 500,
    "InsufficientReservedInstanceCapacity": 500,
    "InsufficientVolumeCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "ServerInternal": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "AuthFailure": 401,
    "UnauthorizedOperation": 403,
    "DryRunOperation": 412,
}

# situation -> the code in the response unless the control plane sets another
UNDOCUMENTED: dict[str, str] = {
    "id-target-mismatch": "ReservationCapacityExceeded",
    "id-target-not-usable": "InvalidCapacityReservationState",
    "group-only-exhausted": "ReservationCapacityExceeded",
    "open-only-exhausted": "ReservationCapacityExceeded",
    "target-with-preference": "InvalidParameterCombination",
    "group-unknown": "InvalidParameterValue",
    "market-type-mismatch": "InvalidParameterValue",
    "market-type-without-target": "InvalidParameterCombination",
    "modify-wrong-state": "IncorrectState",
    "cancel-wrong-state": "IncorrectState",
    "not-owner": "OperationNotPermitted",
    "block-immutable": "OperationNotPermitted",
    "interruptible-immutable": "OperationNotPermitted",
    "fleet-member-immutable": "OperationNotPermitted",
    "blocks-limit": "InstanceLimitExceeded",
    "block-unknown": "InvalidParameterValue",
    "block-draining": "InvalidCapacityReservationState",
    "extend-wrong-state": "IncorrectState",
    "allocate-wrong-state": "IncorrectState",
    "allocation-exists": "IncorrectState",
    "allocation-absent": "IncorrectState",
    "reservation-fleet-unknown": "InvalidCapacityReservationFleetId.NotFound",
    "billing-wrong-state": "IncorrectState",
    "reservation-over-quota": "InstanceLimitExceeded",
    "requirements-no-type": "InvalidParameterValue",
    "within-commitment": "OperationNotPermitted",
    "quote-unknown": "InvalidParameterValue",
    "quote-expired": "InvalidParameterValue",
    "quote-not-needed": "IncorrectState",
    "fleet-id-target-with-usage-strategy": "InvalidFleetConfig",
    "too-many-overrides": "InvalidFleetConfig",
}


class Ec2Error(EC2ClientError):
    """moto answers 400 to every code that its copy of the model doesn't list, so the status is carried
    here."""

    def __init__(self, code: str, message: str, *, status: int | None = None):
        super().__init__(code, message)
        self.http_status = status if status is not None else STATUS.get(code, 400)


def no_capacity(instance_type: str, zone: str) -> Ec2Error:
    return Ec2Error(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you "
        f"requested ({zone}). Our system will be working on provisioning additional capacity.",
    )


def reservation_full(reservation_id: str) -> Ec2Error:
    return Ec2Error(
        "ReservationCapacityExceeded",
        f"The targeted Capacity Reservation {reservation_id} does not have enough available instance "
        "capacity to fulfill your request.",
    )


def reservation_not_found(reservation_id: str) -> Ec2Error:
    return Ec2Error(
        "InvalidCapacityReservationId.NotFound",
        f"The capacity reservation ID '{reservation_id}' was not found",
    )


def reservation_malformed(reservation_id: str) -> Ec2Error:
    return Ec2Error(
        "InvalidCapacityReservationId.Malformed",
        f'Invalid ID: "{reservation_id}" (expecting "cr-..." and 17 hexadecimal digits)',
    )


def missing(parameter: str) -> Ec2Error:
    return Ec2Error("MissingParameter", f"The request must contain the parameter {parameter}")


def invalid(parameter: str, value: object, why: str) -> Ec2Error:
    return Ec2Error("InvalidParameterValue", f"Value ({value}) for parameter {parameter} is invalid. {why}")


def combination(message: str) -> Ec2Error:
    return Ec2Error("InvalidParameterCombination", message)
