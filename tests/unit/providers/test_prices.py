"""The price of an instance by its Region, platform, tenancy and purchase."""

from __future__ import annotations

from typing import Any

import pytest

from providers.aws.prices import shipped_types
from providers.model import InstanceType
from providers.prices import Product, region_code, usd_hour

TYPES = {
    "m5.large": InstanceType(
        name="m5.large",
        vcpus=2,
        memory_mib=8192,
        zones=frozenset({"us-east-1a", "us-east-1b", "us-east-1-bos-1a"}),
        on_demand_price=0.096,
        other_prices={"Windows": {"default": 0.188}, "Linux/UNIX": {"dedicated": 0.106}},
        spot_prices={"us-east-1a": 0.04, "us-east-1-bos-1a": 0.05},
    )
}


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize(
    ("given", "price"),
    [
        ({}, 0.096),
        ({"platform": "Windows"}, 0.188),
        ({"tenancy": "dedicated"}, 0.106),
        ({"spot": True}, 0.04),
        ({"spot": True, "zone": "us-east-1b"}, None),
        ({"platform": "Windows", "tenancy": "dedicated"}, None),
        ({"platform": "Red Hat Enterprise Linux"}, None),
        ({"platform": "Windows", "spot": True}, None),
        ({"tenancy": "dedicated", "spot": True}, None),
        ({"zone": "eu-west-1a"}, None),
        ({"zone": "us-east-1-bos-1a"}, None),
        ({"zone": "us-east-1-bos-1a", "spot": True}, 0.05),
        ({"zone": ""}, None),
        ({"zone": "use1-az4"}, 0.096),
        ({"zone": "euw1-az1"}, None),
        ({"zone": "use1-bos1-az1"}, None),
        ({"instance_type": "m9.large"}, None),
    ],
)
def test_a_price_is_that_of_the_product_or_unknown(given: dict[str, Any], price: float | None) -> None:
    product = Product(**{"instance_type": "m5.large", "zone": "us-east-1a"} | given)
    assert usd_hour(TYPES, product) == price


def test_the_shipped_table_knows_one_region_platform_and_tenancy() -> None:
    def shipped(**more: Any) -> float | None:
        product = Product(**{"instance_type": "p5.48xlarge", "zone": "us-east-1a"} | more)
        return usd_hour(shipped_types(), product)

    assert shipped() == 55.04 and shipped(zone="us-east-1f") == 55.04
    for other in ({"zone": "us-east-2a"}, {"platform": "Windows"}, {"tenancy": "dedicated"}, {"spot": True}):
        assert shipped(**other) is None, other


@pytest.mark.parametrize(
    ("zone", "code"),
    [
        ("us-east-1a", "use1"),
        ("use1-az4", "use1"),
        ("us-gov-west-1b", "usgw1"),
        ("ap-northeast-1c", "apne1"),
        ("ap-southeast-3b", "apse3"),
        ("cn-northwest-1a", "cnnw1"),
        ("eu-central-1a", "euc1"),
        ("mx-central-1b", "mxc1"),
        ("us-west-2-lax-1a", ""),
        ("usw2-lax1-az1", ""),
        ("us-east-1-wl1-bos-wlz-1", ""),
        ("use1-wl1-bos-wlz1", ""),
        ("", ""),
    ],
)
def test_a_zone_name_and_its_id_have_one_region(zone: str, code: str) -> None:
    assert region_code(zone) == code
