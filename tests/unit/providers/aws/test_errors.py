"""Every documented code has its class; unknown ones are classified by the form of the name, then by
status."""

from __future__ import annotations

import pytest
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st

from providers.aws import errors
from providers.errors import ErrorClass

# "Error codes for the Amazon EC2 API" and the codes that other AWS clients have met, code by code.
DOCUMENTED = {
    "InsufficientInstanceCapacity": ErrorClass.CAPACITY,
    "ReservationCapacityExceeded": ErrorClass.RESERVATION_FULL,
    "InvalidCapacityReservationId.NotFound": ErrorClass.RESERVATION_GONE,
    "InvalidCapacityReservationId.Malformed": ErrorClass.RESERVATION_GONE,
    "InvalidCapacityReservationState.PendingActivation": ErrorClass.RESERVATION_GONE,
    "InvalidCapacityReservationState.Unavailable": ErrorClass.RESERVATION_GONE,
    "InvalidCapacityReservationState": ErrorClass.RESERVATION_GONE,
    "IncorrectState": ErrorClass.RESERVATION_GONE,
    "InstanceLimitExceeded": ErrorClass.QUOTA,
    "VcpuLimitExceeded": ErrorClass.QUOTA,
    "MaxSpotInstanceCountExceeded": ErrorClass.QUOTA,
    "UnfulfillableCapacity": ErrorClass.CAPACITY,
    "SpotMaxPriceTooLow": ErrorClass.CAPACITY,
    "MaxFleetCountExceeded": ErrorClass.LIMIT,
    "InvalidFleetConfig": ErrorClass.CONFIGURATION,
    "Unsupported": ErrorClass.UNSUPPORTED,
    "UnsupportedException": ErrorClass.CONFIGURATION,
    "InsufficientFreeAddressesInSubnet": ErrorClass.SUBNET,
    "InvalidLaunchTemplateName.NotFoundException": ErrorClass.TEMPLATE_GONE,
    "InvalidLaunchTemplateId.NotFound": ErrorClass.TEMPLATE_GONE,
    "InvalidLaunchTemplateId.VersionNotFound": ErrorClass.TEMPLATE_GONE,
    "InvalidLaunchTemplateName.AlreadyExistsException": ErrorClass.CONFIGURATION,
    "MaxTemplateLimitExceeded": ErrorClass.TEMPLATE_LIMIT,
    "MaxTemplateVersionLimitExceeded": ErrorClass.TEMPLATE_LIMIT,
    "RequestLimitExceeded": ErrorClass.THROTTLING,
    "IdempotentParameterMismatch": ErrorClass.CONFIGURATION,
    "IdempotentInstanceTerminated": ErrorClass.CONFIGURATION,
    "InvalidClientToken": ErrorClass.CONFIGURATION,
    "ResourceCountExceeded": ErrorClass.CONFIGURATION,
    "InsufficientCapacityOnHost": ErrorClass.CAPACITY,
    "InsufficientHostCapacity": ErrorClass.CAPACITY,
    "InsufficientReservedInstanceCapacity": ErrorClass.CAPACITY,
    "InsufficientVolumeCapacity": ErrorClass.CAPACITY,
    "InsufficientAddressCapacity": ErrorClass.CAPACITY,
    "InsufficientCapacityOnOutpost": ErrorClass.CAPACITY,
    "PendingVerification": ErrorClass.PERMISSION,
    "OptInRequired": ErrorClass.PERMISSION,
    "Blocked": ErrorClass.PERMISSION,
    "UnauthorizedOperation": ErrorClass.PERMISSION,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": ErrorClass.PERMISSION,
    "CapacityBlockDescribeLimitExceeded": ErrorClass.THROTTLING,
    "InvalidCapacityBlockOfferingIdExpired": ErrorClass.NOT_FOUND,
    "InvalidCapacityBlockOfferingIdMalformed": ErrorClass.NOT_FOUND,
    "InvalidCapacityBlockOfferingIdNotFound": ErrorClass.NOT_FOUND,
    "InternalError": ErrorClass.TRANSIENT,
    "InternalFailure": ErrorClass.TRANSIENT,
    "ServerInternal": ErrorClass.TRANSIENT,
    "ServiceUnavailable": ErrorClass.TRANSIENT,
    "Unavailable": ErrorClass.TRANSIENT,
    # Resource Groups
    "BadRequestException": ErrorClass.CONFIGURATION,
    "ForbiddenException": ErrorClass.PERMISSION,
    "NotFoundException": ErrorClass.NOT_FOUND,
    "MethodNotAllowedException": ErrorClass.CONFIGURATION,
    "TooManyRequestsException": ErrorClass.THROTTLING,
    "InternalServerErrorException": ErrorClass.TRANSIENT,
    "UnauthorizedException": ErrorClass.PERMISSION,
    # Credentials
    "ExpiredToken": ErrorClass.PERMISSION,
    "AuthFailure": ErrorClass.PERMISSION,
    "AccessDenied": ErrorClass.PERMISSION,
}


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize(("code", "class_"), sorted(DOCUMENTED.items()))
@pytest.mark.parametrize("status", [0, 400, 500, 503])
def test_a_documented_code_has_its_class_for_any_status(code: str, class_: ErrorClass, status: int) -> None:
    assert errors.classify(code, status) is class_


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize(
    "code", ["VcpuLimitExceeded", "InsufficientFreeAddressesInSubnet", "RequestLimitExceeded"]
)
def test_quota_subnet_and_rate_errors_do_not_mark_a_reservation(code: str) -> None:
    assert errors.classify(code) not in (
        ErrorClass.RESERVATION_FULL,
        ErrorClass.RESERVATION_GONE,
        ErrorClass.CAPACITY,
    )


