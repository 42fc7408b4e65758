"""The text that a person reads when AWS refuses; nothing is launched or lost meanwhile."""

from __future__ import annotations

import pytest

from providers.aws import AwsProvider
from providers.errors import ErrorClass, ProviderError
from providers.launch import ReservationTarget
from providers.model import Selector

from .world import REGION, World


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("UnauthorizedOperation", 403, "UnauthorizedOperation"),
        ("RequestExpired", 400, "renew them"),
        ("ExpiredToken", 400, "renew them"),
        ("AuthFailure", 401, "AuthFailure"),
    ],
)
def test_denied_or_expired_credentials_are_reported_and_nothing_is_launched(
    world: World, code: str, status: int, message: str
) -> None:
    cr = world.reserve(1)
    world.control.fault(action="CreateFleet", code=code, status=status, times=-1)
    with pytest.raises(ProviderError, match=message) as caught:
        world.launch(ReservationTarget(reservation_id=cr))
    assert caught.value.class_ is ErrorClass.PERMISSION
    assert caught.value.operation == "CreateFleet"
    assert caught.value.request_id
    assert world.control.calls()["CreateFleet"] == 1
    assert world.running() == []
    assert world.free(cr) == 1


def test_missing_credentials_error_names_the_sources(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nowhere = tmp_path_factory.mktemp("home") / "none"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(nowhere))
    aws = AwsProvider(cluster="blue", region=REGION, endpoint_url=world.server.endpoint, clock=world.clock)
    with pytest.raises(ProviderError, match="no AWS credentials were found") as caught:
        aws.reservations()
    assert caught.value.class_ is ErrorClass.PERMISSION


def test_unreachable_endpoint_is_a_temporary_error(world: World) -> None:
    aws = AwsProvider(cluster="blue", region=REGION, endpoint_url="http://127.0.0.1:1", clock=world.clock)
    with pytest.raises(ProviderError, match=r"http://127\.0\.0\.1:1") as caught:
        aws.reservations()
    assert caught.value.class_ is ErrorClass.TRANSIENT


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize("listing", ["subnets", "security_groups", "images"])
def test_a_term_that_selects_by_nothing_is_refused_and_named(world: World, listing: str) -> None:
    with pytest.raises(ProviderError, match="SelectorTerms selects by nothing") as caught:
        getattr(world.aws, listing)([Selector()])
    assert caught.value.class_ is ErrorClass.CONFIGURATION


@pytest.mark.covers("KRP-05", "KRP-18")
def test_a_reservation_in_another_zone_is_refused_and_nothing_runs_outside_it(world: World) -> None:
    cr = world.reserve(1, zone="us-east-1b")
    try:
        result = world.launch(ReservationTarget(reservation_id=cr))
    except ProviderError as error:
        assert error.class_ is not ErrorClass.TRANSIENT
    else:
        assert result.instances == () and result.errors
    assert world.running() == []
    assert world.free(cr) == 1


@pytest.mark.parametrize(
    "code", ["InvalidAMIID.NotFound", "InvalidSubnetID.NotFound", "InvalidGroup.NotFound"]
)
def test_missing_resource_of_a_launch_is_no_shortage(world: World, code: str) -> None:
    world.control.fault(action="CreateFleet", code=code, message="it does not exist", status=400, times=-1)
    with pytest.raises(ProviderError, match="it does not exist") as caught:
        world.launch()
    assert caught.value.class_ in (ErrorClass.NOT_FOUND, ErrorClass.SUBNET)
    assert world.running() == []
