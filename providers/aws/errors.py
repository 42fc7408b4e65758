"""Classes AWS errors: the one place where a code or an exception becomes an ErrorClass.

Invariant: every error that leaves this package has a class, and codes are compared nowhere else. Codes and
their meaning are those of the EC2 API Reference, "Error codes for the Amazon EC2 API". A code that the table
lacks is classed by the shape of its name, then by its HTTP status. If EC2 has one code for several refusals,
its text decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError

from providers.errors import ErrorClass, ProviderError

_CODES: Mapping[ErrorClass, tuple[str, ...]] = {
    ErrorClass.CAPACITY: (
        # A server error (HTTP 5xx) that must never be repeated as such.
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientVolumeCapacity",
        "InsufficientAddressCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientCapacityOnOutpost",
        "InsufficientCapacity",
        "UnfulfillableCapacity",
        "SpotMaxPriceTooLow",
    ),
    ErrorClass.RESERVATION_FULL: ("ReservationCapacityExceeded",),
    ErrorClass.RESERVATION_GONE: (
        "InvalidCapacityReservationId.NotFound",
        "InvalidCapacityReservationId.Malformed",
        "InvalidCapacityReservationState",
        "InvalidCapacityReservationState.PendingActivation",
        "InvalidCapacityReservationState.Unavailable",
        # The only thing with a state that the broker's launches name is the reservation.
        "IncorrectState",
    ),
    ErrorClass.UNSUPPORTED: ("Unsupported",),
    ErrorClass.SUBNET: (
        "InsufficientFreeAddressesInSubnet",
        "InvalidSubnetID.NotFound",
        "InvalidSubnetId.NotFound",
    ),
    ErrorClass.QUOTA: (
        "InstanceLimitExceeded",
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
    ),
    ErrorClass.LIMIT: (
        "MaxFleetCountExceeded",
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "SnapshotLimitExceeded",
        "AddressLimitExceeded",
        "NetworkInterfaceLimitExceeded",
        "ReservedInstancesLimitExceeded",
        "LimitExceeded",
        "LimitExceededException",
    ),
    ErrorClass.TEMPLATE_LIMIT: ("MaxTemplateLimitExceeded", "MaxTemplateVersionLimitExceeded"),
    ErrorClass.THROTTLING: (
        "RequestLimitExceeded",
        "CapacityBlockDescribeLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "EC2ThrottledException",
        "SlowDown",
    ),
    ErrorClass.TEMPLATE_GONE: (
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateName.NotFound",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateId.VersionNotFound",
    ),
    ErrorClass.NOT_FOUND: (
        "InvalidInstanceID.NotFound",
        "InvalidAMIID.NotFound",
        "InvalidAMIID.Unavailable",
        "InvalidGroup.NotFound",
        "InvalidCapacityBlockOfferingIdExpired",
        "InvalidCapacityBlockOfferingIdMalformed",
        "InvalidCapacityBlockOfferingIdNotFound",
        "NoSuchEntity",
        "NotFoundException",
        "ParameterNotFound",
    ),
    ErrorClass.CONFIGURATION: (
        "InvalidFleetConfig",
        "InvalidFleetConfiguration",
        "UnsupportedException",
        "UnsupportedOperation",
        "OperationNotPermitted",
        "InvalidLaunchTemplateName.AlreadyExistsException",
        "EntityAlreadyExists",
        "IdempotentParameterMismatch",
        "IdempotentInstanceTerminated",
        "InvalidClientToken",
        "ResourceCountExceeded",
        "InvalidUserData.Malformed",
        "BadRequestException",
        "MethodNotAllowedException",
        "ValidationError",
        "ValidationException",
        "DryRunOperation",
    ),
    ErrorClass.PERMISSION: (
        "UnauthorizedOperation",
        "AuthFailure",
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "PendingVerification",
        "OptInRequired",
        "Blocked",
        "AccessDenied",
        "AccessDeniedException",
        "ForbiddenException",
        "UnauthorizedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "MissingAuthenticationToken",
    ),
    ErrorClass.TRANSIENT: (
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "InternalServerErrorException",
        "ServerInternal",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
        "ServiceFailure",
        "RequestTimeout",
        "RequestTimeoutException",
    ),
}

TABLE: Mapping[str, ErrorClass] = {code: class_ for class_, codes in _CODES.items() for code in codes}

# Shapes of names that the table does not know; the first that matches wins.
_SHAPES: tuple[tuple[re.Pattern[str], ErrorClass], ...] = tuple(
    (re.compile(shape), class_)
    for shape, class_ in (
        (r"Throttl|TooManyRequests|RequestLimit", ErrorClass.THROTTLING),
        (r"CapacityReservation.*(NotFound|Malformed|State|NotActive)", ErrorClass.RESERVATION_GONE),
        (r"^InvalidLaunchTemplate(Id|Name)\..*NotFound", ErrorClass.TEMPLATE_GONE),
        (r"^Insufficient\w*Capacity", ErrorClass.CAPACITY),
        (r"(?i)vcpu\w*Exceeded", ErrorClass.QUOTA),
        (r"(Limit|Count|Quota)\w*Exceeded", ErrorClass.LIMIT),
        (r"(Unauthorized|AccessDenied|^AuthFailure|ExpiredToken)", ErrorClass.PERMISSION),
        (r"(NotFound|NoSuch|DoesNotExist|NonExistent)", ErrorClass.NOT_FOUND),
        (r"(Malformed|^InvalidParameter|^MissingParameter|^Invalid)", ErrorClass.CONFIGURATION),
    )
)

# Refusals that EC2 distinguishes by text alone, whatever their code; the first match wins.
# Karpenter goes by the words of the last two as well (pkg/errors/errors.go).
_TEXTS: tuple[tuple[re.Pattern[str], ErrorClass], ...] = tuple(
    (re.compile(text, re.IGNORECASE | re.DOTALL), class_)
    for text, class_ in (
        (
            r"instance type.{0,80}\b(not|isn't|no longer) (currently )?(supported|offered|available) in "
            r".{0,60}availability zone",
            ErrorClass.NOT_OFFERED,
        ),
        (
            r"availability zone.{0,60}\b(constrained|no longer supported|does(n't| not) (support|offer|have))"
            r" .{0,80}instance type",
            ErrorClass.NOT_OFFERED,
        ),
        # A spread placement group takes seven instances a zone; EC2 documents no code for the eighth.
        (r"limit of instances in this spread placement group", ErrorClass.SPREAD_FULL),
        # A profile that was just made: IAM knows it before EC2 does.
        (r"Invalid IAM Instance Profile", ErrorClass.PROFILE_UNKNOWN),
    )
)

# "User: ... is not authorized to perform: iam:PassRole on resource: ..."
_ACTION = re.compile(r"to perform: ([a-z0-9-]+:[A-Za-z0-9]+)")

# Words that older EC2 interfaces put before a code.
_ORIGIN = re.compile(r"^(Client|Server)\.")

_NO_CREDENTIALS = (
    "no AWS credentials were found: give the process a role (IRSA, EKS Pod Identity, an instance profile), "
    "or set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
_EXPIRED = (
    "the AWS credentials have expired: renew them (aws sso login, or the role of the process); "
    "the next call uses the new ones"
)
_EXISTS = frozenset({"InvalidLaunchTemplateName.AlreadyExistsException", "EntityAlreadyExists"})
# Of the codes about permission those that a policy gives for some resources and not for others.
_OF_A_RESOURCE = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
# AWS does not accept the credentials themselves.
_REJECTED_CODES = frozenset(
    {
        "AuthFailure",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)

_TITLE = re.compile(r"<title>([^<>]{1,80})</title>", re.IGNORECASE)

# The SDK's own exceptions, most specific first: code, class, and a text to use instead of the SDK's.
_SDK: tuple[tuple[type[Exception], str, ErrorClass, str], ...] = (
    (sdk.NoCredentialsError, "NoCredentials", ErrorClass.PERMISSION, _NO_CREDENTIALS),
    (sdk.PartialCredentialsError, "NoCredentials", ErrorClass.PERMISSION, _NO_CREDENTIALS),
    (sdk.ProfileNotFound, "NoCredentials", ErrorClass.PERMISSION, ""),
    (sdk.UnauthorizedSSOTokenError, "ExpiredToken", ErrorClass.PERMISSION, _EXPIRED),
    (sdk.SSOTokenLoadError, "ExpiredToken", ErrorClass.PERMISSION, _EXPIRED),
    (sdk.TokenRetrievalError, "ExpiredToken", ErrorClass.PERMISSION, _EXPIRED),
    (sdk.CredentialRetrievalError, "CredentialRetrieval", ErrorClass.PERMISSION, ""),
    (sdk.ConnectTimeoutError, "ConnectTimeout", ErrorClass.TRANSIENT, ""),
    (sdk.ReadTimeoutError, "ReadTimeout", ErrorClass.TRANSIENT, ""),
    (sdk.EndpointConnectionError, "EndpointConnection", ErrorClass.TRANSIENT, ""),
    (sdk.ConnectionError, "ConnectionBroken", ErrorClass.TRANSIENT, ""),
    (sdk.HTTPClientError, "ConnectionBroken", ErrorClass.TRANSIENT, ""),
    (sdk.ResponseStreamingError, "ConnectionBroken", ErrorClass.TRANSIENT, ""),
    # An answer that is not AWS's: the error page of a proxy or a load balancer.
    (ResponseParserError, "UnreadableAnswer", ErrorClass.TRANSIENT, ""),
    (sdk.ParamValidationError, "ParamValidation", ErrorClass.CONFIGURATION, ""),
    (sdk.BotoCoreError, "SDK", ErrorClass.CONFIGURATION, ""),
)

# The exceptions that `translate` can turn into a ProviderError; no other is caught.
RAISED = (sdk.ClientError, sdk.BotoCoreError, ResponseParserError)


def classify(code: str, http_status: int = 0, *, message: str = "") -> ErrorClass:
    """The class of an AWS error: by its text if only that is specific, else by its code.

    Else by the HTTP status (0: unknown).
    """
    for text, class_ in _TEXTS:
        if text.search(message):
            return class_
    code = _ORIGIN.sub("", code)
    if code in TABLE:
        return TABLE[code]
    for shape, class_ in _SHAPES:
        if shape.search(code):
            return class_
    if http_status == 429:
        return ErrorClass.THROTTLING
    if http_status >= 500:
        return ErrorClass.TRANSIENT
    if http_status in (401, 403):
        return ErrorClass.PERMISSION
    if http_status == 404:
        return ErrorClass.NOT_FOUND
    return ErrorClass.CONFIGURATION


def translate(error: Exception, *, operation: str, sender: str = "the endpoint") -> ProviderError:
    """The ProviderError for an exception of the SDK (one of RAISED), request id kept.

    `sender`: the endpoint and the Region of the call, for an answer that is not AWS's.
    """
    if isinstance(error, sdk.ClientError):
        return _answered(error.response, operation=operation)
    for kind, code, class_, message in _SDK:
        if isinstance(error, kind):
            shown = _page(error, sender) if isinstance(error, ResponseParserError) else str(error)
            text = f"{message} ({shown})" if message else shown
            return ProviderError(code, text, class_=class_, operation=operation)
    raise TypeError(f"not an exception of the AWS SDK: {error!r}")


def _page(error: ResponseParserError, sender: str) -> str:
    """The SDK's text has the whole page; its title is enough."""
    title = _TITLE.search(str(error))
    shown = title[1].strip() if title else str(error).partition(" Further retries")[0][:120]
    return f"{sender} sent an answer that is not AWS's ({shown})"


