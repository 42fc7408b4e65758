"""vCPU quotas: launches, fleets and reservations up to a limit, usage, and Service Quotas' answers."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.aws.control import ControlError
from tests.aws.local.kit import (
    LINUX,
    TYPE,
    ZONE,
    Aws,
    codes,
    fleet,
    launched,
    places,
    pool,
    refused,
    run,
    template,
    to_id,
)

VCPUS = 2  # of TYPE


def used(aws: Aws) -> list[int]:
    return [quota["used"] for quota in aws.control.quotas()]


def test_launches_end_at_the_quota_and_go_on_when_something_ended(aws: Aws, ec2: Any) -> None:
    aws.control.quota(instance_type=TYPE, vcpus=3 * VCPUS)
    first, *_ = run(ec2, 2)
    with refused("VcpuLimitExceeded", text="Running On-Demand Standard instances"):
        run(ec2, 2)
    answer = ec2.run_instances(ImageId=LINUX, InstanceType=TYPE, MinCount=1, MaxCount=5)
    assert len(answer["Instances"]) == 1
    assert used(aws) == [3 * VCPUS]
    ec2.stop_instances(InstanceIds=[first["InstanceId"]])
    assert len(run(ec2)) == 1
    with refused("VcpuLimitExceeded"):
        ec2.start_instances(InstanceIds=[first["InstanceId"]])
    aws.control.quota(instance_type=TYPE, vcpus=None)
    assert len(run(ec2, 4)) == 4


def test_spent_quota_is_an_error_of_the_fleets_pool(aws: Aws, ec2: Any) -> None:
    aws.control.quota(instance_type=TYPE, vcpus=VCPUS)
    answer = fleet(ec2, pool(template(ec2)), total=2)
    assert len(launched(answer)) == 1
    assert codes(fleet(ec2, pool(template(ec2)), total=1)) == ["VcpuLimitExceeded"]


def test_reservations_count_even_unused_and_their_instances_count_once(aws: Aws, ec2: Any) -> None:
    aws.control.quota(instance_type=TYPE, vcpus=3 * VCPUS)
    reservation_id = aws.reserve(ec2, 2)
    assert used(aws) == [2 * VCPUS]
    assert places(run(ec2, 2, specification=to_id(reservation_id))) == [reservation_id] * 2
    assert used(aws) == [2 * VCPUS]
    with refused("InstanceLimitExceeded", text="1 more"):
        aws.reserve(ec2, 2)
    with refused("InstanceLimitExceeded"):
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=4)
    run(ec2)
    with refused("VcpuLimitExceeded"):
        run(ec2)
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    assert used(aws) == [3 * VCPUS]  # they run on outside


def test_spot_and_other_families_have_quotas_of_their_own(aws: Aws, ec2: Any) -> None:
    aws.control.quota(instance_type=TYPE, vcpus=0, market="spot")
    with refused("MaxSpotInstanceCountExceeded"):
        run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    aws.control.quota(instance_type="p5.48xlarge", vcpus=0)
    assert len(run(ec2)) == 1
    with refused("VcpuLimitExceeded", text="P instances"):
        run(ec2, InstanceType="p5.48xlarge")


def test_capacity_blocks_count_for_nothing(aws: Aws, ec2: Any) -> None:
    aws.control.quota(instance_type="p5.48xlarge", vcpus=0)
    block = aws.control.reservation(
        reservation_type="capacity-block",
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservationId"]
    inside = run(
        ec2,
        InstanceType="p5.48xlarge",
        specification=to_id(block),
        InstanceMarketOptions={"MarketType": "capacity-block"},
    )
    assert (places(inside), used(aws)) == ([block], [0])


def test_service_quotas_returns_the_set_quotas(aws: Aws) -> None:
    client = aws.client("service-quotas")
    aws.control.quota(instance_type="p5.48xlarge", vcpus=384)
    quota = client.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]
    assert (quota["Value"], quota["QuotaName"]) == (384.0, "Running On-Demand P instances")
    with pytest.raises(ClientError, match="NoSuchResource"):
        client.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A")
    aws.control.reset()
    assert aws.control.quotas() == []


def test_invalid_quota_is_refused_with_a_reason(aws: Aws) -> None:
    with pytest.raises(ControlError, match=r"'mac1\.metal' has no on-demand quota of vCPUs; with one: a, c"):
        aws.control.quota(instance_type="mac1.metal", vcpus=1)
    with pytest.raises(ControlError, match="market: 'reserved' is invalid"):
        aws.control.quota(instance_type=TYPE, vcpus=1, market="reserved")
