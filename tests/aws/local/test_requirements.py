"""InstanceRequirements: types chosen by attributes, in fleets and by the call that lists them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.local.kit import (
    OTHER_TYPE,
    TYPE,
    ZONE,
    Aws,
    codes,
    fleet,
    instances,
    launched,
    pool,
    refused,
    template,
)

SMALL = {"VCpuCount": {"Min": 2, "Max": 2}, "MemoryMiB": {"Min": 4096, "Max": 8192}}
ANY_PRICE = {"OnDemandMaxPricePercentageOverLowestPrice": 999_999}
H100 = {
    "VCpuCount": {"Min": 1},
    "MemoryMiB": {"Min": 1},
    "AcceleratorNames": ["h100"],
    "AcceleratorCount": {"Min": 8},
    **ANY_PRICE,
}


def listed(ec2: Any, requirements: dict[str, Any], *, architecture: str = "x86_64") -> set[str]:
    pages = ec2.get_paginator("get_instance_types_from_instance_requirements").paginate(
        ArchitectureTypes=[architecture], VirtualizationTypes=["hvm"], InstanceRequirements=requirements
    )
    return {entry["InstanceType"] for page in pages for entry in page["InstanceTypes"]}


def here(requirements: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"InstanceRequirements": requirements, "AvailabilityZone": ZONE, **more}


def test_attributes_choose_and_defaults_leave_out(ec2: Any) -> None:
    usual = listed(ec2, {**SMALL, **ANY_PRICE})
    assert {TYPE, OTHER_TYPE} <= usual
    assert not {name for name in usual if name.startswith("t") or "metal" in name}
    assert "t3.medium" in listed(ec2, {**SMALL, **ANY_PRICE, "BurstablePerformance": "included"})
    only = listed(ec2, {**SMALL, **ANY_PRICE, "BurstablePerformance": "required"})
    assert only and all(name.startswith("t") for name in only)
    assert "m5d.large" not in listed(ec2, {**SMALL, **ANY_PRICE, "LocalStorage": "excluded"})
    assert TYPE not in listed(ec2, {**SMALL, **ANY_PRICE, "CpuManufacturers": ["amd"]})
    assert listed(ec2, {**SMALL, **ANY_PRICE, "AllowedInstanceTypes": ["m5.*"]}) == {TYPE}
    assert TYPE not in listed(ec2, {**SMALL, **ANY_PRICE, "ExcludedInstanceTypes": ["m5*"]})
    assert all("g" in name for name in listed(ec2, {**SMALL, **ANY_PRICE}, architecture="arm64"))
    assert listed(ec2, H100) == {"p5.48xlarge"}
    assert listed(ec2, {**SMALL, **ANY_PRICE, "AcceleratorCount": {"Max": 0}}) <= usual


def test_price_protection_leaves_out_expensive_types(ec2: Any) -> None:
    guarded = listed(ec2, {**SMALL})
    assert guarded < listed(ec2, {**SMALL, **ANY_PRICE})
    assert guarded <= listed(ec2, {**SMALL, "OnDemandMaxPricePercentageOverLowestPrice": 60})


def test_a_fleet_launches_the_cheapest_that_fits_and_goes_on_where_it_is_refused(aws: Aws, ec2: Any) -> None:
    requirements = {**SMALL, **ANY_PRICE, "AllowedInstanceTypes": ["m5.large", "c5.large"]}
    answer = fleet(ec2, pool(template(ec2), here(requirements)), total=2)
    assert {instance["InstanceType"] for instance in instances(ec2, launched(answer))} == {OTHER_TYPE}
    (entry,) = answer["Instances"]
    assert entry["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"] == OTHER_TYPE
    aws.control.pool(instance_type=OTHER_TYPE, zone=ZONE, size=3)  # two of them are taken
    answer = fleet(ec2, pool(template(ec2), here(requirements)), total=2)
    assert {instance["InstanceType"] for instance in instances(ec2, launched(answer))} == {TYPE, OTHER_TYPE}
    assert codes(answer) == ["InsufficientInstanceCapacity"]


def test_the_requirements_may_be_the_templates_own(ec2: Any) -> None:
    template_id = template(ec2, InstanceRequirements={**SMALL, **ANY_PRICE, "AllowedInstanceTypes": ["m5.*"]})
    answer = fleet(ec2, pool(template_id, {"AvailabilityZone": ZONE}))
    assert answer["Instances"][0]["InstanceType"] == TYPE


def test_two_sets_that_choose_the_same_type_are_one_pool(ec2: Any) -> None:
    requirements = {**SMALL, **ANY_PRICE, "AllowedInstanceTypes": ["m5.large"]}
    answer = fleet(
        ec2, pool(template(ec2), here(requirements), here({**requirements, "MemoryMiB": {"Min": 1}})), total=2
    )
    assert len(launched(answer)) == 2


@pytest.mark.parametrize(
    ("override", "code"),
    [
        (here({**SMALL, "AllowedInstanceTypes": ["none.*"]}), "InvalidParameterValue"),
        (here(SMALL, InstanceType=TYPE), "InvalidParameterCombination"),
        (
            here({**SMALL, "AllowedInstanceTypes": ["m5.*"], "ExcludedInstanceTypes": ["c5.*"]}),
            "InvalidParameterCombination",
        ),
    ],
)
def test_impossible_requirements_are_the_pools_error(ec2: Any, override: dict[str, Any], code: str) -> None:
    answer = fleet(ec2, pool(template(ec2), override))
    assert (launched(answer), codes(answer)) == ([], [code])


def test_the_list_is_refused_like_other_calls(ec2: Any) -> None:
    parameters = {
        "ArchitectureTypes": ["x86_64"],
        "VirtualizationTypes": ["hvm"],
        "InstanceRequirements": SMALL,
    }
    with refused("DryRunOperation", status=412):
        ec2.get_instance_types_from_instance_requirements(**parameters, DryRun=True)
    with refused("InvalidParameterValue", text="MaxResults"):
        ec2.get_instance_types_from_instance_requirements(**parameters, MaxResults=1001)