@pytest.mark.parametrize(
    ("code", "status", "class_"),
    [
        ("InvalidCapacityReservationId.Expired.NotFound", 400, ErrorClass.RESERVATION_GONE),
        ("CapacityReservationNotActive", 400, ErrorClass.RESERVATION_GONE),
        ("InsufficientTrainiumCapacity", 500, ErrorClass.CAPACITY),
        ("GpuLimitExceeded", 400, ErrorClass.LIMIT),
        ("ServiceQuotaExceededException", 402, ErrorClass.LIMIT),
        ("GpuVCpuLimitExceeded", 400, ErrorClass.QUOTA),
        ("ReadThrottledException", 400, ErrorClass.THROTTLING),
        ("InvalidVpcID.NotFound", 400, ErrorClass.NOT_FOUND),
        ("InvalidKeyPair.Malformed", 400, ErrorClass.CONFIGURATION),
        ("InvalidParameterCombination", 400, ErrorClass.CONFIGURATION),
        ("Server.InsufficientInstanceCapacity", 0, ErrorClass.CAPACITY),
        ("Client.InternalError", 0, ErrorClass.TRANSIENT),
        ("Brandnew", 500, ErrorClass.TRANSIENT),
        ("Brandnew", 503, ErrorClass.TRANSIENT),
        ("Brandnew", 429, ErrorClass.THROTTLING),
        ("Brandnew", 401, ErrorClass.PERMISSION),
        ("Brandnew", 403, ErrorClass.PERMISSION),
        ("Brandnew", 404, ErrorClass.NOT_FOUND),
        ("Brandnew", 400, ErrorClass.CONFIGURATION),
        ("Brandnew", 0, ErrorClass.CONFIGURATION),
    ],
)
def test_an_unknown_code_is_classed_by_its_name_then_its_status(
    code: str, status: int, class_: ErrorClass
) -> None:
    assert errors.classify(code, status) is class_


@pytest.mark.parametrize(
    ("code", "message", "class_"),
    [
        (
            "Unsupported",
            "Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone "
            "(us-east-1e). Please retry your request by not specifying an Availability Zone or choosing "
            "us-east-1a.",
            ErrorClass.NOT_OFFERED,
        ),
        (
            "Unsupported",
            "The requested Availability Zone is currently constrained and we are no longer accepting new "
            "customer requests for m1 instance types.",
            ErrorClass.NOT_OFFERED,
        ),
        (
            "Unsupported",
            "The requested configuration is currently not supported. Please check the documentation for "
            "supported configurations.",
            ErrorClass.UNSUPPORTED,
        ),
        ("Unsupported", "p5.48xlarge can't be reserved for a future date", ErrorClass.UNSUPPORTED),
        ("Unsupported", "", ErrorClass.UNSUPPORTED),
        (
            "InvalidParameterValue",
            "Value (blue_1) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile "
            "name",
            ErrorClass.PROFILE_UNKNOWN,
        ),
        ("InvalidParameterValue", "Value (x) for parameter imageId is invalid.", ErrorClass.CONFIGURATION),
    ],
)
def test_the_message_decides_the_class_of_an_ambiguous_code(
    code: str, message: str, class_: ErrorClass
) -> None:
    assert errors.classify(code, 400, message=message) is class_
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    raised = errors.translate(sdk.ClientError(response, "RunInstances"), operation="RunInstances")  # type: ignore[arg-type]
    assert raised.class_ is class_


