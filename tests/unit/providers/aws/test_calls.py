"""The sent requests, their number, and the results, through the real SDK."""

from __future__ import annotations

import gc
import weakref

import pytest
from botocore.exceptions import ReadTimeoutError
from prometheus_client import CollectorRegistry

from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchRequest, Override, TemplateRef

from .support import ManualClock, Wire, answer, provider, refusal

REQUEST = LaunchRequest(
    token="claim-1",
    template=TemplateRef(name="capacity-broker/abc"),
    overrides=(Override(instance_type="p5.48xlarge", zone="us-east-1a", subnet_id="subnet-1"),),
    count=1,
)
EMPTY_FLEET = answer("CreateFleet", "<fleetId>fleet-1</fleetId>")


@pytest.mark.covers("KRP-34")
@pytest.mark.parametrize("status", [500, 503])
def test_insufficient_capacity_is_not_retried_although_it_is_a_server_error(status: int) -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (status, refusal("InsufficientInstanceCapacity", request_id="r-9")))
    with pytest.raises(ProviderError) as caught:
        aws.launch(REQUEST)
    assert caught.value.class_ is ErrorClass.CAPACITY
    assert caught.value.request_id == "r-9"
    assert wire.count("CreateFleet") == 1


@pytest.mark.parametrize(
    "code",
    ["ReservationCapacityExceeded", "VcpuLimitExceeded", "UnauthorizedOperation", "InvalidFleetConfig"],
)
def test_a_refused_call_is_not_retried(code: str) -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (400, refusal(code)))
    with pytest.raises(ProviderError):
        aws.launch(REQUEST)
    assert wire.count("CreateFleet") == 1


@pytest.mark.parametrize(
    "trouble",
    [
        (503, refusal("RequestLimitExceeded")),
        (500, refusal("InternalError")),
        (503, refusal("Unavailable")),
        (500, "<html>a proxy's page</html>"),
        ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
    ],
    ids=["throttled", "internal", "unavailable", "not-aws", "reply-lost"],
)
def test_a_transient_error_is_retried_with_the_same_token_after_a_wait(
    trouble: tuple[int, str] | Exception,
) -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    wire.reply("CreateFleet", trouble, (200, EMPTY_FLEET))
    result = aws.launch(REQUEST)
    assert result.request_id == "req-ok"
    assert [sent["ClientToken"] for sent in wire.of("CreateFleet")] == ["claim-1", "claim-1"]
    assert wire.of("CreateFleet")[0] == wire.of("CreateFleet")[1]
    assert clock.slept


@pytest.mark.parametrize(
    ("code", "class_"),
    [("RequestLimitExceeded", ErrorClass.THROTTLING), ("InternalError", ErrorClass.TRANSIENT)],
)
def test_a_persistent_error_is_raised_with_its_class(code: str, class_: ErrorClass) -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (503, refusal(code)))
    with pytest.raises(ProviderError) as caught:
        aws.launch(REQUEST)
    assert caught.value.class_ is class_
    assert 1 < wire.count("CreateFleet") < 10


@pytest.mark.covers("KRP-34")
def test_throttling_inside_a_response_delays_the_next_call() -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    inside = """<errorSet><item><errorCode>RequestLimitExceeded</errorCode>
      <launchTemplateAndOverrides><overrides><instanceType>p5.48xlarge</instanceType>
      <subnetId>subnet-1</subnetId></overrides></launchTemplateAndOverrides></item></errorSet>"""
    wire.reply("CreateFleet", (200, answer("CreateFleet", inside)), (200, EMPTY_FLEET))
    (error,) = aws.launch(REQUEST).errors
    assert error.class_ is ErrorClass.THROTTLING
    assert (error.instance_type, error.zone, error.subnet_id) == ("p5.48xlarge", "us-east-1a", "subnet-1")
    assert clock.slept == []
    aws.launch(REQUEST)
    assert clock.slept == [pytest.approx(0.2)]


@pytest.mark.covers("KRP-11")
def test_reservations_are_read_in_pages_of_a_thousand() -> None:
    aws = provider()
    wire = Wire(aws)
    first = answer(
        "DescribeCapacityReservations",
        "<capacityReservationSet>"
        + "".join(
            f"<item><capacityReservationId>cr-{n:04}</capacityReservationId></item>" for n in range(1000)
        )
        + "</capacityReservationSet><nextToken>more</nextToken>",
    )
    second = answer(
        "DescribeCapacityReservations",
        "<capacityReservationSet><item><capacityReservationId>cr-last</capacityReservationId></item>"
        "</capacityReservationSet>",
    )
    wire.reply("DescribeCapacityReservations", (200, first), (200, second))
    assert len(aws.reservations()) == 1001
    assert [sent.get("MaxResults") for sent in wire.sent] == ["1000", "1000"]
    assert [sent.get("NextToken") for sent in wire.sent] == [None, "more"]


def test_calls_throttles_and_times_are_counted() -> None:
    registry = CollectorRegistry()
    aws = provider(registry=registry)
    wire = Wire(aws)
    wire.reply("CreateFleet", (503, refusal("RequestLimitExceeded")), (200, EMPTY_FLEET))
    aws.launch(REQUEST)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"service": "ec2", "operation": "CreateFleet", **labels})

    assert value("capacity_broker_aws_calls_total", code="RequestLimitExceeded") == 1
    assert value("capacity_broker_aws_calls_total", code="") == 1
    assert value("capacity_broker_aws_throttled_total") == 1
    assert value("capacity_broker_aws_call_seconds_count") == 2


def test_an_unknown_profile_is_an_error_at_start() -> None:
    with pytest.raises(ProviderError, match="no-such-profile") as caught:
        provider(profile="no-such-profile")
    assert caught.value.class_ is ErrorClass.PERMISSION


def test_a_refused_call_keeps_nothing_of_its_callers() -> None:
    aws = provider()
    Wire(aws).reply("CreateFleet", (400, refusal("VcpuLimitExceeded")))

    class Plan:
        """Stands for all that a pass holds."""

    def planned() -> weakref.ref[Plan]:
        plan = Plan()
        with pytest.raises(ProviderError):
            aws.launch(REQUEST)
        return weakref.ref(plan)

    gc.disable()
    try:
        assert planned()() is None
    finally:
        gc.enable()
