"""The classes of a provider's refusals, and the error that carries one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ErrorClass(StrEnum):
    """The subject of a refusal; the class decides the reaction, never the code or the text."""

    CAPACITY = "capacity"  # the type is out of capacity in that zone and market
    RESERVATION_FULL = "reservation-full"  # healthy reservation, no free slot
    RESERVATION_GONE = "reservation-gone"  # unknown, not shared, cancelled, expired or not usable now
    NOT_OFFERED = "not-offered"  # the zone does not have the type
    UNSUPPORTED = "unsupported"  # EC2 does not support the class's settings with this type
    SPREAD_FULL = "spread-full"  # the spread placement group has all its instances in that zone
    SUBNET = "subnet"  # the subnet has no free address
    QUOTA = "quota"  # a vCPU limit of the account
    LIMIT = "limit"  # any other limit of the account
    TEMPLATE_LIMIT = "template-limit"  # the limit of launch templates
    THROTTLING = "throttling"  # the request rate, not capacity
    TEMPLATE_GONE = "template-gone"  # the launch template vanished
    PROFILE_UNKNOWN = "profile-unknown"  # EC2 does not know the instance profile (yet)
    NOT_FOUND = "not-found"  # any other thing that is not there
    CONFIGURATION = "configuration"  # the request itself is wrong
    PERMISSION = "permission"  # credentials or policy
    TRANSIENT = "transient"  # EC2's own trouble; the same call with the same token may be repeated


class ProviderError(Exception):
    """A call that the provider refused as a whole.

    `code` is the provider's own code (EC2's error code), `class_` its subject. `request_id` is for AWS
    support (empty without a response). `lost`: this call, or one that it repeats, may have been carried out
    all the same. `refused`: in a call about several resources, the refused ones with their reasons; the call
    was carried out for the others.
    """

    def __init__(
        self, code: str, message: str, *, class_: ErrorClass, request_id: str = "", operation: str = ""
    ) -> None:
        super().__init__(f"{operation or 'call'}: {code}: {message}")
        self.code = code
        self.message = message
        self.class_ = class_
        self.request_id = request_id
        self.operation = operation
        self.lost = class_ is ErrorClass.TRANSIENT
        self.refused: Mapping[str, ProviderError] = {}