@given(st.text(), st.integers(0, 599))
def test_any_code_has_a_class(code: str, status: int) -> None:
    assert errors.classify(code, status) in ErrorClass


def test_the_request_id_the_code_and_the_operation_are_kept() -> None:
    caught = sdk.ClientError(
        {
            "Error": {"Code": "VcpuLimitExceeded", "Message": "You have requested more vCPU capacity"},
            "ResponseMetadata": {"RequestId": "abc-1", "HTTPStatusCode": 400},  # type: ignore[typeddict-item]
        },
        "CreateFleet",
    )
    error = errors.translate(caught, operation="CreateFleet")
    assert (error.code, error.class_, error.request_id) == ("VcpuLimitExceeded", ErrorClass.QUOTA, "abc-1")
    assert str(error) == "CreateFleet: VcpuLimitExceeded: You have requested more vCPU capacity"


@pytest.mark.parametrize(
    ("caught", "class_", "message"),
    [
        (sdk.NoCredentialsError(), ErrorClass.PERMISSION, "AWS_PROFILE"),
        (sdk.ProfileNotFound(profile="gpu"), ErrorClass.PERMISSION, "gpu"),
        (sdk.UnauthorizedSSOTokenError(), ErrorClass.PERMISSION, "aws sso login"),
        (sdk.CredentialRetrievalError(provider="p", error_msg="m"), ErrorClass.PERMISSION, "m"),
        (sdk.ConnectTimeoutError(endpoint_url="http://e"), ErrorClass.TRANSIENT, "http://e"),
        (sdk.ReadTimeoutError(endpoint_url="http://e"), ErrorClass.TRANSIENT, "http://e"),
        (sdk.EndpointConnectionError(endpoint_url="http://e"), ErrorClass.TRANSIENT, "http://e"),
        (sdk.ConnectionClosedError(endpoint_url="http://e"), ErrorClass.TRANSIENT, "http://e"),
        (sdk.ParamValidationError(report="bad field"), ErrorClass.CONFIGURATION, "bad field"),
        (sdk.NoRegionError(), ErrorClass.CONFIGURATION, "region"),
    ],
)
def test_errors_of_the_sdk_have_a_class_and_a_remedy(
    caught: Exception, class_: ErrorClass, message: str
) -> None:
    error = errors.translate(caught, operation="DescribeSubnets")
    assert error.class_ is class_
    assert message in str(error)
    assert error.request_id == ""


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("b'<html>\\n<title>500 Internal Server Error</title>\\n<p>sorry</p>'", "500 Internal Server Error"),
        ("b'hello'", "Unable to parse response (no element found), invalid XML received."),
    ],
)
def test_answer_that_is_not_aws_s_names_the_sender_and_not_the_page(answer: str, shown: str) -> None:
    text = "Unable to parse response (no element found), invalid XML received. Further retries may succeed: "
    error = errors.translate(
        ResponseParserError(text + answer), operation="X", sender="http://e of Region lab-north-1"
    )
    assert error.class_ is ErrorClass.TRANSIENT
    message = (
        f"X: UnreadableAnswer: http://e of Region lab-north-1 sent an answer that is not AWS's ({shown})"
    )
    assert str(error) == message


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired"])
def test_expired_credentials_name_the_command_that_renews_them(code: str) -> None:
    caught = sdk.ClientError({"Error": {"Code": code, "Message": "The security token is expired"}}, "X")
    error = errors.translate(caught, operation="X")
    assert error.class_ is ErrorClass.PERMISSION
    assert "renew" in error.message and "The security token is expired" in error.message


def test_a_permission_error_has_a_stable_message() -> None:
    """EC2 adds an encoded text that differs in each call."""

    def text_of(sealed: str) -> str:
        message = f"You are not authorized. Encoded authorization failure message: {sealed}"
        caught = sdk.ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": message}}, "X")
        return str(errors.translate(caught, operation="CreateFleet"))

    assert text_of("k3xJ") == text_of("9fQz")
    assert text_of("k3xJ").endswith("You are not authorized.")


def test_other_exceptions_are_not_swallowed() -> None:
    with pytest.raises(TypeError):
        errors.translate(KeyError("x"), operation="X")