def _answered(response: Mapping[str, Any], *, operation: str) -> ProviderError:
    error = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    code = _ORIGIN.sub("", str(error.get("Code", "Unknown")))
    message = str(error.get("Message", ""))
    # Differs each time, so that equal refusals would not be equal; CloudTrail has it under the request id.
    message = message.partition(" Encoded authorization failure message:")[0]
    if code in _EXPIRED_CODES:
        message = f"{_EXPIRED} ({message})"
    return ProviderError(
        code,
        message,
        class_=classify(code, int(meta.get("HTTPStatusCode", 0)), message=message),
        request_id=str(meta.get("RequestId", "")),
        operation=operation,
    )


def misconfigured(code: str, message: str, *, operation: str) -> ProviderError:
    """Rejects a request before it is sent, since a person has to correct it first."""
    return ProviderError(code, message, class_=ErrorClass.CONFIGURATION, operation=operation)


class suppressed(AbstractContextManager[None]):  # noqa: N801 it reads as a statement, as contextlib's
    """Ends its block without an error at one of this class, such as that what is to go is gone."""

    def __init__(self, class_: ErrorClass) -> None:
        self._class = class_

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, ProviderError) and error.class_ is self._class


def only_tried(error: ProviderError) -> bool:
    """True for the answer to a dry run that would have been carried out."""
    return error.code == "DryRunOperation"


