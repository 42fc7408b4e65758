"""A fleet's request, and the result from its response."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.fleet import client_token, fleet_request
from providers.aws.launch_templates import template_name
from providers.aws.tags import Owner
from providers.errors import ErrorClass, ProviderError
from providers.launch import LaunchRequest, Override, Template, TemplateRef

from .support import ManualClock, Wire, answer, provider, refusal

TEMPLATE = TemplateRef(name="capacity-broker/abc", id="lt-1")


def pool(kind: str = "p5.48xlarge", zone: str = "us-east-1a", priority: int | None = None) -> Override:
    return Override(instance_type=kind, zone=zone, subnet_id=f"subnet-{zone}", priority=priority)


def request(**changes: object) -> LaunchRequest:
    base = LaunchRequest(token="t-1", template=TEMPLATE, overrides=(pool(),), count=1)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


pools = st.builds(
    pool, st.sampled_from(["p5.48xlarge", "p4d.24xlarge", "m5.large"]), st.sampled_from(["a", "b", "c"])
)


@pytest.mark.covers("KRP-21")
@given(st.lists(pools, min_size=1, max_size=9), st.integers(1, 1000))
def test_a_fleet_is_one_call_with_one_entry_per_type_and_zone(overrides: list[Override], count: int) -> None:
    launch = request(overrides=tuple(overrides), count=count)
    distinct = {(o.instance_type, o.zone) for o in overrides}
    if len(distinct) < len(overrides):
        with pytest.raises(ValueError, match="one entry an instance type and zone"):
            fleet_request(launch, cluster=Owner("blue"))
        return
    built = fleet_request(launch, cluster=Owner("blue"))
    assert built["Type"] == "instant"
    assert built["TargetCapacitySpecification"]["TotalTargetCapacity"] == count
    (config,) = built["LaunchTemplateConfigs"]
    assert {(o["InstanceType"], o["AvailabilityZone"]) for o in config["Overrides"]} == distinct


@pytest.mark.covers("KRP-21")
def test_duplicate_pools_are_refused_before_the_call() -> None:
    aws = provider()
    wire = Wire(aws)
    with pytest.raises(ValueError, match=r"p5\.48xlarge in us-east-1a"):
        aws.launch(request(overrides=(pool(), pool())))
    assert wire.sent == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": ""}, "token"),
        ({"overrides": ()}, "at least one pool"),
        ({"count": 0}, "1 to 1000"),
        ({"count": 1001}, "1 to 1000"),
        ({"count": 2, "minimum": 3}, "minimum"),
    ],
)
def test_a_request_that_ec2_would_refuse_is_not_sent(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fleet_request(request(**changes), cluster=Owner("blue"))


@pytest.mark.covers("KRP-15")
@pytest.mark.parametrize(
    ("market", "capacity", "options"),
    [
        ("on-demand", "on-demand", {"OnDemandOptions"}),
        ("spot", "spot", {"SpotOptions"}),
        ("capacity-block", "capacity-block", set()),
        ("interruptible-capacity-reservation", "reserved-capacity", {"ReservedCapacityOptions"}),
    ],
)
def test_each_market_has_its_capacity_type(market: str, capacity: str, options: set[str]) -> None:
    built = fleet_request(request(market=market), cluster=Owner("blue"))
    assert built["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == capacity
    assert {key for key in built if key.endswith("Options")} == options


def test_without_priorities_the_lowest_price_wins() -> None:
    plain = fleet_request(request(), cluster=Owner("blue"))
    assert plain["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
    ranked = fleet_request(
        request(overrides=(pool(priority=0), pool(zone="us-east-1b", priority=1))), cluster=Owner("blue")
    )
    assert ranked["OnDemandOptions"] == {"AllocationStrategy": "prioritized"}
    assert [o["Priority"] for o in ranked["LaunchTemplateConfigs"][0]["Overrides"]] == [0, 1]


@pytest.mark.parametrize(
    ("overrides", "single"),
    [
        ((pool(),), "SingleAvailabilityZone"),
        ((pool(), pool("p4d.24xlarge")), "SingleAvailabilityZone"),
        ((pool(), pool(zone="us-east-1b")), "SingleInstanceType"),
        ((pool(), pool("p4d.24xlarge", "us-east-1b")), "SingleAvailabilityZone"),
    ],
)
def test_all_or_nothing_names_a_single_zone_or_type(overrides: tuple[Override, ...], single: str) -> None:
    built = fleet_request(request(overrides=overrides, count=4, minimum=4), cluster=Owner("blue"))
    assert built["OnDemandOptions"]["MinTargetCapacity"] == 4
    assert built["OnDemandOptions"][single] is True  # type: ignore[literal-required]


def test_instance_volume_and_fleet_carry_the_tags_and_the_cluster() -> None:
    built = fleet_request(request(tags={"team": "ml"}), cluster=Owner("blue"))
    listed = [{"Key": "capacity-broker.io/cluster", "Value": "blue"}, {"Key": "team", "Value": "ml"}]
    assert [(s["ResourceType"], s["Tags"]) for s in built["TagSpecifications"]] == [
        (kind, listed) for kind in ("instance", "volume", "fleet")
    ]


def test_a_trial_launch_carries_the_tags_of_a_launch() -> None:
    """A policy may require them: without them the verdict of a trial is not that of a launch."""
    aws = provider()
    aws.identify("uid-1")
    wire = Wire(aws)
    named = "<launchTemplateName>capacity-broker/a</launchTemplateName>"
    created = f"<launchTemplate><launchTemplateId>lt-1</launchTemplateId>{named}</launchTemplate>"
    wire.reply("CreateLaunchTemplate", (200, answer("CreateLaunchTemplate", created)))
    wire.reply("DeleteLaunchTemplate", (200, answer("DeleteLaunchTemplate", "")))
    for action in ("CreateFleet", "RunInstances"):
        wire.reply(action, (412, refusal("DryRunOperation")))
    denied = aws.try_launch(
        Template(image_id="ami-1"), owner="gpu", overrides=[pool()], market="on-demand", tags={"team": "ml"}
    )
    assert denied == ""
    tags = {
        "capacity-broker.io/cluster": "blue",
        "capacity-broker.io/cluster-uid": "uid-1",
        "team": "ml",
    }
    for action in ("CreateFleet", "RunInstances"):
        (sent,) = wire.of(action)
        listed = [f"TagSpecification.1.Tag.{i}" for i in (1, 2, 3)]
        assert {sent[f"{tag}.Key"]: sent[f"{tag}.Value"] for tag in listed} == tags, action


@pytest.mark.covers("KRP-26")
def test_karpenters_cluster_tag_is_never_set() -> None:
    aws = provider()
    wire = Wire(aws)
    tags = {
        "karpenter.sh/nodepool": "p",
        "karpenter.k8s.aws/ec2nodeclass": "c",
        "eks:eks-cluster-name": "blue",
    }
    with pytest.raises(ProviderError, match="belongs to Karpenter"):
        aws.launch(request(tags=tags))
    with pytest.raises(ProviderError, match="belongs to Karpenter"):
        aws.tag(["i-1"], tags)
    assert wire.sent == []


@given(st.text(min_size=1, max_size=200))
def test_any_token_becomes_a_valid_client_token(token: str) -> None:
    accepted = client_token(token)
    assert accepted.isascii() and 1 <= len(accepted) <= 64
    assert accepted == client_token(token)


@given(st.text(min_size=65, max_size=90), st.text(min_size=65, max_size=90))
def test_long_tokens_stay_distinct(token: str, other: str) -> None:
    assert (client_token(token) == client_token(other)) == (token == other)


def test_a_token_of_another_request_is_a_configuration_error() -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (400, refusal("IdempotentParameterMismatch")))
    with pytest.raises(ProviderError) as caught:
        aws.launch(request())
    assert caught.value.class_ is ErrorClass.CONFIGURATION


FLEET = answer(
    "CreateFleet",
    """<fleetInstanceSet><item><instanceType>p5.48xlarge</instanceType>
    <launchTemplateAndOverrides><overrides><availabilityZone>us-east-1a</availabilityZone>
    <subnetId>subnet-1</subnetId></overrides></launchTemplateAndOverrides>
    <instanceIds><item>i-1</item><item>i-2</item></instanceIds></item></fleetInstanceSet>""",
)


def described(*ids: str, reservation: str = "") -> str:
    inside = "".join(
        f"<item><instanceId>{i}</instanceId><capacityReservationId>{reservation}</capacityReservationId>"
        "<placement><availabilityZone>us-east-1a</availabilityZone></placement>"
        "<instanceState><name>pending</name></instanceState></item>"
        for i in ids
    )
    return answer(
        "DescribeInstances",
        f"<reservationSet><item><instancesSet>{inside}</instancesSet></item></reservationSet>",
    )


@pytest.mark.covers("KRP-33")
def test_the_reservation_is_that_of_ec2s_description() -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (200, FLEET))
    wire.reply("DescribeInstances", (200, described("i-1", "i-2", reservation="cr-7")))
    result = aws.launch(request(count=2))
    assert [(i.id, i.reservation_id) for i in result.instances] == [("i-1", "cr-7"), ("i-2", "cr-7")]


def test_an_instance_that_is_not_described_yet_is_described_again() -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    wire.reply("CreateFleet", (200, FLEET))
    wire.reply(
        "DescribeInstances",
        (200, described("i-1", reservation="cr-7")),
        (200, described("i-2", reservation="cr-7")),
    )
    result = aws.launch(request(count=2))
    assert [i.reservation_id for i in result.instances] == ["cr-7", "cr-7"]
    assert wire.of("DescribeInstances")[1]["Filter.1.Value.1"] == "i-2"
    assert len(clock.slept) == 1


def test_an_instance_that_ec2_never_shows_is_not_lost() -> None:
    clock = ManualClock()
    aws = provider(clock)
    wire = Wire(aws)
    wire.reply("CreateFleet", (200, FLEET))
    wire.reply("DescribeInstances", (200, described("i-1")))
    result = aws.launch(request(count=2))
    lost = next(i for i in result.instances if i.id == "i-2")
    assert (lost.zone, lost.instance_type, lost.state) == ("us-east-1a", "p5.48xlarge", "pending")
    assert [i.described for i in result.instances] == [True, False]
    assert sum(clock.slept) < 30


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "RequestLimitExceeded"])
def test_instances_are_not_lost_when_describing_them_fails(code: str) -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (200, FLEET))
    wire.reply("DescribeInstances", (403, refusal(code)))
    result = aws.launch(request(count=2))
    assert [(i.id, i.described) for i in result.instances] == [("i-1", False), ("i-2", False)]


@pytest.mark.covers("KRP-22")
def test_below_the_minimum_no_instance_stays() -> None:
    aws = provider()
    wire = Wire(aws)
    wire.reply("CreateFleet", (200, FLEET))
    wire.reply("DescribeInstances", (200, described("i-1", "i-2")))
    wire.reply("TerminateInstances", (200, answer("TerminateInstances", "<instancesSet/>")))
    assert aws.launch(request(count=3, minimum=3, market="capacity-block")).instances == ()
    (sent,) = wire.of("TerminateInstances")
    assert {sent["InstanceId.1"], sent["InstanceId.2"]} == {"i-1", "i-2"}


@pytest.mark.parametrize("where", ["call", "inside"])
def test_a_deleted_template_is_created_again(where: str) -> None:
    aws = provider()
    wire = Wire(aws)
    template = Template(image_id="ami-1")
    name = template_name(template, owner="gpu", cluster="blue")
    created = answer(
        "CreateLaunchTemplate",
        "<launchTemplate><launchTemplateId>lt-1</launchTemplateId>"
        f"<launchTemplateName>{name}</launchTemplateName></launchTemplate>",
    )
    code = "InvalidLaunchTemplateName.NotFoundException"
    inside = answer("CreateFleet", f"<errorSet><item><errorCode>{code}</errorCode></item></errorSet>")
    wire.reply("CreateLaunchTemplate", (200, created))
    wire.reply("CreateFleet", (400, refusal(code)) if where == "call" else (200, inside))
    ref = aws.ensure_template(template, owner="gpu")
    if where == "call":
        with pytest.raises(ProviderError) as caught:
            aws.launch(request(template=ref))
        assert caught.value.class_ is ErrorClass.TEMPLATE_GONE
    else:
        (error,) = aws.launch(request(template=ref)).errors
        assert error.class_ is ErrorClass.TEMPLATE_GONE
    aws.ensure_template(template, owner="gpu")
    tokens = {sent["ClientToken"] for sent in wire.of("CreateLaunchTemplate")}
    assert len(tokens) == 2


@pytest.mark.covers("KRP-18")
@pytest.mark.parametrize("code", ["InstanceLimitExceeded", "InvalidParameterValue", "SomethingNew"])
def test_a_spread_placement_group_is_full_only_in_its_zone(code: str) -> None:
    """No limit of the account, and no mistake of the class: another zone may take the instance."""
    message = (
        "You've reached the limit of instances in this spread placement group. A spread placement group can "
        "have up to seven instances per Availability Zone."
    )
    aws = provider()
    refused = f"<item><errorCode>{code}</errorCode><errorMessage>{message}</errorMessage></item>"
    Wire(aws).reply("CreateFleet", (200, answer("CreateFleet", f"<errorSet>{refused}</errorSet>")))
    (error,) = aws.launch(request()).errors
    assert (error.code, error.class_) == (code, ErrorClass.SPREAD_FULL)


@pytest.mark.covers("KRP-37")
@pytest.mark.parametrize(("market", "options"), [("on-demand", "OnDemandOptions"), ("spot", "SpotOptions")])
def test_fleet_has_ec2s_own_limit_of_its_price(market: str, options: str) -> None:
    limited = fleet_request(request(market=market, max_price=12.5), cluster=Owner("blue"))
    assert limited[options]["MaxTotalPrice"] == "12.5000"  # type: ignore[literal-required]
    unlimited = fleet_request(request(market=market), cluster=Owner("blue"))
    assert "MaxTotalPrice" not in unlimited[options]  # type: ignore[literal-required]