def denied_action(error: ProviderError) -> str:
    """The action that AWS names as not allowed; else that of the call itself."""
    named = _ACTION.search(error.message)
    return named[1] if named else f"ec2:{error.operation}"


def denied(error: ProviderError) -> bool:
    """True when a policy denies the call. False for credentials that are refused or have expired."""
    return error.code in _OF_A_RESOURCE


def of_the_caller(error: ProviderError) -> bool:
    """True when the refusal is about the caller: a call for fewer of the resources would fare no better."""
    if error.class_ is ErrorClass.PERMISSION:
        return error.code not in _OF_A_RESOURCE
    return error.class_.passes


def way_out(error: ProviderError) -> str:
    """The remedy that a person has; empty if the error's message has it, or there is none."""
    if error.code == "NoCredentials" or error.code in _EXPIRED_CODES:
        return ""
    if error.code in _REJECTED_CODES:
        return "AWS does not accept these credentials; --aws-profile names others"
    if error.code == "UnreadableAnswer":
        where = "the Region (--region), the endpoint (--aws-endpoint)"
        return f"check {where}, and any proxy or load balancer before it"
    if error.class_ is ErrorClass.PERMISSION:
        return f"let your user or role do {error.operation}; --aws-profile names another"
    return ""


def already_exists(error: ProviderError) -> bool:
    """True if the object exists already: the caller reads it and adopts it."""
    return error.code in _EXISTS
